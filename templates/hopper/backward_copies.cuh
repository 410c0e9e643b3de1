// The producer warpgroup of the backward pass: the warp that loads, the two that add dQ partials to
// their query tiles' sums, and the one that draws chains and stores their dV and dK.
#ifndef ROTA_HOPPER_BACKWARD_COPIES_CUH
#define ROTA_HOPPER_BACKWARD_COPIES_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_shared.cuh"

namespace rota {

// ---- The loader ----

// Runs ahead of the consumers as far as there is room: a chain's first Q and dO are there before
// the last chain's V is released.
struct Loader {
  // So many visits of a chain are still to be loaded when the next one is asked for.
  static constexpr int kAskVisits = 1;

  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  unsigned shared;
  Barriers barriers;
  Ring<kStagesQ> ring;
  Ring<kTurnSlots> turns;

  bool prepared = !kOrdered; // all rows: who asks for one of them waits for it until then

  // What follows is for one thread.
  ROTA_DEVICE void load_k(const ChainWords &chain, int number) const {
    const int slot = number % kSlots;
    barrier_wait_phase(barriers.empty_k(slot), (number / kSlots & 1) ^ 1);
    barrier_expect(barriers.full_k(slot), kKBytes);
    copy_boxes<kPaddedK, kTileKv>(shared + (unsigned)(kSharedK + slot * kKBytes), &maps.map[kMapK],
                                  (int)chain.sequence.begin_k + chain.kv_tile * kTileKv,
                                  chain.kv_head, chain.sequence.slot, barriers.full_k(slot));
  }
  ROTA_DEVICE void load_v(const ChainWords &chain, int number) const {
    barrier_wait_phase(barriers.empty_v(), (number & 1) ^ 1);
    barrier_expect(barriers.full_v(), kVBytes);
    copy_boxes<kPaddedV, kTileKv>(shared + kSharedV, &maps.map[kMapV],
                                  (int)chain.sequence.begin_k + chain.kv_tile * kTileKv,
                                  chain.kv_head, chain.sequence.slot, barriers.full_v());
  }
  // What the writers will need: read from the tables here, where there is time.
  ROTA_DEVICE void record(const Turn &turn) {
    const unsigned at = shared + (unsigned)(kSharedTurns + turns.stage * kTurnBytes);
    barrier_wait_phase(barriers.taken(turns.stage), turns.parity);
    const int words[7] = {turn.kind, turn.rank, turn.tile, turn.row,
                          turn.rows, turn.head, turn.slot};
#pragma unroll
    for (int i = 0; i < 7; i++)
      store_shared_word(at + 4u * (unsigned)i, (unsigned)words[i]);
    barrier_arrive(barriers.recorded(turns.stage));
    turns.advance();
  }
  ROTA_DEVICE void record_visit(const ChainWords &chain, const Visit &visit, int tile) {
    const RotaSequence &sequence = chain.sequence;
    Turn turn;
    turn.kind = kOrdered && visit.last ? Turn::kFinished : Turn::kPartial;
    turn.rank = visit.rank;
    turn.tile = tile;
    turn.row = (int)sequence.begin_q + visit.q_tile * kTileQ;
    turn.rows = sequence.rows_q - visit.q_tile * kTileQ;
    turn.head = visit.head;
    turn.slot = sequence.slot;
    record(turn);
  }
  ROTA_DEVICE void record_gradient(const ChainWords &chain) {
    const RotaSequence &sequence = chain.sequence;
    const int first = chain.kv_tile * kTileKv;
    Turn turn = {};
    turn.kind = Turn::kGradientV;
    turn.row = (int)sequence.begin_k + first;
    turn.rows = sequence.rows_k - first;
    turn.head = chain.kv_head;
    turn.slot = sequence.slot;
    record(turn);
  }
  ROTA_DEVICE void announce_visit(const ChainWords &chain, const Visit &visit, int stage) const {
    const int rows = chain.sequence.n_q - visit.q_tile * kTileQ;
    const bool tail = rows < kTileQ;
    const unsigned flags = (visit.partial || tail ? VisitRecord::kPartial : 0u) |
                           (tail ? VisitRecord::kTail : 0u) |
                           (visit.bounded || !visit.partial ? VisitRecord::kBounded : 0u);
    const unsigned at = shared + (unsigned)(kSharedVisit + kVisitBytes * stage);
    store_shared_word(at, flags);
    store_shared_word(at + 4, (unsigned)visit.q_tile);
    store_shared_word(at + 8, (unsigned)visit.head);
    store_shared_word(at + 12, (unsigned)rows);
  }
  ROTA_DEVICE void load_visit(const ChainWords &chain, const RotaVisit &entry) {
    const Visit visit = unpack_visit(entry, chain.kv_head);
    const int row = (int)chain.sequence.begin_q + visit.q_tile * kTileQ;
    const long long tile = query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head);
    const float *delta = arguments.delta + tile * kTileQ;
    const float *after = arguments.delta + (long long)arguments.tiles * arguments.heads * kTileQ;
    const int stage = ring.stage;
    const unsigned rows = shared + (unsigned)(kSharedRows + stage * kRowsBytes);
    constexpr int kFirstBytes = kRowTerms ? kTermBytes : kRowBytes;
    barrier_wait_phase(barriers.empty_q(stage), ring.parity);
    announce_visit(chain, visit, stage);
    barrier_expect(barriers.full_q(stage), kQBytes + kFirstBytes + kFactorBytes);
    copy_boxes<kPaddedK, kTileQ>(shared + (unsigned)(kSharedQ + stage * kQBytes), &maps.map[kMapQ],
                                 row, visit.head, chain.sequence.slot, barriers.full_q(stage));
    if (!prepared)
      wait_prepared(tile);
    copy_bytes(rows, after + tile * (kFirstBytes / 4), kFirstBytes, barriers.full_q(stage));
    if constexpr (kExact)
      copy_factors(shared, arguments, chain, visit, stage, barriers.full_q(stage));
    barrier_wait_phase(barriers.empty_do(stage), ring.parity);
    barrier_expect(barriers.full_do(stage), kDoBytes + (kRowTerms ? 0 : kRowBytes));
    copy_boxes<kPaddedV, kTileQ>(shared + (unsigned)(kSharedDo + stage * kDoBytes),
                                 &maps.map[kMapDO], row, visit.head, chain.sequence.slot,
                                 barriers.full_do(stage));
    if constexpr (!kRowTerms)
      copy_bytes(rows + kRowBytes, delta, kRowBytes, barriers.full_do(stage));
    ring.advance();
    record_visit(chain, visit, (int)tile);
  }
  // Until delta and LSE of the query tile's rows are there.
  ROTA_DEVICE void wait_prepared(long long tile) const {
    while (load_acquire(arguments.counters + tile) < 0) {
    }
    fence_global_for_engines();
  }
  // Whether those of all are. The whole warp.
  ROTA_DEVICE bool all_prepared() const {
#pragma unroll 1
    for (int first = 0; first < arguments.preparers; first += kWarp) {
      const int i = smaller(first + lane_index(), arguments.preparers - 1);
      if (!__all_sync(kAllLanes, load_acquire(prepared_flag(arguments, i)) != 0))
        return false;
    }
    __syncwarp(); // what any lane has acquired
    fence_global_for_engines();
    return true;
  }
  ROTA_DEVICE void load_chain(int number) {
    const ChainWords &chain = chain_words(number);
    const int end = chain.visit_end;
    int visit = chain.visit_begin;
    constexpr bool kEarly = kSlots > 1; // its slot has long been left
    if (kEarly || number == 0)
      load_k(chain, number);
    if (visit + kAskVisits >= end)
      barrier_arrive(barriers.asked());
    if (visit < end)
      load_visit(chain, arguments.visits[visit]);
    load_v(chain, number);
    if (!kEarly && number > 0)
      load_k(chain, number);
    for (visit++; visit < end; visit++) {
      if (visit + kAskVisits == end)
        barrier_arrive(barriers.asked());
      load_visit(chain, arguments.visits[visit]);
    }
    if constexpr (!kDvInStage)
      record_gradient(chain);
  }

