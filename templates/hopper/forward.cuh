// Forward pass for sm_90a: O = softmax(score(scale Q K^T), mask) V and LSE, by wgmma and the copy
// engine.
//
// A persistent block takes (query tile, query head) items from the plan's list, longest first.
// Its last warpgroup loads, the kConsumers others compute 64 query rows each:
//
//   warp 0 of it    Q of the next item, K tiles          warp 1    V tiles
//   warps 2, 3      look for NaN and infinities in V of partial tiles (guard)
//
// A consumer keeps O and P in registers. While the tensor cores compute S of a tile and O += P V
// of the one before, its threads wait; then they turn S into P while another warpgroup's products
// run. With kTurns the warpgroups issue products strictly in turn, which keeps them out of step.
//
// A tile's rows are kTileQ queries of kPacked heads of a group, which share K and V: row r is query
// r / kPacked of the tile and head r % kPacked of those packed; rows beyond them are nothing.
//
// Shared memory: Q | K stage 0 .. | V stage 0 .. | items, tiles | barriers
//
//   barrier          arrivals                          waits
//   q_full[stage]    K loader, bytes of Q              consumers
//   q_empty[stage]   consumer warps, after the last S  K loader
//   k_full[stage]    K loader, bytes of K              consumers
//   k_empty[stage]   consumer warps                    K loader
//   v_full[stage]    V loader, bytes of V; of a        consumers
//                    partial tile: the guard
//   v_loaded[stage]  V loader, bytes of a partial V    guard
//   v_empty[stage]   consumer warps                    V loader
#ifndef ROTA_HOPPER_FORWARD_CUH
#define ROTA_HOPPER_FORWARD_CUH

#include "instructions.cuh"
#include "mask.cuh"
#include "score.cuh"
#include "templates/hopper/forward_join.cuh"
#include "templates/hopper/forward_loader.cuh"
#include "templates/lib/warpgroup.cuh"

namespace rota {

struct ForwardConsumer {
  using Shared = ForwardShared;
  static constexpr int kS = kTileKv / 2, kO = kHeadDimV / 2; // accumulators of a thread
  static constexpr int kBlocksO = kHeadDimV / 8;
  static constexpr int kStepsS = (kHeadDim + 15) / 16, kStepsO = kTileKv / 16;
  static constexpr int kPair = 2 * kWarpgroup; // threads of a turn's named barrier
  static_assert(kTileQ * kPacked <= Shared::kRows && kTileKv % 16 == 0, "whole instructions");
  static_assert(kTileKv <= 128, "mask bits of a row and lane fit a word");

  const RotaArguments &arguments;
  const Shared shared;
  const int group; // of the consumers
  ItemWalk items;
  Ring<kQueryStages> ring_q;
  Ring<kStages> ring_k, ring_v;
  using Softmax = ForwardSoftmax<kSpread>;
  Softmax softmax;

  ROTA_DEVICE ForwardConsumer(const RotaArguments &arguments, const Shared &shared, int group)
      : arguments(arguments), shared(shared), group(group), items(arguments), ring_q(0), ring_k(0),
        ring_v(0) {
    items.index = uniform(items.index);
    items.end = uniform(items.end);
  }

  // ---- Whose products are next ----

  ROTA_DEVICE void wait_turn() const {
    if constexpr (kTurns != 0)
      named_barrier_sync(1 + group, kPair);
    else
      __syncwarp(); // so that the compiler sees the lanes together, as products need them
  }
  ROTA_DEVICE void pass_turn() const {
    if constexpr (kTurns != 0)
      named_barrier_arrive(1 + (group + 1) % kConsumers, kPair);
  }

