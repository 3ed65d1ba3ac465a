// What softmax cross-entropy is composed of, over the classes begin to begin + width that a rank holds.
//
//   sum_exp             logits[rows, width], top[rows]        -> out[rows]      n elements read, 4 n FLOP
//   sum_exp_grad        logits, top, grad[rows]               -> dlogits        2 n elements, 4 n FLOP
//   cross_entropy       logits, labels[rows], lse[rows], sums -> loss[], count[]   one logit per row, 3 rows FLOP
//   cross_entropy_grad  logits, labels, lse, grad[] or none   -> dlogits        2 n elements, 4 n FLOP
//
// n = rows width; `wide` says that the first row lies at a multiple of sixteen bytes. A label that is no class makes the loss, and its row of the gradient, no number:
// to raise an error the host would have to wait.

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sum_exp(const Element *logits, const Element *top, Element *out, Index width, int wide) {
  __shared__ float room[WARPS];
  const Index row = blockIdx.x;
  const float most = widen(top[row]);
  float sum = 0.0f;
  each_of_ragged_row(logits + row * width, width, wide, [&](const auto &values, Index) {
    for (const float value : values) sum += expf(value - most);
  });
  const float total = block_sum(sum, room);
  if (threadIdx.x == 0) narrow(total, out[row]);
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    sum_exp_grad(const Element *logits, const Element *top, const Element *grad, Element *out, Index width, int wide) {
  const Index row = blockIdx.x, at = row * width;
  const float most = widen(top[row]), factor = widen(grad[row]);
  each_of_ragged_row(logits + at, width, wide, [&](const auto &values, Index column) {
    constexpr int W = sizeof values / sizeof(float);
    float d[W];
    for (int j = 0; j < W; ++j) d[j] = expf(values[j] - most) * factor;
    store<W>(out + at + column, d);
  });
}

// The sum over valid rows of lse - (1 - s) logits[label] - s mean(logits), s the label smoothing, by one block; `sums`
// are the sums of the rows of logits, and null where labels are not smoothed.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    cross_entropy(const Element *logits, const void *labels, int label_nbytes, const Element *lse, const float *sums,
                  Element *loss, Element *count, Index rows, Index begin, Index width, Index classes, Index ignored,
                  float smoothing) {
  __shared__ float room[WARPS];
  float terms = 0.0f, counted = 0.0f;
  for (Index row = threadIdx.x; row < rows; row += BLOCK) {
    const Index label = read_index(labels, label_nbytes, row);
    if (label == ignored) continue;
    if (label < 0 || label >= classes) terms = nanf("");
    if (sums) terms -= smoothing / classes * sums[row];
    if (label >= begin && label < begin + width) {
      terms += widen(lse[row]) - (1.0f - smoothing) * widen(logits[row * width + label - begin]);
      counted += 1.0f;
    }
  }
  const float loss_sum = block_sum(terms, room), count_sum = block_sum(counted, room);
  if (threadIdx.x == 0) {
    narrow(loss_sum, *loss);
    narrow(count_sum, *count);
  }
}

// factor (softmax - target) in a valid row, 0 in another; target = (1 - s) onehot(label) + s / classes.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT)
    cross_entropy_grad(const Element *logits, const void *labels, int label_nbytes, const Element *lse,
                       const Element *grad, Element *out, Index begin, Index width, Index classes, Index ignored,
                       float smoothing, int wide) {
  const Index row = blockIdx.x, at = row * width, label = read_index(labels, label_nbytes, row);
  const bool valid = label != ignored, strange = valid && (label < 0 || label >= classes);
  const float factor = strange ? nanf("") : grad ? widen(*grad) : 1.0f, sum = widen(lse[row]);
  const float share = smoothing / classes, peak = 1.0f - smoothing;
  each_of_ragged_row(logits + at, width, wide, [&](const auto &values, Index column) {
    constexpr int W = sizeof values / sizeof(float);
    float d[W] = {};
    for (int j = 0; valid && j < W; ++j) {
      const float target = share + (begin + column + j == label ? peak : 0.0f);
      d[j] = (expf(values[j] - sum) - target) * factor;
    }
    store<W>(out + at + column, d);
  });
}
