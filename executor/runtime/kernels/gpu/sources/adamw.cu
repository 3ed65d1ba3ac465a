// AdamW over many tensors at once, with parameters and state in float and, where wanted, a rounded copy.
//
//   adamw  grads -> params, m, v (rewritten), copies    n (2 elements + 24 bytes), 14 n FLOP
//
// n = elements of all tensors. Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2. `factor` scales every
// gradient (the mean over the tokens, and the clip). `step` counts updates from 1 on, on the device, 0 where this one is
// skipped; where it is null, `number` does. A tensor's blocks are first_block[t] to first_block[t + 1], CHUNK elements
// each; all vectors lie at multiples of sixteen bytes where `wide`.

constexpr int TENSORS = 24;
constexpr int CHUNK = BLOCK * 16;

struct Pointers {
  void *of[TENSORS];
};

struct Counts {
  Index of[TENSORS + 1];
};

template <int W>
__device__ inline void adamw_chunk(const Element *grad, float *param, float *m, float *v, Element *copy, Index begin,
                                   Index end, float factor, float lr, float beta1, float beta2, float epsilon,
                                   float decay, float correction1, float correction2) {
  for (Index i = begin + Index(threadIdx.x) * W; i < end; i += BLOCK * W) {
    float g[W], p[W], mean[W], square[W];
    load<W>(grad + i, g);
    load<W>(param + i, p);
    load<W>(m + i, mean);
    load<W>(v + i, square);
    for (int j = 0; j < W; ++j) {
      const float scaled = g[j] * factor;
      mean[j] = beta1 * mean[j] + (1.0f - beta1) * scaled;
      square[j] = beta2 * square[j] + (1.0f - beta2) * scaled * scaled;
      const float root = sqrtf(square[j]) * correction2 + epsilon;
      p[j] = p[j] * (1.0f - lr * decay) - lr * correction1 * mean[j] / root;
    }
    store<W>(param + i, p);
    store<W>(m + i, mean);
    store<W>(v + i, square);
    if (copy) store<W>(copy + i, p);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    adamw(Pointers grads, Pointers params, Pointers means, Pointers squares, Pointers copies, Counts sizes,
          Counts first_block, const float *factor, const float *lr, const Index *step, Index number, double beta1,
          double beta2, float epsilon, float decay, int wide) {
  __shared__ float corrections[2];
  const Index update = step ? *step : number;
  if (update == 0) return;
  if (threadIdx.x == 0) {
    corrections[0] = 1.0 / (1.0 - pow(beta1, double(update)));
    corrections[1] = 1.0 / sqrt(1.0 - pow(beta2, double(update)));
  }
  __syncthreads();
  int t = 0;
  while (blockIdx.x >= first_block.of[t + 1]) ++t;
  const Index begin = (blockIdx.x - first_block.of[t]) * CHUNK;
  const Index end = begin + CHUNK < sizes.of[t] ? begin + CHUNK : sizes.of[t];
  const Index packed = wide ? end - (end - begin) % PACK : begin;
  const Element *grad = static_cast<const Element *>(grads.of[t]);
  Element *copy = static_cast<Element *>(copies.of[t]);
  float *param = static_cast<float *>(params.of[t]), *mean = static_cast<float *>(means.of[t]);
  float *square = static_cast<float *>(squares.of[t]);
  adamw_chunk<PACK>(grad, param, mean, square, copy, begin, packed, *factor, *lr, beta1, beta2, epsilon, decay,
                    corrections[0], corrections[1]);
  adamw_chunk<1>(grad, param, mean, square, copy, packed, end, *factor, *lr, beta1, beta2, epsilon, decay,
                 corrections[0], corrections[1]);
}
