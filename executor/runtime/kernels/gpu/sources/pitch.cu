// Rows that begin at other distances.
//
//   copy_pitched  source[rows][width], rows `from` elements apart -> target, rows `into` apart   2 rows width elements, 0 FLOP
//
// One of the two has rows at odd places, where no vector lies; so every thread moves single elements, a warp those of
// one stretch.

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    copy_pitched(const Element *source, Element *target, Index width, Index from, Index into) {
  const Element *row = source + blockIdx.x * from;
  Element *out = target + blockIdx.x * into;
#pragma unroll 4
  for (Index column = threadIdx.x; column < width; column += BLOCK) out[column] = row[column];
}
