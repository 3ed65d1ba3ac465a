// Nonlinear functions of each element, and their gradients. `wide` says that all operands lie at multiples of 16 bytes.
//
//   gelu, gelu_exact, silu                 x            -> y     2 n elements, 8, 8, 7 n FLOP
//   logarithm                              x            -> y     2 n elements, 4 n FLOP
//   gelu_grad, gelu_exact_grad, silu_grad  dy, x        -> dx    3 n elements, 16, 16, 11 n FLOP
//   swiglu                                 gate, up     -> y     3 n elements, 8 n FLOP      silu(gate) up
//   swiglu_grad                            dy, gate, up -> dgate, dup    5 n elements, 15 n FLOP
//   bounded_swiglu                         gate, up     -> y     3 n elements, 10 n FLOP
//   bounded_swiglu_dgate, _dup             dy, gate, up -> one   4 n elements, 14, 9 n FLOP
//
// Of ragged rows (ragged.cuh), n = elements of those that there are, and 8 bytes of each row's cell, read and written:
// gelu_, gelu_grad_, silu_, silu_grad_, swiglu_, swiglu_grad_, bounded_swiglu_, bounded_swiglu_dgate_ and _dup_rows.

constexpr float GELU_C = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float GELU_A = 0.044715f;
constexpr float SQRT_HALF = 0.7071067811865476f;
constexpr float INVERSE_SQRT_2PI = 0.3989422804014327f;
constexpr float ALPHA = 1.702f;

// (1 + tanh(x / 2)) / 2, which overflows nowhere.
__device__ inline float sigmoid(float x) { return 0.5f * tanhf(0.5f * x) + 0.5f; }

// exp(-x^2 / 2).
__device__ inline float bell(float x) { return expf(-0.5f * x * x); }

// The share of a normal distribution below x, by bell(x): Abramowitz and Stegun 1964, formula 7.1.26, off by 1e-7.
__device__ inline float share_below(float x, float bell) {
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * SQRT_HALF * fabsf(x));
  const float sum = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
  const float tail = 0.5f * t * sum * bell;
  return x < 0.0f ? tail : 1.0f - tail;
}

