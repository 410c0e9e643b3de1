// The loading warpgroup of the Hopper forward kernel: see forward.cuh.
#ifndef ROTA_HOPPER_FORWARD_LOADER_CUH
#define ROTA_HOPPER_FORWARD_LOADER_CUH

#include "mask.cuh"
#include "templates/hopper/forward_shared.cuh"
#include "templates/hopper/forward_spread.cuh"
#include "templates/lib/barrier.cuh"

namespace rota {

struct ForwardLoader {
  using Shared = ForwardShared;
  static constexpr int kGuardBarrier = 15, kGuards = 2 * kWarp;
  static constexpr bool kShort = kShortPath;
  // Whether there are bounds of keys, and registers to look at them.
  static constexpr bool kAsksBounds = kMaskIsBounded && kShort;

  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  const Shared shared;

  // ---- O, which consumers leave in shared memory ----

  // Of items `index` .. end - 1 it is still to be stored; parity: of o_full. unread: the copy
  // engine may still be reading the one before.
  struct Stores {
    int index, end, parity;
    bool unread;
  };
  ROTA_DEVICE Stores start_stores() const {
    const ItemWalk items(arguments);
    // Consumers wait for the parity of the item's number, which phase 1, over in a fresh barrier,
    // suits if it is odd.
    if (items.index % 2 == 0)
      barrier_arrive(shared.o_empty());
    return {items.index, items.end, 0, false};
  }
  ROTA_DEVICE void end_store(Stores &stores) const {
    if (stores.unread) {
      bulk_wait_read<0>();
      barrier_arrive(shared.o_empty());
      stores.unread = false;
    }
  }
  ROTA_DEVICE void start_store(Stores &stores) const {
    const unsigned from = shared.item(stores.index);
    const ForwardItem item = load_item(from);
    if (item_is_whole(item) && !item_is_empty(from) && item_partial(from) < 0) {
#pragma unroll
      for (int box = 0; box < Shared::kBoxesV; box++)
        store_box(&maps.map[kMapO], box * kBoxColumns, item.origin.h, item.row, item.slot,
                  shared.o() + (unsigned)(box * Shared::kRows * kBoxPitch));
      bulk_commit();
    }
    stores.unread = true;
    stores.parity ^= 1;
    stores.index++;
  }
  // Waits for an empty stage and stores meanwhile: a consumer may wait for o_empty before it leaves
  // the stage.
  ROTA_DEVICE void wait_and_store(unsigned barrier, int parity, Stores &stores) const {
    if constexpr (kStagedO) {
      while (!barrier_is_over(barrier, parity)) {
        end_store(stores);
        if (barrier_is_over(shared.o_full(), stores.parity))
          start_store(stores);
      }
    } else {
      barrier_wait_phase(barrier, parity);
    }
  }
  ROTA_DEVICE void store_others(Stores &stores) const {
    while (stores.index < stores.end) {
      end_store(stores);
      barrier_wait_phase(shared.o_full(), stores.parity);
      start_store(stores);
    }
    bulk_wait<0>();
  }

  // ---- Loads ----

