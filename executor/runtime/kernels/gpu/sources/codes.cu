// Codes of eight bits, with one scale for a tensor: what scales follow from, the codes, and how products want them laid.
//
//   amax           x[n]        -> terms[gridDim.x] or out[], float             n elements read, n FLOP
//   largest_term   terms[n]    -> out[], float                                 n floats read, n FLOP
//   quantize_e4m3  x[n], amax[] -> codes[n], scale[]; terms[gridDim.x], seen[] or neither
//   quantize_e5m2                                                              n (element + 1) bytes, 2 or 3 n FLOP
//   arrange_codes  codes[rows, columns] -> codes[wide_rows, wide_columns], or what this is turned over, zeros behind
//                                                                              2 n bytes
//
// amax, scale and seen are floats on the device, none is a figure that the host knows. `wide` as in norm.cu.

constexpr int CODES_TILE = 64;  // rows and columns of codes that a block turns over

// As block_max; no number where one of them is none.
__device__ inline float block_larger(float value, float *room) {
  for (int step = WARP / 2; step > 0; step /= 2) value = larger(value, __shfl_xor_sync(ALL_LANES, value, step));
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = value;
  __syncthreads();
  float most = room[0];
  for (int warp = 1; warp < WARPS; ++warp) most = larger(most, room[warp]);
  return most;
}

// Calls visit(values, first) for this thread's share of x[n], over all blocks.
template <class Visit>
__device__ inline void each_of_all(const Element *x, Index n, int wide, Visit visit) {
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
#pragma unroll 2
  for (Index pack = thread; pack < packs; pack += threads) {
    float v[PACK];
    load<PACK>(x + pack * PACK, v);
    visit(v, pack * PACK);
  }
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) {
    const float v[1] = {widen(x[i])};
    visit(v, i);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    amax(const Element *x, float *terms, float *out, Index n, int wide) {
  __shared__ float room[WARPS];
  float top = 0.0f;
  each_of_all(x, n, wide, [&](const auto &values, Index) {
    for (const float value : values) top = larger(top, fabsf(value));
  });
  const float most = block_larger(top, room);
  if (threadIdx.x == 0) *(terms ? terms + blockIdx.x : out) = most;
}

// By one block.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) largest_term(const float *terms, float *out, Index n) {
  __shared__ float room[WARPS];
  float top = 0.0f;
  for (Index i = threadIdx.x; i < n; i += BLOCK) top = larger(top, terms[i]);
  const float most = block_larger(top, room);
  if (threadIdx.x == 0) *out = most;
}

// The scale is 1 where the largest magnitude is zero, or so small that its scale would be.
template <int DIGITS, int BIAS>
__device__ inline void quantize(const Element *x, const float *amax, unsigned char *codes, float *scale, float *terms,
                                float *seen, Index n, float most, int wide) {
  __shared__ float room[WARPS];
  const float wanted = *amax / most, by = wanted <= 0.0f ? 1.0f : wanted;
  float top = 0.0f;
  each_of_all(x, n, wide, [&](const auto &values, Index first) {
    constexpr int W = sizeof values / sizeof(float);
    Pack<W, unsigned char> made;
    for (int j = 0; j < W; ++j) {
      top = larger(top, fabsf(values[j]));
      made.of[j] = code_of<DIGITS, BIAS>(values[j] / by, most);
    }
    keep(made, codes + first);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = by;
  if (!seen) return;
  const float largest = block_larger(top, room);
  if (threadIdx.x == 0) *(terms ? terms + blockIdx.x : seen) = largest;
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    quantize_e4m3(const Element *x, const float *amax, unsigned char *codes, float *scale, float *terms, float *seen,
                  Index n, int wide) {
  quantize<DIGITS_E4M3, BIAS_E4M3>(x, amax, codes, scale, terms, seen, n, MOST_E4M3, wide);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    quantize_e5m2(const Element *x, const float *amax, unsigned char *codes, float *scale, float *terms, float *seen,
                  Index n, int wide) {
  quantize<DIGITS_E5M2, BIAS_E5M2>(x, amax, codes, scale, terms, seen, n, MOST_E5M2, wide);
}

// A block for each tile of what is wide, row after row of tiles.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    arrange_codes(const unsigned char *from, unsigned char *to, int turned, Index rows, Index columns, Index wide_rows,
                  Index wide_columns) {
  __shared__ unsigned char tile[CODES_TILE][CODES_TILE + 4];
  const Index across = (wide_columns + CODES_TILE - 1) / CODES_TILE;
  const Index row = blockIdx.x / across * CODES_TILE, column = blockIdx.x % across * CODES_TILE;
  const int x = threadIdx.x % CODES_TILE;
  for (int y = threadIdx.x / CODES_TILE; y < CODES_TILE; y += BLOCK / CODES_TILE)
    tile[y][x] = row + y < rows && column + x < columns ? from[(row + y) * columns + column + x] : 0;
  __syncthreads();
  for (int y = threadIdx.x / CODES_TILE; y < CODES_TILE; y += BLOCK / CODES_TILE) {
    const Index r = row + (turned ? x : y), c = column + (turned ? y : x);
    if (r < wide_rows && c < wide_columns) to[turned ? c * wide_rows + r : r * wide_columns + c] = tile[r - row][c - column];
  }
}
