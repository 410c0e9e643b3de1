// The forward pass through memory, for head dims whose O does not fit the registers of 128 query
// rows: probabilities of a chunk are written to the workspace and read back as an operand.
//
//   work      rows x columns                    sum over     A            B
//   scores    128 queries x 256 keys            head dim     Q            K     along
//   O         128 queries x kColumnsV           keys         P along      V     across
//
// A tile of P is relative to its own row maxima, rounded up to whole powers of two, since nobody
// knows those of the whole row yet. The sums of O know them: they multiply P by a power of two on
// its way from shared memory to registers, which is exact (in fp16 down to 2^-14 alone, so there
// rows are always cut at the same keys: WORKS_PANEL_FP16). So the bits do not depend on when and
// where a tile was made. The sums of powers are relative to the maxima themselves: a row with one
// key has the sum 1, so that its LSE is its score. Entries: prepare, forward.
//
//   stats     of each (group row, pair of kv tiles): 128 row maxima, log2; 128 sums of powers
//
// Where a unit does not hold all keys of its rows, O's accumulators, maxima and sums wait as fp32
// in memory for the next; going on with a larger maximum multiplies by a power of two, once more.
#ifndef ROTA_HOPPER_FORWARD_WIDE_CUH
#define ROTA_HOPPER_FORWARD_WIDE_CUH

#include "templates/hopper/materialised_prepare.cuh"
#include "templates/hopper/materialised_works.cuh"
#include "templates/lib/matrix.cuh"

namespace rota {

constexpr int kStatFloats = 256, kMaximaBytes = 512; // of a pair
constexpr int kBlocksV = column_blocks(kHeadDimV);

struct OutputLoader : WorkLoader<OutputLoader> {
  using WorkLoader::WorkLoader;
  static constexpr bool kLongScores = false;

  ROTA_DEVICE Task describe(const RotaWork &work) const {
    if ((work.what & 3u) == ROTA_WORK_SCORES)
      return describe_scores(work);
    Task task = describe_rows(work, false);
    task.columns = (int)(work.what >> 2) * kColumnsV;
    task.place = block(work.tile, 0);
    task.sums = (unit.sum_q + work.tile - unit.row_begin) * kBlocksV + (int)(work.what >> 2);
    task.steps = count_tiles(arguments.rows[task.table]);
    task.flags |= boxes_flag(task, false, kHeadDimV, kColumnsV);
    return task;
  }

  ROTA_DEVICE void load(const RotaWork &, const Task &task) {
    if (task.kind == (int)ROTA_WORK_SCORES) {
      load_scores<kHeadDim>(&maps.map[kMapQ], &maps.map[kMapK], task);
      return;
    }
    for_keys(arguments.rows[task.table], [&](int kv64, const StageNote &note) {
      const long long from = task.place + kv64;
      step(gradient_bytes<kColumnsV>() + kMaximaBytes, note, [&](unsigned stage, unsigned barrier) {
        copy_bytes(stage, plan.scores + from * kScoreBlock, kBytesA, barrier);
        copy_bytes(shared + (unsigned)(kStageScales + kMaximaBytes * ring.stage()),
                   plan.stats + from / kPairBlocks * kStatFloats, kMaximaBytes, barrier);
        boxes_along<kColumnsV>(stage + kBytesA, &maps.map[kMapV], task.columns, tensor_k(note.key),
                               unit.kv_head, barrier);
      });
    });
  }
};

struct OutputO {
  ROTA_DEVICE static constexpr int map(int) { return kMapO; }
  ROTA_DEVICE static constexpr int columns(int) { return kColumnsV; }
};

struct OutputConsumer : WorkConsumer {
  using WorkConsumer::WorkConsumer;

  // ---- Scores ----

