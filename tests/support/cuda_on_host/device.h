// Runs launches: reads them with their buffers from a file, writes the buffers back. Behind the kernels, in one program.
//
// The file, all figures 64 bits: the number of buffers, of each its bytes and its contents; the number of launches, of
// each the position of the kernel in KERNELS, the grid, whether in reverse, the number of arguments. An argument is its
// bytes, their number before them, and then which of its 8-byte words hold addresses: number of words; position, buffer,
// offset of each.
#pragma once
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#ifndef __x86_64__
#error "the fibres' switch is written for x86-64"
#endif

constexpr std::size_t STACK_NBYTES = 64 * 1024;
enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Fibre {
  void *stack_pointer, *fake_stack;
  char *stack;
  State state;
  int line;
};
struct Warp {
  unsigned mask = 0, arrived = 0;
  std::uint64_t given[LANES], taken[LANES];
};

std::vector<Fibre> fibres;
std::vector<Warp> warps;
int current;
void *scheduler_stack_pointer, *scheduler_fake_stack;
const void *scheduler_stack;
std::size_t scheduler_stack_nbytes;
std::function<void()> body;

// Keeps the registers that a call must keep on this stack, and goes on where the other stack left off.
extern "C" void switch_stack(void **kept, void *next);
asm(".text\n.globl switch_stack\nswitch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

void report(const char *what, int found, int expected) {
  std::fprintf(stderr, "block (%u, %u, %u), thread %u: %s (%d, %d)\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
               what, found, expected);
  std::_Exit(3);
}

// Back to the scheduler, until this thread is to go on.
void yield(State state) {
  Fibre &fibre = fibres[current];
  fibre.state = state;
  __sanitizer_start_switch_fiber(state == DONE ? nullptr : &fibre.fake_stack, scheduler_stack, scheduler_stack_nbytes);
  switch_stack(&fibre.stack_pointer, scheduler_stack_pointer);
  __sanitizer_finish_switch_fiber(fibres[current].fake_stack, nullptr, nullptr);
}

extern "C" void run_thread() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_nbytes);
  body();
  yield(DONE);
}

void resume(int thread) {
  Fibre &fibre = fibres[thread];
  current = thread;
  threadIdx = {unsigned(thread), 0, 0};
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fibre.stack, STACK_NBYTES);
  switch_stack(&scheduler_stack_pointer, fibre.stack_pointer);
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
}

void barrier(int line) {
  fibres[current].line = line;
  yield(AT_BARRIER);
}

const std::uint64_t *exchange(unsigned mask, std::uint64_t bits) {
  Warp &warp = warps[current / LANES];
  const int lane = current % LANES;
  if (!(mask >> lane & 1)) report("a lane takes part in an exchange whose mask leaves it out", lane, mask);
  if (warp.arrived && warp.mask != mask) report("lanes of a warp exchange under different masks", mask, warp.mask);
  warp.mask = mask;
  warp.given[lane] = bits;
  warp.arrived |= 1u << lane;
  if (warp.arrived != mask) {
    yield(AT_EXCHANGE);
  } else {
    for (int other = 0; other < LANES; ++other) {
      const bool takes_part = mask >> other & 1;
      warp.taken[other] = takes_part ? warp.given[other] : NOTHING;
      const int thread = current / LANES * LANES + other;
      if (takes_part) fibres[thread].state = READY;
    }
    warp.arrived = 0;
  }
  return warp.taken;
}

extern char __start_block_shared __attribute__((weak)), __stop_block_shared __attribute__((weak));
// Past the sanitiser, for the section holds its red zones too.
__attribute__((no_sanitize("address"))) void poison_shared() {
  for (volatile char *at = &__start_block_shared; at != &__stop_block_shared; ++at) *at = char(0xff);
}

void begin_thread(Fibre &fibre) {
  __asan_unpoison_memory_region(fibre.stack, STACK_NBYTES);
  void **top = reinterpret_cast<void **>(fibre.stack + STACK_NBYTES) - 2;  // at a call, 8 off a multiple of 16
  *top = reinterpret_cast<void *>(run_thread);
  fibre.stack_pointer = top - 6;  // the registers that switch_stack takes back
  fibre.state = READY;
}

// As far as it comes, so that it is ahead of the others as far as barriers let it.
void run_warp(int warp, bool reversed) {
  const int begin = warp * LANES, end = std::min<int>(begin + LANES, fibres.size());
  bool went_on = true;
  while (went_on) {
    went_on = false;
    for (int turn = begin; turn < end; ++turn) {
      const int thread = reversed ? begin + end - 1 - turn : turn;
      if (fibres[thread].state != READY) continue;
      resume(thread);
      went_on = true;
    }
  }
}