__device__ inline float silu_slope(float x) {
  const float s = sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

struct Gelu {
  __device__ float operator()(const float (&v)[1]) const {
    return 0.5f * v[0] * (1.0f + tanhf(GELU_C * (1.0f + GELU_A * v[0] * v[0]) * v[0]));
  }
};
struct GeluGrad {
  __device__ float operator()(const float (&v)[2]) const {
    const float square = v[1] * v[1], tanh = tanhf(GELU_C * (1.0f + GELU_A * square) * v[1]);
    const float inner = GELU_C * (1.0f + 3.0f * GELU_A * square) * v[1];
    return 0.5f * (1.0f + tanh + (1.0f - tanh * tanh) * inner) * v[0];
  }
};
struct Silu {
  __device__ float operator()(const float (&v)[1]) const { return v[0] * sigmoid(v[0]); }
};
struct SiluGrad {
  __device__ float operator()(const float (&v)[2]) const { return v[0] * silu_slope(v[1]); }
};
struct Swiglu {
  __device__ float operator()(const float (&v)[2]) const { return v[0] * sigmoid(v[0]) * v[1]; }
};

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) gelu(const Element *x, Element *y, Index n, int wide) {
  each<1>({x}, y, n, wide, Gelu());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gelu_rows(const Index *index, const Element *x, Index *held, Element *y, Index width, Index lead, int wide) {
  each_of_rows<1>(index, {x}, held, y, width, lead, wide, Gelu());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gelu_grad(const Element *dy, const Element *x, Element *dx, Index n, int wide) {
  each<2>({dy, x}, dx, n, wide, GeluGrad());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gelu_grad_rows(const Index *index, const Element *dy, const Element *x, Index *held, Element *dx, Index width,
                   Index lead, int wide) {
  each_of_rows<2>(index, {dy, x}, held, dx, width, lead, wide, GeluGrad());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) logarithm(const Element *x, Element *y, Index n, int wide) {
  each<1>({x}, y, n, wide, [](const float(&v)[1]) { return logf(v[0]); });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) gelu_exact(const Element *x, Element *y, Index n, int wide) {
  each<1>({x}, y, n, wide, [](const float(&v)[1]) { return v[0] * share_below(v[0], bell(v[0])); });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gelu_exact_grad(const Element *dy, const Element *x, Element *dx, Index n, int wide) {
  each<2>({dy, x}, dx, n, wide, [](const float(&v)[2]) {
    const float height = bell(v[1]);
    return (share_below(v[1], height) + v[1] * height * INVERSE_SQRT_2PI) * v[0];
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) silu(const Element *x, Element *y, Index n, int wide) {
  each<1>({x}, y, n, wide, Silu());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    silu_rows(const Index *index, const Element *x, Index *held, Element *y, Index width, Index lead, int wide) {
  each_of_rows<1>(index, {x}, held, y, width, lead, wide, Silu());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    silu_grad(const Element *dy, const Element *x, Element *dx, Index n, int wide) {
  each<2>({dy, x}, dx, n, wide, SiluGrad());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    silu_grad_rows(const Index *index, const Element *dy, const Element *x, Index *held, Element *dx, Index width,
                   Index lead, int wide) {
  each_of_rows<2>(index, {dy, x}, held, dx, width, lead, wide, SiluGrad());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    swiglu(const Element *gate, const Element *up, Element *y, Index n, int wide) {
  each<2>({gate, up}, y, n, wide, Swiglu());
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    swiglu_rows(const Index *index, const Element *gate, const Element *up, Index *held, Element *y, Index width,
                Index lead, int wide) {
  each_of_rows<2>(index, {gate, up}, held, y, width, lead, wide, Swiglu());
}

// Both gradients of each element, as `each` makes one.
__device__ inline void swiglu_gradients(const Element *dy, const Element *gate, const Element *up, Element *dgate,
                                        Element *dup, Index n, int wide) {
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  for (Index pack = thread; pack < packs; pack += threads) {
    float d[PACK], g[PACK], u[PACK], to_gate[PACK], to_up[PACK];
    load<PACK>(dy + pack * PACK, d);
    load<PACK>(gate + pack * PACK, g);
    load<PACK>(up + pack * PACK, u);
    for (int j = 0; j < PACK; ++j) {
      to_gate[j] = d[j] * u[j] * silu_slope(g[j]);
      to_up[j] = d[j] * g[j] * sigmoid(g[j]);
    }
    store<PACK>(dgate + pack * PACK, to_gate);
    store<PACK>(dup + pack * PACK, to_up);
  }
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) {
    const float d = widen(dy[i]), g = widen(gate[i]), u = widen(up[i]);
    narrow(d * u * silu_slope(g), dgate[i]);
    narrow(d * g * sigmoid(g), dup[i]);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    swiglu_grad(const Element *dy, const Element *gate, const Element *up, Element *dgate, Element *dup, Index n,
                int wide) {
  swiglu_gradients(dy, gate, up, dgate, dup, n, wide);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    swiglu_grad_rows(const Index *index, const Element *dy, const Element *gate, const Element *up, Index *held_gate,
                     Element *dgate, Index *held_up, Element *dup, Index width, Index lead, int wide) {
  hold_cells(index, held_gate);
  hold_cells(index, held_up);
  const Index n = index[0] * width, ahead = lead < n ? lead : n;
  swiglu_gradients(dy, gate, up, dgate, dup, ahead, 0);
  swiglu_gradients(dy + ahead, gate + ahead, up + ahead, dgate + ahead, dup + ahead, n - ahead, wide);
}

struct BoundedSwiglu {
  float limit;

  __device__ float operator()(const float (&v)[2]) const {
    const float g = fminf(v[0], limit);
    return (fminf(fmaxf(v[1], -limit), limit) + 1.0f) * g * sigmoid(ALPHA * g);
  }
};
// Nothing where the bound holds: dy (u + 1) s (1 + alpha g (1 - s)).
struct BoundedGateGrad {
  float limit;

  __device__ float operator()(const float (&v)[3]) const {
    const float g = fminf(v[1], limit), s = sigmoid(ALPHA * g);
    const float slope = v[1] <= limit ? s * (1.0f + ALPHA * g * (1.0f - s)) : 0.0f;
    return v[0] * (fminf(fmaxf(v[2], -limit), limit) + 1.0f) * slope;
  }
};
// Nothing where a bound holds: dy g s.
struct BoundedUpGrad {
  float limit;

  __device__ float operator()(const float (&v)[3]) const {
    const float g = fminf(v[1], limit);
    return fabsf(v[2]) <= limit ? v[0] * g * sigmoid(ALPHA * g) : 0.0f;
  }
};

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu(const Element *gate, const Element *up, Element *y, float limit, Index n, int wide) {
  each<2>({gate, up}, y, n, wide, BoundedSwiglu{limit});
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu_rows(const Index *index, const Element *gate, const Element *up, Index *held, Element *y, float limit,
                        Index width, Index lead, int wide) {
  each_of_rows<2>(index, {gate, up}, held, y, width, lead, wide, BoundedSwiglu{limit});
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu_dgate(const Element *dy, const Element *gate, const Element *up, Element *dgate, float limit,
                         Index n, int wide) {
  each<3>({dy, gate, up}, dgate, n, wide, BoundedGateGrad{limit});
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu_dgate_rows(const Index *index, const Element *dy, const Element *gate, const Element *up, Index *held,
                              Element *dgate, float limit, Index width, Index lead, int wide) {
  each_of_rows<3>(index, {dy, gate, up}, held, dgate, width, lead, wide, BoundedGateGrad{limit});
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu_dup(const Element *dy, const Element *gate, const Element *up, Element *dup, float limit, Index n,
                       int wide) {
  each<3>({dy, gate, up}, dup, n, wide, BoundedUpGrad{limit});
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    bounded_swiglu_dup_rows(const Index *index, const Element *dy, const Element *gate, const Element *up, Index *held,
                            Element *dup, float limit, Index width, Index lead, int wide) {
  each_of_rows<3>(index, {dy, gate, up}, held, dup, width, lead, wide, BoundedUpGrad{limit});
}