  // One thread: Q and K, and O.
  ROTA_DEVICE void load_q_and_k() const {
    tensor_map_prefetch(&maps.map[kMapQ]);
    tensor_map_prefetch(&maps.map[kMapK]);
    Ring<kStages> ring(1);
    Ring<kQueryStages> ring_q(1);
    Stores stores = start_stores();
    for (ItemsAhead items(arguments); items.valid(); items.advance()) {
      const RotaItem item = items.item;
      const RotaRow row = items.row;
      items.fetch(arguments);
      const RotaSequence &sequence = arguments.sequences[row.sequence];
      const int q_begin = row.q_tile * kTileQ, q_row = (int)sequence.begin_q + q_begin;
      RunWalk walk(arguments, row);
      const unsigned full = shared.q_full(ring_q.stage);
      wait_and_store(shared.q_empty(ring_q.stage), ring_q.parity, stores);
      const int head = item.head * kPacked;
      store_item(shared.item(items.index), sequence, q_begin, head, q_row, !walk.valid(),
                 partial_of(item));
      wait_for_predecessor(); // which may write Q, K, V or read O; not the plan's tables
      if (walk.valid()) {
        barrier_expect(full, Shared::kLoadedQ);
        // The map's dimensions: head dim, head, row, slot.
        copy_boxes<kHeadDim, Shared::kRows>(shared.q(ring_q.stage), &maps.map[kMapQ], head, q_row,
                                            sequence.slot, full);
        load_k_tiles(walk, ring, (int)sequence.begin_k, head / kGroup, sequence.slot,
                     tile_squares(arguments, sequence, 0, head / kGroup), goes_on(items),
                     stores);
      } else {
        barrier_arrive(full);
      }
      ring_q.advance();
    }
    if constexpr (kStagedO)
      store_others(stores);
  }
  // Whether consumers may begin the next item beside the end of this one: not where they first
  // negate Q.
  ROTA_DEVICE bool goes_on(const ItemsAhead &items) const {
    return items.next_has_tiles() && (!kShort || kHasScore || !(arguments.scale < 0.0f));
  }
  // Where a piece's results go; -1 for a whole item.
  ROTA_DEVICE int partial_of(RotaItem item) const {
    if (item.index < arguments.piece_begin)
      return -1;
    const RotaPiece &piece = arguments.pieces[item.index - arguments.piece_begin];
    return piece.partial + item.head * piece.step;
  }
  ROTA_DEVICE void load_k_tiles(RunWalk &walk, Ring<kStages> &ring, int begin, int head, int slot,
                                const float *squares, bool goes_on, Stores &stores) const {
    while (walk.valid()) {
      const int tile = walk.tile;
      const unsigned kind =
          (walk.partial() ? kTilePartial : 0u) | (walk.bounded() ? kTileBounded : 0u);
      walk.advance(arguments);
      wait_and_store(shared.k_empty(ring.stage), ring.parity, stores);
      const unsigned place = walk.valid() ? 0u : goes_on ? kTileLast | kTileGoesOn : kTileLast;
      store_shared_word(shared.tile(ring.stage), (unsigned)tile | kind | place);
      barrier_expect(shared.k_full(ring.stage), Shared::kBytesK + Shared::kWeightBytes);
      if constexpr (kSpread != 0)
        copy_bytes(shared.weights(ring.stage),
                   squares + (long long)tile * arguments.kv_heads * kSquares, Shared::kWeightBytes,
                   shared.k_full(ring.stage));
      copy_boxes<kHeadDim, kTileKv>(shared.k(ring.stage), &maps.map[kMapK], begin + tile * kTileKv,
                                    head, slot, shared.k_full(ring.stage));
      ring.advance();
    }
  }

  // Whether the guard is to look at V of the tile: not where a query, the tile's first or its last,
  // may attend every key, since then no row of V is hidden from all.
  ROTA_DEVICE bool guards(const RotaSequence &sequence, const RotaRow &row, int head,
                          const RunWalk &walk) const {
    if (!walk.partial())
      return false;
    const int end = (walk.tile + 1) * kTileKv;
    if (!kAsksBounds || !(kMaskIsInterval || walk.bounded()) || end > sequence.n_k)
      return true;
    Position at = position_of_tile(sequence, row.q_tile * kTileQ, head);
    const int last = smaller(at.q + kTileQ, at.n_q) - 1;
#pragma unroll 1
    for (bool again = false;; again = true) {
      if (mask_first(at, arguments) <= end - kTileKv && mask_end(at, arguments) >= end)
        return false;
      if (again)
        return true;
      at.q = last;
    }
  }

