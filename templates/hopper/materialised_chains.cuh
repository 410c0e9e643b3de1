// The backward pass through memory where dK and dV of a kv tile fit the registers, as at head dims
// 192 and 128: they are made where the scores are, and dS alone, of a chunk of the plane, is
// written to the workspace in 16 bits, as an operand of dQ = dS K. Entries: prepare, backward,
// sink_gradient.
//
//   work      rows x columns           products
//   chain     128 keys, all queries    visits of 64 queries: S^T = K Q^T, dP^T = V dO^T,
//             of the unit              dV += P^T dO, dK += dS^T Q; dS stored
//   dQ        128 queries x kColumns   sums over keys: A dS along, B K across
//
// A warpgroup has 64 of the keys: their K and V lie in one stage, held while the chain goes on; the
// other stages bring the queries. The transposed products leave P^T and dS^T in registers as first
// operands. With 160 accumulators of dK and dV a thread there is room for one of S and dP at a
// time: P waits as fp16 for dP to come. One warpgroup's exponentials run beside the other's
// products.
//
// So 4 bytes of every (query, key) cross memory instead of 10 in templates/hopper/materialised.cuh.
// Where dK does not fit (!kMakesKeys), it is a sum over the queries of the unit, like dQ. Sums as
// there: by one block from first to last, as fp32 in memory between units.
#ifndef ROTA_HOPPER_MATERIALISED_CHAINS_CUH
#define ROTA_HOPPER_MATERIALISED_CHAINS_CUH

#include "templates/hopper/materialised_prepare.cuh"
#include "templates/hopper/materialised_works.cuh"
#include "templates/simple/backward_sink.cuh"

namespace rota {

constexpr int kQueries = 64; // of a visit
constexpr int kScores = kQueries / 2, kScoreBlocks = kQueries / 16;
constexpr int kPairs = kScores / 2; // of a lane's scores, packed: four for each block
constexpr int kBoxesK = (kColumnsK + 63) / 64, kBoxesV = (kColumnsV + 63) / 64;
// 64 rows of K or Q, then of V or dO.
constexpr int kRowsOffsetV = kBoxesK * kPartBytes;
constexpr int kRowsBytes = kRowsOffsetV + kBoxesV * kPartBytes;
constexpr int kValueBytes = kQueries * 4; // bias or delta of a visit
constexpr int kValues = kQueries / 4;     // of them a lane's
static_assert(kRowsBytes <= kStageBytes && kBytesA + kBoxesK * kPartBytes <= kStageBytes, "fit");
static_assert(kScalesBytes == 2 * kValueBytes && kStages >= 4, "two stages bring queries");
static_assert(column_blocks(kHeadDim) == 1 && column_blocks(kHeadDimV) == 1, "of columns");

constexpr int kWordLeft = 8; // in a visit's word: queries that exist

// What a warpgroup has staged, for its store warp: kind in two bits, then
enum Staged : unsigned {
  kStagedScores = 0, // its part of dS: (blocks of 64 keys from the chain's first << 1) + half
  kStagedV = 1,      // a box of dV or dK: which
  kStagedK = 2,
  kStagedEnd = 3, // the chain is done
};

struct ChainLoader : WorkLoader<ChainLoader> {
  using WorkLoader::WorkLoader;
  static constexpr bool kLongScores = true;

