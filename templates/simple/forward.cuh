// Forward pass on ordinary fp32 arithmetic, for any element type, head dim and alignment: right
// rather than fast. It serves fp32 and head dims too large for the registers, and as a reference on
// the device for the other kernels.
//
// One block per (query tile, query head); a warp works on one query row at a time. Lane l takes the
// l-th key of a kv tile for Q K^T and the softmax, and columns l, l + 32 .. of O for P V. Shared
// memory:
//
//   O [kTileQ][d_v] floats    Q [kTileQ][d]    K [kTileKv][kPitchK], then V [kTileKv][d_v]
//
// K's rows are an odd number of words, so that lanes fall into different banks. Keys that a row may
// not attend are left out, not multiplied by zero.
#ifndef ROTA_SIMPLE_FORWARD_CUH
#define ROTA_SIMPLE_FORWARD_CUH

#include "mask.cuh"
#include "score.cuh"
#include "spec.cuh"
#include "templates/lib/memory.cuh"
#include "templates/lib/tables.cuh"
#include "tiling.cuh"

namespace rota {

struct SimpleForward {
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kTileQ / kWarps; // query rows of a warp
  static constexpr int kPerWord = 4 / (int)sizeof(Element);
  static constexpr int kPitchK = ((kHeadDim + kPerWord - 1) / kPerWord | 1) * kPerWord;
  static_assert(kTileKv == kWarp && kTileQ % kWarps == 0, "one key per lane");

  const RotaArguments &arguments;
  const RotaSequence &sequence;
  const Position origin; // first query of the tile
  float *const o;
  Element *const q, *const k, *const v; // k, v: the same place

  // Rows [first, first + kCount) of a matrix to shared memory; past row_count zeros.
  template <int kCount, int kColumns>
  ROTA_DEVICE void load(Element *shared, int pitch, const Element *global, long long stride_row,
                        int row_count) const {
    for (int i = (int)threadIdx.x; i < kCount * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      shared[row * pitch + column] =
          row < row_count ? global[row * stride_row + column] : Element{};
    }
  }

  // This lane's score of query row `row` of the tile with key `key`; -inf where it is not allowed.
  ROTA_DEVICE float score(int row, int key, const Element *k_row, bool &allowed) const {
    float s = 0.0f;
    for (int i = 0; i < kHeadDim; i++)
      s = __fmaf_rn(to_float(q[row * kHeadDim + i]), to_float(k_row[i]), s);
    constexpr bool kClamp = kMaskUsesTensors || kScoreUsesTensors;
    Position at = origin;
    at.q = clamp_index<kClamp>(origin.q + row, origin.n_q);
    at.k = clamp_index<kClamp>(key, origin.n_k);
    allowed = key < origin.n_k && mask_allows(at, arguments);
    return allowed ? score_value(s * arguments.scale, at, arguments) : -kInfinity;
  }

  // What a row takes of a kv tile: the lane's probability, all lanes' keys, the factor of O so far.
  struct Weights {
    float p, rescale;
    unsigned keys;
  };
  // `peak` and `sum` are the row's running maximum and sum.
  ROTA_DEVICE Weights weigh(int row, int k_begin, float &peak, float &sum) const {
    const int lane = lane_index();
    bool allowed;
    const float s = score(row, k_begin + lane, k + lane * kPitchK, allowed);
    const float top = maximum(peak, warp_maximum(s));
    const float base = top == -kInfinity ? 0.0f : top;
    const float rescale = exp2_fast((peak - base) * kLog2E);
    const float p = allowed ? exp2_fast((s - base) * kLog2E) : 0.0f;
    peak = top;
    sum = sum * rescale + warp_sum(p);
    return {p, rescale, __ballot_sync(kAllLanes, allowed)};
  }
  ROTA_DEVICE void add_values(int row, const Weights &weights) const {
    for (int first = 0; first < kHeadDimV; first += kWarp) {
      const int column = first + lane_index();
      const bool exists = column < kHeadDimV;
      float total = exists ? o[row * kHeadDimV + column] * weights.rescale : 0.0f;
      for (unsigned left = weights.keys; left != 0; left &= left - 1) {
        const int key = __ffs((int)left) - 1;
        const float weight = __shfl_sync(kAllLanes, weights.p, key);
        if (exists)
          total = __fmaf_rn(weight, to_float(v[key * kHeadDimV + column]), total);
      }
      if (exists)
        o[row * kHeadDimV + column] = total;
    }
  }

