// Dropout by a mask that is a function of the element's coordinates in the logical tensor, and a residual added to it.
//
//   dropout  x[rows, width], residual or none -> out    2 n elements, 3 with a residual; 12 n FLOP, integers mostly
//
// The words are those of strategy/graph/ops/dropout.py: a round of splitmix64 (Steele, Lea and Flood 2014,
// doi:10.1145/2660193.2660195) for the seed and one for the act, which make the `key`, and one for every coordinate. An
// element is dropped where its word is less than `threshold` = rate 2^64. A block per row; `wide` as in norm.cu. out
// may be x.

constexpr int LEADING_DIMS = 7;
constexpr unsigned long long GOLDEN = 0x9E3779B97F4A7C15ull;

// Which piece of the logical tensor this is: its dims but the last in order, with how many rows are between two of their
// indices, and where the last one begins.
struct Piece {
  Index dims, begin[LEADING_DIMS], size[LEADING_DIMS], stride[LEADING_DIMS], column;
};

// The finaliser of a counter, a multiple of GOLDEN away from a state.
__device__ inline unsigned long long finish(unsigned long long z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// What is finished when a coordinate is taken into the state.
__device__ inline unsigned long long counter(unsigned long long state, Index coordinate) {
  return state + (static_cast<unsigned long long>(coordinate) + 1) * GOLDEN;
}

template <int W>
__device__ inline void dropout_row(const Element *x, const Element *residual, Element *out, Index width,
                                   unsigned long long state, Index begin, unsigned long long threshold, float scale) {
  each_of_row<W>(x, width, [&](const float(&v)[W], Index column) {
    const unsigned long long first = counter(state, begin + column);
    float rest[W] = {}, kept[W];
    if (residual) load<W>(residual + column, rest);
    for (int j = 0; j < W; ++j) {
      const bool dropped = finish(first + j * GOLDEN) < threshold;
      kept[j] = rest[j] + (dropped ? 0.0f : v[j] * scale);
    }
    store<W>(out + column, kept);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    dropout(const Element *x, const Element *residual, Element *out, Index width, Piece piece, unsigned long long key,
            unsigned long long threshold, float scale, int wide) {
  const Index at = blockIdx.x * width;
  unsigned long long state = key;
#pragma unroll  // so that the piece stays where parameters are
  for (int dim = 0; dim < LEADING_DIMS; ++dim) {
    if (dim >= piece.dims) break;
    const unsigned stride = piece.stride[dim], size = piece.size[dim];  // 32-bit division is several times faster
    state = finish(counter(state, piece.begin[dim] + blockIdx.x / stride % size));
  }
  const Element *rest = residual ? residual + at : nullptr;
  if (wide)
    dropout_row<PACK>(x + at, rest, out + at, width, state, piece.column, threshold, scale);
  else
    dropout_row<1>(x + at, rest, out + at, width, state, piece.column, threshold, scale);
}
