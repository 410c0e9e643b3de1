// The producer warpgroup of the backward pass: the warp that loads, and the two that add dQ
// partials to their query tiles' sums and store finished gradients.
#ifndef ROTA_HOPPER_BACKWARD_COPIES_CUH
#define ROTA_HOPPER_BACKWARD_COPIES_CUH

#include "templates/hopper/backward_exact.cuh"
#include "templates/hopper/backward_shared.cuh"

namespace rota {

// ---- The loader ----

// Runs ahead of the consumers as far as there is room: a chain's first Q and dO are there before
// the last chain's K is released. Slots for chains: while chain c is written, consumers have left
// c - 3 for good.
struct Loader {
  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  unsigned shared;
  Barriers barriers;
  Ring<kStagesQ> ring;

  // Lane l holds word l of the chain's entry in shared memory.
  ROTA_DEVICE unsigned chain_word(const RotaItem &item, const RotaChain &chain) const {
    const int lane = lane_index();
    if (lane < kSequenceWords)
      return reinterpret_cast<const unsigned *>(arguments.sequences + chain.sequence)[lane];
    const int rest = lane - kSequenceWords;
    return (unsigned)(rest == 0   ? chain.kv_tile
                      : rest == 1 ? item.head
                      : rest == 2 ? chain.visit_begin
                                  : chain.visit_end);
  }

  // What follows is for one thread.
  ROTA_DEVICE void load_k(const ChainWords &chain, int number) const {
    barrier_wait_phase(barriers.empty_k(), (number & 1) ^ 1);
    barrier_expect(barriers.full_k(), kKBytes);
    copy_boxes<kPaddedK, kTileKv>(shared + kSharedK, &maps.map[kMapK],
                                  (int)chain.sequence.begin_k + chain.kv_tile * kTileKv,
                                  chain.kv_head, chain.sequence.slot, barriers.full_k());
  }
  ROTA_DEVICE void load_v(const ChainWords &chain, int number) const {
    barrier_wait_phase(barriers.empty_v(), (number & 1) ^ 1);
    barrier_expect(barriers.full_v(), kVBytes);
    copy_boxes<kPaddedV, kTileKv>(shared + kSharedV, &maps.map[kMapV],
                                  (int)chain.sequence.begin_k + chain.kv_tile * kTileKv,
                                  chain.kv_head, chain.sequence.slot, barriers.full_v());
  }
  ROTA_DEVICE void load_visit(const ChainWords &chain, const RotaVisit &entry) {
    const Visit visit = unpack_visit(entry, chain.kv_head);
    const int row = (int)chain.sequence.begin_q + visit.q_tile * kTileQ;
    const float *delta =
        arguments.delta +
        query_tile_number(arguments, chain.sequence, visit.q_tile, visit.head) * kTileQ;
    const long long all = (long long)arguments.tiles * arguments.heads * kTileQ;
    const int stage = ring.stage;
    const unsigned rows = (unsigned)(stage * kRowBytes);
    barrier_wait_phase(barriers.empty_q(stage), ring.parity);
    store_shared_word(shared + (unsigned)(kSharedVisit + 8 * stage), entry.tile);
    store_shared_word(shared + (unsigned)(kSharedVisit + 8 * stage + 4), entry.rank);
    barrier_expect(barriers.full_q(stage), kQBytes + kRowBytes + kFactorBytes);
    copy_boxes<kPaddedK, kTileQ>(shared + (unsigned)(kSharedQ + stage * kQBytes), &maps.map[kMapQ],
                                 row, visit.head, chain.sequence.slot, barriers.full_q(stage));
    copy_bytes(shared + kSharedLse + rows, delta + all, kRowBytes, barriers.full_q(stage));
    if constexpr (kExact)
      copy_factors(shared, arguments, chain, visit, stage, barriers.full_q(stage));
    barrier_wait_phase(barriers.empty_do(stage), ring.parity);
    barrier_expect(barriers.full_do(stage), kDoBytes + kRowBytes);
    copy_boxes<kPaddedV, kTileQ>(shared + (unsigned)(kSharedDo + stage * kDoBytes),
                                 &maps.map[kMapDO], row, visit.head, chain.sequence.slot,
                                 barriers.full_do(stage));
    copy_bytes(shared + kSharedDelta + rows, delta, kRowBytes, barriers.full_do(stage));
    ring.advance();
  }
  ROTA_DEVICE void load_chain(int number) {
    const ChainWords &chain = chain_words(number);
    const int end = chain.visit_end;
    int visit = chain.visit_begin;
    if (number == 0)
      load_k(chain, number);
    if (visit < end)
      load_visit(chain, arguments.visits[visit]);
    load_v(chain, number);
    if (number > 0)
      load_k(chain, number);
    for (visit++; visit < end; visit++)
      load_visit(chain, arguments.visits[visit]);
  }

