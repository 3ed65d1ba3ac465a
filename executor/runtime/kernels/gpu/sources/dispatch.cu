// Tokens to ragged rows by expert, and back (strategy/graph/ops/dropless.py), counts and all on the device.
//
//   count_choices   chosen                -> counts[experts, chunks]    experts times the choices read
//   place_choices   counts                -> where each begins, index[0]
//   write_cells     chosen, counts        -> index                      experts times the choices read, 8 bytes a row written
//   dispatch_rows   x, chosen, weights    -> rows       2 elements for each of a row; times weights as many FLOP
//   combine_rows    rows, chosen, weights -> y          n elements of rows read, those of y written, 2 n FLOP
//   inner_rows      rows, chosen, x       -> products   2 n elements read, 2 n FLOP
//
// The first four are one dispatch: rows are counted by expert and chunk of tokens, so that every block knows where its
// own begin, and no sum depends on which block was first. A token that chose an expert twice has one row there. Where
// there are more rows than room, the rows that are held are no numbers, and so is all that comes of them: to raise an
// error, the host would have to wait. Choices of experts that are not here count for nothing.

constexpr int CHOSEN_CHUNK = 4 * BLOCK;  // tokens of a block that counts or writes

// Which of all (expert, group, token) are here: experts begin to begin + held, and tokens of a box of groups and tokens.
struct Pieces {
  Index expert, experts, group, token, tokens, all_groups, all_tokens;  // `tokens` of each group are here

  __device__ Index cell(Index expert_here, Index token_here) const {
    const Index in_group = token_here / tokens;
    return ((expert + expert_here) * all_groups + group + in_group) * all_tokens + token + token_here - in_group * tokens;
  }
  __device__ Index expert_of(Index cell) const { return cell / (all_groups * all_tokens); }
  __device__ Index token_of(Index cell) const {
    const Index in_group = cell / all_tokens % all_groups - group;
    return in_group * tokens + cell % all_tokens - token;
  }
};

// Whether a token chose an expert.
__device__ inline bool chose(const void *chosen, int index_nbytes, Index token, int choices, Index expert) {
  bool found = false;
  for (int k = 0; k < choices; ++k) found |= read_index(chosen, index_nbytes, token * choices + k) == expert;
  return found;
}

// blockIdx is (chunk, expert), here and below.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    count_choices(const void *chosen, int index_nbytes, Index tokens, int choices, Pieces pieces, Index *counts) {
  __shared__ int room[WARPS];
  const Index begin = Index(blockIdx.x) * CHOSEN_CHUNK;
  int count = 0;
  for (Index token = begin + threadIdx.x; token < tokens && token < begin + CHOSEN_CHUNK; token += BLOCK)
    count += chose(chosen, index_nbytes, token, choices, pieces.expert + blockIdx.y);
  count = block_sum(count, room);
  if (threadIdx.x == 0) counts[blockIdx.y * gridDim.x + blockIdx.x] = count;
}

// Of this thread and those before it, the sum of their values, and that of all in `total`; `room` is as in block_sum.
__device__ inline int sum_up_to(int value, int *room, int &total) {
  for (int step = 1; step < WARP; step *= 2) {
    const int other = __shfl_up_sync(ALL_LANES, value, step);
    if (threadIdx.x % WARP >= step) value += other;
  }
  __syncthreads();  // as in block_sum
  if (threadIdx.x % WARP == WARP - 1) room[threadIdx.x / WARP] = value;
  __syncthreads();
  total = 0;
  for (int warp = 0; warp < WARPS; ++warp) {
    if (warp < threadIdx.x / WARP) value += room[warp];
    total += room[warp];
  }
  return value;
}

