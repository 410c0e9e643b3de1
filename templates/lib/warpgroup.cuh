// Warpgroups of sm_90a: descriptors of tiles in shared memory for wgmma, its fences, and the share
// of registers. The products themselves are emitted per shape: struct Wgmma<n> of instructions.cuh.
//
// Operand tiles lie as the copy engine's boxes do (tensor_copy.cuh): rows of 64 elements, 128
// bytes, swizzled by 128 bytes. A tile serves in two ways:
//
//   along     the row is a row of A or a column of B: k runs along the 64 elements. One k step of
//             16 is 32 bytes further; beyond 64 comes the next box.
//   across    the row is a k of A or B ("transposed"): m or n runs along the elements, over several
//             boxes. One k step of 16 is 16 rows further.
//
// Accumulators of a 64 x n product: thread t of the warpgroup, warp w = t / 32, lane l = t % 32,
// holds d[4 i + 2 r + c] of row 16 w + 8 r + l / 4, column 8 i + 2 (l % 4) + c. As the A operand in
// registers of the next product, k block b (16 columns) is the packed pairs (i = 2 b, r = 0),
// (2 b, 1), (2 b + 1, 0), (2 b + 1, 1).
#ifndef ROTA_LIB_WARPGROUP_CUH
#define ROTA_LIB_WARPGROUP_CUH

#include "templates/lib/tensor_copy.cuh"

namespace rota {

inline constexpr int kWarpgroup = 128; // threads

using Descriptor = unsigned long long; // of a matrix in shared memory, for wgmma

// Address of the first row, multiple of 1024 (or further by k steps along); distances in bytes.
ROTA_DEVICE Descriptor describe(unsigned shared, int leading, int stride) {
  constexpr Descriptor kSwizzle128 = 1ull << 62;
  return kSwizzle128 | (Descriptor)(stride >> 4) << 32 | (Descriptor)(leading >> 4) << 16 |
         ((shared & 0x3ffff) >> 4);
}
// The same of an address shifted to the right by 4.
ROTA_DEVICE Descriptor describe_shifted(unsigned shared, int leading) {
  constexpr Descriptor kHigh = 1ull << 62 | (Descriptor)(1024 >> 4) << 32;
  return kHigh | (shared + (unsigned)(leading >> 4 << 16));
}
// A tile used along its rows: groups of 8 rows are 1024 bytes apart.
ROTA_DEVICE Descriptor describe_along(unsigned shared) {
  return describe(shared, 16, 1024);
}
// A tile used across its rows, of `rows` rows per box: the next 64 of m or n are a box further, the
// next 8 of k are 1024 bytes further.
ROTA_DEVICE Descriptor describe_across(unsigned shared, int rows) {
  return describe(shared, rows * kBoxPitch, 1024);
}
// The descriptor `bytes` further; within the low 18 bits of shared addresses nothing overflows.
ROTA_DEVICE Descriptor advance(Descriptor descriptor, int bytes) {
  return descriptor + (Descriptor)(bytes >> 4);
}
// Byte distance of k step `step` (16 elements) in a tile of `rows` rows.
ROTA_DEVICE constexpr int step_along(int rows, int step) {
  return step / 4 * rows * kBoxPitch + step % 4 * 32;
}
ROTA_DEVICE constexpr int step_across(int step) {
  return step * 16 * kBoxPitch;
}

// Before the first product that uses registers written by ordinary instructions (accumulators, A).
ROTA_DEVICE void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
ROTA_DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups of products are under way.
template <int kPending> ROTA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Tells the compiler that registers change here: accumulators around waits.
template <int kCount> ROTA_DEVICE void wgmma_touch(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++)
    asm volatile("" : "+f"(d[i])::"memory");
}

// What x depends on is computed before what comes next: the assembler moves arithmetic below a wait
// for products, where it no longer overlaps them, but not beyond a branch. x must not be negative
// in any lane: the branch is never taken.
ROTA_DEVICE void finish_first(float x) {
  if (__any_sync(kAllLanes, x < 0.0f))
    asm volatile("nanosleep.u32 1;"); // clobbers no memory, else products are serialised
}

// Tells the compiler that all lanes of the warp hold the same number: what depends on it takes
// uniform registers and branches, which products need.
ROTA_DEVICE int uniform(int x) {
  return __shfl_sync(kAllLanes, x, 0);
}
// The same number, but the compiler cannot tell: what depends on it is computed anew, where kept
// over a loop it would take registers.
ROTA_DEVICE int hidden(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The share of registers of each of the warpgroup's threads, a multiple of 8; all warps of the
// warpgroup. Needs __launch_bounds__(threads, 1).
template <int kRegisters> ROTA_DEVICE void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> ROTA_DEVICE void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Within the four lanes of a row: word j of lane i becomes word i of lane j.
ROTA_DEVICE void quad_transpose(unsigned (&x)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane_index() & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & step)
        continue;
      const unsigned sent = upper ? x[i] : x[i + step];
      const unsigned got = __shfl_xor_sync(kAllLanes, sent, step);
      x[i] = upper ? got : x[i];
      x[i + step] = upper ? x[i + step] : got;
    }
  }
}

// Four 8 x 8 blocks of 16-bit elements into shared memory: word i of lane 4 r + c holds elements
// 2 c, 2 c + 1 of row r of block i; lane 8 i + r gives the address of that row. `transposed`:
// of column r.
ROTA_DEVICE void store_matrices(unsigned shared, const unsigned (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
ROTA_DEVICE void store_matrices_transposed(unsigned shared, const unsigned (&x)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
      : "memory");
}

} // namespace rota

#endif
