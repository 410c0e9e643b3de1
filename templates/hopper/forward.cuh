// Forward pass for sm_90a: O = softmax(score(scale Q K^T), mask) V and LSE, by wgmma and the copy
// engine.
//
// A persistent block takes (query tile, query head) items from the plan's list, longest first.
// Its last warpgroup loads, the kConsumers others compute 64 query rows each:
//
//   warp 0 of it    Q of the next item, K tiles, O       warp 1    V tiles
//   warps 2, 3      look for NaN and infinities in V of partial tiles (guard)
//
// A consumer keeps O and P in registers. While the tensor cores compute S of a tile and O += P V
// of the one before, its threads wait; then they turn S into P while another warpgroup's products
// run. With kTurns the warpgroups issue products strictly in turn, which keeps them out of step.
//
// A tile's rows are kTileQ queries of kPacked heads of a group, which share K and V: row r is query
// r / kPacked of the tile and head r % kPacked of those packed; rows beyond them are nothing.
//
// With kStagedO an item's O goes to memory by way of shared memory and the copy engine, so that
// consumers do not wait for memory; else straight from their registers.
//
// Shared memory: Q | K stage 0 .. | V stage 0 .. | O | items, tiles | barriers
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
//   o_full           consumer warps                    K loader
//   o_empty          K loader, when O has been read    consumers
#ifndef ROTA_HOPPER_FORWARD_CUH
#define ROTA_HOPPER_FORWARD_CUH

#include "instructions.cuh"
#include "mask.cuh"
#include "score.cuh"
#include "templates/hopper/capped.cuh"
#include "templates/hopper/forward_join.cuh"
#include "templates/hopper/forward_loader.cuh"
#include "templates/lib/warpgroup.cuh"

namespace rota {

struct ForwardConsumer {
  using Shared = ForwardShared;
  static constexpr int kS = kTileKv / 2, kO = kHeadDimV / 2; // accumulators of a thread
  static constexpr int kBlocksO = kHeadDimV / 8;
  static constexpr int kStepsO = kTileKv / 16; // k steps of P V
  // Whether an item's rows are closed before the next one's softmax and not beside it, for want of
  // registers.
  static constexpr bool kClosesFirst = kSpread != 0 && kConsumers > 2;
  // Where little stands between a tile's softmax and the next one's products: see kShortPath.
  static constexpr bool kShort = kShortPath;
  // Whether a tile may lie beyond all keys of a consumer's rows, but not of the query tile's.
  static constexpr bool kSkips =
      kMaskIsInterval && kPacked == 1 && kSpread == 0 && kTileKv < 64 * kConsumers;
  static constexpr int kPair = 2 * kWarpgroup; // threads of a turn's named barrier
  static_assert(kTileQ * kPacked <= Shared::kRows && kTileKv % 16 == 0, "whole instructions");
  static_assert(kTileKv <= 128, "mask bits of a row and lane fit a word");

  const RotaArguments &arguments;
  const Shared shared;
  const int group; // of the consumers
  ItemWalk items;
  Ring<kQueryStages> ring_q;
  Ring<kStages> ring_k, ring_v;
  // Whether the softmax takes arguments of tanh in place of scores.
  static constexpr bool kCapped = kScoreIsCapped && kSpread == 0;
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

