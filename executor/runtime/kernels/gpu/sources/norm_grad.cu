// Gradients of layer norm and RMS norm over rows of x[rows, width].
//
//   layer_norm_grad  x, gain[width], mean[rows], rstd[rows], dy -> dx, terms   3 n elements, 14 n FLOP
//   rms_norm_grad    x, gain, rstd, dy                          -> dx, terms   3 n elements, 10 n FLOP
//   layer_norm_dx    x, gain, mean, rstd, dy                    -> dx          3 n elements, 10 n FLOP
//   rms_norm_dx      x, gain, rstd, dy                          -> dx          3 n elements,  8 n FLOP
//   norm_columns     x, mean, rstd, dy                          -> terms       2 n elements,  4 n FLOP
//
// n = rows width. terms[1 or 2, chunks, width], in float, are what a chunk of rows adds to the gradients of gain and
// bias; `sum_terms` adds the chunks up. The first two do all at once: for rows that a block's threads hold, at multiples
// of sixteen bytes. The others are for all other rows; `wide` as in norm.cu.

constexpr int HELD = 2;  // packs of a row that a thread holds

// What a thread holds of a row, zeros where it has nothing.
struct GradRow {
  Pack<PACK> x[HELD], dy[HELD];
  float mean, rstd;
};

struct GradOperands {
  const Element *x;
  const float *mean, *rstd;
  const Element *dy;
  Index width;
  int team, place;  // threads of a row, and which of them this is

  __device__ int column(int k) const { return (k * team + place) * PACK; }

  __device__ GradRow row(Index row, Index end) const {
    GradRow found = {};
    if (row >= end) return found;
    found.mean = mean ? mean[row] : 0.0f;
    found.rstd = rstd[row];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      if (column(k) >= width) continue;
      found.x[k] = fetch<PACK>(x + row * width + column(k));
      found.dy[k] = fetch<PACK>(dy + row * width + column(k));
    }
    return found;
  }
};

// A block takes a chunk of rows, as many at a time as it has teams. A team's threads hold a row's columns, and sum up
// what they add to the gradients of gain and bias; the next row is on its way while this one is worked on.
template <bool CENTRED>
__device__ inline void norm_grad_chunk(const GradOperands &operands, const Element *gain, Element *dx, float *terms,
                                       Index rows, Index chunk, float *room, float *column_room) {
  const int team = operands.team, teams = BLOCK / team, mine = threadIdx.x / team;
  const Index width = operands.width, begin = blockIdx.x * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  float sums[2][HELD][PACK] = {};
  GradRow next = operands.row(begin + mine, end);
  int side = 0;
  for (Index first = begin; first < end; first += teams, side ^= 2 * WARPS) {
    const Index row = first + mine;
    const GradRow now = next;
    next = operands.row(row + teams, end);
    float sum = 0.0f, product = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      float v[PACK], d[PACK], g[PACK] = {};
      widen(now.x[k], v), widen(now.dy[k], d);
      if (operands.column(k) < width) load<PACK>(gain + operands.column(k), g);
      for (int j = 0; j < PACK; ++j) {
        sum += d[j] * g[j];
        product += d[j] * g[j] * ((v[j] - now.mean) * now.rstd);
      }
    }
    for (int step = WARP / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(ALL_LANES, sum, step);
      product += __shfl_xor_sync(ALL_LANES, product, step);
    }
    float *sides = room + side;  // one is written while the other may still be read
    if (threadIdx.x % WARP == 0) {
      sides[threadIdx.x / WARP] = sum;
      sides[WARPS + threadIdx.x / WARP] = product;
    }
    __syncthreads();
    float sum_share = 0.0f, product_share = 0.0f;
    for (int warp = mine * team / WARP; warp < (mine + 1) * team / WARP; ++warp) {
      sum_share += sides[warp];
      product_share += sides[WARPS + warp];
    }
    sum_share = CENTRED ? sum_share / width : 0.0f;
    product_share /= width;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      if (operands.column(k) >= width) continue;
      float v[PACK], d[PACK], g[PACK], out[PACK];
      widen(now.x[k], v), widen(now.dy[k], d);
      load<PACK>(gain + operands.column(k), g);
      for (int j = 0; j < PACK; ++j) {
        const float h = (v[j] - now.mean) * now.rstd;
        out[j] = now.rstd * (d[j] * g[j] - sum_share - h * product_share);
        sums[0][k][j] += d[j] * h;
        if (CENTRED) sums[1][k][j] += d[j];
      }
      if (row < end) store<PACK>(dx + row * width + operands.column(k), out);
    }
  }