  // The whole warp.
  ROTA_DEVICE void run(int worker) {
    const int begin = arguments.queue[worker], end = arguments.queue[worker + 1];
    for (int i = begin; i < end; i++) {
      const RotaItem item = arguments.chain_items[i];
      const RotaChain chain = arguments.chains[item.index];
      const int slot = (i - begin) % kChainSlots, lane = lane_index();
      if (lane < kSequenceWords + 4)
        store_shared_word(shared + (unsigned)(kSharedChain + slot * kChainBytes + 4 * lane),
                          chain_word(item, chain));
      __syncwarp();
      if (lane == 0)
        load_chain(i - begin);
      __syncwarp();
    }
  }
};

// ---- A writer ----

// What a staging buffer holds at one turn: a visit's dQ partial, or dV, or dK. What else the tables
// say of it is read again when it is needed: registers are short.
struct Turn {
  int at, step; // queue entry, and number within its chain: visits, then dV, then dK
  int visits;
  RotaVisit visit;

  ROTA_DEVICE bool is_visit() const { return step < visits; }
  ROTA_DEVICE bool is_last() const { return (visit.tile & ROTA_VISIT_LAST) != 0; }
  ROTA_DEVICE int rank() const { return (int)(visit.rank & ROTA_VISIT_RANK); }
  // Its buffer gets the sum of all partials but its own first.
  ROTA_DEVICE bool fetches() const { return kOrdered && is_visit() && is_last() && rank() > 0; }
  ROTA_DEVICE void load(const RotaArguments &arguments) {
    const RotaChain &chain = arguments.chains[arguments.chain_items[at].index];
    visits = chain.visit_end - chain.visit_begin;
    if (is_visit())
      visit = arguments.visits[chain.visit_begin + step];
  }
  // The next turn of the same buffer; false after the queue's last.
  ROTA_DEVICE bool advance(const RotaArguments &arguments, int end) {
    step += 2;
    if (step >= visits + 2) {
      step -= visits + 2;
      at++;
    }
    if (at < end)
      load(arguments);
    return at < end;
  }
};

struct Writer {
  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  unsigned shared; // its staging buffer
  Barriers barriers;
  int buffer, parity;

  ROTA_DEVICE const RotaSequence &sequence_of(const Turn &turn) const {
    const RotaItem &item = arguments.chain_items[turn.at];
    return arguments.sequences[arguments.chains[item.index].sequence];
  }
  ROTA_DEVICE int tile_number(const Turn &turn) const {
    const Visit visit = unpack_visit(turn.visit, arguments.chain_items[turn.at].head);
    return (int)query_tile_number(arguments, sequence_of(turn), visit.q_tile, visit.head);
  }
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
    if (lane_index() == 0)
      barrier_arrive(barriers.unstaged(buffer));
  }
  ROTA_DEVICE void open_with_sum(const Turn &turn) const {
    if (lane_index() == 0) {
      const int tile = tile_number(turn);
      wait_rank(arguments.counters + tile, turn.rank());
      barrier_expect(barriers.unstaged(buffer), kDqFloats * 4);
      copy_bytes(shared, sum_of(tile), kDqFloats * 4, barriers.unstaged(buffer));
    }
    __syncwarp();
  }