  // Number of the first block of a group row, from the unit's first; that of keys 64 i is i
  // further.
  ROTA_DEVICE int row_blocks(int row) const {
    return plan.offsets[unit.offsets + row - unit.row_begin];
  }
  ROTA_DEVICE long long block_of(int row, int kv64) const {
    return unit.scores + row_blocks(row) + kv64;
  }
  // 64 rows of K and V, or of Q and dO.
  ROTA_DEVICE void rows(unsigned stage, int map, int map_v, int row, int head,
                        unsigned barrier) const {
    boxes_along<kColumnsK>(stage, &maps.map[map], 0, row, head, barrier);
    boxes_along<kColumnsV>(stage + kRowsOffsetV, &maps.map[map_v], 0, row, head, barrier);
  }
  ROTA_DEVICE void load_keys_of_chain(int kv_tile) {
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
      barrier_wait_phase(barriers.empty(ring.stage()), ring.parity());
      if (elect_lane()) {
        const unsigned barrier = barriers.full(ring.stage());
        barrier_expect(barrier, kRowsBytes);
        rows(shared + (unsigned)(ring.stage() * kStageBytes), kMapK, kMapV,
             tensor_k(kv_tile * kTileKv + 64 * half), unit.kv_head, barrier);
      }
      __syncwarp();
      ring.advance(); // held from now on
    }
  }
  // 64 queries of a visit; words: bits and how many queries exist, the first, head, where its dS
  // goes.
  ROTA_DEVICE void load_queries(const RotaVisit &visit, int kv_tile, int place, int half,
                                bool last) {
    const int q = (int)(visit.tile & ROTA_VISIT_TILE) * kTileQ + kQueries * half;
    const int head = unit.kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
    barrier_wait_phase(barriers.empty(ring.stage()), ring.parity());
    if (elect_lane()) {
      const unsigned words = stage_words(shared, ring.stage()),
                     barrier = barriers.full(ring.stage());
      const int left = smaller(sequence.n_q - q, kQueries);
      const bool partial = (visit.tile & ROTA_VISIT_PARTIAL) != 0 || left < kQueries ||
                           (kv_tile + 1) * kTileKv > sequence.n_k;
      store_shared_word(words, (last ? kWordLast : 0) | (partial ? kWordSuspect : 0) |
                                   (unsigned)left << kWordLeft);
      store_shared_word(words + 4, (unsigned)q);
      store_shared_word(words + 8, (unsigned)head);
      store_shared_word(words + 12, (unsigned)place);
      barrier_expect(barrier, kRowsBytes + 2 * kValueBytes);
      const unsigned values = shared + (unsigned)(kStageScales + kScalesBytes * ring.stage());
      const long long all = (long long)arguments.tiles * arguments.heads;
      const long long tile = query_tile_number(arguments, sequence, q / kTileQ, head);
      const float *delta = arguments.delta + tile * kTileQ + q % kTileQ;
      copy_bytes(values, delta + all * kTileQ, kValueBytes, barrier);
      copy_bytes(values + kValueBytes, delta, kValueBytes, barrier);
      rows(shared + (unsigned)(ring.stage() * kStageBytes), kMapQ, kMapDO, tensor_q(q), head,
           barrier);
    }
    __syncwarp();
    ring.advance_rest();
  }
  // act(visit, its first block, whether it is the last): of a kv tile's visits in the unit, fetched
  // 32 at a time.
  template <class Act> ROTA_DEVICE void for_visits(const Task &task, int kv_tile, Act act) const {
    RotaVisit batch = {0, 0};
    int batch_block = 0;
    for (int i = task.kv_begin; i < task.kv_end; i++) {
      const int lane = (i - task.kv_begin) % kWarp;
      if (lane == 0 && i + lane_index() < task.kv_end) {
        batch = arguments.visits[i + lane_index()];
        batch_block = row_blocks(group_row(batch)) + 2 * kv_tile;
      }
      RotaVisit visit;
      visit.tile = __shfl_sync(kAllLanes, batch.tile, lane);
      visit.rank = __shfl_sync(kAllLanes, batch.rank, lane);
      act(visit, __shfl_sync(kAllLanes, batch_block, lane), i + 1 == task.kv_end);
    }
  }
  // Of a tile at the sequence's end the second half may not exist.
  ROTA_DEVICE bool has_both(const RotaVisit &visit) const {
    return (int)(visit.tile & ROTA_VISIT_TILE) * kTileQ + kQueries < sequence.n_q;
  }
  ROTA_DEVICE void load_chain(const Task &task, int kv_tile) {
    load_keys_of_chain(kv_tile);
    for_visits(task, kv_tile, [&](const RotaVisit &visit, int block, bool last) {
      const bool both = has_both(visit);
#pragma unroll 1
      for (int half = 0; half <= (int)both; half++)
        load_queries(visit, kv_tile, 2 * block + half, half, last && half == (int)both);
    });
  }

