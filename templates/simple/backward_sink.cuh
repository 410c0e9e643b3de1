// The gradient of the sink logits: dSink_h = -sum over rows of exp(sink_h - LSE) * delta. Entry:
// sink_gradient.
#ifndef ROTA_SIMPLE_BACKWARD_SINK_CUH
#define ROTA_SIMPLE_BACKWARD_SINK_CUH

#include "tiling.cuh"

#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"

namespace rota {

// One block per query head. Thread i adds rows i, i + threads, ... of the batch's query tiles in
// ascending order; then the threads' sums, 4 bytes each of dynamic shared memory, are added by
// halves.
ROTA_DEVICE void sink_gradient(const RotaArguments &arguments) {
  float *sums = reinterpret_cast<float *>(dynamic_shared());
  if (arguments.d_sink == nullptr)
    return;
  const int head = (int)blockIdx.x, thread = (int)threadIdx.x;
  const float sink = kLog2E * arguments.sink[head];
  float sum = 0.0f;
  for (int b = 0; b < arguments.batch; b++) {
    const RotaSequence sequence = arguments.sequences[b];
    for (int q = thread; q < sequence.n_q; q += (int)blockDim.x) {
      const long long tile = query_tile_number(arguments, sequence, q / kTileQ, head);
      const float lse = *row_q<float>(arguments.lse, sequence, q, head);
      // A row whose LSE is -inf has a sink of -inf besides: it takes no part.
      const float p = lse == -kInfinity ? 0.0f : exp2_fast(sink - kLog2E * lse);
      sum -= p * arguments.delta[tile * kTileQ + q % kTileQ];
    }
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
    if (thread < half)
      sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0)
    arguments.d_sink[head] = sums[0];
}

} // namespace rota

#endif