  ROTA_DEVICE void release(unsigned barrier) const {
    if (lane_index() == 0)
      barrier_arrive(barrier);
  }
  // This lane's row r of the tile; its query and head, counted from the item's first.
  ROTA_DEVICE int lane_row(int r) const {
    return 64 * group + warp_index() % 4 * 16 + 8 * r + lane_index() / 4;
  }
  ROTA_DEVICE int lane_query(int r) const { return lane_row(r) / kPacked; }
  ROTA_DEVICE int lane_head(int r) const { return lane_row(r) % kPacked; }
  // lane_row(0), found anew: no register keeps it through the tiles.
  ROTA_DEVICE static int found_row() {
    const int thread = hidden((int)threadIdx.x);
    return thread / kWarp * 16 + thread % kWarp / 4;
  }
  // Whether this is a row to store.
  ROTA_DEVICE static bool stores(const ForwardItem &item, int row) {
    const bool in_tile = kTileQ * kPacked == Shared::kRows || row < kTileQ * kPacked;
    return in_tile && item.origin.q + row / kPacked < item.rows_q;
  }

  // ---- Products ----

  ROTA_DEVICE void start_s(float (&s)[kS]) const {
    barrier_wait_phase(shared.k_full(ring_k.stage), ring_k.parity);
    wgmma_fence();
    unsigned base = shared.q(ring_q.stage) + (unsigned)(group * 64 * kBoxPitch);
    if constexpr (kQueryStages == 1) // else descriptors would fill registers from tile to tile
      base = (unsigned)uniform((int)base);
    const Descriptor q = describe_along(base);
    const Descriptor k = describe_along(shared.k(ring_k.stage));
    Wgmma<kTileKv>::template multiply<0, 0>(s, q, k);
#pragma unroll
    for (int step = 1; step < kStepsS; step++)
      Wgmma<kTileKv>::template accumulate<0, 0>(s, advance(q, step_along(Shared::kRows, step)),
                                                advance(k, step_along(kTileKv, step)));
    wgmma_commit();
  }
  ROTA_DEVICE void start_o(float (&o)[kO], const unsigned (&p)[kStepsO][4]) const {
    barrier_wait_phase(shared.v_full(ring_v.stage), ring_v.parity);
    wgmma_fence();
    const Descriptor v = describe_across(shared.v(ring_v.stage), kTileKv);
#pragma unroll
    for (int step = 0; step < kStepsO; step++)
      Wgmma<kHeadDimV>::template accumulate<1>(o, p[step], advance(v, step_across(step)));
    wgmma_commit();
  }

  // ---- Scores and masks: for these the item's place is read again, which no register keeps ----

  // The lane's first key of a tile; hidden from the compiler, which else keeps the offsets of all
  // its keys in registers from tile to tile.
  ROTA_DEVICE static int lane_key(int k_begin) {
    return hidden(k_begin + 2 * (lane_index() % 4));
  }
  ROTA_DEVICE Position origin() const {
    return load_item(shared.item(items.index)).origin;
  }
  ROTA_DEVICE void apply_score(float (&s)[kS], int k_begin) const {
    const Position first = origin();
    const int first_key = lane_key(k_begin);
#pragma unroll
    for (int i = 0; i < kS; i++) {
      Position at = first;
      at.q = clamp_index<kScoreUsesTensors>(at.q + lane_query(i / 2 % 2), at.n_q);
      at.h += lane_head(i / 2 % 2);
      const int key = first_key + i / 4 * 8 + i % 2;
      at.k = clamp_index<kScoreUsesTensors>(key, at.n_k);
      s[i] = score_value(s[i] * arguments.scale, at, arguments);
    }
  }
  // Whether a query may attend the key, which may lie past the sequence's end.
  ROTA_DEVICE bool allows(Position at, int key) const {
    at.k = clamp_index<kMaskUsesTensors>(key, at.n_k);
    return (key < at.n_k) & mask_allows(at, arguments);
  }
  // Of columns 8 n + c (c 0 or 1) those below x, as bits 2 n + c.
  ROTA_DEVICE static unsigned columns_below(int x) {
    const int count = x <= 0 ? 0 : x / 8 * 2 + smaller(x % 8, 2);
    return count >= 32 ? ~0u : (1u << count) - 1;
  }
  // The keys that the lane's two queries may attend among the columns from `first`: 8 n + c as
  // above. `bounded`: the mask is an interval of keys in this tile.
  ROTA_DEVICE void find_allowed(const Position (&at)[2], int first, bool bounded,
                                unsigned (&bits)[2]) const {
    bits[0] = bits[1] = 0;
    if (kMaskIsInterval || (kMaskIsBounded && bounded)) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int end = smaller(mask_end(at[r], arguments), at[r].n_k);
        bits[r] = columns_below(end - first) & ~columns_below(mask_first(at[r], arguments) - first);
      }
      return;
    }
    // In a loop, however long the expression; both queries in it, since what depends on the key
    // alone is then computed once.
#pragma unroll 4
    for (int n = 0; n < kTileKv / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        bits[i % 2] |= (unsigned)allows(at[i % 2], first + 8 * n + i / 2) << (2 * n + i / 2);
  }
  // s = -inf where the mask forbids.
  ROTA_DEVICE void apply_mask(float (&s)[kS], int k_begin, bool bounded) const {
    const Position first = origin();
    Position at[2] = {first, first};
#pragma unroll
    for (int r = 0; r < 2; r++)
      at[r].q = clamp_index<kMaskUsesTensors>(first.q + lane_query(r), first.n_q);
    unsigned bits[2];
    find_allowed(at, lane_key(k_begin), bounded, bits);
#pragma unroll
    for (int i = 0; i < kS; i++)
      if ((bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1) == 0)
        s[i] = -kInfinity;
  }

