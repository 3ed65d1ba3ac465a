// CUDA C++ on the host: what a kernel's source needs of CUDA's headers and compiler, so that g++ runs it unchanged.
//
// A thread is a fibre with a stack of its own. The warps of a block take turns, each going on to its next barrier before
// another does, and so do its lanes from one exchange to the next, in the order that the launch asks for; blocks run one
// after another. Shared memory is a section of
// static variables, filled with NaNs before every block. Reported, and the end of the process: a barrier that not all
// threads of a block reach, or not all at one place; a lane that takes part in an exchange whose mask leaves it out, one
// that others wait for in vain, and a read from a lane outside of the mask.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("block_shared")))
#define __syncthreads() barrier(__LINE__)

struct Dim3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline void __stwb(uint4 *into, uint4 value) { *into = value; }
inline void __stwb(uint2 *into, uint2 value) { *into = value; }
inline float __fdividef(float over, float under) { return over / under; }
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

constexpr int LANES = 32;
constexpr unsigned long long NOTHING = 0xDEADDEADDEADDEADull;  // what a lane outside of an exchange seems to hold

void barrier(int line);
// Every lane of `mask` hands over 64 bits; returns those of all 32 lanes.
const std::uint64_t *exchange(unsigned mask, std::uint64_t bits);
[[noreturn]] void report(const char *what, int found, int expected);

inline int lane_of_this_thread() { return threadIdx.x % LANES; }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flipped) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const int source = lane_of_this_thread() ^ flipped;
  const std::uint64_t *all = exchange(mask, bits);
  if (source >= LANES || !(mask >> source & 1)) report("a shuffle reads from a lane outside of its mask", source, mask);
  std::memcpy(&value, &all[source], sizeof value);
  return value;
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, int back) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const int source = lane_of_this_thread() - back;
  const std::uint64_t *all = exchange(mask, bits);
  if (source < 0) return value;
  if (!(mask >> source & 1)) report("a shuffle reads from a lane outside of its mask", source, mask);
  std::memcpy(&value, &all[source], sizeof value);
  return value;
}

inline unsigned __ballot_sync(unsigned mask, bool yes) {
  const std::uint64_t *all = exchange(mask, yes);
  unsigned votes = 0;
  for (int lane = 0; lane < LANES; ++lane) votes |= (mask >> lane & 1 && all[lane]) ? 1u << lane : 0u;
  return votes;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

struct __half {
  _Float16 value;
};
inline float __half2float(__half half) { return half.value; }
inline __half __float2half(float value) { return {static_cast<_Float16>(value)}; }

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 half) {
  const std::uint32_t bits = std::uint32_t(half.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline __nv_bfloat16 __float2bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return {0x7fff};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // to the nearest, halves to even
}
