// Sums in one order: what blocks left as terms, the squares of a tensor, columns and rows of a matrix; largest of rows.
//
//   sum_terms    terms[1 or 2, count, width], float -> out[width], second   count width floats read, as many FLOP
//   square_sum   x[n]           -> terms[gridDim.x], float, or out[]     n elements read, 2 n FLOP
//   total_terms  terms[n]       -> out[]                                 n floats read, n FLOP
//   column_sums  x[rows, width] -> terms[chunks, width] or out[width]    n elements read, n FLOP
//   row_sums     x[rows, width] -> out[rows], float                      n elements read, n FLOP
//   row_totals   x[rows, width] -> out[rows]                             n elements read, n FLOP
//   row_max      x[rows, width] -> out[rows]                             n elements read, n FLOP
//
// n = rows width; `wide` as in loss.cu for rows, as in norm.cu for columns.

// blockIdx.y = 1 makes the second sum.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sum_terms(const float *terms, Element *out, Element *second, Index count, Index width) {
  __shared__ float room[BLOCK];
  const float *from = terms + blockIdx.y * count * width;
  Element *into = blockIdx.y ? second : out;
  const auto term = [&](Index row, Index column, float(&sums)[1][1]) { sums[0][0] += from[row * width + column]; };
  const auto put = [&](int, Index column, float total) { narrow(total, into[column]); };
  each_column<1, 1, 8>(0, count, width, room, term, put);
}

// Terms, or the sums themselves where there is one chunk.
template <int W>
__device__ inline void column_sums_of(const Element *x, float *terms, Element *out, Index rows, Index width,
                                      Index chunk, float *room) {
  const Index begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  const auto term = [&](Index row, Index column, float(&sums)[1][W]) {
    float v[W];
    load<W>(x + row * width + column, v);
    for (int j = 0; j < W; ++j) sums[0][j] += v[j];
  };
  const auto put = [&](int, Index column, float total) {
    if (terms)
      terms[blockIdx.y * width + column] = total;
    else
      narrow(total, out[column]);
  };
  each_column<W, 1, 4>(begin, end, width, room, term, put);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    column_sums(const Element *x, float *terms, Element *out, Index rows, Index width, Index chunk, int wide) {
  __shared__ float room[BLOCK * PACK];
  if (wide)
    column_sums_of<PACK>(x, terms, out, rows, width, chunk, room);
  else
    column_sums_of<1>(x, terms, out, rows, width, chunk, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    square_sum(const Element *x, float *terms, Element *out, Index n, int wide) {
  __shared__ float room[WARPS];
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  float sum = 0.0f;
#pragma unroll 4
  for (Index pack = thread; pack < packs; pack += threads) {
    float v[PACK];
    load<PACK>(x + pack * PACK, v);
    for (int j = 0; j < PACK; ++j) sum += v[j] * v[j];
  }
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) sum += widen(x[i]) * widen(x[i]);
  const float total = block_sum(sum, room);
  if (threadIdx.x > 0) return;
  if (terms)
    terms[blockIdx.x] = total;
  else
    narrow(total, *out);
}

// By one block.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) total_terms(const float *terms, Element *out, Index n) {
  __shared__ float room[WARPS];
  float sum = 0.0f;
  for (Index i = threadIdx.x; i < n; i += BLOCK) sum += terms[i];
  const float total = block_sum(sum, room);
  if (threadIdx.x == 0) narrow(total, *out);
}

__device__ inline float row_sum(const Element *x, Index width, int wide, float *room) {
  float sum = 0.0f;
  each_of_ragged_row(x, width, wide, [&](const auto &values, Index) {
    for (const float value : values) sum += value;
  });
  return block_sum(sum, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) row_sums(const Element *x, float *out, Index width, int wide) {
  __shared__ float room[WARPS];
  const float total = row_sum(x + blockIdx.x * width, width, wide, room);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    row_totals(const Element *x, Element *out, Index width, int wide) {
  __shared__ float room[WARPS];
  const float total = row_sum(x + blockIdx.x * width, width, wide, room);
  if (threadIdx.x == 0) narrow(total, out[blockIdx.x]);
}

// No number where one of the row is none.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) row_max(const Element *x, Element *out, Index width, int wide) {
  __shared__ float room[WARPS];
  const Element *row = x + blockIdx.x * width;
  float top = widen(row[0]), strange = 0.0f;
  each_of_ragged_row(row, width, wide, [&](const auto &values, Index) {
    for (const float value : values) {
      top = fmaxf(top, value);
      strange += value != value ? 1.0f : 0.0f;
    }
  });
  const float most = block_max(top, room), none = block_max(strange, room);
  if (threadIdx.x == 0) narrow(none > 0.0f ? nanf("") : most, out[blockIdx.x]);
}