  // The whole warp.
  ROTA_DEVICE void run() {
    int number = 0;
    for (;; number++) {
      barrier_wait_phase(barriers.described(number & 1), number >> 1 & 1);
      if (chain_words(number).is_end())
        break;
      if (!prepared)
        prepared = all_prepared();
      if (elect_lane())
        load_chain(number);
      __syncwarp();
    }
    if (elect_lane()) {
      const int slot = number % kSlots;
      barrier_wait_phase(barriers.empty_k(slot), (number / kSlots & 1) ^ 1);
      barrier_arrive(barriers.full_k(slot));
      Turn end = {};
      end.kind = Turn::kEnd;
      record(end); // for either writer
      record(end);
    }
  }
};

// A finished tile from shared boxes: by the copy engine, which knows the tensor's end, or row by
// row where the slot ends within the tile. `place` tells where a box of a column and row lies. The
// whole warp; back when all has been read.
template <int kColumns, int kRows, int kBoxRows, class Place>
ROTA_DEVICE void store_boxes(const RotaTensor &tensor, const RotaTensorMap &map, int slot, int head,
                             int first, int rows, unsigned shared, Place place) {
  const int lane = lane_index();
  if (rows >= kRows) {
    if (elect_lane()) {
#pragma unroll 1
      for (int row = 0; row < kRows; row += kBoxRows)
        for (int column = 0; column < kColumns; column += kBoxColumns)
          store_box(&map, column, first + row, head, slot, shared + (unsigned)place(column, row));
      bulk_commit();
      bulk_wait_read<0>();
    }
    __syncwarp();
    return;
  }
  constexpr int kChunks = kColumns / kChunk;
#pragma unroll 1
  for (int i = lane; i < rows * kChunks; i += kWarp) {
    const int row = i / kChunks, chunk = i % kChunks;
    const unsigned from =
        shared + (unsigned)(place(chunk * kChunk, row / kBoxRows * kBoxRows) +
                            row % kBoxRows * kBoxPitch + ((chunk % 8) ^ (row % 8)) * 16);
    store_global_chunk(element_at<Element>(tensor, slot, first + row, head) + chunk * kChunk,
                       load_shared_chunk(from));
  }
  fence_shared_for_engines();
  __syncwarp();
}

