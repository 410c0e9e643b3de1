// Forward pass on mma_m16n8k16, for every GPU from sm_80: O = softmax(score(scale Q K^T), mask) V
// and LSE.
//
// One block per (query tile, query head). Each warp owns kTileQ / kWarps query rows with their
// O and softmax state in registers, so warps meet only where tiles of K and V change. Shared
// memory, in bytes from its start:
//
//   Q (later O)   kTileQ x larger pitch     K stage 0 .. kStages - 1     V stage 0 .. kStages - 1
//
// kStages 2: the next K and V load while this tile is computed; one barrier per tile.
// kStages 1: V loads during Q K^T, the next K during softmax and P V; two barriers, less shared
// memory.
#ifndef ROTA_PORTABLE_FORWARD_CUH
#define ROTA_PORTABLE_FORWARD_CUH

#include "mask.cuh"
#include "score.cuh"
#include "spec.cuh"
#include "templates/lib/matrix.cuh"
#include "templates/lib/softmax.cuh"
#include "templates/lib/tables.cuh"
#include "tiling.cuh"

namespace rota {

struct ForwardKernel {
  using LayoutQ = TileLayout<kHeadDim>;  // of Q and K
  using LayoutV = TileLayout<kHeadDimV>; // of V and O
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kTileQ / kWarps; // query rows of a warp
  static constexpr int kM = kRows / 16, kN = kTileKv / 8, kO = LayoutV::kPadded / 8;
  static constexpr int kBlocks = LayoutQ::kPadded / 16; // k blocks of Q K^T
  static constexpr int kBytesQ = kTileQ * larger(LayoutQ::kPitch, LayoutV::kPitch);
  static constexpr int kBytesK = kTileKv * LayoutQ::kPitch, kBytesV = kTileKv * LayoutV::kPitch;
  static constexpr int kMaskUnroll = 4; // columns of fragments evaluated per round of the loop
  static_assert(kTileQ % (16 * kWarps) == 0 && kTileKv % 16 == 0, "whole fragments");
  static_assert(kTileKv <= 128, "mask bits of a row and lane fit a word");
  static_assert(kStages == 1 || kStages == 2, "stages");

  const RotaArguments &arguments;
  const Position origin; // first query of the tile
  const int thread;
  const unsigned shared;
  const TileLoader<LayoutQ, kTileKv, kThreads, kAligned, Element> k;
  const TileLoader<LayoutV, kTileKv, kThreads, kAligned, Element> v;

  ROTA_DEVICE ForwardKernel(const RotaArguments &arguments, const QueryTile &here)
      : arguments(arguments), origin(here.origin), thread((int)threadIdx.x),
        shared(shared_address(dynamic_shared())),
        k(row_k<Element>(arguments.k, here.sequence, 0, origin.h / kGroup), arguments.k.stride_row,
          thread),
        v(row_k<Element>(arguments.v, here.sequence, 0, origin.h / kGroup), arguments.v.stride_row,
          thread) {}

  ROTA_DEVICE unsigned shared_k(int stage) const { return shared + kBytesQ + stage * kBytesK; }
  ROTA_DEVICE unsigned shared_v(int stage) const {
    return shared + kBytesQ + kStages * kBytesK + stage * kBytesV;
  }
  ROTA_DEVICE int warp_row() const { return warp_index() * kRows; }
  // Query of block m, half r of this lane's rows.
  ROTA_DEVICE int lane_query(int m, int r) const {
    return origin.q + warp_row() + 16 * m + 8 * r + lane_index() / 4;
  }

  // The softmax's factor must be positive, since peaks are taken before scaling: a negative scale
  // goes into Q instead.
  ROTA_DEVICE void negate_q() const {
    for_own_chunks<LayoutQ, kTileQ, kThreads>(thread, [&](int row, int chunk) {
      const unsigned at = shared + (unsigned)LayoutQ::offset(row, chunk);
      Chunk x = load_shared_chunk(at);
      for (int i = 0; i < 4; i++)
        x.word[i] ^= 0x80008000u;
      store_shared_chunk(at, x);
    });
  }

  // Barrier after a V tile's copies. In a partial tile a NaN or an infinity in a row of V whose key
  // no query here may attend would reach O as 0 * NaN: if any thread finds such a value among its
  // own chunks, rows of unattended keys become zeros.
  ROTA_DEVICE void arrive_v(int stage, int k_begin, bool partial) const {
    if (!partial) {
      __syncthreads();
      return;
    }
    const bool found =
        own_chunks_not_finite<LayoutV, kTileKv, kThreads, Element>(shared_v(stage), thread);
    if (!__syncthreads_or(found))
      return;
    for (int row = thread; row < kTileKv; row += kThreads)
      if (!attended(k_begin + row))
        zero_row<LayoutV>(shared_v(stage), row);
    __syncthreads();
  }
  ROTA_DEVICE bool attended(int key) const {
    if (key >= origin.n_k)
      return false;
    for (int q = origin.q; q < origin.q + kTileQ && q < origin.n_q; q++) {
      Position at = origin;
      at.q = q;
      at.k = key;
      if (mask_allows(at, arguments))
        return true;
    }
    return false;
  }

