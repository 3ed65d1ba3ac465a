// Matrices in other rows.
//
//   copy_pitched  source[rows][width], rows `from` elements apart -> target, rows `into` apart
//                                                                    2 rows width elements, 0 FLOP
//
// A block per row of the target, of which `filled` columns are written: zeros where the source has no row or column. One
// of the two has rows at odd places, where no vector lies; so every thread moves single elements, a warp those of one
// stretch.

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    copy_pitched(const Element *source, Element *target, Index rows, Index width, Index from, Index into, Index filled) {
  const Element *row = source + blockIdx.x * from;
  Element *out = target + blockIdx.x * into;
  const Index there = blockIdx.x < rows ? width : 0;
  Index column = threadIdx.x;
#pragma unroll 4
  for (; column < there; column += BLOCK) out[column] = row[column];
  for (; column < filled; column += BLOCK) narrow(0.0f, out[column]);
}
