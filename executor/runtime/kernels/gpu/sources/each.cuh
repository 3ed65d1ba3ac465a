// One result of each element of up to three operands: sixteen bytes at a time where all lie at multiples of that.

template <int N, class Function>
__device__ inline void each(const Element *const (&reads)[N], Element *out, Index n, int wide, Function function) {
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  for (Index pack = thread; pack < packs; pack += threads) {
    float v[N][PACK], results[PACK];
    for (int k = 0; k < N; ++k) load<PACK>(reads[k] + pack * PACK, v[k]);
    for (int j = 0; j < PACK; ++j) {
      float operands[N];
      for (int k = 0; k < N; ++k) operands[k] = v[k][j];
      results[j] = function(operands);
    }
    store<PACK>(out + pack * PACK, results);
  }
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) {
    float operands[N];
    for (int k = 0; k < N; ++k) operands[k] = widen(reads[k][i]);
    narrow(function(operands), out[i]);
  }
}