  // dK, where chains do not make it.
  ROTA_DEVICE void load_visits(const Task &task, int kv_tile) {
    for_visits(task, kv_tile, [&](const RotaVisit &visit, int block, bool last) {
      const int q = (int)(visit.tile & ROTA_VISIT_TILE) * kTileQ;
      const int head = unit.kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
      const bool both = has_both(visit);
#pragma unroll 1
      for (int half = 0; half <= (int)both; half++) {
        const int first = q + kQueries * half;
        const StageNote note = {last && half == (int)both, false, rows_beyond(first, sequence.n_q),
                                0};
        step(gradient_bytes<kColumnsK>(), note, [&](unsigned stage, unsigned barrier) {
          const unsigned char *a =
              plan.scores + (unit.scores + block) * kScoreBlock + half * kPartBytes;
          copy_bytes(stage, a, kPartBytes, barrier);
          copy_bytes(stage + kPartBytes, a + kScoreBlock, kPartBytes, barrier);
          boxes_along<kColumnsK>(stage + kBytesA, &maps.map[kMapQ], 0, tensor_q(first), head,
                                 barrier);
        });
      }
    });
  }

  // dQ.
  ROTA_DEVICE void load_keys(const Task &task, int row) {
    for_keys(arguments.rows[task.table], [&](int kv64, const StageNote &note) {
      step(gradient_bytes<kColumnsK>(), note, [&](unsigned stage, unsigned barrier) {
        copy_bytes(stage, plan.scores + block_of(row, kv64) * kScoreBlock, kBytesA, barrier);
        boxes_along<kColumnsK>(stage + kBytesA, &maps.map[kMapK], 0, tensor_k(note.key),
                               unit.kv_head, barrier);
      });
    });
  }

  ROTA_DEVICE Task describe(const RotaWork &work) const {
    const unsigned kind = work.what & 3u;
    const bool keys = kind != ROTA_WORK_DQ;
    // First: registers are short.
    const VisitRange visits =
        keys ? visits_within(arguments.chains[unit.chain_table + work.tile]) : VisitRange();
    const int steps =
        keys ? visits.end - visits.begin : count_tiles(arguments.rows[row_entry(work.tile)]);
    Task task = describe_rows(work, keys);
    task.steps = steps;
    if (keys) { // two tiles of sums: dV, dK
      task.flags = (visits.first ? ROTA_UNIT_FIRST_K : 0) | (visits.last ? ROTA_UNIT_LAST_K : 0);
      task.kv_begin = visits.begin;
      task.kv_end = visits.end;
      task.place = unit.scores;
      task.sums = 2 * (unit.sum_k + work.tile - unit.kv_begin) + (kind == ROTA_WORK_DK);
    } else {
      task.sums = unit.sum_q + work.tile - unit.row_begin;
    }
    task.flags |= boxes_flag(task, keys, kHeadDim, kColumnsK);
    return task;
  }

  ROTA_DEVICE void load(const RotaWork &work, const Task &task) {
    if (task.kind == ROTA_WORK_SCORES)
      load_chain(task, work.tile);
    else if (!kMakesKeys && task.kind == ROTA_WORK_DK)
      load_visits(task, work.tile);
    else
      load_keys(task, work.tile);
  }
};