#pragma unroll
  for (int s = 0; s < (CENTRED ? 2 : 1); ++s) {
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      __syncthreads();  // the sums before have been added up
      for (int j = 0; j < PACK; ++j) column_room[threadIdx.x * PACK + j] = sums[s][k][j];
      __syncthreads();
      const Index stretch = Index(k) * team * PACK;
      for (int c = threadIdx.x; c < team * PACK && stretch + c < width; c += BLOCK) {
        float total = 0.0f;
        for (int other = 0; other < teams; ++other) total += column_room[other * team * PACK + c];
        terms[(s * gridDim.x + blockIdx.x) * width + stretch + c] = total;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    layer_norm_grad(const Element *x, const Element *gain, const float *mean, const float *rstd, const Element *dy,
                    Element *dx, float *terms, Index rows, Index width, Index chunk, int team) {
  __shared__ float room[4 * WARPS], column_room[BLOCK * PACK];
  const GradOperands operands = {x, mean, rstd, dy, width, team, int(threadIdx.x) % team};
  norm_grad_chunk<true>(operands, gain, dx, terms, rows, chunk, room, column_room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
    rms_norm_grad(const Element *x, const Element *gain, const float *rstd, const Element *dy, Element *dx,
                  float *terms, Index rows, Index width, Index chunk, int team) {
  __shared__ float room[4 * WARPS], column_room[BLOCK * PACK];
  const GradOperands operands = {x, nullptr, rstd, dy, width, team, int(threadIdx.x) % team};
  norm_grad_chunk<false>(operands, gain, dx, terms, rows, chunk, room, column_room);
}

// With h = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - h mean(g h)); RMS norm has neither mean.
template <int W, bool CENTRED>
__device__ inline void norm_dx_row(const Element *x, const Element *gain, float mean, float rstd, const Element *dy,
                                   Element *dx, Index width, float *room) {
  const Rows<2, W, 2> rows({x, dy}, width);
  float sum = 0.0f, product = 0.0f;
  rows.each([&](const float(&v)[2][W], int column) {
    float g[W];
    load<W>(gain + column, g);
    for (int j = 0; j < W; ++j) {
      sum += v[1][j] * g[j];
      product += v[1][j] * g[j] * ((v[0][j] - mean) * rstd);
    }
  });
  const float sum_share = CENTRED ? block_sum(sum, room) / width : 0.0f;
  const float product_share = block_sum(product, room) / width;
  rows.each([&](const float(&v)[2][W], int column) {
    float g[W], out[W];
    load<W>(gain + column, g);
    for (int j = 0; j < W; ++j)
      out[j] = rstd * (v[1][j] * g[j] - sum_share - (v[0][j] - mean) * rstd * product_share);
    store<W>(dx + column, out);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    layer_norm_dx(const Element *x, const Element *gain, const float *mean, const float *rstd, const Element *dy,
                  Element *dx, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_dx_row<PACK, true>(x + at, gain, mean[row], rstd[row], dy + at, dx + at, width, room);
  else
    norm_dx_row<1, true>(x + at, gain, mean[row], rstd[row], dy + at, dx + at, width, room);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) rms_norm_dx(const Element *x, const Element *gain,
                                                                const float *rstd, const Element *dy, Element *dx,
                                                                Index width, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x, at = row * width;
  if (wide)
    norm_dx_row<PACK, false>(x + at, gain, 0.0f, rstd[row], dy + at, dx + at, width, room);
  else
    norm_dx_row<1, false>(x + at, gain, 0.0f, rstd[row], dy + at, dx + at, width, room);
}

// Terms of dgain = sum over rows of dy h and, where there is a mean, of dbias = sum of dy: of a chunk of rows per
// blockIdx.y.
template <int W, int SUMS>
__device__ inline void norm_columns_of(const Element *x, const float *mean, const float *rstd, const Element *dy,
                                       float *terms, Index rows, Index width, Index chunk, float *room) {
  const Index begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  const auto term = [&](Index row, Index column, float(&sums)[SUMS][W]) {
    float v[W], d[W];
    load<W>(x + row * width + column, v);
    load<W>(dy + row * width + column, d);
    const float centre = SUMS > 1 ? mean[row] : 0.0f, scale = rstd[row];
    for (int j = 0; j < W; ++j) {
      sums[0][j] += d[j] * ((v[j] - centre) * scale);
      if (SUMS > 1) sums[SUMS - 1][j] += d[j];
    }
  };
  const auto put = [&](int sum, Index column, float total) {
    terms[(sum * gridDim.y + blockIdx.y) * width + column] = total;
  };
  each_column<W, SUMS, 2>(begin, end, width, room, term, put);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    norm_columns(const Element *x, const float *mean, const float *rstd, const Element *dy, float *terms, Index rows,
                 Index width, Index chunk, int wide) {
  __shared__ float room[BLOCK * PACK];
  if (wide && mean)
    norm_columns_of<PACK, 2>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else if (wide)
    norm_columns_of<PACK, 1>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else if (mean)
    norm_columns_of<1, 2>(x, mean, rstd, dy, terms, rows, width, chunk, room);
  else
    norm_columns_of<1, 1>(x, mean, rstd, dy, terms, rows, width, chunk, room);
}