  ROTA_DEVICE float factor() const {
    return kHasScore ? kLog2E : fabsf(arguments.scale) * kLog2E;
  }
  // S that has arrived becomes P (not yet rounded). Returns whether O must be rescaled.
  ROTA_DEVICE bool find_probabilities(float (&s)[kS], unsigned tile,
                                      const Softmax::Weights &weights, float (&rescale)[2]) {
    const int k_begin = (int)(tile & kTileNumber) * kTileKv;
    if constexpr (kHasScore)
      apply_score(s, k_begin);
    if (tile & kTilePartial)
      apply_mask(s, k_begin, (tile & kTileBounded) != 0);
    const bool raised = softmax.raise(s, factor(), rescale);
    softmax.probabilities(s, factor(), weights);
    return raised;
  }

  // A negative scale goes into Q, since peaks are taken before scaling.
  ROTA_DEVICE void negate_q() const {
    for (int at = (int)threadIdx.x % kWarpgroup * 16; at < 64 * kBoxPitch; at += kWarpgroup * 16)
      for (int box = 0; box < Shared::kBoxesQ; box++) {
        const unsigned chunk = shared.q(ring_q.stage) +
                               (unsigned)((box * Shared::kRows + group * 64) * kBoxPitch + at);
        Chunk x = load_shared_chunk(chunk);
        for (int i = 0; i < 4; i++)
          x.word[i] ^= 0x80008000u;
        store_shared_chunk(chunk, x);
      }
    fence_shared_for_engines();
    named_barrier_sync(8 + group, kWarpgroup);
  }

  ROTA_DEVICE void prepare_q() const {
    if (!kHasScore && arguments.scale < 0.0f)
      negate_q();
  }

  // ---- Items ----

  // Takes the next item with tiles; those without are finished at once. No other may be unfinished
  // then: after two of them its slot is written again. False: no item is left.
  ROTA_DEVICE bool next_item() {
    for (; items.valid();) {
      barrier_wait_phase(shared.q_full(ring_q.stage), ring_q.parity);
      if (!uniform(item_is_empty(shared.item(items.index)))) {
        prepare_q();
        return true;
      }
      float scale[2];
      const int partial = close(Softmax(), items.index, scale);
      float o[kO];
      clear(o);
      store_o(o, scale, partial, items.index);
      release_item();
    }
    return false;
  }
  // Whether there is another item and it has tiles.
  ROTA_DEVICE bool next_has_tiles() const {
    if (!items.valid())
      return false;
    barrier_wait_phase(shared.q_full(ring_q.stage), ring_q.parity);
    return !uniform(item_is_empty(shared.item(items.index)));
  }
  // Q is no longer needed.
  ROTA_DEVICE void release_item() {
    release(shared.q_empty(ring_q.stage));
    ring_q.advance();
    items.advance();
  }
  ROTA_DEVICE static void clear(float (&o)[kO]) {
#pragma unroll
    for (int i = 0; i < kO; i++)
      o[i] = 0.0f;
  }

