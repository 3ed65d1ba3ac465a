// Grouped products: ragged rows, by expert, with the matrix of each (strategy/graph/ops/grouped_matmul.py); and biases.
//
//   expert_bounds       index                                    -> bounds                   where experts' rows begin
//   grouped_product     rows[., inner], w[experts, inner, outer] -> rows[., outer]           2 rows inner outer FLOP
//   grouped_product_nt  rows[., inner], w[experts, outer, inner] -> rows[., outer]           likewise
//   grouped_product_tn  rows[., inner], dy[., outer]             -> [experts, inner, outer]  likewise
//   add_by_expert_rows  rows[., width], bias[experts, width]     -> rows[., width]           2 n elements, n FLOP
//   sum_by_expert_rows  rows[., width]                           -> [experts, width]         n elements, n FLOP
//
// n = elements of the rows that there are. At least, each operand of a product is read once and the result written; a tile
// of the result reads its rows and columns of both operands anew. Halves go through tensor cores, float through the others;
// sums are in float, in one order. A block makes one tile of a result, and finds on the device which expert's it is: the
// grid has room for the tiles of any division of rows among experts.
//
// Plain tiles: operands go through shared memory once per step, by loads of eight bytes, and no step is loaded while the
// one before is multiplied. That is not the speed of cuBLASLt, which cannot be told sizes on the device.

constexpr int SIDE = 128;  // rows and columns of a tile of a result
constexpr bool HALVES = sizeof(Element) == 2;
constexpr int K_STEP = HALVES ? 32 : 16;  // of k
// A tile of an operand in shared memory: tile[at * ALONG + k * BY_K]. Two halves that follow along k make a word, and with
// eight more than a step the lanes of a warp read from different banks; of floats those that follow along the tile do.
constexpr int ALONG = HALVES ? K_STEP + 8 : 1;
constexpr int BY_K = HALVES ? 1 : SIDE + 4;
constexpr int OPERAND_ROOM = HALVES ? SIDE * ALONG : K_STEP * BY_K;

// One block. bounds[e] is the first row of expert e of those here, bounds[experts + 1 + e] its first tile; behind the last,
// where they end.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    expert_bounds(const Index *index, Index first, int experts, Index tokens, Index *bounds) {
  for (int expert = threadIdx.x; expert <= experts; expert += BLOCK)
    bounds[expert] = first_not_below(index + 1, index[0], (first + expert) * tokens);
  __syncthreads();
  if (threadIdx.x) return;
  Index tiles = 0;
  for (int expert = 0; expert <= experts; ++expert) {
    bounds[experts + 1 + expert] = tiles;
    if (expert < experts) tiles += (bounds[expert + 1] - bounds[expert] + SIDE - 1) / SIDE;
  }
}

// An operand as a matrix of which one dim is that of k, elements `along` and `by_k` apart, one of which is 1.
struct Operand {
  const Element *of;
  Index along, by_k;
};

template <int W, bool RUNS_ALONG_K>
__device__ inline void load_tile_by(const Operand &from, int size, int depth, Element *tile) {
  constexpr int RUNS = (RUNS_ALONG_K ? K_STEP : SIDE) / W;
  for (int run = threadIdx.x; run < RUNS * (RUNS_ALONG_K ? SIDE : K_STEP); run += BLOCK) {
    const int inside = run % RUNS * W, across = run / RUNS;
    const int at = RUNS_ALONG_K ? across : inside, k = RUNS_ALONG_K ? inside : across;
    Pack<W> pack = {};
    if (at < size && k < depth) pack = fetch<W>(from.of + at * from.along + k * from.by_k);
    for (int j = 0; j < W; ++j)
      tile[(RUNS_ALONG_K ? at : at + j) * ALONG + (RUNS_ALONG_K ? k + j : k) * BY_K] = pack.of[j];
  }
}

// The part of an operand that a step needs, zeros where `size` and `depth` leave it out.
template <bool RUNS_ALONG_K>
__device__ inline void load_tile(const Operand &from, int size, int depth, Element *tile, int wide) {
  if (wide)
    load_tile_by<HALF_PACK, RUNS_ALONG_K>(from, size, depth, tile);
  else
    load_tile_by<1, RUNS_ALONG_K>(from, size, depth, tile);
}

// What the threads of a block add up of a tile of a result: of floats each thread 8 by 8, sixteen apart.
template <class T>
struct TileSums {
  static constexpr int EACH = 8, APART = SIDE / EACH;
  float of[EACH][EACH] = {};

