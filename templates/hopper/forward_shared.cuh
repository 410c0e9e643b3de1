// Shared memory of the Hopper forward kernel, and what its loader announces there to the consumers:
// items (a query tile of one head) and kv tiles.
#ifndef ROTA_HOPPER_FORWARD_SHARED_CUH
#define ROTA_HOPPER_FORWARD_SHARED_CUH

#include "spec.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "templates/lib/tensor_copy.cuh"
#include "tiling.cuh"

namespace rota {

// Whether what stands between one tile's softmax and the next one's products is short: O begins
// anew with a product instead of zeros, it is rescaled where peaks are found to rise, what an
// item's end needs is found beside exponentials, V of most partial tiles passes by the guard.
// Not measured with turns, three consumers, scores, sinks or squares.
inline constexpr bool kShortPath =
    kTurns == 0 && kConsumers < 3 && !kHasScore && !kSinkLogit && kSpread == 0;

// Shared memory of a block, by byte offset from a multiple of 1024.
struct ForwardShared {
  // The item whose O is still to be stored, the current one, and those announced, kQueryStages.
  static constexpr int kItemSlots = 4;
  static_assert(2 + kQueryStages <= kItemSlots, "no slot is written while it is read");
  static constexpr int kRows = 64 * kConsumers; // of a query tile: see forward.cuh
  static constexpr int kBoxesQ = round_up(kHeadDim, kBoxColumns) / kBoxColumns;
  static constexpr int kBoxesV = round_up(kHeadDimV, kBoxColumns) / kBoxColumns;
  static constexpr int kBytesQ = kRows * kBoxesQ * kBoxPitch; // of a stage
  static constexpr int kLoadedQ = kTileQ * kPacked * kBoxesQ * kBoxPitch;
  static constexpr int kBytesK = kTileKv * kBoxesQ * kBoxPitch;
  static constexpr int kBytesV = kTileKv * kBoxesV * kBoxPitch;
  static constexpr int kK = kQueryStages * kBytesQ, kV = kK + kStages * kBytesK;
  static constexpr int kO = kV + kStages * kBytesV;
  static constexpr int kBytesO = kStagedO ? kRows * kBoxesV * kBoxPitch : 0;
  static constexpr int kItems = kO + kBytesO;             // kItemSlots of 64 bytes
  static constexpr int kTiles = kItems + kItemSlots * 64; // a word for each stage
  static constexpr int kBarriers = kTiles + 32;
  static constexpr int kWeights =
      round_up(kBarriers + (2 * kQueryStages + 5 * kStages + 2) * 8, 16);
  // What the squares of a kv tile take: forward_spread.cuh.
  static constexpr int kWeightBytes = kSpread != 0 ? 16 * ((kTileKv + 31) / 32) : 0;
  static constexpr int kBytes = kWeights + kStages * kWeightBytes;

