// Layer norm and RMS norm over rows of x[rows, width], a block per row; and their gradients.
//
//   layer_norm       x, gain[width], bias[width] -> y, mean[rows], rstd[rows]   2 n elements of bytes, 8 n FLOP
//   rms_norm         x, gain                     -> y, rstd                     2 n elements,          4 n FLOP
//   layer_norm_dx    x, gain, mean, rstd, dy     -> dx                          3 n elements,         10 n FLOP
//   rms_norm_dx      x, gain, rstd, dy           -> dx                          3 n elements,          8 n FLOP
//   norm_columns     x, mean, rstd, dy           -> terms[2, chunks, width]     2 n elements,          4 n FLOP
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

// With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)); RMS norm has neither mean.
template <int W, bool CENTRED>
__device__ inline void norm_dx_row(const Element *x, const Element *gain, float mean, float rstd, const Element *dy,
                                   Element *dx, Index width, float *room) {
  const Rows<2, W, 2> rows({x, dy}, width);
  float sum = 0.0f, product = 0.0f;
  rows.each([&](const float(&v)[2][W], int column) {
    float g[W];
    load<W>(gain + column, g);
    for (int j = 0; j < W; ++j) {
      sum += v[1][j] * g[j];
      product += v[1][j] * g[j] * ((v[0][j] - mean) * rstd);
    }
  });
  const float sum_share = CENTRED ? block_sum(sum, room) / width : 0.0f;
  const float product_share = block_sum(product, room) / width;
  rows.each([&](const float(&v)[2][W], int column) {
    float g[W], out[W];
    load<W>(gain + column, g);
    for (int j = 0; j < W; ++j)
      out[j] = rstd * (v[1][j] * g[j] - sum_share - (v[0][j] - mean) * rstd * product_share);
    store<W>(dx + column, out);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    layer_norm_dx(const Element *x, const Element *gain, const float *mean, const float *rstd, const Element *dy,
                  Element *dx, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_dx_row<PACK, true>(x + at, gain, mean[row], rstd[row], dy + at, dx + at, width, room);
  else
    norm_dx_row<1, true>(x + at, gain, mean[row], rstd[row], dy + at, dx + at, width, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) rms_norm_dx(const Element *x, const Element *gain,
                                                                const float *rstd, const Element *dy, Element *dx,
                                                                Index width, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_dx_row<PACK, false>(x + at, gain, 0.0f, rstd[row], dy + at, dx + at, width, room);
  else
    norm_dx_row<1, false>(x + at, gain, 0.0f, rstd[row], dy + at, dx + at, width, room);
}

// Terms of dgain = sum over rows of dy h and, where there is a mean, of dbias = sum of dy: of a chunk of rows per
// blockIdx.y. `sum_terms` adds the chunks up.
template <int W, int SUMS>
__device__ inline void norm_columns_of(const Element *x, const float *mean, const float *rstd, const Element *dy,
                                       float *terms, Index rows, Index width, Index chunk, float *room) {
  const Index begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  const auto term = [&](Index row, Index column, float(&sums)[SUMS][W]) {
    float v[W], d[W];
    load<W>(x + row * width + column, v);
    load<W>(dy + row * width + column, d);
    const float centre = SUMS > 1 ? mean[row] : 0.0f, scale = rstd[row];
    for (int j = 0; j < W; ++j) {
      sums[0][j] += d[j] * ((v[j] - centre) * scale);
      if (SUMS > 1) sums[SUMS - 1][j] += d[j];
    }
  };
  const auto put = [&](int sum, Index column, float total) {
    terms[(sum * gridDim.y + blockIdx.y) * width + column] = total;
  };
  each_column<W, SUMS, 2>(begin, end, width, room, term, put);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    norm_columns(const Element *x, const float *mean, const float *rstd, const Element *dy, float *terms, Index rows,
                 Index width, Index chunk, int wide) {
  __shared__ float room[BLOCK * PACK];
  if (wide && mean)
    norm_columns_of<PACK, 2>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else if (wide)
    norm_columns_of<PACK, 1>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else if (mean)
    norm_columns_of<1, 2>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else
    norm_columns_of<1, 1>(x, mean, rstd, dy, terms, rows, width, chunk, room);
}