  // Stores row `row` of O and its LSE; rows past the sequence's end become zeros and -inf.
  ROTA_DEVICE void store(int row, float peak, float sum) const {
    const int query = origin.q + row;
    if (query >= sequence.rows_q)
      return;
    float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
    float lse = sum == 0.0f ? -kInfinity : peak + log2_fast(sum) * kLn2;
    if (kSinkLogit && query < origin.n_q) {
      const float sink = arguments.sink[origin.h], both = maximum(peak, sink);
      const float keys = sum == 0.0f ? 0.0f : exp2_fast((peak - both) * kLog2E);
      const float all = sum * keys + exp2_fast((sink - both) * kLog2E);
      scale = keys / all;
      lse = sum == 0.0f ? sink : both + log2_fast(all) * kLn2;
    }
    Element *to = row_q<Element>(arguments.o, sequence, query, origin.h);
    for (int column = lane_index(); column < kHeadDimV; column += kWarp) {
      const float x = sum == 0.0f ? 0.0f : o[row * kHeadDimV + column] * scale;
      to[column] = from_float(x, Element());
    }
    if (lane_index() == 0)
      *row_q<float>(arguments.lse, sequence, query, origin.h) = lse;
  }

  ROTA_DEVICE void run(const RotaRow &row) const {
    const int kv_head = origin.h / kGroup, warp_row = warp_index() * kRows;
    float peak[kRows], sum[kRows];
#pragma unroll
    for (int i = 0; i < kRows; i++)
      peak[i] = -kInfinity, sum[i] = 0.0f;
    for (int i = (int)threadIdx.x; i < kTileQ * kHeadDimV; i += kThreads)
      o[i] = 0.0f;
    load<kTileQ, kHeadDim>(q, kHeadDim, row_q<Element>(arguments.q, sequence, origin.q, origin.h),
                           arguments.q.stride_row, origin.n_q - origin.q);
    for (RunWalk walk(arguments, row); walk.valid(); walk.advance(arguments)) {
      const int k_begin = walk.tile * kTileKv;
      load<kTileKv, kHeadDim>(k, kPitchK, row_k<Element>(arguments.k, sequence, k_begin, kv_head),
                              arguments.k.stride_row, origin.n_k - k_begin);
      __syncthreads();
      Weights weights[kRows];
#pragma unroll
      for (int i = 0; i < kRows; i++)
        weights[i] = weigh(warp_row + i, k_begin, peak[i], sum[i]);
      __syncthreads();
      load<kTileKv, kHeadDimV>(v, kHeadDimV,
                               row_k<Element>(arguments.v, sequence, k_begin, kv_head),
                               arguments.v.stride_row, origin.n_k - k_begin);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kRows; i++)
        add_values(warp_row + i, weights[i]);
      __syncthreads();
    }
    __syncthreads(); // O is zeroed by other threads than store it where there was no tile
#pragma unroll
    for (int i = 0; i < kRows; i++)
      store(warp_row + i, peak[i], sum[i]);
  }
};

ROTA_DEVICE void forward(const RotaArguments &arguments) {
  const RotaItem item = arguments.row_items[blockIdx.x];
  const RotaRow row = arguments.rows[item.index];
  const RotaSequence &sequence = arguments.sequences[row.sequence];
  float *o = reinterpret_cast<float *>(dynamic_shared());
  Element *q = reinterpret_cast<Element *>(o + kTileQ * kHeadDimV);
  Element *k = q + round_up(kTileQ * kHeadDim, SimpleForward::kPerWord);
  const Position origin = position_of_tile(sequence, row.q_tile * kTileQ, item.head);
  const SimpleForward kernel = {arguments, sequence, origin, o, q, k, k};
  kernel.run(row);
}

} // namespace rota

#endif
