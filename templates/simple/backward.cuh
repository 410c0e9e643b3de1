// The backward pass in fp32 on CUDA cores: right for every shape, made to be read; it serves fp32,
// and head dims too large for the registers of the other portable kernels. The structure of
// two_pass: backward_kv owns dK and dV of a kv tile, backward_q dQ of a query tile. Entries: delta,
// backward_kv, backward_q, sink_gradient.
//
// kThreads threads. Tiles of Q, dO, K and V lie in shared memory in rows of an odd number of words,
// so that a column's elements fall into different banks; then P and dS, kTileQ x kTileKv floats:
//
//   Q [kTileQ]  dO [kTileQ]  K [kTileKv]  V [kTileKv]  P  dS
#ifndef ROTA_SIMPLE_BACKWARD_CUH
#define ROTA_SIMPLE_BACKWARD_CUH

#include "spec.cuh"
#include "tiling.cuh"

#include "mask.cuh"
#include "score.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "templates/simple/backward_sink.cuh"

namespace rota {

// One tile of the plane, and the block's place in shared memory.
struct SimpleBackward {
  static constexpr int kPerWord = 4 / (int)sizeof(Element);
  static constexpr int kPitchK = ((kHeadDim + kPerWord - 1) / kPerWord | 1) * kPerWord;
  static constexpr int kPitchV = ((kHeadDimV + kPerWord - 1) / kPerWord | 1) * kPerWord;
  static constexpr int kPitchP = kTileKv | 1;
  static constexpr int kWords =
      (kTileQ + kTileKv) * (kPitchK + kPitchV) / kPerWord + 2 * kTileQ * kPitchP;
  static_assert(kWords * 4 <= kSharedBytes, "the launch's shared memory holds the tiles");

  const RotaArguments &arguments;
  RotaSequence sequence;
  Element *q, *d_o, *k, *v; // shared
  float *p, *ds;            // shared

  ROTA_DEVICE SimpleBackward(const RotaArguments &arguments, int sequence)
      : arguments(arguments), sequence(arguments.sequences[sequence]) {
    q = reinterpret_cast<Element *>(dynamic_shared());
    d_o = q + kTileQ * kPitchK;
    k = d_o + kTileQ * kPitchV;
    v = k + kTileKv * kPitchK;
    p = reinterpret_cast<float *>(v + kTileKv * kPitchV);
    ds = p + kTileQ * kPitchP;
  }

  // kRows rows of kColumns elements; zeros from `count` on, which may be negative.
  template <int kRows, int kColumns, int kPitch>
  ROTA_DEVICE static void load(Element *tile, const Element *from, long long stride_row,
                               int count) {
    for (int i = (int)threadIdx.x; i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      tile[row * kPitch + column] = row < count ? from[row * stride_row + column] : Element{};
    }
  }
  ROTA_DEVICE void load_queries(int first, int head) const {
    const int count = sequence.n_q - first;
    load<kTileQ, kHeadDim, kPitchK>(q, row_q<Element>(arguments.q, sequence, first, head),
                                    arguments.q.stride_row, count);
    load<kTileQ, kHeadDimV, kPitchV>(d_o, row_q<Element>(arguments.d_o, sequence, first, head),
                                     arguments.d_o.stride_row, count);
  }
  ROTA_DEVICE void load_keys(int first, int kv_head) const {
    const int count = sequence.n_k - first;
    load<kTileKv, kHeadDim, kPitchK>(k, row_k<Element>(arguments.k, sequence, first, kv_head),
                                     arguments.k.stride_row, count);
    load<kTileKv, kHeadDimV, kPitchV>(v, row_k<Element>(arguments.v, sequence, first, kv_head),
                                      arguments.v.stride_row, count);
  }

  template <int kColumns> ROTA_DEVICE static float product(const Element *a, const Element *b) {
    float sum = 0.0f;
    for (int i = 0; i < kColumns; i++)
      sum += to_float(a[i]) * to_float(b[i]);
    return sum;
  }