  // What a thread holds of the tiles at hand.
  struct Tile {
    float s[kS];            // S of a tile, then its probabilities
    unsigned p[kStepsO][4]; // the same, rounded, of the tile whose P V is next
    float o[kO];            // sum of P V
    unsigned tile;          // as announced
  };

  // Waits for S, with P V perhaps still under way: S becomes probabilities. Returns whether O must
  // be rescaled.
  template <int kPending> ROTA_DEVICE bool take_s(Tile &t, float (&rescale)[2]) {
    t.tile = (unsigned)uniform(load_shared_int(shared.tile(ring_k.stage)));
    wgmma_wait<kPending>();
    wgmma_touch(t.s);
    const Softmax::Weights weights(shared.weights(ring_k.stage));
    release(shared.k_empty(ring_k.stage));
    ring_k.advance();
    return find_probabilities(t.s, t.tile, weights, rescale);
  }
  ROTA_DEVICE void wait_o(float (&o)[kO]) {
    wgmma_wait<0>();
    wgmma_touch(o);
    release(shared.v_empty(ring_v.stage));
    ring_v.advance();
  }

  // An item's first tile: S of it, kBeside the last P V of the item `before`, whose O it stores.
  template <bool kBeside> ROTA_DEVICE void begin_item(Tile &t, int before) {
    float scale[2], rescale[2];
    int partial = -1;
    wait_turn();
    start_s(t.s);
    if constexpr (kBeside)
      start_o(t.o, t.p);
    pass_turn();
    if constexpr (kBeside)
      partial = close(softmax, before, scale);
    softmax = Softmax();
    take_s<kBeside>(t, rescale);
    if constexpr (kBeside) {
      wait_o(t.o);
      store_o(t.o, scale, partial, before);
    }
    clear(t.o);
    pack_probabilities(t.p, t.s, Element());
  }
  // Any other tile: S of it beside P V of the one before.
  ROTA_DEVICE void next_tile(Tile &t) {
    float rescale[2];
    wait_turn();
    start_s(t.s);
    start_o(t.o, t.p);
    pass_turn();
    const bool raised = take_s<true>(t, rescale);
    wait_o(t.o);
    if (raised)
      softmax.multiply_rows(t.o, rescale);
    pack_probabilities(t.p, t.s, Element());
  }
  // The last P V, with no tile to follow.
  ROTA_DEVICE void end_item(Tile &t, int item) {
    float scale[2];
    start_o(t.o, t.p);
    const int partial = close(softmax, item, scale);
    wait_o(t.o);
    store_o(t.o, scale, partial, item);
  }
  // Closes the rows of an item: stores LSE, hands out the factors of O; returns item_partial.
  ROTA_DEVICE int close(const Softmax &softmax, int number, float (&scale)[2]) const {
    const ForwardItem item = load_item(shared.item(number));
    const int partial = uniform(item_partial(shared.item(number)));
    const int row = kPacked == 1 ? found_row() : lane_row(0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = row + 8 * r, query = at / kPacked, head = item.origin.h + at % kPacked;
      // A sink counts once, when pieces are joined.
      const float sink = kSinkLogit && partial < 0 ? arguments.sink[head] : -kInfinity;
      SoftmaxRow closed = softmax.template finish<kSinkLogit>(r, sink);
      if (item.origin.q + query >= item.origin.n_q)
        closed = {0.0f, -kInfinity};
      const float square = softmax.mean_square(r, closed.scale);
      if (lane_index() % 4 == 0 && stores(item, at)) {
        if (partial < 0)
          *element_at<float>(arguments.lse, item.slot, item.row + query, head) = closed.lse;
        else
          arguments.partial_lse[partial + found_row() + 8 * r] = closed.lse;
        if constexpr (kSpread != 0)
          *element_at<float>(arguments.mean_square, item.slot, item.row + query, head) = square;
      }
      scale[r] = closed.scale;
    }
    return partial;
  }
  // O of a piece: scaled, in fp32, to its partials.
  ROTA_DEVICE void store_partial(const float (&o)[kO], const float (&scale)[2], int number,
                                 int partial) const {
    const ForwardItem item = load_item(shared.item(number));
    const int first = found_row();
    const int rows = smaller(item.rows_q - item.origin.q, kTileQ) * kPacked;
    float *to =
        arguments.partials + (long long)(partial + first) * kHeadDimV + lane_index() % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (first + 8 * r < rows)
#pragma unroll
        for (int i = 0; i < kBlocksO; i++)
          store_global_words(to + 8 * (r * kHeadDimV + i),
                             __float_as_uint(o[4 * i + 2 * r] * scale[r]),
                             __float_as_uint(o[4 * i + 2 * r + 1] * scale[r]));
  }
  // Scales, rounds and stores O of an item, straight from registers: the four lanes of a row
  // exchange words until each has 16 bytes.
  ROTA_DEVICE void store_o(float (&o)[kO], const float (&scale)[2], int partial, int number) const {
    const int lane = lane_index() % 4;
    if (__any_sync(kAllLanes, scale[0] == 0.0f || scale[1] == 0.0f)) {
      // A select: the accumulators of an empty row may hold 0 * NaN of a neighbour's key.
#pragma unroll
      for (int i = 0; i < kO; i++)
        o[i] = scale[i / 2 % 2] == 0.0f ? 0.0f : o[i];
    }
    if (partial >= 0) {
      store_partial(o, scale, number, partial);
      return;
    }
    const ForwardItem item = load_item(shared.item(number));
    const int row = kPacked == 1 ? found_row() : lane_row(0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = row + 8 * r;
      const bool stored = stores(item, at);
      Element *to = element_at<Element>(arguments.o, item.slot, item.row + at / kPacked,
                                        item.origin.h + at % kPacked);
#pragma unroll
      for (int first = 0; first < kBlocksO; first += 4) {
        unsigned word[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int i = 4 * smaller(first + j, kBlocksO - 1) + 2 * r;
          word[j] = pack(o[i] * scale[r], o[i + 1] * scale[r], Element());
        }
        quad_transpose(word);
        if (stored && first + lane < kBlocksO)
          store_global_chunk(to + (first + lane) * 8, Chunk{{word[0], word[1], word[2], word[3]}});
      }
    }
  }

