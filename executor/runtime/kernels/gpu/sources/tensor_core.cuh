// One product of a warp on tensor cores: sums[16, 8] += a[16, 16] b[16, 8], of halves, in float.
//
// Which elements a lane has is NVIDIA's ("PTX ISA", m16n8k16 of mma for .f16 and .bf16), two to a word, the first in its
// lower half; group = lane / 4, pair = lane % 4:
//
//   a[0 to 3]     rows group, group + 8, group, group + 8; columns 2 pair, the last two those plus 8
//   b[0], b[1]    rows 2 pair, those plus 8; column group
//   sums[0 to 3]  rows group, group, group + 8, group + 8; columns 2 pair, 2 pair + 1, and again

__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