// Where dK's and dV's boxes lie.
ROTA_DEVICE constexpr int gradient_box(int column, int row) {
  return column / kBoxColumns * kTileKv * kBoxPitch + row * kBoxPitch;
}

// ---- Chains: which, and what they leave ----

// Draws chains, tells the others of each, and stores dV and dK.
struct ChainKeeper {
  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  unsigned shared;
  Barriers barriers;
  int item, end; // of the queue at hand: those that are left
  int visits;    // so far

  // The number of a queue; where rows are prepared ahead and there are none, nobody has reset the
  // ticket, and nobody waits.
  ROTA_DEVICE int draw(int number) const {
    int ticket = 0;
    if (!kOrdered && arguments.tiles == 0)
      return (int)blockIdx.x + (int)gridDim.x * number;
    if (lane_index() == 0)
      ticket = take_ticket(ticket_counter(arguments));
    return __shfl_sync(kAllLanes, ticket, 0);
  }
  // Writes the chain's entry in shared memory, lane l word l; or that there is none: false. While
  // chain c is described, some may still read c - 2; all have left c - 3. Where each worker has a
  // queue it draws no other: who would run that one may not have come yet.
  ROTA_DEVICE bool describe(int number) {
    const int lane = lane_index();
    const bool has_one = (int)gridDim.x >= arguments.workers;
    bool more = item < end;
    for (bool draws = !more && (number == 0 || !has_one); draws; draws = !more && !has_one) {
      const int queue = draw(number);
      if (queue >= arguments.workers)
        break;
      item = arguments.queue ? arguments.queue[queue] : queue;
      end = arguments.queue ? arguments.queue[queue + 1] : queue + 1;
      more = item < end;
    }
    unsigned word = lane == kSequenceWords + 3 ? ~0u : 0u;
    if (more) {
      const RotaItem next = arguments.chain_items[item++];
      const RotaChain chain = arguments.chains[next.index];
      const int rest = lane - kSequenceWords;
      if (rest < 0)
        word = reinterpret_cast<const unsigned *>(arguments.sequences + chain.sequence)[lane];
      else
        word = (unsigned)(rest == 0   ? chain.kv_tile
                          : rest == 1 ? next.head
                          : rest == 2 ? chain.visit_begin
                                      : chain.visit_end);
    }
    if (lane < kSequenceWords + 4)
      store_shared_word(
          shared + (unsigned)(kSharedChain + number % kChainSlots * kChainBytes + 4 * lane), word);
    __syncwarp();
    if (elect_lane())
      barrier_arrive(barriers.described(number & 1));
    __syncwarp();
    return more;
  }
  // Where dV of the warpgroups' keys lies: in a visit's stage, or, of a chain without visits, any
  // zeros, those of dK.
  ROTA_DEVICE void store_dv(const ChainWords &chain, int stage) const {
    const bool is_zero = chain.visit_begin == chain.visit_end;
    const int first = is_zero ? kSharedDs : kSharedQ + stage * kQBytes;
    const int second = is_zero ? kSharedDs : kSharedDo + stage * kDoBytes;
    const int key = chain.kv_tile * kTileKv;
    store_boxes<kHeadDimV, kTileKv, kKeys>(
        arguments.d_v, maps.map[kMapDV], chain.sequence.slot, chain.kv_head,
        (int)chain.sequence.begin_k + key, chain.sequence.rows_k - key, shared,
        [=](int column, int row) {
          return (row < kKeys ? first : second) + column / kBoxColumns * kKeys * kBoxPitch;
        });
    if (!is_zero && elect_lane()) {
      barrier_arrive_times(barriers.empty_q(stage), kConsumerWarps);
      barrier_arrive_times(barriers.empty_do(stage), kConsumerWarps);
    }
    __syncwarp();
  }
  // The whole warp. A chain is drawn when the last one nears its end: others may wait for it.
  ROTA_DEVICE void run() {
    bool more = describe(0);
#pragma unroll 1
    for (int number = 0; more; number++) {
      const ChainWords &chain = chain_words(number);
      barrier_wait_phase(barriers.asked(), number & 1);
      more = describe(number + 1);
      if constexpr (kDvInStage) {
        barrier_wait_phase(barriers.staged_v(), number & 1);
        visits += chain.visit_end - chain.visit_begin;
        store_dv(chain, (visits + kStagesQ - 1) % kStagesQ);
      }
      barrier_wait_phase(barriers.staged_k(), number & 1);
      const int first = chain.kv_tile * kTileKv;
      store_boxes<kHeadDim, kTileKv, kTileKv>(arguments.d_k, maps.map[kMapDK], chain.sequence.slot,
                                              chain.kv_head, (int)chain.sequence.begin_k + first,
                                              chain.sequence.rows_k - first, shared + kSharedDs,
                                              gradient_box);
      if (elect_lane())
        barrier_arrive(barriers.stored_k());
      __syncwarp();
    }
    if (elect_lane())
      bulk_wait<0>();
    if constexpr (kOrdered)
      wait_for_predecessor(); // who waits for this kernel's end waits for that one's, too
  }
};