  ROTA_DEVICE void scores(const Task &task) {
    const RotaSequence &sequence = arguments.sequences[task.sequence];
    const bool partial = (task.flags & kTaskPartial) != 0;
    const Position at = {task.first_row + lane_row(0),
                         task.columns + 2 * (lane_index() % 4),
                         task.head,
                         sequence.batch,
                         sequence.n_q,
                         sequence.n_k};
    float d[128], peak[2] = {-kInfinity, -kInfinity}, sum[2] = {0.0f, 0.0f};
    unsigned words[16];
    multiply<256, 0, 0, true>(d);
    // A negative scale goes into s: peaks are taken before scaling.
    const float factor = kHasScore ? 1.0f : fabsf(exponent_factor(arguments));
    if (!kHasScore && arguments.scale < 0.0f) {
#pragma unroll
      for (int i = 0; i < 128; i++)
        d[i] = -d[i];
    }
    for_parts(
        [&](auto part) { raise_peaks<decltype(part)::kIndex>(arguments, at, partial, d, peak); });
    float base[2], share[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      peak[r] = factor * quad_maximum(peak[r]);
      base[r] = or_zero(peak[r]);
      share[r] = exp2_fast(base[r] - ceilf(base[r]));
    }
    for_parts([&](auto part) {
      constexpr int kPart = decltype(part)::kIndex;
      powers<kPart>(factor, base, share, d, sum, words);
      if (kPart == 3) // before what makes the store warp signal
        store_stats(task, peak, sum);
      stage(words);
    });
  }
  // What exponents are relative to: where no key is allowed, 0, since -inf - -inf is NaN.
  ROTA_DEVICE static float or_zero(float peak) {
    return peak == -kInfinity ? 0.0f : peak;
  }
  ROTA_DEVICE void store_stats(const Task &task, const float (&peak)[2], float (&sum)[2]) const {
    float *to = plan.stats + task.place / kPairBlocks * kStatFloats;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] = quad_sum(sum[r]);
      // Where all scores are NaN no maximum is found, yet the row is not empty.
      const float known = sum[r] != sum[r] ? or_zero(peak[r]) : peak[r];
      if (lane_index() % 4 == 0) {
        to[lane_row(r)] = known;
        to[kStatFloats / 2 + lane_row(r)] = sum[r];
      }
    }
    fence_global_for_engines(); // the maxima are read by the copy engine
  }

  // ---- O ----

  // 2^x for whole x <= 0 (or NaN); 0 below the smallest normal number.
  ROTA_DEVICE static float power_of_two(float x) {
    return x < -126.0f ? 0.0f : x == x ? __uint_as_float((unsigned)(127 + (int)x) << 23) : x;
  }

  // Raises maximum and sum of this lane's two rows by those of the unit's pairs, in their order.
  // The four lanes that share rows fetch different pairs, so that one wait serves kBatch pairs.
  static constexpr int kBatch = 8;
  ROTA_DEVICE void add_stats(const Task &task, float (&peak)[2], float (&sum)[2]) const {
    RunWalk walk(arguments, arguments.rows[task.table]);
    for (int last = -1, count = kBatch; count == kBatch;) {
      int mine[kBatch / 4];
      float high[kBatch / 4][2], part[kBatch / 4][2];
      count = next_pairs(task, walk, last, mine);
#pragma unroll
      for (int i = 0; i < kBatch / 4; i++)
        load_stats(task, mine[i], high[i], part[i]);
#pragma unroll
      for (int i = 0; i < kBatch; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int lane = lane_index() / 4 * 4 + i % 4;
          const float added_peak = __shfl_sync(kAllLanes, high[i / 4][r], lane);
          const float added = __shfl_sync(kAllLanes, part[i / 4][r], lane);
          if (added_peak != -kInfinity) {
            const float both = maximum(peak[r], added_peak);
            sum[r] = __fmaf_rn(sum[r], exp2_fast(peak[r] - both),
                               added * exp2_fast(added_peak - both));
            peak[r] = both;
          }
        }
    }
  }
  // The next pairs of a row within the unit, kBatch at most: how many; this lane's, or -1.
  ROTA_DEVICE int next_pairs(const Task &task, RunWalk &walk, int &last,
                             int (&mine)[kBatch / 4]) const {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kBatch / 4; i++)
      mine[i] = -1;
    for (; count < kBatch && walk.valid(); walk.advance(arguments)) {
      const int pair = walk.tile / 2;
      if (pair == last || walk.tile < task.kv_begin || walk.tile >= task.kv_end)
        continue;
      last = pair;
#pragma unroll
      for (int i = 0; i < kBatch / 4; i++)
        if (count == 4 * i + lane_index() % 4)
          mine[i] = pair;
      count++;
    }
    return count;
  }
  ROTA_DEVICE void load_stats(const Task &task, int pair, float (&high)[2],
                              float (&part)[2]) const {
    const float *from = plan.stats + (task.place / kPairBlocks + pair) * kStatFloats;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      high[r] = pair < 0 ? -kInfinity : load_fresh(from + lane_row(r));
      part[r] = pair < 0 ? 0.0f : load_fresh(from + kStatFloats / 2 + lane_row(r));
    }
  }

  // A operand of one k block: P, times the rows' powers of two.
  ROTA_DEVICE void load_scaled(unsigned (&a)[4], unsigned tile, int block,
                               const unsigned (&scale)[2]) const {
    const int row = thread / kWarp * 16 + lane_index() % 16;
    load_matrices(a, tile + (unsigned)box_offset(64, row, 2 * block + lane_index() / 16));
#pragma unroll
    for (int i = 0; i < 4; i++)
      a[i] = multiply_packed(a[i], scale[i % 2], Element());
  }

  // One stage; the products of the stage before it, which read the other `a`, may be under way.
  // top: the row's maximum rounded up, the whole power of two that `d` is relative to.
  template <int kN, class Keep>
  ROTA_DEVICE bool multiply_scaled(float (&d)[kN / 2], unsigned (&a)[4][4], const float (&top)[2],
                                   Keep keep) {
    barrier_wait_phase(barriers.full(ring.stage()), ring.parity());
    const unsigned tile = shared + (unsigned)(ring.stage() * kStageBytes + group * kPartBytes);
    const unsigned b = shared + (unsigned)(ring.stage() * kStageBytes + kBytesA);
    const unsigned words = stage_words(shared, ring.stage()), word = load_shared_word(words);
    if (word & (kWordClear | kWordSuspect))
      clear_rows<kN>(word, words, b, keep);
    const unsigned maxima = shared + (unsigned)(kStageScales + kMaximaBytes * ring.stage());
    unsigned scale[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float peak = __uint_as_float(load_shared_word(maxima + 4u * (unsigned)lane_row(r)));
      const float x = power_of_two(ceilf(peak) - top[r]);
      scale[r] = pack(x, x, Element());
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      load_scaled(a[i], tile, i, scale);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
      Wgmma<kN>::template accumulate<1>(d, a[i], advance(describe_across(b, 64), step_across(i)));
    wgmma_commit();
    return (word & kWordLast) != 0;
  }

  // Whether any query of the tile attends to a key.
  ROTA_DEVICE bool attended(const Task &task, const RotaSequence &sequence, int key) const {
    if (key >= sequence.n_k)
      return false;
    for (int q = task.first_row; q < task.first_row + kTileQ && q < sequence.n_q; q++)
      if (mask_allows({q, key, task.head, sequence.batch, sequence.n_q, sequence.n_k}, arguments))
        return true;
    return false;
  }

  template <int kN>
  ROTA_DEVICE void sum_products(const Task &task, const RotaSequence &sequence, float (&d)[kN / 2],
                                const float (&top)[2]) {
    const auto keep = [&](int key) { return attended(task, sequence, key); };
    unsigned even[4][4], odd[4][4];
    bool last = multiply_scaled<kN>(d, even, top, keep);
    const auto next = [&](unsigned(&a)[4][4]) {
      ring.advance();
      last = multiply_scaled<kN>(d, a, top, keep);
      wgmma_wait<1>();
      release(ring.before());
    };
    // Stages come in pairs: the halves of a kv tile.
    next(odd);
    while (!last) {
      next(even);
      next(odd);
    }
    ring.advance();
    wgmma_wait<0>();
    wgmma_touch(d);
    release(ring.before());
  }

  // What goes on in another unit: the accumulators, each thread its own; then maxima and sums.
  static constexpr int kSumFloats = 128 * kColumnsV + kStatFloats; // of a tile
  ROTA_DEVICE float *sums_of(const Task &task) const {
    return plan.sum_q + (long long)task.sums * kSumFloats;
  }
  ROTA_DEVICE void load_state(const Task &task, float (&d)[kColumnsV / 2], float (&peak)[2],
                              float (&sum)[2]) const {
    const float *from = sums_of(task), *stats = from + 128 * kColumnsV;
    load_sums<kColumnsV>(d, from + group * (64 * kColumnsV) + 4 * thread);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      peak[r] = load_fresh(stats + lane_row(r));
      sum[r] = load_fresh(stats + kStatFloats / 2 + lane_row(r));
    }
  }
  ROTA_DEVICE void store_state(const Task &task, const float (&d)[kColumnsV / 2],
                               const float (&peak)[2], const float (&sum)[2]) const {
    float *to = sums_of(task), *stats = to + 128 * kColumnsV;
    store_sums<kColumnsV>(d, to + group * (64 * kColumnsV) + 4 * thread);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (lane_index() % 4 == 0) {
        stats[lane_row(r)] = peak[r];
        stats[kStatFloats / 2 + lane_row(r)] = sum[r];
      }
  }

  ROTA_DEVICE void output(const Task &task) {
    const RotaSequence sequence = arguments.sequences[task.sequence];
    const bool first = (task.flags & ROTA_UNIT_FIRST_Q) != 0;
    float peak[2] = {-kInfinity, -kInfinity}, sum[2] = {0.0f, 0.0f}, before[2], top[2];
    float d[kColumnsV / 2];
    if (first) {
#pragma unroll
      for (int i = 0; i < kColumnsV / 2; i++)
        d[i] = 0.0f;
    } else {
      load_state(task, d, peak, sum);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      before[r] = ceilf(peak[r]);
    add_stats(task, peak, sum);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      top[r] = ceilf(or_zero(peak[r]));
      factor[r] = before[r] == -kInfinity ? 0.0f : power_of_two(before[r] - top[r]);
    }
#pragma unroll
    for (int i = 0; i < kColumnsV / 2; i++)
      d[i] = first ? 0.0f : d[i] * factor[i / 2 % 2];
    if (task.steps > 0)
      sum_products<kColumnsV>(task, sequence, d, top);
    if (task.flags & ROTA_UNIT_LAST_Q) {
      float scale[2];
#pragma unroll
      for (int r = 0; r < 2; r++)
        scale[r] = finish_row(task, sequence, r, peak[r], sum[r]);
      if (task.flags & kTaskBoxes) {
        stage_output<kColumnsV>(task, sequence.n_q, scale, d);
        return;
      }
      store<kColumnsV>(arguments.o, task, false, kHeadDimV, scale, d);
    } else {
      store_state(task, d, peak, sum);
    }
    signal_gradients(task.chunk);
  }

  // The factor of a row of O, which is relative to the whole power of two above the row's peak;
  // writes its LSE. peak: log2.
  ROTA_DEVICE float finish_row(const Task &task, const RotaSequence &sequence, int r, float peak,
                               float sum) const {
    float lse = -kInfinity, scale = 0.0f;
    const int row = task.first_row + lane_row(r);
    if (row < sequence.n_q) {
      const float sink = kSinkLogit ? arguments.sink[task.head] * kLog2E : -kInfinity;
      const float both = maximum(peak, sink);
      if (sum != 0.0f) {
        const float all =
            kSinkLogit ? __fmaf_rn(sum, exp2_fast(peak - both), exp2_fast(sink - both)) : sum;
        scale = exp2_fast(ceilf(peak) - both) / all;
        lse = (both + log2_fast(all)) * kLn2;
      } else if (kSinkLogit) {
        lse = arguments.sink[task.head];
      }
    }
    if (task.columns == 0 && lane_index() % 4 == 0 && row < sequence.rows_q)
      *row_q<float>(arguments.lse, sequence, row, task.head) = lse;
    return scale;
  }

  ROTA_DEVICE void run() {
    for (Turns<2> mail(0);;) {
      const Task task = next_task(barriers, mail);
      if (task.kind == kTaskEnd)
        return;
      if (task.kind == (int)ROTA_WORK_SCORES)
        scores(task);
      else
        output(task);
    }
  }
};

ROTA_DEVICE void prepare(const RotaArguments &arguments, const RotaTensorMaps &) {
  reset_works(arguments.materialised);
}

ROTA_DEVICE void forward(const RotaArguments &arguments, const RotaTensorMaps &maps) {
  run_works<OutputLoader, OutputConsumer, OutputStores<OutputO>>(arguments, maps);
}

} // namespace rota

#endif
