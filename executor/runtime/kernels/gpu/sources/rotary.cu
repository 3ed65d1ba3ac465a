// Rotary positions: x[batch, length, heads, width] -> y, dims i and i + pairs of a head turned by one angle.
//
//   rotary  x, turns[2, length, pairs] -> y    2 n elements, 3 n FLOP
//
// A block per position; `turns` are cosines and sines in float, made in double (angles of far positions need it). Dims
// behind the first 2 pairs stay. y may be x.

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    rotary(const Element *x, const float *turns, Element *y, Index length, Index heads, Index width, Index pairs) {
  const Index place = blockIdx.x, position = place % length, at = place * heads * width;
  const int dims = width, half = pairs, turned = heads * pairs;  // 32-bit division is several times faster
  const float *cosines = turns + position * pairs, *sines = turns + (length + position) * pairs;
  for (int i = threadIdx.x; i < turned; i += BLOCK) {
    const int pair = i % half;
    const Index first = at + i / half * dims + pair, second = first + half;
    const float a = widen(x[first]), b = widen(x[second]);
    narrow(a * cosines[pair] - b * sines[pair], y[first]);
    narrow(b * cosines[pair] + a * sines[pair], y[second]);
  }
  const int rest = dims - 2 * half, still_there = heads * rest;
  for (int i = threadIdx.x; i < still_there; i += BLOCK) {
    const Index still = at + i / rest * dims + 2 * half + i % rest;
    y[still] = x[still];
  }
}