// ---- A writer ----

struct Writer {
  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  unsigned shared; // its staging buffer
  Barriers barriers;
  int buffer, parity;

  ROTA_DEVICE float *sum_of(int tile) const {
    return arguments.dq_accumulator + (long long)tile * kDqFloats;
  }
  ROTA_DEVICE void wait_staged() {
    barrier_wait_phase(barriers.staged(buffer), parity);
    parity ^= 1;
  }
  // Lane 0.
  ROTA_DEVICE void wait_rank(const int *counter, int rank) const {
    while (load_acquire(counter) < rank) {
    }
    fence_global_for_engines();
  }

  // Opens the buffer to the consumers, who add to what is fetched.
  ROTA_DEVICE void open() const {
    if (elect_lane())
      barrier_arrive(barriers.unstaged(buffer));
  }
  ROTA_DEVICE void open_with_sum(const Turn &turn) const {
    if (elect_lane()) {
      wait_rank(arguments.counters + turn.tile, turn.rank);
      barrier_expect(barriers.unstaged(buffer), kDqFloats * 4);
      copy_bytes(shared, sum_of(turn.tile), kDqFloats * 4, barriers.unstaged(buffer));
    }
    __syncwarp();
  }

  // Adds a partial to its tile's sum, or begins it; back when the buffer has been read.
  ROTA_DEVICE void add_partial(const Turn &turn) {
    const int rank = turn.rank, tile = turn.tile;
    if (kOrdered && rank > 0 && elect_lane())
      wait_rank(arguments.counters + tile, rank);
    __syncwarp();
    wait_staged();
    if (elect_lane()) {
      if (kOrdered && rank == 0)
        store_bytes(sum_of(tile), shared, kDqFloats * 4);
      else if (kExact)
        add_integers(sum_of(tile), shared, kDqFloats * 4);
      else
        add_floats(sum_of(tile), shared, kDqFloats * 4);
      bulk_commit();
      bulk_wait_read<0>();
    }
    __syncwarp();
  }
  // The partial is in the sum: the next rank's turn.
  ROTA_DEVICE void signal_rank(int tile) const {
    if (elect_lane()) {
      bulk_wait<0>();
      fence_global_for_engines();
      add_release(arguments.counters + tile, 1);
    }
    __syncwarp();
  }