struct ChainStores : StoreWarp {
  // A chain's parts as they are staged.
  ROTA_DEVICE void take_chain(const RotaTensorMaps &maps, const Task &task, int *signal) {
    unsigned char *to = plan.scores + (task.place + group) * kScoreBlock;
    for (unsigned kind = kStagedScores; kind != kStagedEnd;) {
      barrier_wait_phase(barriers.staged(group, ring.stage()), ring.parity());
      const unsigned word = load_shared_word(shared + (unsigned)(kStagedWords + 4 * group));
      const unsigned from = shared + (unsigned)(kStaging + group * kPartBytes);
      const int at = (int)(word >> 2);
      kind = word & 3u;
      if (elect_lane()) {
        if (kind == kStagedScores)
          store_bytes(to + (at >> 1) * kScoreBlock + (at & 1) * kPartBytes, from, kPartBytes);
        else if (kind != kStagedEnd)
          store_box(&maps.map[kind == kStagedV ? kMapDV : kMapDK], 64 * at,
                    task.tensor_row + 64 * group, task.head, task.slot, from);
        bulk_commit();
        bulk_wait_read<0>();
        barrier_arrive(barriers.unstaged(group, ring.stage()));
      }
      __syncwarp();
      ring.advance();
    }
    finish(signal);
  }
  ROTA_DEVICE void run(const RotaTensorMaps &maps) {
    for (Turns<2> mail(0);;) {
      const Task task = next_task(barriers, mail);
      if (task.kind == kTaskEnd)
        return;
      int *signals = plan.counters + 1 + 2 * task.chunk;
      if (task.kind == (int)ROTA_WORK_SCORES)
        take_chain(maps, task, signals);
      else if (task.flags & kTaskBoxes)
        take(kBoxesK, signals + 1, [&](int i, unsigned from) {
          store_box(&maps.map[!kMakesKeys && task.kind == (int)ROTA_WORK_DK ? kMapDK : kMapDQ],
                    64 * i, task.tensor_row + 64 * group, task.head, task.slot, from);
        });
    }
  }
};

struct ChainConsumer : WorkConsumer {
  using WorkConsumer::WorkConsumer;

  // `thread`, but not kept.
  ROTA_DEVICE int own_thread() const { return hidden((int)threadIdx.x) % kWarpgroup; }
  ROTA_DEVICE unsigned stage_at(int stage) const {
    return shared + (unsigned)(stage * kStageBytes);
  }
  // ---- Visits ----

