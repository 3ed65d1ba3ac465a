// Sums over the rows of a matrix[rows, width], in one order: a block takes a stretch of columns and a chunk of rows. Its
// warps take turns at the rows, its lanes have W columns each, so that a warp reads a run of a row; then the warps' sums
// are added up. `room` is shared, `columns_of<W>` figures per warp.

template <int W>
constexpr int columns_of = WARP * W;  // of a block's stretch

// Calls term(row, column, sums) for this thread's rows of [begin, end), which adds W columns' terms to each of SUMS sums;
// then put(sum, column, total) once for every sum and column. ROWS are read at once.
template <int W, int SUMS, int ROWS, class Term, class Put>
__device__ inline void each_column(Index begin, Index end, Index width, float *room, Term term, Put put) {
  const Index stretch = Index(blockIdx.x) * columns_of<W>, column = stretch + threadIdx.x % WARP * W;
  float sums[SUMS][W] = {};
  if (column < width) {
#pragma unroll(ROWS)
    for (Index row = begin + threadIdx.x / WARP; row < end; row += WARPS) term(row, column, sums);
  }
  for (int k = 0; k < SUMS; ++k) {
    __syncthreads();  // the sums before have been added up
    for (int j = 0; j < W; ++j) room[threadIdx.x * W + j] = sums[k][j];
    __syncthreads();
    if (threadIdx.x >= columns_of<W> || stretch + threadIdx.x >= width) continue;
    float total = 0.0f;
    for (int warp = 0; warp < WARPS; ++warp) total += room[warp * columns_of<W> + threadIdx.x];
    put(k, stretch + threadIdx.x, total);
  }
}
