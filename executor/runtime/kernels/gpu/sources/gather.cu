// Slices by index along one axis, as an embedding takes rows of its table; and the adjoint, which adds them back.
//
//   gather       x[before, held, after], indices[taken]  -> [before, taken, after]   2 results' elements, 0 FLOP
//   zero         nothing                                 -> out[n]                   n elements written
//   gather_add   indices[taken], dy[before, taken, after] -> dx[before, held, after]  2 dy's elements, dy's FLOP
//
// This rank holds the indices begin to begin + held: foreign ones give zeros, and add nothing. Indices are read once per
// block, out of the cache. blockIdx is (index, stretch of `after`, before); a stretch is BLOCK packs. gather_add needs
// dx zeroed.

template <int W>
__device__ inline void gather_row(const Element *from, Element *out, Index after) {
  const Index column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  if (column >= after) return;
  float v[W] = {};
  if (from) load<W>(from + column, v);
  store<W>(out + column, v);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gather(const Element *x, const void *indices, int index_nbytes, Element *out, Index begin, Index held, Index after,
           int wide) {
  const Index taken = gridDim.x, local = read_index(indices, index_nbytes, blockIdx.x) - begin;
  const Element *from = local >= 0 && local < held ? x + (blockIdx.z * held + local) * after : nullptr;
  Element *into = out + (blockIdx.z * taken + blockIdx.x) * after;
  if (wide)
    gather_row<PACK>(from, into, after);
  else
    gather_row<1>(from, into, after);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) zero(Element *out, Index n) {
  const Index at = Index(blockIdx.x) * BLOCK + threadIdx.x;
  if (at < n) narrow(0.0f, out[at]);
}

// The block of an index's first place adds up all slices with that index, in the order of their places; the blocks of
// its other places do nothing. So a sum has one order, and no two blocks write one slice.
template <int W>
__device__ inline void gather_add_row(const void *indices, int index_nbytes, const Element *dy, Element *out,
                                      Index after, unsigned *matches) {
  const Index taken = gridDim.x, first = blockIdx.x, index = read_index(indices, index_nbytes, first);
  const Index column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  float sums[W] = {};
  for (Index tile = 0; tile < taken; tile += BLOCK) {
    const Index place = tile + threadIdx.x;
    const bool alike = place < taken && read_index(indices, index_nbytes, place) == index;
    const unsigned lanes = __ballot_sync(ALL_LANES, alike);
    __syncthreads();  // the matches of the tile before have been read
    if (threadIdx.x % WARP == 0) matches[threadIdx.x / WARP] = lanes;
    __syncthreads();
    for (int warp = 0; warp < WARPS; ++warp) {
      for (unsigned left = matches[warp]; left; left &= left - 1) {
        const Index match = tile + warp * WARP + __ffs(left) - 1;
        if (match < first) return;  // the same in every thread
        if (column >= after) continue;
        float v[W];
        load<W>(dy + match * after + column, v);
        for (int j = 0; j < W; ++j) sums[j] += v[j];
      }
    }
  }
  if (column < after) store<W>(out + column, sums);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gather_add(const void *indices, int index_nbytes, const Element *dy, Element *out, Index begin, Index held,
               Index after, int wide) {
  __shared__ unsigned matches[WARPS];
  const Index taken = gridDim.x, local = read_index(indices, index_nbytes, blockIdx.x) - begin;
  if (local < 0 || local >= held) return;
  const Element *from = dy + blockIdx.z * taken * after;
  Element *into = out + (blockIdx.z * held + local) * after;
  if (wide)
    gather_add_row<PACK>(indices, index_nbytes, from, into, after, matches);
  else
    gather_add_row<1>(indices, index_nbytes, from, into, after, matches);
}
