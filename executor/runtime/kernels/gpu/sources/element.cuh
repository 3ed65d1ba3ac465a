// What every kernel stands on: elements read as float, sixteen bytes at a time, and sums over a block.
//
// `Element` is float, __half or __nv_bfloat16, named by whoever puts a program together (program.py). Arithmetic is in
// float, and every result is rounded once. No kernel uses atomics: every sum is in one order, whatever the device.

using Index = long long;

constexpr int WARP = 32;
constexpr int WARPS = 8;
constexpr int BLOCK = WARP * WARPS;  // threads of every block
constexpr int RESIDENT = 4;  // blocks that registers leave room for on a multiprocessor
constexpr int PACK = 16 / sizeof(Element);  // elements of a vector load
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ inline void narrow(float value, float &into) { into = value; }
__device__ inline void narrow(float value, __half &into) { into = __float2half(value); }
__device__ inline void narrow(float value, __nv_bfloat16 &into) { into = __float2bfloat16(value); }

// W elements as they lie in memory.
template <int W, class T = Element>
struct Pack {
  T of[W];
};

// W elements at once: as vectors of sixteen bytes or of eight, at multiples of which they then lie, or one by one.
template <int W, class T>
__device__ inline Pack<W, T> fetch(const T *from) {
  Pack<W, T> pack;
  if constexpr (sizeof pack % sizeof(uint4) == 0) {
    uint4 words[sizeof pack / sizeof(uint4)];
    for (int k = 0; k < sizeof pack / sizeof(uint4); ++k) words[k] = reinterpret_cast<const uint4 *>(from)[k];
    memcpy(&pack, words, sizeof pack);
  } else if constexpr (sizeof pack == sizeof(uint2)) {
    const uint2 word = *reinterpret_cast<const uint2 *>(from);
    memcpy(&pack, &word, sizeof pack);
  } else {
    for (int j = 0; j < W; ++j) pack.of[j] = from[j];
  }
  return pack;
}

template <int W, class T>
__device__ inline void widen(const Pack<W, T> &pack, float (&into)[W]) {
  for (int j = 0; j < W; ++j) into[j] = widen(pack.of[j]);
}

template <int W, class T>
__device__ inline void load(const T *from, float (&into)[W]) {
  widen(fetch<W>(from), into);
}

template <int W, class T>
__device__ inline void keep(const Pack<W, T> &pack, T *into) {
  if constexpr (sizeof pack % sizeof(uint4) == 0) {
    uint4 words[sizeof pack / sizeof(uint4)];
    memcpy(words, &pack, sizeof pack);
    // By name, for the compiler takes some plain ones apart.
    for (int k = 0; k < sizeof pack / sizeof(uint4); ++k) __stwb(reinterpret_cast<uint4 *>(into) + k, words[k]);
  } else if constexpr (sizeof pack == sizeof(uint2)) {
    uint2 word;
    memcpy(&word, &pack, sizeof pack);
    __stwb(reinterpret_cast<uint2 *>(into), word);
  } else {
    for (int j = 0; j < W; ++j) into[j] = pack.of[j];
  }
}

template <int W, class T>
__device__ inline void store(T *into, const float (&values)[W]) {
  Pack<W, T> pack;
  for (int j = 0; j < W; ++j) narrow(values[j], pack.of[j]);
  keep(pack, into);
}

// A label or an index: int32 or int64, as `nbytes` says.
__device__ inline Index read_index(const void *from, int nbytes, Index position) {
  return nbytes == 8 ? static_cast<const Index *>(from)[position] : static_cast<const int *>(from)[position];
}

// The sum of every thread's value, the same in all of them; `room` is shared, one figure per warp.
template <class Sum>
__device__ inline Sum block_sum(Sum value, Sum *room) {
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  __syncthreads();  // what an earlier sum left in `room` has been read
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = value;
  __syncthreads();
  Sum total = 0;
  for (int warp = 0; warp < WARPS; ++warp) total += room[warp];
  return total;
}

// The largest of every thread's value, likewise.
__device__ inline float block_max(float value, float *room) {
  for (int step = WARP / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
  __syncthreads();  // as in block_sum
  if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = value;
  __syncthreads();
  float most = room[0];
  for (int warp = 1; warp < WARPS; ++warp) most = fmaxf(most, room[warp]);
  return most;
}

// Calls visit(values, column) for this thread's share of a row of `width` elements, W at a time.
template <int W, class Visit>
__device__ inline void each_of_row(const Element *row, Index width, Visit visit) {
#pragma unroll(W > 1 ? 2 : 1)  // by four, registers would spill
  for (Index column = threadIdx.x * W; column < width; column += BLOCK * W) {
    float values[W];
    load<W>(row + column, values);
    visit(values, column);
  }
}

// Rows of N matrices, read at once, W elements at a time: each thread's first HELD packs of each are kept in registers,
// what is behind them is read from the cache whenever it is looked at.
template <int N, int W, int HELD>
struct Rows {
  const Element *from[N];
  int width;
  Pack<W> held[N][HELD];

  __device__ Rows(const Element *const (&rows)[N], Index width) : width(width) {
    for (int n = 0; n < N; ++n) from[n] = rows[n];
#pragma unroll
    for (int k = 0; k < HELD; ++k)
      for (int n = 0; n < N; ++n)
        if (column(k) < width) held[n][k] = fetch<W>(from[n] + column(k));
  }

  __device__ static int column(int k) { return (k * BLOCK + threadIdx.x) * W; }

  // Calls visit(values, column) for this thread's share of the rows.
  template <class Visit>
  __device__ void each(Visit visit) const {
    float values[N][W];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      if (column(k) >= width) break;
      for (int n = 0; n < N; ++n) widen(held[n][k], values[n]);
      visit(values, column(k));
    }
#pragma unroll 1
    for (int at = column(HELD); at < width; at += BLOCK * W) {
      for (int n = 0; n < N; ++n) load<W>(from[n] + at, values[n]);
      visit(values, at);
    }
  }
};

// Calls visit(values, column) for this thread's share of a row that begins anywhere: vectors from its first multiple of sixteen bytes on, single elements before
// and behind them; those alone unless `wide`, which says that whole rows in a row begin at such a multiple.
template <class Visit>
__device__ inline void each_of_ragged_row(const Element *row, Index width, int wide, Visit visit) {
  const Index before = (PACK - reinterpret_cast<unsigned long long>(row) / sizeof(Element) % PACK) % PACK;
  const Index first = wide && before < width ? before : width, last = width - (width - first) % PACK;
#pragma unroll 2
  for (Index column = first + threadIdx.x * PACK; column < last; column += BLOCK * PACK) {
    float values[PACK];
    load<PACK>(row + column, values);
    visit(values, column);
  }
  const Index single = first + width - last;
#pragma unroll 1
  for (Index i = threadIdx.x; i < single; i += BLOCK) {
    const Index column = i < first ? i : last + i - first;
    const float values[1] = {widen(row[column])};
    visit(values, column);
  }
}