  __device__ void add(const T *a, const T *b) {
    const int row = threadIdx.x / APART, column = threadIdx.x % APART;
#pragma unroll 2
    for (int k = 0; k < K_STEP; ++k) {
      float left[EACH], right[EACH];
      for (int i = 0; i < EACH; ++i) left[i] = a[(row + i * APART) * ALONG + k * BY_K];
      for (int j = 0; j < EACH; ++j) right[j] = b[(column + j * APART) * ALONG + k * BY_K];
      for (int i = 0; i < EACH; ++i)
        for (int j = 0; j < EACH; ++j) of[i][j] += left[i] * right[j];
    }
  }

  // Calls visit(row, column, sum) for those of this thread.
  template <class Visit>
  __device__ void each(Visit visit) const {
    const int row = threadIdx.x / APART, column = threadIdx.x % APART;
    for (int i = 0; i < EACH; ++i)
      for (int j = 0; j < EACH; ++j) visit(row + i * APART, column + j * APART, of[i][j]);
  }
};

// Of halves each warp 64 rows by 32 columns: 4 by 4 products of tensor cores.
template <class T>
struct CoreSums {
  static constexpr int DOWN = 4, ACROSS = 4, ROWS = 16, COLUMNS = 8, DEEP = 16;  // of a product
  float of[DOWN][ACROSS][4] = {};

  __device__ static int first_row() { return threadIdx.x / WARP % 2 * DOWN * ROWS + threadIdx.x % WARP / 4; }
  __device__ static int first_column() { return threadIdx.x / WARP / 2 * ACROSS * COLUMNS; }
  __device__ static unsigned word(const T *from) { return *reinterpret_cast<const unsigned *>(from); }

  __device__ void add(const T *a, const T *b) {
    const int group = threadIdx.x % WARP / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int k = 0; k < K_STEP; k += DEEP) {
      unsigned right[ACROSS][2];
      for (int j = 0; j < ACROSS; ++j) {
        const T *at = b + (first_column() + j * COLUMNS + group) * ALONG + k + pair;
        right[j][0] = word(at), right[j][1] = word(at + DEEP / 2);
      }
      for (int i = 0; i < DOWN; ++i) {
        const T *at = a + (first_row() + i * ROWS) * ALONG + k + pair, *below = at + ROWS / 2 * ALONG;
        const unsigned left[4] = {word(at), word(below), word(at + DEEP / 2), word(below + DEEP / 2)};
        for (int j = 0; j < ACROSS; ++j) multiply_add(of[i][j], left, right[j], T());
      }
    }
  }

  template <class Visit>
  __device__ void each(Visit visit) const {
    const int pair = threadIdx.x % 4 * 2;
    for (int i = 0; i < DOWN; ++i)
      for (int j = 0; j < ACROSS; ++j)
        for (int k = 0; k < 4; ++k) {
          const int row = first_row() + i * ROWS + k / 2 * (ROWS / 2);
          visit(row, first_column() + j * COLUMNS + pair + k % 2, of[i][j][k]);
        }
  }
};

template <>
struct TileSums<__half> : CoreSums<__half> {};
template <>
struct TileSums<__nv_bfloat16> : CoreSums<__nv_bfloat16> {};

// The two operands of a step.
struct alignas(16) Tiles {
  Element a[OPERAND_ROOM], b[OPERAND_ROOM];
};

// Writes a tile, `rows` by `columns`, of the product of two operands over `depth`; rows of the result are `pitch` apart.
template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void multiply_tile(Operand a, Operand b, Index rows, Index columns, Index depth, Element *out,
                                     Index pitch, Tiles &tiles, int wide) {
  const int height = rows < SIDE ? rows : SIDE, width = columns < SIDE ? columns : SIDE;
  TileSums<Element> sums;
#pragma unroll 1
  for (Index k = 0; k < depth; k += K_STEP) {
    const int deep = depth - k < K_STEP ? depth - k : K_STEP;
    load_tile<A_ALONG_K>({a.of + k * a.by_k, a.along, a.by_k}, height, deep, tiles.a, wide);
    load_tile<B_ALONG_K>({b.of + k * b.by_k, b.along, b.by_k}, width, deep, tiles.b, wide);
    __syncthreads();
    sums.add(tiles.a, tiles.b);
    __syncthreads();
  }
  sums.each([=](int row, int column, float sum) {
    if (row < height && column < width) narrow(sum, out[row * pitch + column]);
  });
}

