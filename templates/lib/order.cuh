// Whose turn it is: tickets, rank counters, and the fp32 sums in global memory that they guard.
//
// A query tile's dQ is a sum of partials, added one after another in the schedule's order. Its
// counter counts warps that have added: every warp of every worker holds the same part of each
// tile, so warp w of rank r needs the sum of warps w of the ranks before it, and waits until all of
// them have signalled, r * warps signals in all:
//
//   rank r - 1, warp w:   store or add to the sums -> __syncwarp -> add 1 to the counter (release)
//   rank r, warp w:       counter >= r * warps (acquire) -> __syncwarp -> load or add to the sums
//
// No signal of rank r can be counted before all of rank r - 1 are: it is sent after the wait. Waits
// are for queues with lower tickets only: who has drawn one runs it when the lower ones it drew
// have ended. Or all workers are resident (a cooperative launch) and their queues are free of
// cycles. The plan sees to it: there is always one that waits for nobody.
#ifndef ROTA_LIB_ORDER_CUH
#define ROTA_LIB_ORDER_CUH

#include "templates/lib/types.cuh"

namespace rota {

// The number of the next queue; called by one thread of a block.
ROTA_DEVICE int take_ticket(int *counter) {
  int ticket;
  asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(counter)
               : "memory");
  return ticket;
}

ROTA_DEVICE int load_acquire(const int *counter) {
  int count;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}
ROTA_DEVICE void add_release(int *counter, int x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(x) : "memory");
}

// The whole warp waits; what was written before the signals is visible to all its lanes afterwards.
ROTA_DEVICE void wait_for_signals(const int *counter, int signals) {
  if (lane_index() == 0)
    while (load_acquire(counter) < signals) {
    }
  __syncwarp();
}
// Publishes what the warp's lanes have written.
ROTA_DEVICE void signal(int *counter) {
  __syncwarp();
  if (lane_index() == 0)
    add_release(counter, 1);
}

// ---- Sums: 16 bytes at a time, past the L1 cache, which other processors' stores do not reach
// ----

ROTA_DEVICE void load_sum(float (&x)[4], const float *from) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "l"(from)
               : "memory");
}
ROTA_DEVICE float load_fresh(const float *from) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}
ROTA_DEVICE void store_sum(float *to, const float (&x)[4]) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}
// 128 bytes, at a multiple of 128, will not be read before they are written anew: what caches hold
// of them need not go to memory.
ROTA_DEVICE void discard_line(const void *line) {
#if __CUDA_ARCH__ >= 800
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
#endif
}
// In order of arrival: not deterministic.
ROTA_DEVICE void add_sum(float *to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]),
               "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; i++)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i), "f"(x[i]) : "memory");
#endif
}

// ---- Words ----

ROTA_DEVICE void store_global_word(void *global, unsigned x) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(global), "r"(x) : "memory");
}

ROTA_DEVICE unsigned load_shared_word(unsigned shared) {
  unsigned x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}
ROTA_DEVICE void load_shared_pair(float (&x)[2], unsigned shared) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(x[0]), "=f"(x[1])
               : "r"(shared)
               : "memory");
}
ROTA_DEVICE void load_shared_floats(float (&x)[4], unsigned shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(shared)
               : "memory");
}
// Four neighbours of an array from x[at] on; `at` is known to the compiler.
template <int kCount>
ROTA_DEVICE void store_shared_floats(unsigned shared, const float (&x)[kCount], int at) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(x[at]), "f"(x[at + 1]),
               "f"(x[at + 2]), "f"(x[at + 3])
               : "memory");
}
ROTA_DEVICE void or_shared_word(unsigned shared, unsigned bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared), "r"(bits) : "memory");
}

} // namespace rota

#endif