  // Queries from `left` on become zeros. All consumers.
  ROTA_DEVICE void clear_queries(unsigned stage, int left) const {
    const int row = hidden((int)threadIdx.x) / 4, part = thread % 4;
    for (int i = part; row >= left && i < kRowsBytes / kPartBytes * 8; i += 4)
      store_shared_chunk(stage + (unsigned)(i / 8 * kPartBytes + row * kBoxPitch + i % 8 * 16),
                         Chunk{{0, 0, 0, 0}});
    fence_shared_for_engines();
    named_barrier_sync(1, 2 * kWarpgroup);
  }
  // d = 64 keys x 64 queries, over the columns of both.
  template <int kColumns>
  ROTA_DEVICE void multiply_rows(float (&d)[kScores], unsigned keys, unsigned queries) const {
    const Descriptor a = describe_along(keys), b = describe_along(queries);
#pragma unroll
    for (int step = 0; step < kColumns / 16; step++) {
      const Descriptor at_a = advance(a, step_along(64, step));
      const Descriptor at_b = advance(b, step_along(64, step));
      if (step == 0)
        Wgmma<kQueries>::template multiply<0, 0>(d, at_a, at_b);
      else
        Wgmma<kQueries>::template accumulate<0, 0>(d, at_a, at_b);
    }
  }
  // d += A B over the queries: A from registers, B across.
  template <int kColumns>
  ROTA_DEVICE void accumulate(float (&d)[kColumns / 2], const unsigned (&a)[kPairs],
                              unsigned queries) const {
    const Descriptor b = describe_across(queries, 64);
#pragma unroll
    for (int step = 0; step < kScoreBlocks; step++) {
      const unsigned block[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
      Wgmma<kColumns>::template accumulate<1>(d, block, advance(b, step_across(step)));
    }
  }

  // Bias or delta of this lane's columns of S^T: 8 i + 2 t, + 1. Fetched before the product that
  // it is for starts: beside products loads from shared memory take their time.
  ROTA_DEVICE void fetch_values(float (&x)[kValues], unsigned from) const {
    from += (unsigned)(8 * (hidden(lane_index()) % 4));
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      float pair[2];
      load_shared_pair(pair, from + (unsigned)(16 * i));
      x[i] = pair[0];
      x[i + 1] = pair[1];
    }
  }
  // s becomes P, times its scale; rounded for dP to come as Kept, which has the bits for both.
  ROTA_DEVICE void probabilities(float (&s)[kScores], const float (&bias)[kValues],
                                 const Task &task, bool partial, unsigned (&kept)[kPairs]) const {
    const float factor = exponent_factor(arguments);
#pragma unroll
    for (int i = 0; i < kScores; i++)
      s[i] = exp2_fast(__fmaf_rn(s[i], factor, bias[i / 4 * 2 + i % 2]));
    if (partial)
      mask_probabilities(s, score_place(task));
#pragma unroll
    for (int i = 0; i < kPairs; i++)
      kept[i] = pack(s[2 * i], s[2 * i + 1], Kept());
  }
  // With a score function: p = P rounded, kept = P times the score's slope.
  ROTA_DEVICE void score_probabilities(const float (&s)[kScores], const float (&bias)[kValues],
                                       const Task &task, bool partial, unsigned (&p)[kPairs],
                                       unsigned (&kept)[kPairs]) const {
    const Position from = score_place(task);
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
      float x[2], y[2];
#pragma unroll
      for (int c = 0; c < 2; c++) {
        Position at = score_at(from, 2 * i + c);
        at.q = clamp_index<kScoreUsesTensors>(at.q, at.n_q);
        at.k = clamp_index<kScoreUsesTensors>(at.k, at.n_k);
        score_exponential(arguments, s[2 * i + c], bias[i / 2 * 2 + c], at, x[c], y[c]);
      }
      p[i] = pack(x[0], x[1], Element());
      kept[i] = pack(y[0], y[1], Kept());
    }
    if (partial) {
      const unsigned bits = allowed_bits(from);
      mask_pairs(bits, p);
      mask_pairs(bits, kept);
    }
  }
  // Where this lane's first score is.
  ROTA_DEVICE Position score_place(const Task &task) const {
    const unsigned words = stage_words(shared, ring.stage());
    const int q = (int)load_shared_word(words + 4), head = (int)load_shared_word(words + 8);
    const RotaSequence &sequence = arguments.sequences[task.sequence];
    const int lane = hidden(lane_index());
    const int first = task.first_row + 64 * group + own_thread() / kWarp * 16 + lane / 4;
    return {q + 2 * (lane % 4), first, head, sequence.batch, sequence.n_q, sequence.n_k};
  }
  // Of this lane's score i; `from`: of its first.
  ROTA_DEVICE static Position score_at(const Position &from, int i) {
    Position at = from;
    at.q += i / 4 * 8 + i % 2;
    at.k += i % 4 / 2 * 8;
    return at;
  }
  // Bit i: of score i. In a loop, with few registers, where the expression may be long.
  ROTA_DEVICE unsigned allowed_bits(const Position &from) const {
    unsigned bits = 0;
    if constexpr (kMaskUsesTensors || !kMaskIsInterval) {
#pragma unroll 1
      for (int i = 0; i < kScores; i++)
        bits |= element_allowed(arguments, score_at(from, i)) ? 1u << i : 0u;
    } else {
#pragma unroll
      for (int i = 0; i < kScores; i++)
        bits |= element_allowed(arguments, score_at(from, i)) ? 1u << i : 0u;
    }
    return bits;
  }
  ROTA_DEVICE void mask_probabilities(float (&s)[kScores], const Position &from) const {
    if constexpr (kMaskUsesTensors || !kMaskIsInterval) {
      const unsigned bits = allowed_bits(from);
#pragma unroll
      for (int i = 0; i < kScores; i++)
        s[i] = bits >> i & 1u ? s[i] : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < kScores; i++)
        s[i] = element_allowed(arguments, score_at(from, i)) ? s[i] : 0.0f;
    }
  }
  // dP and what was kept become dS; without a score function, P rounded as well: first operands.
  ROTA_DEVICE void score_gradients(const float (&dp)[kScores], const float (&delta)[kValues],
                                   bool partial, const unsigned (&kept)[kPairs],
                                   unsigned (&p)[kPairs], unsigned (&ds)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
      float x[2], y[2];
      unpack(kept[i], x[0], x[1], Kept());
      if constexpr (!kHasScore)
        p[i] = pack(x[0], x[1], Element());
#pragma unroll
      for (int c = 0; c < 2; c++)
        y[c] = x[c] * (dp[2 * i + c] - delta[i / 2 * 2 + c]) * kUnscale;
      ds[i] = pack(y[0], y[1], Element());
    }
    if (partial) // where P is 0 dP may be anything