  ROTA_DEVICE void run() {
    if (group == kConsumers - 1)
      pass_turn(); // the first turn is warpgroup 0's
    Tile t;
    const auto compute_item = [&]() {
      while (!(t.tile & kTileLast))
        next_tile(t);
      const int item = items.index;
      release_item();
      return item;
    };
    if constexpr (kQueryStages == 1) { // the next Q is there only when this item's S are done
      while (next_item()) {
        begin_item<false>(t, 0);
        end_item(t, compute_item());
      }
    } else {
      while (next_item()) {
        begin_item<false>(t, 0);
        int item;
        for (;;) {
          item = compute_item();
          if (!next_has_tiles())
            break;
          prepare_q();
          begin_item<true>(t, item);
        }
        end_item(t, item);
      }
    }
  }
};

ROTA_DEVICE void forward(const RotaArguments &arguments, const RotaTensorMaps &maps) {
  const ForwardShared shared = {shared_address(dynamic_shared())};
  const int group = __shfl_sync(kAllLanes, warp_index() / 4, 0);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kQueryStages; stage++) {
      barrier_init(shared.q_full(stage), 1);
      barrier_init(shared.q_empty(stage), 4 * kConsumers);
    }
    for (int stage = 0; stage < kStages; stage++) {
      barrier_init(shared.k_full(stage), 1);
      barrier_init(shared.v_full(stage), 1);
      barrier_init(shared.v_loaded(stage), 1);
      barrier_init(shared.k_empty(stage), 4 * kConsumers);
      barrier_init(shared.v_empty(stage), 4 * kConsumers);
    }
    barrier_init_fence();
    launch_dependents(); // they wait for this kernel's end before they read or write
  }
  __syncthreads();
  if (group == kConsumers) {
    registers_lower<kLoaderRegisters>();
    ForwardLoader{arguments, maps, shared}.run(warp_index() % 4);
  } else {
    registers_raise<kConsumerRegisters>();
    ForwardConsumer(arguments, shared, group).run();
  }
}

} // namespace rota

#endif