void run_block(bool reversed) {
  const int count = fibres.size();
  poison_shared();
  for (Warp &warp : warps) warp.arrived = 0;
  for (Fibre &fibre : fibres) begin_thread(fibre);
  while (true) {
    int done = 0, waiting = 0, line = 0;
    for (int turn = 0; turn < int(warps.size()); ++turn) run_warp(reversed ? warps.size() - 1 - turn : turn, reversed);
    for (int thread = 0; thread < count; ++thread) {
      Fibre &fibre = fibres[thread];
      done += fibre.state == DONE;
      if (fibre.state != AT_BARRIER) continue;
      threadIdx.x = thread;
      if (waiting++ && line != fibre.line) report("threads wait at barriers of different lines", line, fibre.line);
      line = fibre.line;
    }
    if (done == count) return;
    if (done + waiting != count) report("an exchange waits for lanes that do not come", count - done - waiting, count);
    if (done) report("a barrier that not all threads of the block reach", waiting, count);
    for (Fibre &fibre : fibres) fibre.state = READY;
  }
}

template <class... Parameters, std::size_t... Positions>
void call_with(void (*kernel)(Parameters...), void **arguments, std::index_sequence<Positions...>) {
  kernel(*static_cast<Parameters *>(arguments[Positions])...);
}

struct Kernel {
  void (*call)(void **arguments);
  std::vector<std::size_t> sizes;
};

// How cuLaunchKernel calls it: an address per argument, of a value of the parameter's own size.
template <auto kernel, class... Parameters>
Kernel kernel_of(void (*)(Parameters...)) {
  return {[](void **arguments) { call_with(kernel, arguments, std::index_sequence_for<Parameters...>()); },
          {sizeof(Parameters)...}};
}
#define KERNEL(name) kernel_of<name>(name)

std::uint64_t read_figure(std::FILE *file) {
  std::uint64_t figure;
  if (std::fread(&figure, sizeof figure, 1, file) != 1) std::_Exit(4);
  return figure;
}

void launch(const Kernel &kernel, std::FILE *file, const std::vector<char *> &buffers) {
  gridDim = {unsigned(read_figure(file)), 0, 0};
  gridDim.y = read_figure(file), gridDim.z = read_figure(file);
  const bool reversed = read_figure(file);
  std::vector<std::vector<char>> values(read_figure(file));
  if (values.size() != kernel.sizes.size()) report("another number of arguments", values.size(), kernel.sizes.size());
  std::vector<void *> arguments;
  for (std::vector<char> &value : values) {
    const std::size_t expected = kernel.sizes[arguments.size()];
    value.resize(read_figure(file));
    if (value.size() != expected) report("an argument of another size", value.size(), expected);
    if (std::fread(value.data(), 1, value.size(), file) != value.size()) std::_Exit(4);
    for (std::uint64_t left = read_figure(file); left; --left) {
      const std::uint64_t word = read_figure(file), buffer = read_figure(file), offset = read_figure(file);
      char *address = buffers[buffer] + offset;
      std::memcpy(&value[8 * word], &address, sizeof address);
    }
    arguments.push_back(value.data());
  }
  body = [&] { kernel.call(arguments.data()); };
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned turn = 0; turn < blocks; ++turn) {
    const unsigned block = reversed ? blocks - 1 - turn : turn;
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
    run_block(reversed);
  }
}

int run_file(const std::vector<Kernel> &kernels, int threads, const char *from, const char *to) {
  std::FILE *file = std::fopen(from, "rb");
  if (!file) return 4;
  blockDim = {unsigned(threads), 1, 1};
  warps.resize((threads + LANES - 1) / LANES);
  fibres.resize(threads);
  const int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (Fibre &fibre : fibres) fibre.stack = static_cast<char *>(mmap(nullptr, STACK_NBYTES, access, kind, -1, 0));
  std::vector<char *> buffers(read_figure(file));
  std::vector<std::size_t> sizes;
  for (char *&buffer : buffers) {
    sizes.push_back(read_figure(file));
    buffer = static_cast<char *>(std::malloc(sizes.back()));  // red zones on both sides
    if (std::fread(buffer, 1, sizes.back(), file) != sizes.back()) return 4;
  }
  for (std::uint64_t left = read_figure(file); left; --left) launch(kernels.at(read_figure(file)), file, buffers);
  std::fclose(file);
  std::FILE *out = std::fopen(to, "wb");
  if (!out) return 4;
  for (std::size_t i = 0; i < buffers.size(); ++i) std::fwrite(buffers[i], 1, sizes[i], out);
  std::fclose(out);
  for (char *buffer : buffers) std::free(buffer);
  return 0;
}