  // What is still to be waited for before S.
  enum Wait { kForNothing, kForK, kForBoth };
  template <Wait kWaits> ROTA_DEVICE void start_s(float (&s)[kS]) const {
    if constexpr (kWaits == kForBoth)
      barrier_wait_both(shared.q_full(ring_q.stage), ring_q.parity, shared.k_full(ring_k.stage),
                        ring_k.parity);
    else if constexpr (kWaits == kForK)
      while (!barrier_test(shared.k_full(ring_k.stage), ring_k.parity)) {
      }
    wgmma_fence();
    unsigned base = shared.q(ring_q.stage) + (unsigned)(group * 64 * kBoxPitch);
    if constexpr (kQueryStages == 1) // else descriptors would fill registers from tile to tile
      base = (unsigned)uniform((int)base);
    const Descriptor q = describe_along(base);
    const Descriptor k = describe_along(shared.k(ring_k.stage));
    Wgmma<kTileKv>::template sum_along<Shared::kRows, kTileKv>(s, q, k);
    wgmma_commit();
  }
  // adds: O is not what this tile alone gives.
  ROTA_DEVICE void start_o(float (&o)[kO], const unsigned (&p)[kStepsO][4], bool adds) const {
    barrier_wait_phase(shared.v_full(ring_v.stage), ring_v.parity);
    wgmma_fence();
    const Descriptor v = describe_across(shared.v(ring_v.stage), kTileKv);
    Wgmma<kHeadDimV>::sum_across(o, p, v, !kShort || adds);
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
      if constexpr (kCapped)
        s[i] = tanh_argument(s[i], at, arguments);
      else
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
    const unsigned below = (unsigned)larger(x, 0);
    return lowest_bits(below / 8 * 2 + (unsigned)smaller((int)(below % 8), 2));
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
  // s = -inf where the mask forbids; the lowest s before.
  ROTA_DEVICE float apply_mask(float (&s)[kS], int k_begin, bool bounded) const {
    const Position first = origin();
    Position at[2] = {first, first};
#pragma unroll
    for (int r = 0; r < 2; r++)
      at[r].q = clamp_index<kMaskUsesTensors>(first.q + lane_query(r), first.n_q);
    unsigned bits[2];
    find_allowed(at, lane_key(k_begin), bounded, bits);
    float lowest = 0.0f;
#pragma unroll
    for (int i = 0; i < kS; i++) {
      if constexpr (kCapped) { // an argument of -inf is no forbidden one
        s[i] = maximum_or_nan(s[i], kLowest);
        lowest = minimum(lowest, s[i]);
      }
      if ((bits[i / 2 % 2] >> (i / 4 * 2 + i % 2) & 1) == 0)
        s[i] = -kInfinity;
    }
    return lowest;
  }

  ROTA_DEVICE float factor() const {
    return kHasScore ? kLog2E : fabsf(arguments.scale) * kLog2E;
  }
  // What a thread holds of the tiles at hand.
  struct Tile {
    float s[kS];            // S of a tile, then its probabilities
    unsigned p[kStepsO][4]; // the same, rounded, of the tile whose P V is next
    float o[kO];            // sum of P V
    unsigned tile;          // as announced
    int last_tile;          // of the item that this consumer's rows need
    bool adds;              // P V to O; false in an item's first
    bool beyond;            // if kCapped: some scores take tanh's other form
    bool k_ready;           // K of the next tile has been seen to be there
    Softmax::Weights weights;
  };

  // S that has arrived: its scores and mask, its peaks. Returns whether O must be rescaled, which
  // is done if kShort. kFirst: the item's first tile.
  template <bool kFirst> ROTA_DEVICE bool find_peaks(Tile &t, float (&rescale)[2]) {
    float(&s)[kS] = t.s;
    const int k_begin = (int)(t.tile & kTileNumber) * kTileKv;
    if constexpr (kHasScore)
      apply_score(s, k_begin);
    if constexpr (kCapped) {
      float bottom;
      if (t.tile & kTilePartial)
        bottom = apply_mask(s, k_begin, (t.tile & kTileBounded) != 0);
      else
        bottom = CappedSoftmax::find_bottom(s);
      return CappedSoftmax::raise<kFirst>(softmax, s, bottom, least(t), cap(), rescale, t.beyond);
    }
    if (t.tile & kTilePartial)
      apply_mask(s, k_begin, (t.tile & kTileBounded) != 0);
    // Scores of one's own may all be negative.
    bool raised = false;
    constexpr bool kAsks = !kFirst && !kHasScore;
    if constexpr (!kShort)
      raised = softmax.template raise<kAsks>(s, factor(), rescale);
    else if constexpr (kFirst)
      softmax.start(s, factor());
    else
      softmax.template raise_and_rescale<!kHasScore>(s, factor(), [&](const float(&by)[2]) {
        wgmma_wait<0>();
        wgmma_touch(t.o);
        softmax.multiply_rows(t.o, by);
      });
    return raised;
  }
  // The probabilities, not yet rounded, of accumulators kFrom .. kTo - 1. kBeyond: scores may have
  // tanh's other form.
  template <bool kBeyond, int kFrom, int kTo> ROTA_DEVICE void find_probabilities(Tile &t) {
    if constexpr (kCapped)
      CappedSoftmax::probabilities<kBeyond, kFrom, kTo>(softmax, t.s, least(t), cap());
    else
      softmax.template probabilities<kFrom, kTo>(t.s, factor(), t.weights);
  }
  ROTA_DEVICE ScoreCap cap() const {
    return ScoreCap(arguments);
  }
  // Arguments of tanh are above it: what a mask forbids is not.
  ROTA_DEVICE static float least(const Tile &t) {
    return t.tile & kTilePartial ? -kInfinity : __int_as_float(0x7fffffff);
  }

  // A negative scale goes into Q, since peaks are taken before scaling.
  ROTA_DEVICE void negate_q() const {
#pragma unroll 1
    for (int at = (int)threadIdx.x % kWarpgroup * 16; at < 64 * kBoxPitch; at += kWarpgroup * 16)
#pragma unroll 1
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
    if (!kHasScore && arguments.scale < 0.0f) {
      barrier_wait_phase(shared.q_full(ring_q.stage), ring_q.parity);
      negate_q();
    }
  }

  // ---- Items ----

  // Takes the next item with tiles; those without are finished at once. No other may be unfinished
  // then: after two of them its slot is written again. False: no item is left.
  ROTA_DEVICE bool next_item() {
    for (; items.valid();) {
      barrier_wait_phase(shared.q_full(ring_q.stage), ring_q.parity);
      if (!uniform(item_is_empty(shared.item(items.index)))) {
        if (goes_by()) {
          pass_item();
          continue;
        }
        prepare_q();
        return true;
      }
      store_empty(items.index);
      release_item();
    }
    return false;
  }
  // Whether none of this consumer's rows of the current item, which has tiles, is to be stored.
  ROTA_DEVICE bool goes_by() const {
    barrier_wait_phase(shared.q_full(ring_q.stage), ring_q.parity);
    const ForwardItem item = load_item(shared.item(items.index));
    return uniform((int)(item.origin.q + 64 * group / kPacked >= item.rows_q)) != 0;
  }
  ROTA_DEVICE void pass_item() {
    wait_turn();
    pass_turn();
    skip_tiles();
    if constexpr (kStagedO) {
      barrier_wait_phase(shared.o_empty(), items.index % 2);
      release(shared.o_full());
    }
    release_item();
    ring_q.stage = uniform(ring_q.stage); // the compiler does not see it: see start_s
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

  // The last tile of the current item that this consumer's rows need.
  ROTA_DEVICE int find_last_tile() const {
    const Position first = origin();
    Position at = first;
    int end = 0;
#pragma unroll
    for (int row = lane_index(); row < 64; row += kWarp) {
      const int query = first.q + (64 * group + row) / kPacked;
      at.q = clamp_index<kMaskUsesTensors>(query, first.n_q);
      if (query < first.n_q)
        end = larger(end, mask_end(at, arguments));
    }
    return (__reduce_max_sync(kAllLanes, smaller(end, first.n_k)) - 1) / kTileKv;
  }

  // Waits for S, with P V perhaps still under way; see find_peaks.
  template <int kPending, bool kFirst> ROTA_DEVICE bool take_s(Tile &t, float (&rescale)[2]) {
    t.tile = (unsigned)uniform(load_shared_int(shared.tile(ring_k.stage)));
    wgmma_wait<kPending>();
    wgmma_touch(t.s);
    t.weights = Softmax::Weights(shared.weights(ring_k.stage));
    release(shared.k_empty(ring_k.stage));
    ring_k.advance();
    return find_peaks<kFirst>(t, rescale);
  }
  ROTA_DEVICE void wait_o(float (&o)[kO]) {
    wgmma_wait<0>();
    wgmma_touch(o);
    release(shared.v_empty(ring_v.stage));
    ring_v.advance();
  }

  // An item's first tile: S of it, kBeside the last P V of the item `before`, whose O it stores.
  template <bool kBeside> ROTA_DEVICE void begin_item(Tile &t, int before) {
    float rescale[2];
    wait_turn();
    start_s<kBeside ? kForBoth : kForK>(t.s);
    if constexpr (kBeside)
      start_o(t.o, t.p, t.adds);
    pass_turn();
    const Softmax ended = softmax;
    RowEnds ends;
    if constexpr (kBeside && kClosesFirst)
      ends = close(ended, before);
    softmax = Softmax();
    // The ends of rows want shuffles, whose latency exponentials hide.
    take_s<kBeside, true>(t, rescale);
    if constexpr (kBeside && !kClosesFirst)
      ends = close(ended, before);
    if constexpr (kSkips)
      t.last_tile = find_last_tile();
    if (kCapped && t.beyond)
      find_probabilities<true, 0, kS>(t);
    else
      find_probabilities<false, 0, kS>(t);
    if constexpr (kBeside) {
      if constexpr (kConsumers < 3) // which have registers enough
        finish_first(softmax.sum[0] + softmax.sum[1]);
      wait_o(t.o);
      store_o(t.o, ends, before);
    }
    if constexpr (!kShort)
      clear(t.o);
    t.adds = false;
    pack_probabilities(t.p, t.s, Element());
  }
  // Any other tile: S of it beside P V of the one before. Without turns half of the exponentials
  // are computed while P V is under way, half when it has ended and P's registers are free, so that
  // rounding fits in between. With turns, which keep the consumers out of step, all come first as
  // far as the assembler leaves them there.
  ROTA_DEVICE void next_tile(Tile &t) {
    float rescale[2];
    wait_turn();
    start_s<kTurns != 0 ? kForK : kForNothing>(t.s);
    start_o(t.o, t.p, t.adds);
    t.adds = true;
    pass_turn();
    const bool raised = take_s<true, false>(t, rescale);
    if (kCapped && t.beyond)
      finish_tile<true>(t, raised, rescale);
    else
      finish_tile<false>(t, raised, rescale);
  }
  template <bool kBeyond>
  ROTA_DEVICE void finish_tile(Tile &t, bool raised, const float (&rescale)[2]) {
    constexpr int kEarly = kTurns != 0 ? kS : kS / 32 * 16;
    find_probabilities<kBeyond, 0, kEarly>(t);
    if constexpr (kTurns == 0) // long before the wait for it
      t.k_ready = barrier_is_over(shared.k_full(ring_k.stage), ring_k.parity);
    if constexpr (kEarly < kS)
      finish_first(softmax.sum[0] + softmax.sum[1]);
    wait_o(t.o);
    if (!kShort && raised)
      softmax.multiply_rows(t.o, rescale);
    find_probabilities<kBeyond, kEarly, kS>(t);
    pack_probabilities(t.p, t.s, Element());
  }
  // The last P V, with no tile to follow, or none that this consumer's rows need: those go by.
  ROTA_DEVICE void end_item(Tile &t, int item) {
    const bool skips = kSkips && !(t.tile & kTileLast);
    if (skips)
      wait_turn();
    start_o(t.o, t.p, t.adds);
    if (skips)
      pass_turn();
    const RowEnds ends = close(softmax, item);
    wait_o(t.o);
    store_o(t.o, ends, item);
    if (skips)
      skip_tiles();
  }
  // The item's other tiles; the turn of the first has been taken.
  ROTA_DEVICE void skip_tiles() {
    for (bool first = true, last = false; !last; first = false) {
      if (!first) {
        wait_turn();
        pass_turn();
      }
      barrier_wait_phase(shared.k_full(ring_k.stage), ring_k.parity);
      last = (uniform(load_shared_int(shared.tile(ring_k.stage))) & (int)kTileLast) != 0;
      release(shared.k_empty(ring_k.stage));
      ring_k.advance();
      barrier_wait_phase(shared.v_full(ring_v.stage), ring_v.parity);
      release(shared.v_empty(ring_v.stage));
      ring_v.advance();
    }
  }
  // O of a piece, in fp32, to its partials.
  ROTA_DEVICE void store_partial(const float (&o)[kO], int number, int partial) const {
    const ForwardItem item = load_item(shared.item(number));
    const int first = found_row();
    const int rows = smaller(item.rows_q - item.origin.q, kTileQ) * kPacked;
    Pair *to = (Pair *)(arguments.partials + (long long)(partial + first) * kHeadDimV) +
               lane_index() % 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (first + 8 * r < rows)
#pragma unroll
        for (int i = 0; i < kBlocksO; i++)
          to[4 * (r * kHeadDimV + i)] = {o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
  }
  struct alignas(8) Pair {
    float x, y;
  };
  // Of the lane's two rows of an item: the factors of O, and what is stored beside it.
  struct RowEnds {
    float scale[2], lse[2], mean_square[2];
    float *lse_at[2]; // lse_place, if kShort
    int partial;      // item_partial
    bool whole;       // item_is_whole, or a piece
    bool zeros;       // some rows of the warp have no keys; if kShort
  };
  // Where the lane stores LSE of a row of the tile; null: nowhere.
  ROTA_DEVICE float *lse_place(const ForwardItem &item, int partial, int row) const {
    float *const whole = element_at<float>(arguments.lse, item.slot, item.row + row / kPacked,
                                           item.origin.h + row % kPacked);
    if (lane_index() % 4 != 0 || !stores(item, row))
      return nullptr;
    return partial < 0 ? whole : arguments.partial_lse + (partial + row);
  }
  ROTA_DEVICE RowEnds close(const Softmax &softmax, int number) const {
    const ForwardItem item = load_item(shared.item(number));
    RowEnds ends;
    ends.partial = uniform(item_partial(shared.item(number)));
    if constexpr (kShort)
      ends.whole = ends.partial >= 0 || item_is_whole(item);
    const int row = kPacked == 1 ? found_row() : lane_row(0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = row + 8 * r, head = item.origin.h + at % kPacked;
      // A sink counts once, when pieces are joined.
      const float sink = kSinkLogit && ends.partial < 0 ? arguments.sink[head] : -kInfinity;
      const SoftmaxRow closed = softmax.template finish<kSinkLogit>(r, sink);
      const bool used = item.origin.q + at / kPacked < item.origin.n_q;
      ends.scale[r] = used ? closed.scale : 0.0f;
      ends.lse[r] = used ? closed.lse : -kInfinity;
      ends.mean_square[r] = softmax.mean_square(r, ends.scale[r]);
      if constexpr (kShort)
        ends.lse_at[r] = lse_place(item, ends.partial, at);
    }
    if constexpr (kShort)
      ends.zeros = __any_sync(kAllLanes, ends.scale[0] == 0.0f || ends.scale[1] == 0.0f);
    if constexpr (kClosesFirst)
      store_ends(item, ends);
    return ends;
  }
  ROTA_DEVICE void store_ends(const ForwardItem &item, const RowEnds &ends) const {
    const int first = kPacked == 1 ? found_row() : lane_row(0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = first + 8 * r, row = item.row + at / kPacked;
      const int head = item.origin.h + at % kPacked;
      if constexpr (kShort)
        store_global_if(ends.lse_at[r] != nullptr, ends.lse_at[r], ends.lse[r]);
      if (kShort ? kSpread != 0 && ends.lse_at[r] != nullptr
                 : lane_index() % 4 == 0 && stores(item, at)) {
        if (!kShort && ends.partial < 0)
          *element_at<float>(arguments.lse, item.slot, row, head) = ends.lse[r];
        else if (!kShort)
          arguments.partial_lse[ends.partial + at] = ends.lse[r];
        if constexpr (kSpread != 0)
          *element_at<float>(arguments.mean_square, item.slot, row, head) = ends.mean_square[r];
      }
    }
  }
  // Scales, rounds and stores O of an item, and stores the ends of its rows.
  ROTA_DEVICE void store_o(float (&o)[kO], const RowEnds &ends, int number) const {
    const float(&scale)[2] = ends.scale;
    Softmax::multiply_rows(o, scale);
    if constexpr (kStagedO)
      barrier_wait_phase(shared.o_empty(), number % 2); // an item, a phase
    if (ends.partial >= 0)
      store_partial(o, number, ends.partial);
    else if constexpr (kStagedO)
      stage_o(o);
    else
      store_directly(o, load_item(shared.item(number)));
    if (kShort ? ends.zeros : __any_sync(kAllLanes, scale[0] == 0.0f || scale[1] == 0.0f))
      store_zeros(ends, load_item(shared.item(number)));
    if constexpr (kStagedO)
      release_staged(ends, number);
    const ForwardItem item = load_item(shared.item(number));
    if constexpr (!kClosesFirst)
      store_ends(item, ends);
  }
  // Rows without keys become zeros, whatever was stored: their accumulators may hold 0 * NaN of a
  // neighbour's key. In loops, since they are rare and code takes time to compile.
  ROTA_DEVICE void store_zeros(const RowEnds &ends, const ForwardItem &item) const {
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 2; r++) {
      const int row = found_row() + 8 * r;
      if ((r == 0 ? ends.scale[0] : ends.scale[1]) != 0.0f)
        continue;
      if (ends.partial >= 0) {
        if (stores(item, row))
          zero_row(arguments.partials + (long long)(ends.partial + row) * kHeadDimV,
                   kHeadDimV / 4);
      } else if constexpr (kStagedO) {
#pragma unroll 1
        for (int chunk = lane_index() % 4; chunk < kBlocksO; chunk += 4)
          store_shared_chunk(shared.o() + (unsigned)box_offset(Shared::kRows, row, chunk),
                             Chunk{{0, 0, 0, 0}});
      } else if (stores(item, row)) {
        zero_row(o_place(item, row), kBlocksO);
      }
    }
    __syncwarp();
  }
  // By the four lanes of the row.
  ROTA_DEVICE static void zero_row(void *to, int chunks) {
#pragma unroll 1
    for (int chunk = lane_index() % 4; chunk < chunks; chunk += 4)
      store_global_chunk((char *)to + chunk * 16, Chunk{{0, 0, 0, 0}});
  }
  ROTA_DEVICE Element *o_place(const ForwardItem &item, int row) const {
    return element_at<Element>(arguments.o, item.slot, item.row + row / kPacked,
                               item.origin.h + row % kPacked);
  }
  // What an item without tiles gives: zeros, and LSE of no key or of the sink. Pieces have tiles.
  ROTA_DEVICE void store_empty(int number) const {
    if constexpr (kStagedO)
      barrier_wait_phase(shared.o_empty(), number % 2);
    const ForwardItem item = load_item(shared.item(number));
#pragma unroll 1
    for (int row = found_row(), end = row + 16; row < end; row += 8)
      if (stores(item, row)) {
        zero_row(o_place(item, row), kBlocksO);
        if (lane_index() % 4 == 0) {
          const int at = item.row + row / kPacked, head = item.origin.h + row % kPacked;
          const bool used = item.origin.q + row / kPacked < item.origin.n_q;
          *element_at<float>(arguments.lse, item.slot, at, head) =
              kSinkLogit && used ? arguments.sink[head] : -kInfinity;
          if constexpr (kSpread != 0)
            *element_at<float>(arguments.mean_square, item.slot, at, head) = 0.0f;
        }
      }
    if constexpr (kStagedO)
      release(shared.o_full());
  }
  ROTA_DEVICE static unsigned packed_o(const float (&o)[kO], int block, int r) {
    const int i = 4 * smaller(block, kBlocksO - 1) + 2 * r;
    return pack(o[i], o[i + 1], Element());
  }
  // By way of shared memory: the K loader has the copy engine take it on. But where rows of the
  // tile lie past the end of their slot each warp copies its own 16. (A consumer that called the
  // copy engine would have its loops' descriptors in ordinary registers.)
  ROTA_DEVICE void stage_o(const float (&o)[kO]) const {
    const int lane = hidden(lane_index()), first = 64 * group + warp_index() % 4 * 16;
    // Of blocks 0 and 1; others differ in a few bits (box_offset).
    const unsigned at = (unsigned)hidden((int)shared.o()) +
                        (unsigned)box_offset(Shared::kRows, first + lane % 16, lane / 16);
#pragma unroll
    for (int block = 0; block < kBlocksO; block += 2) {
      const unsigned word[4] = {packed_o(o, block, 0), packed_o(o, block, 1),
                                packed_o(o, block + 1, 0), packed_o(o, block + 1, 1)};
      store_matrices((at ^ (unsigned)(block % 8 * 16)) +
                         (unsigned)(block / 8 * Shared::kRows * kBoxPitch),
                     word);
    }
  }
  ROTA_DEVICE void release_staged(const RowEnds &ends, int number) const {
    const auto item = [&] { return load_item(shared.item(number)); };
    if (uniform(kShort ? !ends.whole : ends.partial < 0 && !item_is_whole(item()))) {
      __syncwarp();
      copy_rows(shared.o(), 64 * group + warp_index() % 4 * 16, item());
    }
    fence_shared_for_engines();
    __syncwarp();
    release(shared.o_full());
  }
  ROTA_DEVICE void copy_rows(unsigned staged, int first, const ForwardItem &item) const {
#pragma unroll 1
    for (int i = 0; i < (16 * kBlocksO + kWarp - 1) / kWarp; i++) {
      const int at = i * kWarp + lane_index(), row = first + at / kBlocksO, chunk = at % kBlocksO;
      if (at < 16 * kBlocksO && row < kTileQ * kPacked &&
          item.origin.q + row / kPacked < item.rows_q)
        store_global_chunk(
            element_at<Element>(arguments.o, item.slot, item.row + row / kPacked,
                                item.origin.h + row % kPacked) +
                chunk * 8,
            load_shared_chunk(staged + (unsigned)box_offset(Shared::kRows, row, chunk)));
    }
    __syncwarp();
  }
  // Straight from registers: the four lanes of a row exchange words until each has 16 bytes.
  ROTA_DEVICE void store_directly(const float (&o)[kO], const ForwardItem &item) const {
    const int lane = lane_index() % 4, row = kPacked == 1 ? found_row() : lane_row(0);
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
        for (int j = 0; j < 4; j++)
          word[j] = packed_o(o, first + j, r);
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
      const auto ends = [&] {
        return (t.tile & kTileLast) || (kSkips && (int)(t.tile & kTileNumber) >= t.last_tile);
      };
      if constexpr (kTurns != 0) {
        while (!ends())
          next_tile(t);
      } else if (!ends()) {
        barrier_wait_phase(shared.k_full(ring_k.stage), ring_k.parity);
        for (;;) {
          next_tile(t);
          if (ends())
            break;
          if (!t.k_ready)
            barrier_wait_phase(shared.k_full(ring_k.stage), ring_k.parity);
        }
      }
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
          if (!(t.tile & kTileGoesOn) || goes_by())
            break;
          if constexpr (!kShort)
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
    barrier_init(shared.o_full(), 4 * kConsumers);
    barrier_init(shared.o_empty(), 1);
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
