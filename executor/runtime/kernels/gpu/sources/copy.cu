// The same elements elsewhere, for a tensor under other dims.
//
//   copy_elements  x -> out    2 n elements, 0 FLOP
//
// `wide` says that both lie at multiples of 16 bytes. out may be x.

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    copy_elements(const Element *x, Element *out, Index n, int wide) {
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  for (Index pack = thread; pack < packs; pack += threads) keep(fetch<PACK>(x + pack * PACK), out + pack * PACK);
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) out[i] = x[i];
}
