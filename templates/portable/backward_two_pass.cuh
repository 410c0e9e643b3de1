// The backward pass in seven products, on mma.sync: one pass owns dK and dV (backward_kv, a block
// per kv tile), another owns dQ (backward_q, a block per query tile). Nothing is added up between
// blocks. Entries: delta, backward_kv, backward_q, sink_gradient.
//
// backward_q: each warp owns kTileQ / kWarpsQ query rows with their dQ in registers; Q and dO stay
// in shared memory, tiles of K and V pass by. P and dS go from accumulators to operands in
// registers, so warps meet only where tiles change.
//
//   shared memory    Q  dO  kStagesQ x (K V)  bad keys
#ifndef ROTA_PORTABLE_BACKWARD_TWO_PASS_CUH
#define ROTA_PORTABLE_BACKWARD_TWO_PASS_CUH

#include "templates/portable/backward_chain.cuh"
#include "templates/portable/backward_delta.cuh"

namespace rota {

ROTA_DEVICE void backward_kv(const RotaArguments &arguments) {
  run_chain<Reduction::kNone>(arguments, arguments.chain_items[blockIdx.x],
                              shared_address(dynamic_shared()));
}

struct QueryPass {
  static constexpr int kThreads = kWarpsQ * kWarp;
  static constexpr int kRows = kTileQ / kWarpsQ;                     // of a warp
  static constexpr int kBlocks = kRows / 16, kColumns = kTileKv / 8; // fragments of S
  static constexpr int kKBytes = kTileKv * LayoutK::kPitch, kVBytes = kTileKv * LayoutV::kPitch;
  static constexpr int kKv = kTileQ * (LayoutK::kPitch + LayoutV::kPitch); // offset of stage 0
  static constexpr int kStageBytes = kKBytes + kVBytes;
  static constexpr int kBadBits = kKv + kStagesQ * kStageBytes;
  static_assert(kTileQ % (16 * kWarpsQ) == 0 && kTileKv % 16 == 0, "whole fragments");
  static_assert(kBadBits + BadKeys<LayoutK, kThreads>::kBytes <= kSharedBytesQ, "shared memory");
  using Scores = float[kBlocks][kColumns][4];

  const RotaArguments &arguments;
  RotaSequence sequence;
  int first_q, head, thread;
  unsigned shared;
  float lse[kBlocks][2], delta[kBlocks][2]; // of this lane's rows 16 m + 8 r + g

  ROTA_DEVICE int warp_row() const { return thread / kWarp * kRows; }
  ROTA_DEVICE unsigned keys(int stage) const {
    return shared + (unsigned)(kKv + stage * kStageBytes);
  }

  ROTA_DEVICE QueryPass(const RotaArguments &arguments, const RotaRow &row, int head)
      : arguments(arguments), sequence(arguments.sequences[row.sequence]),
        first_q(row.q_tile * kTileQ), head(head), thread((int)threadIdx.x),
        shared(shared_address(dynamic_shared())) {
    const int rows = sequence.n_q - first_q;
    load_tile<LayoutK, kTileQ, kThreads, kAligned>(
        shared, row_q<Element>(arguments.q, sequence, first_q, head), arguments.q.stride_row, rows,
        thread);
    load_tile<LayoutV, kTileQ, kThreads, kAligned>(
        shared + kTileQ * LayoutK::kPitch, row_q<Element>(arguments.d_o, sequence, first_q, head),
        arguments.d_o.stride_row, rows, thread);
    const float *deltas =
        arguments.delta + query_tile_number(arguments, sequence, row.q_tile, head) * kTileQ;
#pragma unroll
    for (int m = 0; m < kBlocks; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = warp_row() + 16 * m + 8 * r + lane_index() / 4;
        lse[m][r] = kInfinity;
        delta[m][r] = deltas[at];
        if (at < rows)
          lse[m][r] = exponent_of_lse(*row_q<float>(arguments.lse, sequence, first_q + at, head));
      }
  }

  ROTA_DEVICE void load(int kv_tile, int stage) const {
    const int first = kv_tile * kTileKv, rows = sequence.n_k - first, kv_head = head / kGroup;
    load_tile<LayoutK, kTileKv, kThreads, kAligned>(
        keys(stage), row_k<Element>(arguments.k, sequence, first, kv_head), arguments.k.stride_row,
        rows, thread);
    load_tile<LayoutV, kTileKv, kThreads, kAligned>(
        keys(stage) + kKBytes, row_k<Element>(arguments.v, sequence, first, kv_head),
        arguments.v.stride_row, rows, thread);
  }