  // One thread: V.
  ROTA_DEVICE void load_v() const {
    tensor_map_prefetch(&maps.map[kMapV]);
    Ring<kStages> ring(1);
    for (ItemsAhead items(arguments); items.valid(); items.advance()) {
      const RotaItem item = items.item;
      const RotaRow row = items.row;
      items.fetch(arguments);
      const RotaSequence &sequence = arguments.sequences[row.sequence];
      const int begin = (int)sequence.begin_k, slot = sequence.slot;
      wait_for_predecessor();
      for (RunWalk walk(arguments, row); walk.valid(); walk.advance(arguments)) {
        barrier_wait_phase(shared.v_empty(ring.stage), ring.parity);
        const unsigned barrier =
            guards(sequence, row, item.head * kPacked, walk) ? shared.v_loaded(ring.stage)
                                                             : shared.v_full(ring.stage);
        barrier_expect(barrier, Shared::kBytesV);
        copy_boxes<kHeadDimV, kTileKv>(shared.v(ring.stage), &maps.map[kMapV],
                                       begin + walk.tile * kTileKv, item.head * kPacked / kGroup,
                                       slot, barrier);
        ring.advance();
      }
    }
  }

  // Two warps: in a partial tile a NaN or an infinity in a row of V whose key no query of the tile
  // may attend would reach O as 0 * NaN. Where such a value is found, rows of unattended keys
  // become zeros before the consumers see the tile.
  ROTA_DEVICE void guard_v() const {
    Ring<kStages> ring(0);
    unsigned parities = 0; // of v_loaded, a bit for each stage
    for (ItemWalk items(arguments); items.valid(); items.advance()) {
      const RotaItem item = arguments.row_items[items.index];
      const RotaRow &row = arguments.rows[item.index];
      const RotaSequence &sequence = arguments.sequences[row.sequence];
      for (RunWalk walk(arguments, row); walk.valid(); walk.advance(arguments)) {
        if (guards(sequence, row, item.head * kPacked, walk)) {
          barrier_wait_phase(shared.v_loaded(ring.stage), (int)(parities >> ring.stage & 1));
          parities ^= 1u << ring.stage;
          clean_v(ring.stage, walk.tile * kTileKv, items.index);
          if (guard_thread() == 0)
            barrier_arrive(shared.v_full(ring.stage));
        }
        ring.advance();
      }
    }
  }
  ROTA_DEVICE static int guard_thread() { return (int)(threadIdx.x % kGuards); }
  ROTA_DEVICE void clean_v(int stage, int k_begin, int index) const {
    unsigned sum[4] = {0, 0, 0, 0}; // of 0 * V: zeros of either sign, or NaN
#pragma unroll 4
    for (int at = guard_thread() * 16; at < Shared::kBytesV; at += kGuards * 16) {
      const Chunk x = load_shared_chunk(shared.v(stage) + (unsigned)at);
#pragma unroll
      for (int i = 0; i < 4; i++)
        packed_add_zero_times(sum[i], x.word[i], Element());
    }
    const unsigned found = (sum[0] | sum[1] | sum[2] | sum[3]) & 0x7fff7fffu;
    if (!named_barrier_or(kGuardBarrier, kGuards, found != 0))
      return;
    const RotaItem item = arguments.row_items[index];
    const RotaRow &row = arguments.rows[item.index];
    const RotaSequence &sequence = arguments.sequences[row.sequence];
    const Position origin = position_of_tile(sequence, row.q_tile * kTileQ, item.head * kPacked);
    for (int key = guard_thread(); key < kTileKv; key += kGuards)
      if (!attended(origin, k_begin + key))
        zero_v_row(stage, key);
    fence_shared_for_engines();
    named_barrier_sync(kGuardBarrier, kGuards);
  }
  ROTA_DEVICE bool attended(Position at, int key) const {
    if (key >= at.n_k)
      return false;
    at.k = key;
    for (const int end = smaller(at.q + kTileQ, at.n_q); at.q < end; at.q++)
      if (mask_allows(at, arguments))
        return true;
    return false;
  }
  ROTA_DEVICE void zero_v_row(int stage, int row) const {
    const Chunk zero = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int chunk = 0; chunk < Shared::kBoxesV * 8; chunk++)
      store_shared_chunk(shared.v(stage) + (unsigned)box_offset(kTileKv, row, chunk), zero);
  }

  ROTA_DEVICE void run(int warp) const {
    if (warp >= 2) {
      guard_v();
    } else if (elect_lane()) {
      if (warp == 0)
        load_q_and_k();
      else
        load_v();
    }
  }
};

} // namespace rota

#endif