  // s = score(scale s) for every element of a tile.
  ROTA_DEVICE void apply_score(float (&s)[kM][kN][4], int k_begin) const {
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Position at = origin;
        at.q = clamp_index<kScoreUsesTensors>(lane_query(m, i / 2), origin.n_q);
#pragma unroll
        for (int n = 0; n < kN; n++) {
          const int key = k_begin + 8 * n + 2 * (lane_index() % 4) + i % 2;
          at.k = clamp_index<kScoreUsesTensors>(key, origin.n_k);
          s[m][n][i] = score_value(s[m][n][i] * arguments.scale, at, arguments);
        }
      }
  }
  // Whether the query may attend the key, which may lie past the sequence's end.
  ROTA_DEVICE bool allows(int query, int key) const {
    Position at = origin;
    at.q = clamp_index<kMaskUsesTensors>(query, origin.n_q);
    at.k = clamp_index<kMaskUsesTensors>(key, origin.n_k);
    return (key < origin.n_k) & mask_allows(at, arguments);
  }
  // s = -inf where that is not so. The mask is evaluated in a loop, into bits, however long its
  // expression: unrolled over the whole tile it would push accumulators out of the registers.
  ROTA_DEVICE void apply_mask(float (&s)[kM][kN][4], int k_begin) const {
    const int first = k_begin + 2 * (lane_index() % 4);
    unsigned bits[kM][2] = {}; // two for each n
#pragma unroll kMaskUnroll
    for (int n = 0; n < kN; n++)
#pragma unroll
      for (int m = 0; m < kM; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
          for (int c = 0; c < 2; c++)
            if (allows(lane_query(m, r), first + 8 * n + c))
              bits[m][r] |= 1u << (2 * n + c);
#pragma unroll
    for (int m = 0; m < kM; m++)
#pragma unroll
      for (int n = 0; n < kN; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          if ((bits[m][i / 2] >> (2 * n + i % 2) & 1) == 0)
            s[m][n][i] = -kInfinity;
  }

  // The tile's scores, masked, and their largest. The columns come in two halves, so that maxima of
  // the first are taken in the shadow of the second's products; only a partial tile, which has to
  // be masked first, looks for them again.
  template <class Meanwhile>
  ROTA_DEVICE void find_scores(float (&s)[kM][kN][4], float (&top)[kM][2], int stage, int k_begin,
                               bool partial, Meanwhile meanwhile) const {
    constexpr int kHalf = kN / 4;
    const auto q_reader = BlockReader<LayoutQ>::along(shared, warp_row());
    const auto k_reader = BlockReader<LayoutQ>::across(shared_k(stage), 0);
    clear(s);
    multiply_transposed_part<kBlocks, 0, kHalf>(s, q_reader, k_reader, meanwhile);
    multiply_transposed_part<kBlocks, kHalf, kN / 2 - kHalf>(s, q_reader, k_reader);
    if constexpr (kHasScore)
      apply_score(s, k_begin);
    OnlineSoftmax<kM>::find_top(s, top);
    if (partial) {
      apply_mask(s, k_begin);
      OnlineSoftmax<kM>::find_top(s, top);
    }
  }

  // Softmax and O += P V of one tile.
  ROTA_DEVICE void accumulate(OnlineSoftmax<kM> &softmax, float (&o)[kM][kO][4],
                              const float (&s)[kM][kN][4], const float (&top)[kM][2],
                              int stage) const {
    const float factor = kHasScore ? kLog2E : fabsf(arguments.scale) * kLog2E;
    const auto v_reader = BlockReader<LayoutV>::along(shared_v(stage), 0);
    softmax.raise(top, o, factor);
#pragma unroll
    for (int block = 0; block < kN / 2; block++) {
      unsigned p[kM][4];
      softmax.probabilities(p, s, block, factor, Element());
      multiply_registers(o, p, v_reader, block);
    }
  }

  // Starts the first copies: Q and the first tile's K (and V).
  ROTA_DEVICE void start(const RotaSequence &sequence, int tile) const {
    load_tile<LayoutQ, kTileQ, kThreads, kAligned>(
        shared, row_q<Element>(arguments.q, sequence, origin.q, origin.h), arguments.q.stride_row,
        origin.n_q - origin.q, thread);
    k.load(shared_k(0), tile * kTileKv, arguments.k.stride_row, origin.n_k);
    if constexpr (kStages == 2)
      v.load(shared_v(0), tile * kTileKv, arguments.v.stride_row, origin.n_k);
    copy_commit();
    if (!kHasScore && arguments.scale < 0.0f) {
      copy_wait<0>();
      negate_q();
    }
  }

  // One tile with two stages: the next tile's copies start between the products of Q K^T. After the
  // last tile they read nothing and write zeros to the idle stage.
  ROTA_DEVICE void visit_two_stages(RunWalk &walk, OnlineSoftmax<kM> &softmax,
                                    float (&o)[kM][kO][4], int stage) const {
    const int tile = walk.tile, k_begin = tile * kTileKv;
    const bool partial = walk.partial();
    walk.advance(arguments);
    copy_wait<0>();
    arrive_v(stage, k_begin, partial);
    const int next = (walk.valid() ? walk.tile : tile) * kTileKv;
    const int left = walk.valid() ? origin.n_k - next : 0;
    const Element *next_k = k.tile_source(next, arguments.k.stride_row);
    const Element *next_v = v.tile_source(next, arguments.v.stride_row);
    float s[kM][kN][4], top[kM][2];
    find_scores(s, top, stage, k_begin, partial, [&](int block) {
      k.load_part(shared_k(stage ^ 1), next_k, arguments.k.stride_row, left, block, kBlocks);
      v.load_part(shared_v(stage ^ 1), next_v, arguments.v.stride_row, left, block, kBlocks);
      if (block == kBlocks - 1)
        copy_commit();
    });
    accumulate(softmax, o, s, top, stage);
  }
  // One tile with one stage.
  ROTA_DEVICE void visit_one_stage(RunWalk &walk, OnlineSoftmax<kM> &softmax,
                                   float (&o)[kM][kO][4]) const {
    const int k_begin = walk.tile * kTileKv;
    copy_wait<0>();
    __syncthreads(); // K is there; V of the tile before is no longer read
    v.load(shared_v(0), k_begin, arguments.v.stride_row, origin.n_k);
    copy_commit();
    float s[kM][kN][4], top[kM][2];
    find_scores(s, top, 0, k_begin, walk.partial(), Nothing());
    copy_wait<0>();
    arrive_v(0, k_begin, walk.partial()); // V is there; K is no longer read
    walk.advance(arguments);
    if (walk.valid()) {
      k.load(shared_k(0), walk.tile * kTileKv, arguments.k.stride_row, origin.n_k);
      copy_commit();
    }
    accumulate(softmax, o, s, top, 0);
  }

  ROTA_DEVICE void run(const QueryTile &here) const {
    OnlineSoftmax<kM> softmax;
    float o[kM][kO][4];
    clear(o);
    RunWalk walk(arguments, here.row);
    if (walk.valid())
      start(here.sequence, walk.tile);
    for (int stage = 0; walk.valid(); stage ^= 1)
      if constexpr (kStages == 2)
        visit_two_stages(walk, softmax, o, stage);
      else
        visit_one_stage(walk, softmax, o);
    copy_wait<0>();
    finish(softmax, o);
  }

  // Divides, rounds and stores the warp's rows of O through the place of Q, and LSE. The block's
  // place is looked up again: in registers it would be in the loop's way.
  ROTA_DEVICE void finish(OnlineSoftmax<kM> &softmax, float (&o)[kM][kO][4]) const {
    const QueryTile here(arguments, kTileQ);
    const float sink = kSinkLogit ? arguments.sink[here.origin.h] : 0.0f;
    const int first = here.origin.q + warp_row();
    const unsigned tile_o = shared + (unsigned)(warp_row() * LayoutV::kPitch);
    __syncthreads(); // other warps may still read their Q where O goes
#pragma unroll
    for (int m = 0; m < kM; m++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int query = first + 16 * m + 8 * r + lane_index() / 4;
        SoftmaxRow row = softmax.template finish<kSinkLogit>(m, r, sink);
        if (query >= here.origin.n_q)
          row = {0.0f, -kInfinity};
          // A select: the accumulators of an empty row may hold 0 * NaN of a neighbour's key.
#pragma unroll
        for (int n = 0; n < kO; n++)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; i++)
            o[m][n][i] = row.scale == 0.0f ? 0.0f : o[m][n][i] * row.scale;
        if (lane_index() % 4 == 0 && query < here.sequence.rows_q)
          *row_q<float>(arguments.lse, here.sequence, query, here.origin.h) = row.lse;
      }
      store_accumulators<LayoutV>(tile_o, 16 * m, o[m], Element());
    }
    __syncwarp();
    Element *global = row_q<Element>(arguments.o, here.sequence, first, here.origin.h);
    store_tile<LayoutV, kRows, kWarp, kAligned>(tile_o, global, arguments.o.stride_row,
                                                here.sequence.rows_q - first, lane_index());
  }
};

ROTA_DEVICE void forward(const RotaArguments &arguments) {
  const QueryTile here(arguments, kTileQ);
  ForwardKernel(arguments, here).run(here);
}

} // namespace rota

#endif
