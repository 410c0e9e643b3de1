// Barriers in shared memory (mbarrier) that count arriving threads and arriving bytes of
// asynchronous copies, on sm_90 and newer; and the named barriers of a block, everywhere.
//
// A barrier goes through phases; a phase ends when all its arrivals and bytes have come. Who waits
// passes the parity (0, 1, 0 ...) of the phase that shall be over: a ring of stages keeps
//
//   full[stage]    1 arrival (the loader, which announces the bytes)     consumers wait
//   empty[stage]   one arrival of every consumer warp                    the loader waits
//
// and a Ring for each side. A fresh barrier counts as one whose phase 1 is over: a loader that
// starts with parity 1 finds all stages empty.
#ifndef ROTA_LIB_BARRIER_CUH
#define ROTA_LIB_BARRIER_CUH

#include "templates/lib/types.cuh"

namespace rota {

// Addresses are of shared memory: a barrier is 8 bytes, a multiple of 8.
ROTA_DEVICE void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine and to the cluster; before the block's first
// __syncthreads.
ROTA_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
ROTA_DEVICE void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As that many arrivals.
ROTA_DEVICE void barrier_arrive_times(unsigned barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times)
               : "memory");
}
// Arrives and announces bytes that copies will bring in this phase.
ROTA_DEVICE void barrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
ROTA_DEVICE bool barrier_test(unsigned barrier, int parity) {
  unsigned over;
  asm volatile("{\n"
               ".reg .pred over;\n"
               "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
               "selp.u32 %0, 1, 0, over;\n"
               "}"
               : "=r"(over)
               : "r"(barrier), "r"(parity)
               : "memory");
  return over != 0;
}
// The same at once, without sleeping.
ROTA_DEVICE bool barrier_is_over(unsigned barrier, int parity) {
  unsigned over;
  asm volatile("{\n"
               ".reg .pred over;\n"
               "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
               "selp.u32 %0, 1, 0, over;\n"
               "}"
               : "=r"(over)
               : "r"(barrier), "r"(parity)
               : "memory");
  return over != 0;
}
// Until the phase of that parity is over. try_wait sleeps inside the hardware for a while.
ROTA_DEVICE void barrier_wait_phase(unsigned barrier, int parity) {
  while (!barrier_test(barrier, parity)) {
  }
}
// The same of two: they are tested together, so that their latencies overlap.
ROTA_DEVICE void barrier_wait_both(unsigned a, int parity_a, unsigned b, int parity_b) {
  while (!(barrier_test(a, parity_a) & barrier_test(b, parity_b))) {
  }
}

// Stage and parity of one side of a ring of kStages buffers.
template <int kStages> struct Ring {
  int stage, parity;
  ROTA_DEVICE explicit Ring(int first_parity) : stage(0), parity(first_parity) {}
  ROTA_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- Named barriers 1 .. 15 (0 is __syncthreads): `threads` of the block in all ----

ROTA_DEVICE void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same, and whether any of the threads brings true.
ROTA_DEVICE bool named_barrier_or(int barrier, int threads, bool mine) {
  unsigned any;
  asm volatile("{\n"
               ".reg .pred mine, any;\n"
               "setp.ne.u32 mine, %3, 0;\n"
               "barrier.cta.red.or.aligned.pred any, %1, %2, mine;\n"
               "selp.u32 %0, 1, 0, any;\n"
               "}"
               : "=r"(any)
               : "r"(barrier), "r"(threads), "r"((unsigned)mine)
               : "memory");
  return any != 0;
}
// Counts, does not wait.
ROTA_DEVICE void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

} // namespace rota

#endif
