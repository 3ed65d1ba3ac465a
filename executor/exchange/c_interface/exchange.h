/* The gradient exchange for C: one process is one rank, started by mpiexec.
 *
 * Every call gives 0 or more when it went well. What is wrong is told on stderr: where MPI runs, from exchange_init on,
 * it ends all ranks, as an exception in Python does; before that, and in a process alone, the call gives -1.
 * The library runs Python inside, and is called by one thread at a time.
 */
#ifndef SBPLAN_EXCHANGE_H
#define SBPLAN_EXCHANGE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int exchange_init(void);
int exchange_shutdown(void);
int exchange_rank(void);
int exchange_size(void);
int exchange_local_rank(void);
int exchange_local_size(void);

/* Sum (mean = 0) or average (mean = 1) `count` floats over all ranks, in place. `name` is alike on all ranks. */
int exchange_all_reduce(const char *name, float *values, size_t count, int mean);

/* Fill `count` floats with those of rank `root`. */
int exchange_broadcast(const char *name, float *values, size_t count, int root);

#ifdef __cplusplus
}
#endif
#endif
