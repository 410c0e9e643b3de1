// The backward pass in five products, on mma.sync: every tile is computed once, and dQ is added up
// over the chains that contribute to it, in the schedule's order (`ordered`) or as they come
// (`atomic`). Entries: delta, backward, finalise, sink_gradient.
#ifndef ROTA_PORTABLE_BACKWARD_CUH
#define ROTA_PORTABLE_BACKWARD_CUH

#include "templates/portable/backward_chain.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

// A worker's number is the order in which it came to run, so that every wait is for a block that
// has started. Without query tiles rota_delta has no block to reset the ticket, but nobody waits.
ROTA_DEVICE int worker_number(const RotaArguments &arguments) {
  if (arguments.tiles == 0)
    return (int)blockIdx.x;
  return take_ticket(arguments.counters + (long long)arguments.tiles * arguments.heads);
}

ROTA_DEVICE void backward(const RotaArguments &arguments) {
  const unsigned shared = shared_address(dynamic_shared());
  if (threadIdx.x == 0)
    store_shared_word(shared + kSharedWorker, (unsigned)worker_number(arguments));
  __syncthreads();
  const int worker = (int)load_shared_word(shared + kSharedWorker);
  for (int i = arguments.queue[worker]; i < arguments.queue[worker + 1]; i++)
    run_chain<kAtomic ? Reduction::kAtomic : Reduction::kOrdered>(arguments,
                                                                  arguments.chain_items[i], shared);
}

// One block of the backward kernel's size per (query tile, query head): sums are read by the
// threads that added them.
ROTA_DEVICE void finalise(const RotaArguments &arguments) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  if (row.run_begin == row.run_end)
    return;
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int thread = (int)threadIdx.x;
  const long long tile = query_tile_number(arguments, sequence, row.q_tile, item.head);
  float dq[kDqM][2 * kDqPart][4];
  for_dq_fragments(dq, arguments.dq_accumulator + tile * (kTileQ * LayoutK::kPadded) + 4 * thread,
                   [](float(&x)[4], float *at) { load_sum(x, at); });
  store_dq(arguments, sequence, row.q_tile, item.head, thread, dq);
}

} // namespace rota

#endif
