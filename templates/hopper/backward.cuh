// The backward pass in five products on wgmma: every tile is computed once, and dQ is added up over
// the chains that contribute to it, in the schedule's order (`ordered`) or as they come (`atomic`).
// Entries: prepare, backward, finalise, sink_gradient.
#ifndef ROTA_HOPPER_BACKWARD_CUH
#define ROTA_HOPPER_BACKWARD_CUH

#include "templates/hopper/backward_chain.cuh"
#include "templates/hopper/backward_copies.cuh"
#include "templates/hopper/backward_prepare.cuh"

namespace rota {

ROTA_DEVICE void backward(const RotaArguments &arguments, const RotaTensorMaps &maps) {
  const unsigned shared = shared_address(dynamic_shared());
  const Barriers barriers = {shared + kSharedBarriers};
  if (threadIdx.x == 0) {
    barriers.init();
    barrier_init_fence();
    for (int i = 0; i < 2; i++) // chains with keys that are not finite: none yet
      store_shared_word(shared + (unsigned)(kSharedBadChain + 4 * i), ~0u);
  }
  if constexpr (!kOrdered) // else for what prepare tells
    wait_for_predecessor();
  __syncthreads();
  const int group = uniform((int)threadIdx.x / kWarpgroup);
  const int warp = uniform((int)threadIdx.x % kWarpgroup / kWarp);
  if (group == 0) {
    registers_lower<kProducerRegisters>();
    if (warp == 0) {
      Loader loader = {arguments, maps, shared, barriers, Ring<kStagesQ>(1), Ring<kTurnSlots>(1)};
      loader.run();
    } else if (warp <= 2) {
      const int buffer = warp - 1;
      Writer writer = {
          arguments, maps,   shared + (unsigned)(kSharedStaging + buffer * kStagingBytes),
          barriers,  buffer, 0};
      writer.run();
    } else {
      ChainKeeper keeper = {arguments, maps, shared, barriers, 0, 0, 0};
      keeper.run();
    }
  } else {
    registers_raise<kConsumerRegisters>();
    Consumer consumer = {arguments,         shared, barriers, group - 1, warp, 0, 0,
                         Ring<kStagesQ>(0), false,  false,    {}};
    for (int number = 0; consumer.run_chain(number); number++) {
    }
  }
}

// What the sums of a row are multiplied by; exists: else the row is zeros.
ROTA_DEVICE float row_unit(const RotaArguments &arguments, const RotaSequence &sequence, int q,
                           int head, bool &exists) {
  exists = q < sequence.n_q;
  if constexpr (!kExact)
    return arguments.scale;
  const float factor = exists ? query_factor(arguments, sequence, q, head) : 0.0f;
  exists = factor != 0.0f;
  return arguments.scale / factor / key_factor(arguments, sequence, head / kGroup);
}

// One block per (query tile, query head).
ROTA_DEVICE void finalise(const RotaArguments &arguments, const RotaTensorMaps &) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  if (row.run_begin == row.run_end)
    return;
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const long long tile = query_tile_number(arguments, sequence, row.q_tile, item.head);
  const float *sum = arguments.dq_accumulator + tile * kDqFloats;
  const int lane = lane_index();
  for (int i = warp_index(); i < kDqWarps; i += (int)blockDim.x / kWarp) {
    const int q = row.q_tile * kTileQ + 16 * i + lane / 4;
    float unit[2];
    bool exists[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
      unit[r] = row_unit(arguments, sequence, q + 8 * r, item.head, exists[r]);
#pragma unroll
    for (int j = 0; j < kDqFragments; j++) {
      const int column = 8 * j + 2 * (lane % 4);
      float x[4];
      load_sum(x, sum + i * (kBlockBytes / 4) + (j * kWarp + lane) * 4);
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (q + 8 * r < sequence.rows_q && column < kHeadDim)
          store_global_word(
              row_q<Element>(arguments.d_q, sequence, q + 8 * r, item.head) + column,
              exists[r] ? pack(sum_value(x[2 * r]) * unit[r], sum_value(x[2 * r + 1]) * unit[r],
                               Element())
                        : 0u);
    }
  }
}

ROTA_DEVICE void sink_gradient(const RotaArguments &arguments, const RotaTensorMaps &) {
  sink_gradient(arguments);
}

} // namespace rota

#endif
