// The backward pass through memory: P and dS of a chunk of the plane are written to the workspace
// in 16 bits and read back as operands of plain matrix products. For large head dims, where dK and
// dV of a kv tile no longer fit the registers (the small-cache algorithm of arXiv 2410.09397).
// Entries: prepare, backward, sink_gradient.
//
//   work      rows x columns                    sum over            A            B
//   scores    128 queries x 256 keys            head dims           Q, dO        K, V     along
//   dV, dK    128 keys x kColumns of the dim    queries             P, dS        dO, Q    across
//   dQ        128 queries x kColumns            keys                dS along     K        across
//
// Each sum is made by one block from first to last; where the workspace holds only a part of the
// plane at a time, the accumulators wait as fp32 in memory and come back as they were. So the bits
// do not depend on how the plane was cut. Scores of a pair of tiles are summed up one after the
// other, S first: P waits in registers, packed, for dP to come.
//
// P and dS cross memory as 4 bytes written and, at two blocks of columns, 12 read per (query, key),
// against 10 d products: large units, so that the end of one phase overlaps with the next chunk's
// other phase, matter more than keeping a chunk within the L2 (d 512, 4k tokens, H200: units of 64
// MB bundled into 256 MB 620 TFLOP/s, alone 515).
#ifndef ROTA_HOPPER_MATERIALISED_CUH
#define ROTA_HOPPER_MATERIALISED_CUH

#include "templates/hopper/materialised_prepare.cuh"
#include "templates/hopper/materialised_works.cuh"
#include "templates/simple/backward_sink.cuh"

namespace rota {

constexpr int kBlocksK = column_blocks(kHeadDim), kBlocksV = column_blocks(kHeadDimV);

struct GradientLoader : WorkLoader<GradientLoader> {
  using WorkLoader::WorkLoader;
  static constexpr bool kLongScores = false;

  // dV or dK: over the queries that attend to a kv tile. Visits are fetched 32 at a time.
  template <int kColumns>
  ROTA_DEVICE void load_visits(const RotaTensorMap *map, const Task &task, int kv_tile,
                               int offset_a) {
    const int column = task.columns;
    RotaVisit batch = {0, 0};
    for (int i = task.kv_begin; i < task.kv_end; i++) {
      const int lane = (i - task.kv_begin) % kWarp;
      if (lane == 0 && i + lane_index() < task.kv_end)
        batch = arguments.visits[i + lane_index()];
      RotaVisit visit;
      visit.tile = __shfl_sync(kAllLanes, batch.tile, lane);
      visit.rank = __shfl_sync(kAllLanes, batch.rank, lane);
      const int row = group_row(visit);
      const int q = (int)(visit.tile & ROTA_VISIT_TILE) * kTileQ;
      const int head = unit.kv_head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
      const unsigned char *a = plan.scores + block(row, 2 * kv_tile) * kScoreBlock + offset_a;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int first = q + 64 * half;
        const StageNote note = {half == 1 && i + 1 == task.kv_end, false,
                                rows_beyond(first, sequence.n_q), 0};
        step(gradient_bytes<kColumns>(), note, [&](unsigned stage, unsigned barrier) {
          copy_bytes(stage, a + half * kPartBytes, kPartBytes, barrier);
          copy_bytes(stage + kPartBytes, a + half * kPartBytes + kScoreBlock, kPartBytes, barrier);
          boxes_along<kColumns>(stage + kBytesA, map, column, tensor_q(first), head, barrier);
        });
      }
    }
  }

  // dQ.
  ROTA_DEVICE void load_keys(const Task &task, int row) {
    for_keys(arguments.rows[task.table], [&](int kv64, const StageNote &note) {
      step(gradient_bytes<kColumnsK>(), note, [&](unsigned stage, unsigned barrier) {
        copy_bytes(stage, plan.scores + block(row, kv64) * kScoreBlock + kBytesA, kBytesA, barrier);
        boxes_along<kColumnsK>(stage + kBytesA, &maps.map[kMapK], task.columns, tensor_k(note.key),
                               unit.kv_head, barrier);
      });
    });
  }

  ROTA_DEVICE Task describe(const RotaWork &work) const {
    if ((work.what & 3u) == ROTA_WORK_SCORES)
      return describe_scores(work);
    const unsigned kind = work.what & 3u;
    const bool keys = kind != ROTA_WORK_DQ;
    const int column_block = (int)(work.what >> 2);
    const VisitRange visits =
        keys ? visits_within(arguments.chains[unit.chain_table + work.tile]) : VisitRange();
    Task task = describe_rows(work, keys);
    task.columns = column_block * (kind == ROTA_WORK_DV ? kColumnsV : kColumnsK);
    // Tiles of sums: [kv tile][blocks of dV, then of dK]; [group row][blocks].
    if (keys) {
      task.place = (long long)(unit.sum_k + work.tile - unit.kv_begin) * (kBlocksV + kBlocksK) +
                   (kind == ROTA_WORK_DK ? kBlocksV : 0) + column_block;
      task.kv_begin = visits.begin;
      task.kv_end = visits.end;
      task.steps = visits.end - visits.begin;
    } else {
      task.place = (long long)(unit.sum_q + work.tile - unit.row_begin) * kBlocksK + column_block;
      task.steps = count_tiles(arguments.rows[task.table]);
    }
    task.flags |= kind == ROTA_WORK_DV ? boxes_flag(task, keys, kHeadDimV, kColumnsV)
                                       : boxes_flag(task, keys, kHeadDim, kColumnsK);
    return task;
  }