  // P and dS of the tile whose rows start at (first_q, first_k); 0 where not allowed. The mask is
  // looked at in full tiles too.
  ROTA_DEVICE void fill(int first_q, int first_k, int head, const float *delta) const {
    constexpr bool kClamp = kMaskUsesTensors || kScoreUsesTensors;
    for (int i = (int)threadIdx.x; i < kTileQ * kTileKv; i += kThreads) {
      const int row = i / kTileKv, column = i % kTileKv;
      float probability = 0.0f, gradient = 0.0f;
      Position at = {first_q + row,  first_k + column, head,
                     sequence.batch, sequence.n_q,     sequence.n_k};
      const bool exists = at.q < at.n_q && at.k < at.n_k;
      at.q = clamp_index<kClamp>(at.q, at.n_q);
      at.k = clamp_index<kClamp>(at.k, at.n_k);
      if (exists && mask_allows(at, arguments)) {
        const float lse = *row_q<float>(arguments.lse, sequence, at.q, head);
        const float s =
            arguments.scale * product<kHeadDim>(q + row * kPitchK, k + column * kPitchK);
        const float x = kHasScore ? score_value(s, at, arguments) : s;
        const float slope = kHasScore ? score_slope(s, at, arguments) : 1.0f;
        const float dp = product<kHeadDimV>(d_o + row * kPitchV, v + column * kPitchV);
        // Subtracting before scaling keeps the difference's accuracy.
        if (lse != -kInfinity)
          probability = exp2_fast((x - lse) * kLog2E);
        gradient = probability * (dp - delta[row]) * slope;
      }
      p[row * kPitchP + column] = probability;
      ds[row * kPitchP + column] = gradient;
    }
  }
  ROTA_DEVICE const float *delta_of(int q_tile, int head) const {
    return arguments.delta + query_tile_number(arguments, sequence, q_tile, head) * kTileQ;
  }
};

// One block per (query tile, query head); a thread per row.
ROTA_DEVICE void delta(const RotaArguments &arguments) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence sequence = arguments.sequences[row.sequence];
  const int first = row.q_tile * kTileQ;
  const long long tile = query_tile_number(arguments, sequence, row.q_tile, item.head);
  for (int r = (int)threadIdx.x; r < kTileQ; r += (int)blockDim.x) {
    float sum = 0.0f;
    if (first + r < sequence.n_q) {
      const Element *o = row_q<Element>(arguments.o, sequence, first + r, item.head);
      const Element *d_o = row_q<Element>(arguments.d_o, sequence, first + r, item.head);
      for (int i = 0; i < kHeadDimV; i++)
        sum += to_float(o[i]) * to_float(d_o[i]);
      if (arguments.d_lse.data)
        sum -= *row_q<float>(arguments.d_lse, sequence, first + r, item.head);
    }
    arguments.delta[tile * kTileQ + r] = sum;
  }
}

