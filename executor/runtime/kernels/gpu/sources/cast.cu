// Casts with a scale: to float and from float.
//
//   widen_to_float  x[n], scale or none -> float[n]      n (element + 4) bytes, n FLOP
//   narrow_float    float[n], scale or none -> y[n]      n (4 + element) bytes, n FLOP
//
// `scale` is a float on the device that multiplies what is read.

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