#pragma unroll
      for (int i = 0; i < kPairs; i++) {
        const unsigned word = kHasScore ? kept[i] : p[i];
        ds[i] &= (word & 0xffffu ? 0xffffu : 0u) | (word >> 16 ? 0xffff0000u : 0u);
      }
  }

  // ---- Staging: a part of this warpgroup ----

  ROTA_DEVICE unsigned begin_part() const {
    barrier_wait_phase(barriers.unstaged(group, 0), staging.parity());
    return shared + (unsigned)(kStaging + group * kPartBytes);
  }
  ROTA_DEVICE void end_part(unsigned word) {
    if (own_thread() == 0)
      store_shared_word(shared + (unsigned)(kStagedWords + 4 * group), word);
    fence_shared_for_engines();
    barrier_arrive(barriers.staged(group, 0));
    staging.advance();
  }
  // dS [q][k] from the fragments of dS^T. `place`: the word of shared memory that says where it
  // goes.
  ROTA_DEVICE void stage_scores(const unsigned (&ds)[kPairs], unsigned place) {
    const int lane = hidden(lane_index()), warp = own_thread() / kWarp;
    const int row = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
    const unsigned at = begin_part() + (unsigned)(row * kBoxPitch + (chunk ^ lane % 8) * 16);
#pragma unroll
    for (int i = 0; i < kScoreBlocks; i++) {
      const unsigned block[4] = {ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]};
      store_matrices_transposed(at + (unsigned)(i * 16 * kBoxPitch), block);
    }
    if (own_thread() == 0)
      place = load_shared_word(place);
    end_part(kStagedScores | place << 2);
  }
  // An output as boxes: rounded, times a factor; rows from `end` on as zeros.
  template <int kColumns>
  ROTA_DEVICE void stage_boxes(const float (&d)[kColumns / 2], float factor, const Task &task,
                               int end, unsigned kind) {
    const int lane = hidden(lane_index()), first = own_thread() / kWarp * 16;
    const int row = first + lane % 16;
    const int left = end - task.first_row - 64 * group - first - lane / 4;
    const bool used[2] = {left > 0, left > 8};
#pragma unroll
    for (int box = 0; box < (kColumns + 63) / 64; box++) {
      const unsigned to = begin_part() + (unsigned)(row * kBoxPitch);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        unsigned x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int at = 32 * box + 8 * i + 2 * j;
          x[j] = 0;
          if (at < kColumns / 2 && used[j % 2])
            x[j] = pack(factor * d[at], factor * d[at + 1], Element());
        }
        store_matrices(to + (unsigned)(((2 * i + lane / 16) ^ lane % 8) * 16), x);
      }
      end_part(kind | (unsigned)box << 2);
    }
  }

  // ---- A chain ----

  // This thread's share of a tile of sums.
  ROTA_DEVICE float *sums(float *tiles, int tile) const {
    return tiles + ((long long)tile * 2 + group) * (larger(kColumnsK, kColumnsV) * 64) +
           4 * own_thread();
  }
  // Of dK and dQ.
  ROTA_DEVICE float gradient_factor() const {
    return arguments.scale * (kGradientsScaled ? 1.0f / kProbabilityScale : 1.0f);
  }

  // What a visit's stage says, fetched beside the last products of the one before.
  struct Visit {
    unsigned word;
    float values[kValues]; // bias, then delta
  };
  ROTA_DEVICE unsigned values_at(int stage) const {
    return shared + (unsigned)(kStageScales + kScalesBytes * stage);
  }
  ROTA_DEVICE void begin_visit(Visit &visit) const {
    const unsigned words = stage_words(shared, ring.stage());
    barrier_wait_phase(barriers.full(ring.stage()), ring.parity());
    visit.word = load_shared_word(words);
    fetch_values(visit.values, values_at(ring.stage()));
    visit.word = (unsigned)uniform((int)visit.word);
  }
  // One visit, and the beginning of the next; whether it was the last. `keys`: where this
  // warpgroup's K and V lie.
  ROTA_DEVICE bool run_visit(const Task &task, unsigned keys, Visit &visit,
                             float (&dk)[kColumnsK / 2], float (&dv)[kColumnsV / 2]) {
    const unsigned at = stage_at(ring.stage());
    const bool partial = (visit.word & kWordSuspect) != 0;
    float s[kScores];
    unsigned kept[kPairs], p[kPairs], ds[kPairs];
    wgmma_fence();
    multiply_rows<kColumnsK>(s, keys, at);
    wgmma_commit();
    if (visit.word >> kWordLeft < (unsigned)kQueries)
      clear_queries(at, (int)(visit.word >> kWordLeft));
    wgmma_wait<0>();
    wgmma_touch(s);
    if constexpr (kHasScore)
      score_probabilities(s, visit.values, task, partial, p, kept);
    else
      probabilities(s, visit.values, task, partial, kept);
    fetch_values(visit.values, values_at(ring.stage()) + kValueBytes);
    wgmma_fence();
    multiply_rows<kColumnsV>(s, keys + kRowsOffsetV, at + kRowsOffsetV);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_touch(s);
    score_gradients(s, visit.values, partial, kept, p, ds);
    wgmma_fence();
    accumulate<kColumnsV>(dv, p, at + kRowsOffsetV);
    if constexpr (kMakesKeys)
      accumulate<kColumnsK>(dk, ds, at);
    wgmma_commit();
    stage_scores(ds, stage_words(shared, ring.stage()) + 12);
    // Read again: kept, it takes a register that there is not.
    const unsigned word = load_shared_word(stage_words(shared, ring.stage()));
    const bool last = uniform((int)(word & kWordLast)) != 0;
    ring.advance_rest();
    if (!last)
      begin_visit(visit);
    wgmma_wait<0>();
    wgmma_touch(dv);
    if constexpr (kMakesKeys)
      wgmma_touch(dk);
    release(ring.before_rest());
    return last;
  }
  ROTA_DEVICE void visits(const Task &task, float (&dk)[kColumnsK / 2],
                          float (&dv)[kColumnsV / 2]) {
    for (int half = 0; half < 2; half++) {
      if (half == group)
        barrier_wait_phase(barriers.full(ring.stage()), ring.parity());
      ring.advance(); // held from now on
    }
    const unsigned keys = stage_at(uniform(ring.held(group)));
    Visit visit;
    begin_visit(visit);
#pragma unroll 1
    while (!run_visit(task, keys, visit, dk, dv)) {
    }
    release(ring.held(0));
    release(ring.held(1));
  }
  ROTA_DEVICE void chain(const Task &task) {
    float dk[kColumnsK / 2], dv[kColumnsV / 2];
    if (task.flags & ROTA_UNIT_FIRST_K) {
#pragma unroll
      for (int i = 0; i < kColumnsK / 2; i++)
        dk[i] = 0.0f;
#pragma unroll
      for (int i = 0; i < kColumnsV / 2; i++)
        dv[i] = 0.0f;
    } else {
      if constexpr (kMakesKeys)
        load_sums<kColumnsK>(dk, sums(plan.sum_k, task.sums + 1));
      load_sums<kColumnsV>(dv, sums(plan.sum_k, task.sums));
    }
    if (task.steps > 0)
      visits(task, dk, dv);
    const float unscale = 1.0f / kProbabilityScale, factor = gradient_factor();
    if (task.flags & kTaskBoxes) {
      const int n_k = arguments.sequences[task.sequence].n_k;
      stage_boxes<kColumnsV>(dv, unscale, task, n_k, kStagedV);
      if constexpr (kMakesKeys)
        stage_boxes<kColumnsK>(dk, factor, task, n_k, kStagedK);
    } else if (task.flags & ROTA_UNIT_LAST_K) {
      const float scale_v[2] = {unscale, unscale}, scale_k[2] = {factor, factor};
      store<kColumnsV>(arguments.d_v, task, true, kHeadDimV, scale_v, dv);
      if constexpr (kMakesKeys)
        store<kColumnsK>(arguments.d_k, task, true, kHeadDim, scale_k, dk);
    } else {
      if constexpr (kMakesKeys)
        store_sums<kColumnsK>(dk, sums(plan.sum_k, task.sums + 1));
      store_sums<kColumnsV>(dv, sums(plan.sum_k, task.sums));
    }
    begin_part();
    end_part(kStagedEnd);
  }

  // dQ, or dK where chains do not make it: a sum as in templates/hopper/materialised.cuh.
  template <bool kKeys> ROTA_DEVICE void gradient(const Task &task) {
    const RotaTensor &tensor = kKeys ? arguments.d_k : arguments.d_q;
    float *tiles = kKeys ? plan.sum_k : plan.sum_q;
    float d[kColumnsK / 2];
    if (task.flags & (kKeys ? ROTA_UNIT_FIRST_K : ROTA_UNIT_FIRST_Q)) {
#pragma unroll
      for (int i = 0; i < kColumnsK / 2; i++)
        d[i] = 0.0f;
    } else {
      load_sums<kColumnsK>(d, sums(tiles, task.sums));
    }
    if (task.steps > 0)
      multiply<kColumnsK, kKeys ? 1 : 0, 1, false>(d);
    if (task.flags & kTaskBoxes) {
      const RotaSequence &sequence = arguments.sequences[task.sequence];
      stage_boxes<kColumnsK>(d, gradient_factor(), task, kKeys ? sequence.n_k : sequence.n_q,
                             kStagedK);
      return;
    }
    const float scale[2] = {gradient_factor(), gradient_factor()};
    if (task.flags & (kKeys ? ROTA_UNIT_LAST_K : ROTA_UNIT_LAST_Q))
      store<kColumnsK>(tensor, task, kKeys, kHeadDim, scale, d);
    else
      store_sums<kColumnsK>(d, sums(tiles, task.sums));
    signal_gradients(task.chunk);
  }

  ROTA_DEVICE void run() {
    for (Turns<2> mail(0);;) {
      // In its place: registers are short.
      const Task &task = wait_for_task(barriers, mail);
      const int kind = uniform(task.kind);
      if (kind == (int)ROTA_WORK_SCORES)
        chain(task);
      else if (!kMakesKeys && kind == (int)ROTA_WORK_DK)
        gradient<true>(task);
      else if (kind == (int)ROTA_WORK_DQ)
        gradient<false>(task);
      else
        return;
      done_with_task(barriers, mail);
    }
  }
};

ROTA_DEVICE void sink_gradient(const RotaArguments &arguments, const RotaTensorMaps &) {
  sink_gradient(arguments);
}

ROTA_DEVICE void prepare(const RotaArguments &arguments, const RotaTensorMaps &) {
  reset_works(arguments.materialised);
  prepare_rows(arguments);
}

ROTA_DEVICE void backward(const RotaArguments &arguments, const RotaTensorMaps &maps) {
  run_works<ChainLoader, ChainConsumer, ChainStores>(arguments, maps);
}

} // namespace rota

#endif
