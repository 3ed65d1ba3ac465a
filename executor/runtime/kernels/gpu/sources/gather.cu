// Slices by index along one axis, as an embedding takes rows of its table; and the adjoint, which adds them back.
//
//   gather       x[before, held, after], indices[taken]  -> [before, taken, after]   2 results' elements, 0 FLOP
//   zero         nothing                                 -> out[n]                   n elements written
//   gather_add   indices[taken], dy[before, taken, after] -> dx[before, held, after]  2 dy's elements, dy's FLOP
//
// This rank holds the indices begin to begin + held: foreign ones give zeros, and add nothing. All indices are read by
// each block that adds, out of the cache. blockIdx is (index, stretch of `after`, before); a stretch is BLOCK packs. gather_add needs
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

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) zero(Element *out, int wide, Index n) {
  const Index packs = wide ? n / PACK : 0, thread = Index(blockIdx.x) * BLOCK + threadIdx.x;
  const Index threads = Index(gridDim.x) * BLOCK;
  const float zeros[PACK] = {};
  for (Index pack = thread; pack < packs; pack += threads) store<PACK>(out + pack * PACK, zeros);
#pragma unroll 1
  for (Index i = packs * PACK + thread; i < n; i += threads) narrow(0.0f, out[i]);
}

constexpr int TILE = BLOCK * WARP;  // places that a block looks at before it adds up: a word of bits for each thread
constexpr int AT_ONCE = 4;  // slices that a thread reads before it adds them up

// What a block knows of a tile: whether each place has its index, which of those words are not zero, and the places.
struct Matches {
  unsigned words[BLOCK], filled[WARPS];
  unsigned short places[TILE];
};

template <class Integer>
__device__ inline void mark_word(const Integer *indices, Index count, Index index, int word, unsigned *words) {
  const int place = word * WARP + threadIdx.x % WARP;
  const unsigned lanes = __ballot_sync(ALL_LANES, place < count && indices[place] == index);
  if (threadIdx.x % WARP == 0) words[word] = lanes;
}

// Marks the places of an index. Of indices that lie at a multiple of sixteen bytes a warp first looks at several words'
// at once, for most have none.
template <bool WIDE, class Integer>
__device__ inline void mark(const Integer *indices, Index count, Index index, unsigned *words) {
  constexpr int EACH = WIDE ? sizeof(uint4) / sizeof(Integer) : 1;
#pragma unroll 4
  for (int word = threadIdx.x / WARP * EACH; word < BLOCK; word += WARPS * EACH) {
    const int place = word * WARP + threadIdx.x % WARP * EACH;
    bool alike = place < count;
    if (WIDE && place + EACH <= count) {
      const uint4 vector = *reinterpret_cast<const uint4 *>(indices + place);
      Integer some[EACH];
      memcpy(some, &vector, sizeof some);
      alike = false;
      for (int j = 0; j < EACH; ++j) alike |= some[j] == index;
    }
    if (__ballot_sync(ALL_LANES, alike)) {
      for (int j = 0; j < EACH; ++j) mark_word(indices, count, index, word + j, words);
    } else if (threadIdx.x % WARP < EACH) {
      words[word + threadIdx.x % WARP] = 0;
    }
  }
}

// Lists the marked places in order, a word per thread; returns how many there are.
__device__ inline int list_places(Matches &matches) {
  const unsigned own = matches.words[threadIdx.x], lanes = __ballot_sync(ALL_LANES, own != 0);
  if (threadIdx.x % WARP == 0) matches.filled[threadIdx.x / WARP] = lanes;
  __syncthreads();
  int before = 0, count = 0;
  for (int warp = 0; warp < WARPS; ++warp) {
    for (unsigned left = matches.filled[warp]; left; left &= left - 1) {
      const int word = warp * WARP + __ffs(left) - 1, marked = __popc(matches.words[word]);
      before += word < threadIdx.x ? marked : 0;
      count += marked;
    }
  }
  for (unsigned left = own; left; left &= left - 1) matches.places[before++] = threadIdx.x * WARP + __ffs(left) - 1;
  __syncthreads();
  return count;
}

// The block of an index's first place adds up all slices with that index, in the order of their places; the blocks of
// its other places do nothing. So a sum has one order, and no two blocks write one slice.
template <int W>
__device__ inline void gather_add_row(const void *indices, int index_nbytes, Index index, const Element *dy,
                                      Element *out, Index after, Matches &matches) {
  const Index taken = gridDim.x, first = blockIdx.x;
  const Index column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  float sums[W] = {};
  for (Index tile = 0; tile < taken; tile += TILE) {
    if (index_nbytes == 8)
      mark<(W > 1)>(static_cast<const Index *>(indices) + tile, taken - tile, index, matches.words);
    else
      mark<(W > 1)>(static_cast<const int *>(indices) + tile, taken - tile, index, matches.words);
    __syncthreads();
    const int count = list_places(matches);
    if (count && tile + matches.places[0] < first) return;  // the same in every thread
    for (int begin = 0; column < after && begin < count; begin += AT_ONCE) {
      Pack<W> slices[AT_ONCE] = {};
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (begin + k < count) slices[k] = fetch<W>(dy + (tile + matches.places[begin + k]) * after + column);
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        float v[W];
        widen(slices[k], v);
        for (int j = 0; j < W; ++j) sums[j] += v[j];
      }
    }
  }
  if (column < after) store<W>(out + column, sums);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    gather_add(const void *indices, int index_nbytes, const Element *dy, Element *out, Index begin, Index held,
               Index after, int wide) {
  __shared__ Matches matches;
  const Index taken = gridDim.x, index = read_index(indices, index_nbytes, blockIdx.x), local = index - begin;
  if (local < 0 || local >= held) return;
  const Element *from = dy + blockIdx.z * taken * after;
  Element *into = out + (blockIdx.z * held + local) * after;
  if (wide)
    gather_add_row<PACK>(indices, index_nbytes, index, from, into, after, matches);
  else
    gather_add_row<1>(indices, index_nbytes, index, from, into, after, matches);
}
