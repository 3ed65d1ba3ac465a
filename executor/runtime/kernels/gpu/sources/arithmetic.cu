// Sums, differences, products and quotients of tensors, rounded once.
//
//   add_alike, sub_, mul_, div_    x, y  -> out    3 n elements, n FLOP                    operands of one shape
//   add_spread, sub_, mul_, div_   x, y  -> out    n elements and the operands', n FLOP     by NumPy's broadcasting
//   add_n                          terms -> out    (count + 1) n elements, (count - 1) n FLOP
//
//   mul_rows                       x, y  -> out    3 n elements, n FLOP                    of ragged rows (ragged.cuh)
//   add_n_rows                     terms -> out    (count + 1) n elements, (count - 1) n FLOP          likewise
//
// n = elements of the result; of a ragged row, its cell is read and written besides. `wide` says that all operands lie at multiples of 16 bytes, and runs of a spread result,
// too. out may be an operand of its shape.

constexpr int TERMS = 32;

struct Terms {
  const Element *of[TERMS];
};

struct Sum {
  __device__ float operator()(const float (&v)[2]) const { return v[0] + v[1]; }
};
struct Difference {
  __device__ float operator()(const float (&v)[2]) const { return v[0] - v[1]; }
};
struct Product {
  __device__ float operator()(const float (&v)[2]) const { return v[0] * v[1]; }
};
struct Quotient {
  __device__ float operator()(const float (&v)[2]) const { return v[0] / v[1]; }
};

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    add_alike(const Element *x, const Element *y, Element *out, Index n, int wide) {
  each<2>({x, y}, out, n, wide, Sum());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sub_alike(const Element *x, const Element *y, Element *out, Index n, int wide) {
  each<2>({x, y}, out, n, wide, Difference());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    mul_alike(const Element *x, const Element *y, Element *out, Index n, int wide) {
  each<2>({x, y}, out, n, wide, Product());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    mul_rows(const Index *index, const Element *x, const Element *y, Index *held, Element *out, Index width, Index lead,
             int wide) {
  each_of_rows<2>(index, {x, y}, held, out, width, lead, wide, Product());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    div_alike(const Element *x, const Element *y, Element *out, Index n, int wide) {
  each<2>({x, y}, out, n, wide, Quotient());
}

// How far an operand goes on for each of the result's three dims, in elements; 0 along a dim that it is spread over.
struct Steps {
  Index outer, middle, inner;
};

template <int W>
__device__ inline void load_spread(const Element *from, Steps steps, unsigned outer, unsigned middle, unsigned inner,
                                   float (&into)[W]) {
  const Element *at = from + outer * steps.outer + middle * steps.middle;
  if (steps.inner) {
    load<W>(at + inner, into);
  } else {
    const float value = widen(*at);
    for (int j = 0; j < W; ++j) into[j] = value;
  }
}

// Over the result[., middle, inner], W elements at a time. Positions have 32 bits, for they are divided.
template <int W, class Function>
__device__ inline void spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, unsigned middle,
                              unsigned inner, unsigned n, Function function) {
  const unsigned packs = n / W, in_run = inner / W, threads = gridDim.x * BLOCK;
  for (unsigned pack = blockIdx.x * BLOCK + threadIdx.x; pack < packs; pack += threads) {
    const unsigned run = pack / in_run, column = (pack - run * in_run) * W;
    const unsigned outer = run / middle, between = run - outer * middle;
    float v[2][W], results[W];
    load_spread<W>(x, of_x, outer, between, column, v[0]);
    load_spread<W>(y, of_y, outer, between, column, v[1]);
    for (int j = 0; j < W; ++j) results[j] = function({v[0][j], v[1][j]});
    store<W>(out + Index(pack) * W, results);
  }
}

template <class Function>
__device__ inline void spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, int middle,
                              int inner, int n, int wide, Function function) {
  if (wide)
    spread<PACK>(x, y, out, of_x, of_y, middle, inner, n, function);
  else
    spread<1>(x, y, out, of_x, of_y, middle, inner, n, function);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    add_spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, int middle, int inner, int n,
               int wide) {
  spread(x, y, out, of_x, of_y, middle, inner, n, wide, Sum());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sub_spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, int middle, int inner, int n,
               int wide) {
  spread(x, y, out, of_x, of_y, middle, inner, n, wide, Difference());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    mul_spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, int middle, int inner, int n,
               int wide) {
  spread(x, y, out, of_x, of_y, middle, inner, n, wide, Product());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    div_spread(const Element *x, const Element *y, Element *out, Steps of_x, Steps of_y, int middle, int inner, int n,
               int wide) {
  spread(x, y, out, of_x, of_y, middle, inner, n, wide, Quotient());
}

template <int W>
__device__ inline void add_terms(const Terms &terms, int count, Element *out, Index at) {
  float total[W];
  load<W>(terms.of[0] + at, total);
#pragma unroll  // so that the terms stay where parameters are
  for (int k = 1; k < TERMS; ++k) {
    if (k >= count) break;
    float term[W];
    load<W>(terms.of[k] + at, term);
    for (int j = 0; j < W; ++j) total[j] += term[j];
  }
  store<W>(out + at, total);
}

// Of elements [begin, end).
__device__ inline void add_stretch(const Terms &terms, int count, Element *out, Index begin, Index end, int wide) {
  const Index packs = wide ? (end - begin) / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  for (Index pack = thread; pack < packs; pack += threads) add_terms<PACK>(terms, count, out, begin + pack * PACK);
#pragma unroll 1
  for (Index i = begin + packs * PACK + thread; i < end; i += threads) add_terms<1>(terms, count, out, i);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    add_n(Terms terms, int count, Element *out, Index n, int wide) {
  add_stretch(terms, count, out, 0, n, wide);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    add_n_rows(const Index *index, Terms terms, int count, Index *held, Element *out, Index width, Index lead, int wide) {
  hold_cells(index, held);
  const Index n = index[0] * width, ahead = lead < n ? lead : n;
  add_stretch(terms, count, out, 0, ahead, 0);
  add_stretch(terms, count, out, ahead, n, wide);
}
