// Softmax and its logarithm over rows of x[rows, width], a block per row; and their gradients from their own outputs.
//
//   softmax, log_softmax            x     -> y     2 n elements, 8 n FLOP
//   softmax_grad, log_softmax_grad  dy, y -> dx    3 n elements, 4 n FLOP
//
// n = rows width; `wide` as in norm.cu. A result may be written over an operand: each thread reads what it writes.

template <int W, bool LOG>
__device__ inline void softmax_row(const Element *x, Element *y, Index width, float *room) {
  const Rows<1, W, 4> row({x}, width);
  float top = widen(x[0]);
  row.each([&](const float(&v)[1][W], int) {
    for (int j = 0; j < W; ++j) top = fmaxf(top, v[0][j]);
  });
  top = block_max(top, room);
  float sum = 0.0f;
  row.each([&](const float(&v)[1][W], int) {
    for (int j = 0; j < W; ++j) sum += expf(v[0][j] - top);
  });
  const float total = block_sum(sum, room);
  const float log_total = logf(total), share = 1.0f / total;
  row.each([&](const float(&v)[1][W], int column) {
    float out[W];
    for (int j = 0; j < W; ++j) out[j] = LOG ? v[0][j] - top - log_total : expf(v[0][j] - top) * share;
    store<W>(y + column, out);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) softmax(const Element *x, Element *y, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index at = blockIdx.x * width;
  if (wide)
    softmax_row<PACK, false>(x + at, y + at, width, room);
  else
    softmax_row<1, false>(x + at, y + at, width, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) log_softmax(const Element *x, Element *y, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index at = blockIdx.x * width;
  if (wide)
    softmax_row<PACK, true>(x + at, y + at, width, room);
  else
    softmax_row<1, true>(x + at, y + at, width, room);
}

// dx = y (dy - sum(dy y)); of the logarithm, dx = dy - exp(y) sum(dy). The sums are in double, for what is common to all
// of dy cancels.
template <int W, bool LOG>
__device__ inline void softmax_grad_row(const Element *dy, const Element *y, Element *dx, Index width, double *room) {
  const Rows<2, W, 2> rows({dy, y}, width);
  double sum = 0.0;
  rows.each([&](const float(&v)[2][W], int) {
    for (int j = 0; j < W; ++j) sum += LOG ? v[0][j] : double(v[0][j]) * v[1][j];
  });
  const double total = block_sum(sum, room);
  rows.each([&](const float(&v)[2][W], int column) {
    float out[W];
    for (int j = 0; j < W; ++j)
      out[j] = LOG ? v[0][j] - expf(v[1][j]) * float(total) : v[1][j] * float(v[0][j] - total);
    store<W>(dx + column, out);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    softmax_grad(const Element *dy, const Element *y, Element *dx, Index width, int wide) {
  __shared__ double room[WARPS];
  const Index at = blockIdx.x * width;
  if (wide)
    softmax_grad_row<PACK, false>(dy + at, y + at, dx + at, width, room);
  else
    softmax_grad_row<1, false>(dy + at, y + at, dx + at, width, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    log_softmax_grad(const Element *dy, const Element *y, Element *dx, Index width, int wide) {
  __shared__ double room[WARPS];
  const Index at = blockIdx.x * width;
  if (wide)
    softmax_grad_row<PACK, true>(dy + at, y + at, dx + at, width, room);
  else
    softmax_grad_row<1, true>(dy + at, y + at, dx + at, width, room);
}
