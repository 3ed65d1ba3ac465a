// Codes with one scale for every block of neighbours: the scales, the codes, and what codes stand for.
//
//   block_scales        x[tensors, rows, columns] -> scales[tensors, rows / block_rows, columns / block_columns]
//                                                  n elements read, n FLOP
//   block_codes_e4m3    x, scales -> codes, as many; of two to a byte n / 2
//   block_codes_e5m2                               n (element + 1) bytes, 2 n FLOP
//   block_codes_e2m1                               n (element + 1/2) bytes, 2 n FLOP
//   block_figures_e4m3  codes, scales -> out, as many elements
//   block_figures_e5m2                             n (element + 1) bytes, n FLOP
//   block_figures_e2m1                             n (element + 1/2) bytes, n FLOP
//
// The last block of a dim may be shorter. `kind` says what scales are: FIGURES; POWERS of two by their exponents (E8M0);
// or FRACTIONS of a scale of the whole tensor (E4M3), which block_scales finds from `amax` and writes to `whole`, and the
// others read there. Whole and amax are floats on the device. See strategy.graph.ops.block_scales for what they mean.

constexpr int FIGURES = 0, POWERS = 1, FRACTIONS = 2;
constexpr int LEAST_POWER = 127;  // below zero, and above
constexpr unsigned char NO_POWER = 0xff;

// 1 where the scale would be zero, as for zeros alone.
__device__ inline float scale_or_one(float scale) { return scale <= 0.0f ? 1.0f : scale; }

// The exponent, LEAST_POWER added, of the least power of two by which divided a magnitude is not above `most`.
__device__ inline unsigned char power_of(float magnitude, float most) {
  if (magnitude == 0.0f) return LEAST_POWER;
  if (!(magnitude <= 3.402823466e+38f)) return NO_POWER;
  int exponent, most_exponent;
  const float fraction = frexpf(magnitude, &exponent), most_fraction = frexpf(most, &most_exponent);
  const int least = exponent - most_exponent + (fraction > most_fraction);
  const int kept = least < -LEAST_POWER ? -LEAST_POWER : least > LEAST_POWER ? LEAST_POWER : least;
  return static_cast<unsigned char>(kept + LEAST_POWER);
}

// The scale of a block, by its place; of FRACTIONS with that of the tensor.
__device__ inline float scale_at(const unsigned char *scales, const float *whole, int kind, Index place) {
  if (kind == FIGURES) return reinterpret_cast<const float *>(scales)[place];
  const unsigned char code = scales[place];
  if (kind == POWERS) return code == NO_POWER ? nanf("") : ldexpf(1.0f, int(code) - LEAST_POWER);
  return figure_of<DIGITS_E4M3, BIAS_E4M3, false>(code) * *whole;
}

// What elements are divided by. A fraction of zero makes codes of zero: of what is so small beside the tensor.
__device__ inline float divisor_at(const unsigned char *scales, const float *whole, int kind, Index place) {
  if (kind == FRACTIONS && scales[place] == 0) return 1.0f / 0.0f;
  return scale_at(scales, whole, kind, place);
}