  // s becomes dS.
  template <bool kPartial>
  ROTA_DEVICE void score_gradients(int first_key, bool any_bad, Scores &s, const Scores &dp) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
    const float factor = score_factor(arguments);
#pragma unroll
    for (int n = 0; n < kColumns; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int column = 8 * n + 2 * t + i;
        const bool bad = kPartial && kHasMask && any_bad &&
                         BadKeys<LayoutK, kThreads>::is_bad(shared + kBadBits, column);
#pragma unroll
        for (int m = 0; m < kBlocks; m++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            float &x = s[m][n][2 * r + i];
            const Probability result = probability_of<kPartial>(
                arguments,
                {first_q + warp_row() + 16 * m + 8 * r + g, first_key + column, head,
                 sequence.batch, sequence.n_q, sequence.n_k},
                x * factor, lse[m][r], bad);
            const float ds = result.p * result.slope * (dp[m][n][2 * r + i] - delta[m][r]);
            x = result.allowed ? ds : 0.0f;
          }
      }
  }

  template <int kN>
  ROTA_DEVICE void add_tile(int kv_tile, bool partial, int stage,
                            float (&dq)[kBlocks][kN][4]) const {
    const unsigned tile_do = shared + kTileQ * LayoutK::kPitch;
    bool any_bad = false;
    if (kHasMask && partial)
      any_bad = BadKeys<LayoutK, kThreads>::remove(keys(stage), shared + kBadBits, thread);
    Scores s, dp;
    clear(s);
    multiply_transposed<kBlocksK>(s, BlockReader<LayoutK>::along(shared, warp_row()),
                                  BlockReader<LayoutK>::across(keys(stage), 0));
    clear(dp);
    multiply_transposed<kBlocksV>(dp, BlockReader<LayoutV>::along(tile_do, warp_row()),
                                  BlockReader<LayoutV>::across(keys(stage) + kKBytes, 0));
    if (partial)
      score_gradients<true>(kv_tile * kTileKv, any_bad, s, dp);
    else
      score_gradients<false>(kv_tile * kTileKv, false, s, dp);
    multiply_packed<Element>(dq, s, BlockReader<LayoutK>::along(keys(stage), 0));
  }

  // Scaled and rounded; zeros in the slot's rows beyond n_q.
  template <int kN> ROTA_DEVICE void store(const float (&dq)[kBlocks][kN][4]) const {
    const int g = lane_index() / 4, t = lane_index() % 4;
#pragma unroll
    for (int m = 0; m < kBlocks; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int q = first_q + warp_row() + 16 * m + 8 * r + g;
        if (q >= sequence.rows_q)
          continue;
        Element *row = row_q<Element>(arguments.d_q, sequence, q, head);
#pragma unroll
        for (int n = 0; n < kN; n++) {
          const unsigned packed = pack(arguments.scale * dq[m][n][2 * r],
                                       arguments.scale * dq[m][n][2 * r + 1], Element());
          store_row_pair(row, 8 * n + 2 * t, q < sequence.n_q ? packed : 0u);
        }
      }
  }
};

ROTA_DEVICE void backward_q(const RotaArguments &arguments) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  if (row.run_begin == row.run_end)
    return; // delta has written the zeros
  const QueryPass pass(arguments, row, item.head);
  float dq[QueryPass::kBlocks][2 * kBlocksK][4];
  clear(dq);
  RunWalk walk(arguments, row);
  pass.load(walk.tile, 0);
  copy_commit();
  for (int stage = 0; walk.valid(); stage = kStagesQ - 1 - stage) {
    const int kv_tile = walk.tile;
    const bool partial = walk.partial();
    walk.advance(arguments);
    copy_wait<0>();
    __syncthreads();
    if (kStagesQ == 2 && walk.valid())
      pass.load(walk.tile, 1 - stage);
    copy_commit();
    pass.add_tile(kv_tile, partial, stage, dq);
    if constexpr (kStagesQ == 1) {
      __syncthreads();
      if (walk.valid())
        pass.load(walk.tile, 0);
      copy_commit();
    }
  }
  pass.store(dq);
}

} // namespace rota

#endif
