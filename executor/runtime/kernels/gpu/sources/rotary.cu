// Rotary positions: x[batch, length, heads, width] -> y, dims i and i + pairs of a head turned by one angle.
//
//   rotary  x, turns[2, length, pairs] -> y    2 n elements, 3 n FLOP
//
// A thread turns W pairs, or copies W of the dims behind the first 2 pairs, which stay. `turns` are cosines and sines in
// float, made in double (angles of far positions need it). Positions have 32 bits, for they are divided. `wide` says
// that all lie at multiples of 16 bytes: heads, halves of them, and turns. y may be x.

template <int W>
__device__ inline void rotary_packs(const Element *x, const float *turns, Element *y, unsigned length, unsigned heads,
                                    unsigned width, unsigned pairs, unsigned n) {
  const unsigned turned = pairs / W, of_head = turned + (width - 2 * pairs) / W, threads = gridDim.x * BLOCK;
  const unsigned packs = n / width * of_head;
  for (unsigned pack = blockIdx.x * BLOCK + threadIdx.x; pack < packs; pack += threads) {
    const unsigned head = pack / of_head, of_this = pack - head * of_head;
    const Index at = Index(head) * width;
    if (of_this >= turned) {
      const Index still = at + (turned + of_this) * W;
      keep(fetch<W>(x + still), y + still);
      continue;
    }
    const unsigned position = head / heads % length, pair = of_this * W;
    float a[W], b[W], cosines[W], sines[W], first[W], second[W];
    load<W>(x + at + pair, a);
    load<W>(x + at + pairs + pair, b);
    load<W>(turns + position * pairs + pair, cosines);
    load<W>(turns + (length + position) * pairs + pair, sines);
    for (int j = 0; j < W; ++j) {
      first[j] = a[j] * cosines[j] - b[j] * sines[j];
      second[j] = b[j] * cosines[j] + a[j] * sines[j];
    }
    store<W>(y + at + pair, first);
    store<W>(y + at + pairs + pair, second);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    rotary(const Element *x, const float *turns, Element *y, int length, int heads, int width, int pairs, int n,
           int wide) {
  if (wide)
    rotary_packs<PACK>(x, turns, y, length, heads, width, pairs, n);
  else
    rotary_packs<1>(x, turns, y, length, heads, width, pairs, n);
}