// LANES lanes look at a block each: all of a warp, or one where blocks are one column wide and neighbours lie in a row.
template <int LANES>
__device__ inline void scales_of_blocks(const Element *x, const float *amax, unsigned char *scales, float *whole, int kind,
                                        float most, Index tensors, Index rows, Index columns, Index block_rows,
                                        Index block_columns) {
  const Index down = (rows + block_rows - 1) / block_rows, across = (columns + block_columns - 1) / block_columns;
  const float unit = kind == FRACTIONS ? scale_or_one(*amax / (most * MOST_E4M3)) : 1.0f;
  const Index first = (Index(blockIdx.x) * BLOCK + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
  if (kind == FRACTIONS && first == 0 && lane == 0) *whole = unit;
  for (Index block = first; block < tensors * down * across; block += Index(gridDim.x) * BLOCK / LANES) {
    const Index column = block % across * block_columns, row = block / across % down * block_rows;
    const Index last_row = row + block_rows < rows ? row + block_rows : rows;
    const Index last_column = column + block_columns < columns ? column + block_columns : columns;
    const Element *from = x + block / across / down * rows * columns;
    float top = 0.0f;
    for (Index r = row; r < last_row; ++r)
      for (Index c = column + lane; c < last_column; c += LANES) top = larger(top, fabsf(widen(from[r * columns + c])));
    for (int step = LANES / 2; step > 0; step /= 2) top = larger(top, __shfl_xor_sync(ALL_LANES, top, step));
    if (lane > 0) continue;
    if (kind == FIGURES) reinterpret_cast<float *>(scales)[block] = scale_or_one(top / most);
    if (kind == POWERS) scales[block] = power_of(top, most);
    if (kind == FRACTIONS) scales[block] = code_of<DIGITS_E4M3, BIAS_E4M3>(top / most / unit, MOST_E4M3);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_scales(const Element *x, const float *amax, unsigned char *scales, float *whole, int kind, float most,
                 Index tensors, Index rows, Index columns, Index block_rows, Index block_columns) {
  if (block_columns == 1)
    scales_of_blocks<1>(x, amax, scales, whole, kind, most, tensors, rows, columns, block_rows, block_columns);
  else
    scales_of_blocks<WARP>(x, amax, scales, whole, kind, most, tensors, rows, columns, block_rows, block_columns);
}

// Calls visit(byte of codes, place of the scale of each of its codes) for one row of all tensors' rows.
template <int EACH, class Visit>
__device__ inline void each_of_blocks(Index rows, Index columns, Index block_rows, Index block_columns, Visit visit) {
  const Index down = (rows + block_rows - 1) / block_rows, across = (columns + block_columns - 1) / block_columns;
  const Index row = blockIdx.x, begin = (row / rows * down + row % rows / block_rows) * across;
#pragma unroll 1
  for (Index at = threadIdx.x; at < columns / EACH; at += BLOCK) {
    Index places[EACH];
    for (int j = 0; j < EACH; ++j) places[j] = begin + (at * EACH + j) / block_columns;
    visit(row * (columns / EACH) + at, places);
  }
}

template <int DIGITS, int BIAS>
__device__ inline void block_codes(const Element *x, const unsigned char *scales, const float *whole,
                                   unsigned char *codes, int kind, float most, Index rows, Index columns,
                                   Index block_rows, Index block_columns) {
  each_of_blocks<1>(rows, columns, block_rows, block_columns, [&](Index at, const auto &places) {
    codes[at] = code_of<DIGITS, BIAS>(widen(x[at]) / divisor_at(scales, whole, kind, places[0]), most);
  });
}

// A block for each row of all tensors, as of all that follow.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_codes_e4m3(const Element *x, const unsigned char *scales, const float *whole, unsigned char *codes, int kind,
                     Index rows, Index columns, Index block_rows, Index block_columns) {
  block_codes<DIGITS_E4M3, BIAS_E4M3>(x, scales, whole, codes, kind, MOST_E4M3, rows, columns, block_rows, block_columns);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_codes_e5m2(const Element *x, const unsigned char *scales, const float *whole, unsigned char *codes, int kind,
                     Index rows, Index columns, Index block_rows, Index block_columns) {
  block_codes<DIGITS_E5M2, BIAS_E5M2>(x, scales, whole, codes, kind, MOST_E5M2, rows, columns, block_rows, block_columns);
}

// Four bits of a code of eight: the lower three, and the sign.
__device__ inline unsigned four_bits(unsigned code) { return (code & 7) | (code & 0x80) >> 4; }

// The first of two codes has the lower bits.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_codes_e2m1(const Element *x, const unsigned char *scales, const float *whole, unsigned char *codes, int kind,
                     Index rows, Index columns, Index block_rows, Index block_columns) {
  each_of_blocks<2>(rows, columns, block_rows, block_columns, [&](Index at, const auto &places) {
    unsigned both = 0;
    for (int j = 0; j < 2; ++j) {
      const float scaled = widen(x[2 * at + j]) / divisor_at(scales, whole, kind, places[j]);
      both |= four_bits(code_of<DIGITS_E2M1, BIAS_E2M1>(scaled, MOST_E2M1)) << 4 * j;
    }
    codes[at] = static_cast<unsigned char>(both);
  });
}

template <int DIGITS, int BIAS, bool INFINITE>
__device__ inline void block_figures(const unsigned char *codes, const unsigned char *scales, const float *whole,
                                     Element *out, int kind, Index rows, Index columns, Index block_rows,
                                     Index block_columns) {
  each_of_blocks<1>(rows, columns, block_rows, block_columns, [&](Index at, const auto &places) {
    narrow(figure_of<DIGITS, BIAS, INFINITE>(codes[at]) * scale_at(scales, whole, kind, places[0]), out[at]);
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_figures_e4m3(const unsigned char *codes, const unsigned char *scales, const float *whole, Element *out,
                       int kind, Index rows, Index columns, Index block_rows, Index block_columns) {
  block_figures<DIGITS_E4M3, BIAS_E4M3, false>(codes, scales, whole, out, kind, rows, columns, block_rows, block_columns);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_figures_e5m2(const unsigned char *codes, const unsigned char *scales, const float *whole, Element *out,
                       int kind, Index rows, Index columns, Index block_rows, Index block_columns) {
  block_figures<DIGITS_E5M2, BIAS_E5M2, true>(codes, scales, whole, out, kind, rows, columns, block_rows, block_columns);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    block_figures_e2m1(const unsigned char *codes, const unsigned char *scales, const float *whole, Element *out,
                       int kind, Index rows, Index columns, Index block_rows, Index block_columns) {
  each_of_blocks<2>(rows, columns, block_rows, block_columns, [&](Index at, const auto &places) {
    for (int j = 0; j < 2; ++j) {
      const unsigned code = codes[at] >> 4 * j;
      const float figure = figure_of<DIGITS_E2M1, BIAS_E2M1, false>((code & 7) | (code & 8) << 4);
      narrow(figure * scale_at(scales, whole, kind, places[j]), out[2 * at + j]);
    }
  });
}