// blockIdx is (tile of columns, tile of rows).
template <bool B_ALONG_K>
__device__ inline void multiply_rows(const Index *bounds, int experts, const Index *index, const Element *rows,
                                     const Element *w, Index *held, Element *out, Index inner, Index outer, Tiles &tiles,
                                     int wide) {
  hold_cells(index, held);
  const Index *first_tiles = bounds + experts + 1, tile = blockIdx.y;
  if (tile >= first_tiles[experts]) return;
  int expert = 0;
  for (int behind = experts; behind - expert > 1;) {  // the last whose first tile is not behind this one
    const int middle = (expert + behind) / 2;
    if (first_tiles[middle] <= tile)
      expert = middle;
    else
      behind = middle;
  }
  const Index row = bounds[expert] + (tile - first_tiles[expert]) * SIDE, column = Index(blockIdx.x) * SIDE;
  const Operand a = {rows + row * inner, inner, 1};
  const Element *matrix = w + expert * inner * outer;
  const Operand b = {matrix + column * (B_ALONG_K ? inner : 1), B_ALONG_K ? inner : 1, B_ALONG_K ? 1 : outer};
  multiply_tile<true, B_ALONG_K>(a, b, bounds[expert + 1] - row, outer - column, inner, out + row * outer + column, outer,
                                 tiles, wide);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    grouped_product(const Index *bounds, int experts, const Index *index, const Element *rows, const Element *w,
                    Index *held, Element *out, Index inner, Index outer, int wide) {
  __shared__ Tiles tiles;
  multiply_rows<false>(bounds, experts, index, rows, w, held, out, inner, outer, tiles, wide);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    grouped_product_nt(const Index *bounds, int experts, const Index *index, const Element *rows, const Element *w,
                       Index *held, Element *out, Index inner, Index outer, int wide) {
  __shared__ Tiles tiles;
  multiply_rows<true>(bounds, experts, index, rows, w, held, out, inner, outer, tiles, wide);
}

// blockIdx is (tile of columns, tile of rows, expert).
extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    grouped_product_tn(const Index *bounds, const Element *rows, const Element *dy, Element *out, Index inner, Index outer,
                       int wide) {
  __shared__ Tiles tiles;
  const Index expert = blockIdx.z, begin = bounds[expert];
  const Index row = Index(blockIdx.y) * SIDE, column = Index(blockIdx.x) * SIDE;
  const Operand a = {rows + begin * inner + row, 1, inner}, b = {dy + begin * outer + column, 1, outer};
  multiply_tile<false, false>(a, b, inner - row, outer - column, bounds[expert + 1] - begin,
                              out + (expert * inner + row) * outer + column, outer, tiles, wide);
}

// blockIdx is (row of the room, stretch of its width).
template <int W>
__device__ inline void add_bias(const Element *row, const Element *bias, Element *into, Index width) {
  const Index column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  if (column >= width) return;
  float v[W], b[W];
  load<W>(row + column, v);
  load<W>(bias + column, b);
  for (int j = 0; j < W; ++j) v[j] += b[j];
  store<W>(into + column, v);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    add_by_expert_rows(const Index *index, const Element *rows, const Element *bias, Index first, Index tokens,
                       Index *held, Element *out, Index width, int wide) {
  hold_cells(index, held);
  const Index row = blockIdx.x;
  if (row >= index[0]) return;
  const Index expert = index[1 + row] / tokens - first;
  if (wide)
    add_bias<HALF_PACK>(rows + row * width, bias + expert * width, out + row * width, width);
  else
    add_bias<1>(rows + row * width, bias + expert * width, out + row * width, width);
}

// blockIdx is (stretch of columns, expert).
template <int W>
__device__ inline void sum_of_expert(const Index *bounds, const Element *rows, Element *out, Index width, float *room) {
  const auto term = [&](Index row, Index column, float(&sums)[1][W]) {
    float v[W];
    load<W>(rows + row * width + column, v);
    for (int j = 0; j < W; ++j) sums[0][j] += v[j];
  };
  const auto put = [&](int, Index column, float total) { narrow(total, out[column]); };
  each_column<W, 1, 4>(bounds[blockIdx.y], bounds[blockIdx.y + 1], width, room, term, put);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sum_by_expert_rows(const Index *bounds, const Element *rows, Element *out, Index width, int wide) {
  __shared__ float room[BLOCK * HALF_PACK];
  if (wide)
    sum_of_expert<HALF_PACK>(bounds, rows, out + blockIdx.y * width, width, room);
  else
    sum_of_expert<1>(bounds, rows, out + blockIdx.y * width, width, room);
}