// One block per (kv tile, kv head). Thread t owns elements t, t + kThreads, ... of dK and of dV.
ROTA_DEVICE void backward_kv(const RotaArguments &arguments) {
  constexpr int kOwnK = (kTileKv * kHeadDim + kThreads - 1) / kThreads;
  constexpr int kOwnV = (kTileKv * kHeadDimV + kThreads - 1) / kThreads;
  using S = SimpleBackward;
  const RotaItem item = arguments.chain_items[blockIdx.x];
  const RotaChain chain = arguments.chains[item.index];
  const S block(arguments, chain.sequence);
  const int first_k = chain.kv_tile * kTileKv, thread = (int)threadIdx.x;
  float dk[kOwnK] = {}, dv[kOwnV] = {};

  block.load_keys(first_k, item.head);
  for (int i = chain.visit_begin; i < chain.visit_end; i++) {
    const RotaVisit visit = arguments.visits[i];
    const int q_tile = (int)(visit.tile & ROTA_VISIT_TILE);
    const int head = item.head * kGroup + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
    block.load_queries(q_tile * kTileQ, head);
    __syncthreads();
    block.fill(q_tile * kTileQ, first_k, head, block.delta_of(q_tile, head));
    __syncthreads();
#pragma unroll
    for (int own = 0; own < kOwnK; own++) {
      const int e = own * kThreads + thread, key = e / kHeadDim, column = e % kHeadDim;
      if (key < kTileKv)
        for (int r = 0; r < kTileQ; r++)
          dk[own] += block.ds[r * S::kPitchP + key] * to_float(block.q[r * S::kPitchK + column]);
    }
#pragma unroll
    for (int own = 0; own < kOwnV; own++) {
      const int e = own * kThreads + thread, key = e / kHeadDimV, column = e % kHeadDimV;
      if (key < kTileKv)
        for (int r = 0; r < kTileQ; r++)
          dv[own] += block.p[r * S::kPitchP + key] * to_float(block.d_o[r * S::kPitchV + column]);
    }
    __syncthreads();
  }
  const int rows = block.sequence.rows_k - first_k, used = block.sequence.n_k - first_k;
#pragma unroll
  for (int own = 0; own < kOwnK; own++) {
    const int e = own * kThreads + thread, key = e / kHeadDim;
    if (key < kTileKv && key < rows)
      row_k<Element>(arguments.d_k, block.sequence, first_k + key, item.head)[e % kHeadDim] =
          from_float(key < used ? arguments.scale * dk[own] : 0.0f, Element());
  }
#pragma unroll
  for (int own = 0; own < kOwnV; own++) {
    const int e = own * kThreads + thread, key = e / kHeadDimV;
    if (key < kTileKv && key < rows)
      row_k<Element>(arguments.d_v, block.sequence, first_k + key, item.head)[e % kHeadDimV] =
          from_float(key < used ? dv[own] : 0.0f, Element());
  }
}

// One block per (query tile, query head), rows without keys included: they get their zeros here.
ROTA_DEVICE void backward_q(const RotaArguments &arguments) {
  constexpr int kOwn = (kTileQ * kHeadDim + kThreads - 1) / kThreads;
  using S = SimpleBackward;
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const S block(arguments, row.sequence);
  const int first_q = row.q_tile * kTileQ, thread = (int)threadIdx.x;
  float dq[kOwn] = {};

  block.load_queries(first_q, item.head);
  for (RunWalk walk(arguments, row); walk.valid(); walk.advance(arguments)) {
    block.load_keys(walk.tile * kTileKv, item.head / kGroup);
    __syncthreads();
    block.fill(first_q, walk.tile * kTileKv, item.head, block.delta_of(row.q_tile, item.head));
    __syncthreads();
#pragma unroll
    for (int own = 0; own < kOwn; own++) {
      const int e = own * kThreads + thread, r = e / kHeadDim, column = e % kHeadDim;
      if (r < kTileQ)
        for (int key = 0; key < kTileKv; key++) {
          const float ds = block.ds[r * S::kPitchP + key];
          // Not 0 * k: a key that this row may not attend to may be NaN.
          if (ds != 0.0f)
            dq[own] += ds * to_float(block.k[key * S::kPitchK + column]);
        }
    }
    __syncthreads();
  }
#pragma unroll
  for (int own = 0; own < kOwn; own++) {
    const int e = own * kThreads + thread, r = e / kHeadDim;
    if (r < kTileQ && first_q + r < block.sequence.rows_q)
      row_q<Element>(arguments.d_q, block.sequence, first_q + r, item.head)[e % kHeadDim] =
          from_float(first_q + r < block.sequence.n_q ? arguments.scale * dq[own] : 0.0f,
                     Element());
  }
}

} // namespace rota

#endif
