// Layer norm and RMS norm over rows of x[rows, width], a block per row.
//
//   layer_norm       x, gain[width], bias[width] -> y, mean[rows], rstd[rows]   2 n elements of bytes, 8 n FLOP
//   rms_norm         x, gain                     -> y, rstd                     2 n elements,          4 n FLOP
//
// n = rows width. Statistics are float. `wide` says that
// rows lie at multiples of sixteen bytes. Sums are taken of what differs from a row's first element, so that a common
// offset costs no digits.

template <int W, bool CENTRED>
__device__ inline void norm_row(const Element *x, const Element *gain, const Element *bias, Element *y, float *mean,
                                float *rstd, Index width, float epsilon, float *room) {
  const Rows<1, W, 4> row({x}, width);
  const float origin = CENTRED ? widen(x[0]) : 0.0f;
  float shift = 0.0f;
  if (CENTRED) {
    float sum = 0.0f;
    row.each([&](const float(&v)[1][W], int) {
      for (int j = 0; j < W; ++j) sum += v[0][j] - origin;
    });
    shift = block_sum(sum, room) / width;
  }
  float squares = 0.0f;
  row.each([&](const float(&v)[1][W], int) {
    for (int j = 0; j < W; ++j) {
      const float centred = v[0][j] - origin - shift;
      squares += centred * centred;
    }
  });
  const float scale = 1.0f / sqrtf(block_sum(squares, room) / width + epsilon);
  row.each([&](const float(&v)[1][W], int column) {
    float g[W], b[W], out[W];
    load<W>(gain + column, g);
    if (CENTRED) load<W>(bias + column, b);
    for (int j = 0; j < W; ++j) out[j] = (v[0][j] - origin - shift) * scale * g[j] + (CENTRED ? b[j] : 0.0f);
    store<W>(y + column, out);
  });
  if (threadIdx.x == 0) {
    if (CENTRED) *mean = origin + shift;
    *rstd = scale;
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    layer_norm(const Element *x, const Element *gain, const Element *bias, Element *y, float *mean, float *rstd,
               Index width, float epsilon, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_row<PACK, true>(x + at, gain, bias, y + at, mean + row, rstd + row, width, epsilon, room);
  else
    norm_row<1, true>(x + at, gain, bias, y + at, mean + row, rstd + row, width, epsilon, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) rms_norm(const Element *x, const Element *gain, Element *y,
                                                             float *rstd, Index width, float epsilon, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_row<PACK, false>(x + at, gain, nullptr, y + at, nullptr, rstd + row, width, epsilon, room);
  else
    norm_row<1, false>(x + at, gain, nullptr, y + at, nullptr, rstd + row, width, epsilon, room);
}