// One block: counts become where the rows of each begin, counts[n] all of them, and index[0] those that there is room for.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    place_choices(Index *counts, Index n, Index most, Index *index) {
  __shared__ int room[WARPS];
  Index before = 0;
  for (Index begin = 0; begin < n; begin += BLOCK) {
    const Index at = begin + threadIdx.x;
    const int own = at < n ? int(counts[at]) : 0;
    int total;
    const int until = sum_up_to(own, room, total);
    if (at < n) counts[at] = before + until - own;
    before += total;
  }
  if (threadIdx.x == 0) {
    counts[n] = before;
    index[0] = before < most ? before : most;
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    write_cells(const void *chosen, int index_nbytes, Index tokens, int choices, Pieces pieces, const Index *counts,
                Index most, Index *index) {
  __shared__ int room[WARPS];
  const Index begin = Index(blockIdx.x) * CHOSEN_CHUNK;
  Index place = counts[blockIdx.y * gridDim.x + blockIdx.x];
  for (Index first = begin; first < tokens && first < begin + CHOSEN_CHUNK; first += BLOCK) {
    const Index token = first + threadIdx.x;
    const bool here = token < tokens && chose(chosen, index_nbytes, token, choices, pieces.expert + blockIdx.y);
    int total;
    const Index at = place + sum_up_to(here, room, total) - 1;
    if (here && at < most) index[1 + at] = pieces.cell(blockIdx.y, token);
    place += total;
  }
}

// blockIdx is (row of the room, stretch of its width). `counts` are as place_choices leaves them, `n` their number.
template <int W>
__device__ inline void dispatch_row(const Element *from, Element *into, Index width, float factor) {
  const Index column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  if (column >= width) return;
  float v[W];
  load<W>(from + column, v);
  for (int j = 0; j < W; ++j) v[j] *= factor;
  store<W>(into + column, v);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    dispatch_rows(const Index *index, const Element *x, const void *chosen, int index_nbytes, int choices,
                  const Element *weights, Pieces pieces, const Index *counts, Index n, Element *rows, Index width,
                  int wide) {
  const Index row = blockIdx.x, count = index[0];
  if (row >= count) return;
  const Index cell = index[1 + row], expert = pieces.expert_of(cell), token = pieces.token_of(cell);
  float factor = counts[n] > count ? nanf("") : 0.0f;
  for (int k = 0; k < choices; ++k) {
    const Index at = token * choices + k;
    if (read_index(chosen, index_nbytes, at) == expert) factor += weights ? widen(weights[at]) : 1.0f;
  }
  if (wide)
    dispatch_row<HALF_PACK>(x + token * width, rows + row * width, width, factor);
  else
    dispatch_row<1>(x + token * width, rows + row * width, width, factor);
}

// Which row a choice of a token has; -1 if none.
__device__ inline Index row_of(const Index *index, const Pieces &pieces, Index expert, Index token) {
  const Index here = expert - pieces.expert, count = index[0];
  if (here < 0 || here >= pieces.experts) return -1;
  const Index cell = pieces.cell(here, token), row = first_not_below(index + 1, count, cell);
  return row < count && index[1 + row] == cell ? row : -1;
}

// blockIdx is (token, stretch of its width).
template <int W>
__device__ inline void combine_token(const Index *index, const Element *rows, const void *chosen, int index_nbytes,
                                     int choices, const Element *weights, const Pieces &pieces, Element *y, Index width) {
  const Index token = blockIdx.x, column = (Index(blockIdx.y) * BLOCK + threadIdx.x) * W;
  if (column >= width) return;
  float sums[W] = {};
#pragma unroll 1
  for (int k = 0; k < choices; ++k) {
    const Index at = token * choices + k, row = row_of(index, pieces, read_index(chosen, index_nbytes, at), token);
    if (row < 0) continue;
    const float weight = weights ? widen(weights[at]) : 1.0f;
    float v[W];
    load<W>(rows + row * width + column, v);
    for (int j = 0; j < W; ++j) sums[j] += v[j] * weight;
  }
  store<W>(y + token * width + column, sums);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    combine_rows(const Index *index, const Element *rows, const void *chosen, int index_nbytes, int choices,
                 const Element *weights, Pieces pieces, Element *y, Index width, int wide) {
  if (wide)
    combine_token<HALF_PACK>(index, rows, chosen, index_nbytes, choices, weights, pieces, y, width);
  else
    combine_token<1>(index, rows, chosen, index_nbytes, choices, weights, pieces, y, width);
}

template <int W>
__device__ inline float inner_product(const Element *row, const Element *x, Index width) {
  float sum = 0.0f;
#pragma unroll 2
  for (Index column = threadIdx.x * W; column < width; column += BLOCK * W) {
    float v[W], u[W];
    load<W>(row + column, v);
    load<W>(x + column, u);
    for (int j = 0; j < W; ++j) sum += v[j] * u[j];
  }
  return sum;
}

// blockIdx is (token, choice).
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    inner_rows(const Index *index, const Element *rows, const void *chosen, int index_nbytes, const Element *x,
               Pieces pieces, Element *products, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index token = blockIdx.x, at = token * gridDim.y + blockIdx.y;
  const Index row = row_of(index, pieces, read_index(chosen, index_nbytes, at), token);
  float sum = 0.0f;
  if (row >= 0 && wide) sum = inner_product<HALF_PACK>(rows + row * width, x + token * width, width);
  if (row >= 0 && !wide) sum = inner_product<1>(rows + row * width, x + token * width, width);
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) narrow(sum, products[at]);
}
