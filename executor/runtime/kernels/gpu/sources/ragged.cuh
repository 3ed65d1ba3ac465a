// Ragged rows, of which the device alone knows how many there are.
//
// index[0] is their number, index[1 + i] the cell of row i, ascending: which (expert, group, token) it is of, counted over
// the whole tensor (strategy/sbp/ragged.py). The rows lie one after another, in room for more. Operands of one act have the
// same cells. A grid covers all the room; what is behind the last row is neither read nor written.

constexpr int HALF_PACK = PACK / 2;  // elements of eight bytes: rows lie at multiples of that, whatever their number

// A result has the rows of an operand. `held` may be `index`.
__device__ inline void hold_cells(const Index *index, Index *held) {
  const Index threads = Index(gridDim.x) * gridDim.y * BLOCK, count = index[0];
  const Index first = (Index(blockIdx.y) * gridDim.x + blockIdx.x) * BLOCK + threadIdx.x;
  for (Index i = first; i <= count; i += threads) held[i] = index[i];
}

// The first of ascending cells that is not below `cell`.
__device__ inline Index first_not_below(const Index *cells, Index count, Index cell) {
  Index low = 0, high = count;
  while (low < high) {
    const Index middle = (low + high) / 2;
    if (cells[middle] < cell)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// One result of each element of the rows of up to three operands. The first `lead` elements of all are before a multiple
// of sixteen bytes, and `wide` says that they are so in all operands alike.
template <int N, class Function>
__device__ inline void each_of_rows(const Index *index, const Element *const (&reads)[N], Index *held, Element *out,
                                    Index width, Index lead, int wide, Function function) {
  hold_cells(index, held);
  const Index n = index[0] * width, ahead = lead < n ? lead : n;
  const Element *behind[N];
  for (int k = 0; k < N; ++k) behind[k] = reads[k] + ahead;
  each<N>(reads, out, ahead, 0, function);
  each<N>(behind, out + ahead, n - ahead, wide, function);
}