  // A sum that has been fetched for good: what the L2 holds of it need not go to memory.
  ROTA_DEVICE void discard_sum(int tile) const {
    const char *lines = reinterpret_cast<const char *>(sum_of(tile)) + 128 * lane_index();
#pragma unroll
    for (int i = 0; i < kDqFloats * 4; i += 128 * kWarp)
      discard_line(lines + i);
  }
  // What is staged goes where it belongs; back when the buffer has been read.
  ROTA_DEVICE void take(const Turn &turn) {
    if (turn.kind == Turn::kFinished) {
      wait_staged();
      store_boxes<kHeadDim, kTileQ, 16>(arguments.d_q, maps.map[kMapDQ], turn.slot, turn.head,
                                        turn.row, turn.rows, shared, dq_box);
    } else if (!kDvInStage && turn.kind == Turn::kGradientV) {
      wait_staged();
      store_boxes<kHeadDimV, kTileKv, kKeys>(arguments.d_v, maps.map[kMapDV], turn.slot, turn.head,
                                             turn.row, turn.rows, shared, gradient_box);
    } else {
      add_partial(turn);
    }
  }

  ROTA_DEVICE const Turn &wait_turn(int at) const {
    barrier_wait_phase(barriers.recorded(at % kTurnSlots), at / kTurnSlots & 1);
    return turn_of(at);
  }
  // The whole warp.
  ROTA_DEVICE void run() {
    int number = buffer;
    const Turn *turn = &wait_turn(number);
    if (turn->kind == Turn::kEnd)
      return;
    if (turn->fetches())
      open_with_sum(*turn);
    else
      open();
#pragma unroll 1
    for (bool more = true; more; number += 2) {
      take(*turn);
      const Turn *next = &wait_turn(number + 2);
      const bool fetches = next->fetches(); // whose rank may wait for this one
      more = next->kind != Turn::kEnd;
      if (more && !fetches)
        open();
      if (kOrdered && turn->kind == Turn::kPartial)
        signal_rank(turn->tile);
      if (turn->fetches())
        discard_sum(turn->tile);
      __syncwarp();
      if (elect_lane())
        barrier_arrive(barriers.taken(number % kTurnSlots));
      if (fetches)
        open_with_sum(*next);
      turn = next;
    }
    if (elect_lane())
      bulk_wait<0>();
  }
};

} // namespace rota

#endif
