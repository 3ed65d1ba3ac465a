// Casts with a scale: to float, from float, and to and from the eight bits of E4M3.
//
//   widen_to_float  x[n], scale or none -> float[n]      n (element + 4) bytes, n FLOP
//   narrow_float    float[n], scale or none -> y[n]      n (4 + element) bytes, n FLOP
//   to_e4m3         x[n], scale or none -> bytes[n]      n (element + 1) bytes, n FLOP
//   from_e4m3       bytes[n], scale or none -> y[n]      n (1 + element) bytes, n FLOP
//
// `scale` is a float on the device that multiplies what is read. E4M3 is of Micikevicius et al. 2022 (arXiv:2209.05433),
// table 1: no infinities; what is too large becomes 448, as a scale that is out of date must not make a NaN.

constexpr int BIAS_E4M3 = 7;
constexpr float MOST_E4M3 = 448.0f;

constexpr int FLOATS = 4;  // of sixteen bytes: neither side is in wider vectors, so that warps write runs without gaps
constexpr int CASTS = 4;  // vectors that a thread reads before it writes them

template <int W, class From, class To>
__device__ inline void cast_stretch(const From *x, To *y, Index begin, Index end, float scale) {
  const Index stride = Index(gridDim.x) * BLOCK * W;
#pragma unroll 1
  for (Index i = begin + (Index(blockIdx.x) * BLOCK + threadIdx.x) * W; i < end; i += CASTS * stride) {
    Pack<W, From> packs[CASTS];
#pragma unroll
    for (int k = 0; k < CASTS; ++k)
      if (i + k * stride < end) packs[k] = fetch<W>(x + i + k * stride);
#pragma unroll
    for (int k = 0; k < CASTS; ++k) {
      if (i + k * stride >= end) break;
      float v[W];
      widen(packs[k], v);
      for (int j = 0; j < W; ++j) v[j] *= scale;
      store<W>(y + i + k * stride, v);
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    widen_to_float(const Element *x, const float *scale, float *y, Index n, int wide) {
  const Index packed = wide ? n - n % FLOATS : 0;
  const float factor = scale ? *scale : 1.0f;
  cast_stretch<FLOATS>(x, y, 0, packed, factor);
  cast_stretch<1>(x, y, packed, n, factor);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    narrow_float(const float *x, const float *scale, Element *y, Index n, int wide) {
  const Index packed = wide ? n - n % FLOATS : 0;
  const float factor = scale ? *scale : 1.0f;
  cast_stretch<FLOATS>(x, y, 0, packed, factor);
  cast_stretch<1>(x, y, packed, n, factor);
}

// Rounded to the nearest, halves to even.
__device__ inline unsigned char e4m3_of(float value) {
  const float size = fminf(fabsf(value), MOST_E4M3);
  if (!(value == value)) return 0x7f;
  const unsigned sign = copysignf(1.0f, value) < 0.0f ? 0x80 : 0;
  int exponent;
  frexpf(size, &exponent);  // size = [1/2, 1) 2^exponent, or 0
  const bool subnormal = size == 0.0f || exponent - 1 < 1 - BIAS_E4M3;
  const int place = (subnormal ? 1 - BIAS_E4M3 : exponent - 1) - 3;
  const int steps = static_cast<int>(rintf(ldexpf(size, -place)));  // 0 to 16 of the last place
  const int field = place + 3 + BIAS_E4M3 - 1;  // the steps' own bit 3 adds the last one to it
  return static_cast<unsigned char>(sign | (field * 8 + steps));
}

__device__ inline float of_e4m3(unsigned char bits) {
  const int field = bits >> 3 & 15, fraction = bits & 7;
  if (field == 15 && fraction == 7) return nanf("");
  const float size = ldexpf(field ? 8 + fraction : fraction, (field ? field : 1) - BIAS_E4M3 - 3);
  return bits & 0x80 ? -size : size;
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    to_e4m3(const Element *x, const float *scale, unsigned char *y, Index n) {
  const float factor = scale ? *scale : 1.0f;
  for (Index i = Index(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += Index(gridDim.x) * BLOCK)
    y[i] = e4m3_of(widen(x[i]) * factor);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    from_e4m3(const unsigned char *x, const float *scale, Element *y, Index n) {
  const float factor = scale ? *scale : 1.0f;
  for (Index i = Index(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += Index(gridDim.x) * BLOCK)
    narrow(of_e4m3(x[i]) * factor, y[i]);
}