  ROTA_DEVICE void load(const RotaWork &work, const Task &task) {
    switch (task.kind) {
    case ROTA_WORK_SCORES:
      load_scores<kHeadDim>(&maps.map[kMapQ], &maps.map[kMapK], task);
      load_scores<kHeadDimV>(&maps.map[kMapDO], &maps.map[kMapV], task);
      break;
    case ROTA_WORK_DV:
      load_visits<kColumnsV>(&maps.map[kMapDO], task, work.tile, 0);
      break;
    case ROTA_WORK_DK:
      load_visits<kColumnsK>(&maps.map[kMapQ], task, work.tile, kBytesA);
      break;
    default:
      load_keys(task, work.tile);
    }
  }
};

struct GradientOutput {
  ROTA_DEVICE static int map(int kind) {
    return kind == (int)ROTA_WORK_DV ? kMapDV : kind == (int)ROTA_WORK_DK ? kMapDK : kMapDQ;
  }
  ROTA_DEVICE static int columns(int kind) {
    return kind == (int)ROTA_WORK_DV ? kColumnsV : kColumnsK;
  }
};

struct GradientConsumer : WorkConsumer {
  using WorkConsumer::WorkConsumer;

  ROTA_DEVICE void scores(const Task &task) {
    const RotaSequence &sequence = arguments.sequences[task.sequence];
    const bool partial = (task.flags & kTaskPartial) != 0;
    const ScoreRows rows(arguments, sequence, task.first_row, task.head, lane_row(0));
    const Position at = {task.first_row + lane_row(0),
                         task.columns + 2 * (lane_index() % 4),
                         task.head,
                         sequence.batch,
                         sequence.n_q,
                         sequence.n_k};
    float d[128];
    unsigned kept[64], words[16];
    multiply<256, 0, 0, true>(d);
    for_parts([&](auto part) {
      probabilities<decltype(part)::kIndex>(arguments, rows, at, partial, d, kept, words);
      stage(words);
    });
    multiply<256, 0, 0, true>(d);
    for_parts([&](auto part) {
      constexpr int kPart = decltype(part)::kIndex;
      if (partial)
        score_gradients<kPart, true>(rows, d, kept, words);
      else
        score_gradients<kPart, false>(rows, d, kept, words);
      stage(words);
    });
  }

  // sums: of tiles 128 x (wider of kColumnsK and kColumnsV).
  template <int kN, int kAcrossA>
  ROTA_DEVICE void gradient(const Task &task, bool keys, float *sums, const RotaTensor &tensor,
                            int dim, float factor) {
    constexpr int kWide = larger(kColumnsK, kColumnsV);
    const bool first = task.flags & (keys ? ROTA_UNIT_FIRST_K : ROTA_UNIT_FIRST_Q);
    const bool last = task.flags & (keys ? ROTA_UNIT_LAST_K : ROTA_UNIT_LAST_Q);
    float d[kN / 2];
    float *mine = sums + (task.place * 2 + group) * (kWide * 64) + 4 * thread;
    if (first) {
#pragma unroll
      for (int i = 0; i < kN / 2; i++)
        d[i] = 0.0f;
    } else {
      load_sums<kN>(d, mine);
    }
    if (task.steps > 0)
      multiply<kN, kAcrossA, 1, false>(d);
    const float scale[2] = {factor, factor};
    if (task.flags & kTaskBoxes) {
      const RotaSequence &sequence = arguments.sequences[task.sequence];
      stage_output<kN>(task, keys ? sequence.n_k : sequence.n_q, scale, d);
      return;
    }
    if (last)
      store<kN>(tensor, task, keys, dim, scale, d);
    else
      store_sums<kN>(d, mine);
    signal_gradients(task.chunk);
  }

  ROTA_DEVICE void run() {
    const float unscale = 1.0f / kProbabilityScale;
    const float factor = arguments.scale * (kGradientsScaled ? unscale : 1.0f);
    for (Turns<2> mail(0);;) {
      const Task task = next_task(barriers, mail);
      switch (task.kind) {
      case ROTA_WORK_SCORES:
        scores(task);
        break;
      case ROTA_WORK_DV:
        gradient<kColumnsV, 1>(task, true, plan.sum_k, arguments.d_v, kHeadDimV, unscale);
        break;
      case ROTA_WORK_DK:
        gradient<kColumnsK, 1>(task, true, plan.sum_k, arguments.d_k, kHeadDim, factor);
        break;
      case ROTA_WORK_DQ:
        gradient<kColumnsK, 0>(task, false, plan.sum_q, arguments.d_q, kHeadDim, factor);
        break;
      default:
        return;
      }
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
  run_works<GradientLoader, GradientConsumer, OutputStores<GradientOutput>>(arguments, maps);
}

} // namespace rota

#endif
