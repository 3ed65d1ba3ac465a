/* Ranks average their numbers: mpiexec -n 2 ./average */
#include <stdio.h>

#include "exchange.h"

int main(void) {
    if (exchange_init() != 0) return 1;
    int rank = exchange_rank(), size = exchange_size();
    float values[3] = {rank, 10.0f * rank, -1.0f}, root[2] = {rank, rank};
    if (exchange_all_reduce("values", values, 3, 1) != 0) return 1;
    if (exchange_broadcast("root", root, 2, size - 1) != 0) return 1;
    char line[200];
    int length = snprintf(line, sizeof line, "%d of %d (%d of %d): %g %g %g %g\n", rank, size, exchange_local_rank(),
                          exchange_local_size(), values[0], values[1], values[2], root[1]);
    fwrite(line, 1, length, stdout);
    fflush(stdout);
    return exchange_shutdown() == 0 ? 0 : 1;
}
