// Sums in one order: what blocks left as terms, the squares of a tensor, the rows of a matrix.
//
//   sum_terms   terms[count, width], float -> out[width]           count width floats read, as many FLOP
//   square_sum  x[n]                       -> terms[gridDim.x]     n elements read, 2 n FLOP
//   row_sums    x[rows, width]             -> out[rows], float     n elements read, n FLOP

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sum_terms(const float *terms, Element *out, Index count, Index width) {
  const Index column = Index(blockIdx.x) * BLOCK + threadIdx.x;
  if (column >= width) return;
  float total = 0.0f;
  for (Index term = 0; term < count; ++term) total += terms[term * width + column];
  narrow(total, out[column]);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) square_sum(const Element *x, float *terms, Index n, int wide) {
  __shared__ float room[WARPS];
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  float sum = 0.0f;
  for (Index pack = thread; pack < packs; pack += threads) {
    float v[PACK];
    load<PACK>(x + pack * PACK, v);
    for (int j = 0; j < PACK; ++j) sum += v[j] * v[j];
  }
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) sum += widen(x[i]) * widen(x[i]);
  const float total = block_sum(sum, room);
  if (threadIdx.x == 0) terms[blockIdx.x] = total;
}

template <int W>
__device__ inline float row_sum(const Element *x, Index width, float *room) {
  float sum = 0.0f;
  each_of_row<W>(x, width, [&](const float(&v)[W], Index) {
    for (int j = 0; j < W; ++j) sum += v[j];
  });
  return block_sum(sum, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) row_sums(const Element *x, float *out, Index width, int wide) {
  __shared__ float room[WARPS];
  const Element *row = x + blockIdx.x * width;
  const float total = wide ? row_sum<PACK>(row, width, room) : row_sum<1>(row, width, room);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}