  // Adds a partial to its tile's sum, or begins it; back when the buffer has been read.
  ROTA_DEVICE void add_partial(int rank, int tile) {
    if (kOrdered && rank > 0 && lane_index() == 0)
      wait_rank(arguments.counters + tile, rank);
    __syncwarp();
    wait_staged();
    if (lane_index() == 0) {
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
    if (lane_index() == 0) {
      bulk_wait<0>();
      fence_global_for_engines();
      add_release(arguments.counters + tile, 1);
    }
    __syncwarp();
  }

  // A finished tile from staged boxes: by the copy engine, which knows the tensor's end, or row by
  // row where the slot ends within the tile. `place` tells where a box of a column and row lies.
  template <int kColumns, int kRows, int kBoxRows, class Place>
  ROTA_DEVICE void store_boxes(const RotaTensor &tensor, const RotaTensorMap &map, long long begin,
                               int slot_rows, int slot, int first, int head, Place place) {
    wait_staged();
    const int rows = slot_rows - first, lane = lane_index();
    if (rows >= kRows) {
      if (lane == 0) {
#pragma unroll 1
        for (int row = 0; row < kRows; row += kBoxRows)
          for (int column = 0; column < kColumns; column += kBoxColumns)
            store_box(&map, column, (int)begin + first + row, head, slot,
                      shared + (unsigned)place(column, row));
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
      store_global_chunk(element_at<Element>(tensor, slot, begin + first + row, head) +
                             chunk * kChunk,
                         load_shared_chunk(from));
    }
    fence_shared_for_engines();
    __syncwarp();
  }
  template <int kColumns>
  ROTA_DEVICE void store_gradient(const RotaTensor &tensor, const RotaTensorMap &map,
                                  const Turn &turn) {
    const RotaItem &item = arguments.chain_items[turn.at];
    const RotaSequence &sequence = sequence_of(turn);
    store_boxes<kColumns, kTileKv, kTileKv>(
        tensor, map, sequence.begin_k, sequence.rows_k, sequence.slot,
        arguments.chains[item.index].kv_tile * kTileKv, item.head,
        [](int column, int) { return column / kBoxColumns * kTileKv * kBoxPitch; });
  }
  ROTA_DEVICE void store_dq(const Turn &turn) {
    const Visit visit = unpack_visit(turn.visit, arguments.chain_items[turn.at].head);
    const RotaSequence &sequence = sequence_of(turn);
    store_boxes<kHeadDim, kTileQ, 16>(
        arguments.d_q, maps.map[kMapDQ], sequence.begin_q, sequence.rows_q, sequence.slot,
        visit.q_tile * kTileQ, visit.head, [](int column, int row) { return dq_box(column, row); });
  }
  // What is staged goes where it belongs; back when the buffer has been read. A partial's tile, or
  // -1.
  ROTA_DEVICE int take(const Turn &turn) {
    if (turn.is_visit() && !(kOrdered && turn.is_last())) {
      const int tile = tile_number(turn);
      add_partial(turn.rank(), tile);
      return tile;
    }
    if (turn.is_visit())
      store_dq(turn);
    else if (turn.step == turn.visits)
      store_gradient<kHeadDimV>(arguments.d_v, maps.map[kMapDV], turn);
    else
      store_gradient<kHeadDim>(arguments.d_k, maps.map[kMapDK], turn);
    return -1;
  }

  // The whole warp.
  ROTA_DEVICE void run(int worker) {
    const int end = arguments.queue[worker + 1];
    Turn turn = {};
    turn.at = arguments.queue[worker], turn.step = buffer;
    if (turn.at == end)
      return;
    turn.load(arguments);
    if (turn.fetches())
      open_with_sum(turn);
    else
      open();
#pragma unroll 1
    for (bool more = true; more;) {
      const int tile = take(turn);
      more = turn.advance(arguments, end);
      const bool fetches = turn.fetches(); // whose rank may wait for this one
      if (more && !fetches)
        open();
      if (kOrdered && tile >= 0)
        signal_rank(tile);
      if (more && fetches)
        open_with_sum(turn);
    }
    if (lane_index() == 0)
      bulk_wait<0>();
  }
};

} // namespace rota

#endif