  unsigned base;
  ROTA_DEVICE unsigned q(int stage) const { return base + stage * kBytesQ; }
  ROTA_DEVICE unsigned k(int stage) const { return base + kK + stage * kBytesK; }
  ROTA_DEVICE unsigned v(int stage) const { return base + kV + stage * kBytesV; }
  ROTA_DEVICE unsigned item(int number) const {
    return base + kItems + (unsigned)number % kItemSlots * 64;
  }
  ROTA_DEVICE unsigned tile(int stage) const { return base + kTiles + stage * 4; }
  ROTA_DEVICE unsigned weights(int stage) const { return base + kWeights + stage * kWeightBytes; }
  ROTA_DEVICE unsigned barrier(int i) const { return base + kBarriers + i * 8; }
  ROTA_DEVICE unsigned k_full(int stage) const { return barrier(stage); }
  ROTA_DEVICE unsigned k_empty(int stage) const { return barrier(kStages + stage); }
  ROTA_DEVICE unsigned v_full(int stage) const { return barrier(2 * kStages + stage); }
  ROTA_DEVICE unsigned v_empty(int stage) const { return barrier(3 * kStages + stage); }
  ROTA_DEVICE unsigned v_loaded(int stage) const { return barrier(4 * kStages + stage); }
  ROTA_DEVICE unsigned q_full(int stage) const { return barrier(5 * kStages + stage); }
  ROTA_DEVICE unsigned q_empty(int stage) const {
    return barrier(5 * kStages + kQueryStages + stage);
  }
  ROTA_DEVICE unsigned o() const { return base + kO; }
  ROTA_DEVICE unsigned o_full() const { return barrier(5 * kStages + 2 * kQueryStages); }
  ROTA_DEVICE unsigned o_empty() const { return barrier(5 * kStages + 2 * kQueryStages + 1); }
};

// A tile as the K loader announces it to the consumers: number, what kind, and whether it is the
// item's last; kTileGoesOn: then the block's next item has tiles.
inline constexpr unsigned kTilePartial = 0x80000000u, kTileBounded = 0x40000000u;
inline constexpr unsigned kTileLast = 0x20000000u, kTileGoesOn = 0x10000000u;
inline constexpr unsigned kTileNumber = 0x0fffffffu;

// An item as the K loader announces it.
struct ForwardItem {
  Position origin; // of the tile's first row
  int slot, rows_q;
  int row; // first row of the tile within its slot; 32 bits: the copy engine knows no more
};

// Word by word, since the loader has few registers.
ROTA_DEVICE void store_item(unsigned to, const RotaSequence &sequence, int q_begin, int head,
                            int row, bool empty, int partial) {
  store_shared_word(to, (unsigned)q_begin);
  store_shared_word(to + 4, (unsigned)head);
  store_shared_word(to + 8, (unsigned)sequence.batch);
  store_shared_word(to + 12, (unsigned)sequence.n_q);
  store_shared_word(to + 16, (unsigned)sequence.n_k);
  store_shared_word(to + 20, (unsigned)sequence.slot);
  store_shared_word(to + 24, (unsigned)sequence.rows_q);
  store_shared_word(to + 28, (unsigned)row);
  store_shared_word(to + 32, empty);
  store_shared_word(to + 36, (unsigned)partial);
}
ROTA_DEVICE ForwardItem load_item(unsigned from) {
  const Chunk a = load_shared_chunk(from), b = load_shared_chunk(from + 16);
  return {{(int)a.word[0], 0, (int)a.word[1], (int)a.word[2], (int)a.word[3], (int)b.word[0]},
          (int)b.word[1],
          (int)b.word[2],
          (int)b.word[3]};
}
// Of a piece, where its results go: the first row of its partials; -1: to O and LSE.
ROTA_DEVICE int item_partial(unsigned from) {
  return kPieces > 1 ? load_shared_int(from + 36) : -1;
}
// Whether all rows of the item's tile are to be stored.
ROTA_DEVICE bool item_is_whole(const ForwardItem &item) {
  return item.origin.q + kTileQ <= item.rows_q;
}
// Whether no tile of the item is to be computed.
ROTA_DEVICE bool item_is_empty(unsigned from) {
  return load_shared_int(from + 32) != 0;
}

// A block's items, from the plan's queues.
struct ItemWalk {
  int index, end;
  ROTA_DEVICE explicit ItemWalk(const RotaArguments &arguments)
      : index(arguments.queue[blockIdx.x]), end(arguments.queue[blockIdx.x + 1]) {}
  ROTA_DEVICE bool valid() const { return index < end; }
  ROTA_DEVICE void advance() { index++; }
};

// The same for a loader, which reads items and rows ahead: they are found through one another, and
// it would wait for each in turn.
struct ItemsAhead : ItemWalk {
  RotaItem item, next_item, after_next;
  RotaRow row, next_row;

  ROTA_DEVICE explicit ItemsAhead(const RotaArguments &arguments)
      : ItemWalk(arguments), item{}, next_item{}, after_next{}, row{}, next_row{} {
    if (valid()) {
      item = arguments.row_items[index];
      next_item = arguments.row_items[smaller(index + 1, end - 1)];
      row = arguments.rows[item.index];
    }
  }
  // Once for each item, when its own fields have been used.
  ROTA_DEVICE void fetch(const RotaArguments &arguments) {
    next_row = arguments.rows[next_item.index];
    after_next = arguments.row_items[smaller(index + 2, end - 1)];
  }
  ROTA_DEVICE bool next_has_tiles() const {
    return index + 1 < end && next_row.run_begin < next_row.run_end;
  }
  ROTA_DEVICE void advance() {
    index++;
    item = next_item;
    row = next_row;
    next_item = after_next;
  }
};

} // namespace rota

#endif
