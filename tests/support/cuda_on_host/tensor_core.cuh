// Stands in for the instruction of tensor cores: what NVIDIA says of it, by lanes that hand over what they have.
#pragma once

// Which figure is at (row, k) of a, which is at (k, column) of b: lane, word of it, half of that.
template <class T>
float half_of(const std::uint64_t *words, int lane, int half) {
  T found;
  std::memcpy(&found, reinterpret_cast<const char *>(&words[lane]) + sizeof found * half, sizeof found);
  return widen(found);
}

template <class T>
void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], T) {
  std::uint64_t left[4][LANES], right[2][LANES];
  for (int word = 0; word < 4; ++word) std::memcpy(left[word], exchange(ALL_LANES, a[word]), sizeof left[word]);
  for (int word = 0; word < 2; ++word) std::memcpy(right[word], exchange(ALL_LANES, b[word]), sizeof right[word]);
  for (int sum = 0; sum < 4; ++sum) {
    const int row = lane_of_this_thread() / 4 + (sum >= 2 ? 8 : 0), column = lane_of_this_thread() % 4 * 2 + sum % 2;
    for (int k = 0; k < 16; ++k) {
      const int of_a = row % 8 * 4 + k % 8 / 2, of_b = column * 4 + k % 8 / 2;
      sums[sum] += half_of<T>(left[row / 8 + k / 8 * 2], of_a, k % 2) * half_of<T>(right[k / 8], of_b, k % 2);
    }
  }
}
