// Finding one's work: sequences, rows and runs of the plan, and 64-bit addresses of tensor
// elements.
#ifndef ROTA_LIB_TABLES_CUH
#define ROTA_LIB_TABLES_CUH

#include "templates/lib/types.cuh"

namespace rota {

// Address of element 0 of (sequence, row, head). Which side's rows are meant decides the slot's
// first row: see row_q and row_k.
template <class T>
ROTA_DEVICE T *element_at(const RotaTensor &tensor, int slot, long long row, int head) {
  return static_cast<T *>(tensor.data) + slot * tensor.stride_batch + row * tensor.stride_row +
         head * tensor.stride_head;
}
// Rows of Q, O, dO, dQ, LSE, dLSE.
template <class T>
ROTA_DEVICE T *row_q(const RotaTensor &tensor, const RotaSequence &sequence, int row, int head) {
  return element_at<T>(tensor, sequence.slot, sequence.begin_q + row, head);
}
// Rows of K, V, dK, dV.
template <class T>
ROTA_DEVICE T *row_k(const RotaTensor &tensor, const RotaSequence &sequence, int row, int head) {
  return element_at<T>(tensor, sequence.slot, sequence.begin_k + row, head);
}

// Number of a (query tile, query head) over the whole batch: of its delta block, dQ accumulator and
// rank counter.
ROTA_DEVICE long long query_tile_number(const RotaArguments &arguments,
                                        const RotaSequence &sequence, int q_tile, int head) {
  return (long long)(sequence.tile_begin + q_tile) * arguments.heads + head;
}

// Walks the kv tiles of a row, run by run, in ascending order. The run after the current one is
// already in registers, so that its load is not waited for.
//
//   for (RunWalk walk(arguments, row); walk.valid(); walk.advance()) ... walk.tile, walk.partial
struct RunWalk {
  const RotaRun *runs;
  int run, run_end; // the one in `following`, and the row's end
  RotaRun following;
  int tile, tile_end; // current tile and the end of its run
  bool partial;

  ROTA_DEVICE RunWalk(const RotaArguments &arguments, const RotaRow &row)
      : runs(arguments.runs), run(row.run_begin), run_end(row.run_end), following{0, 0}, tile(0),
        tile_end(0), partial(false) {
    if (run < run_end)
      following = runs[run];
    take();
  }
  ROTA_DEVICE bool valid() const { return tile < tile_end; }
  ROTA_DEVICE void advance() {
    if (++tile == tile_end)
      take();
  }

private:
  // Makes the following run the current one; without one, tile == tile_end.
  ROTA_DEVICE void take() {
    if (run >= run_end) {
      tile = tile_end;
      return;
    }
    tile = following.begin;
    tile_end = (int)(following.end_kind & ~ROTA_RUN_PARTIAL);
    partial = (following.end_kind & ROTA_RUN_PARTIAL) != 0;
    if (++run < run_end)
      following = runs[run];
  }
};

// Position of query row `q` with what does not vary along it. Rows past the end take the last row's
// place where a tensor might be indexed, so that no index leaves its tensor; what is computed for
// them is thrown away.
template <bool kClamp>
ROTA_DEVICE Position position_of_row(const RotaSequence &sequence, int q, int head) {
  Position at;
  at.q = kClamp && q >= sequence.n_q ? sequence.n_q - 1 : q;
  at.k = 0;
  at.h = head;
  at.b = sequence.batch;
  at.n_q = sequence.n_q;
  at.n_k = sequence.n_k;
  return at;
}
// The same for the key.
template <bool kClamp> ROTA_DEVICE int clamp_key(int k, int n_k) {
  return kClamp && k >= n_k ? n_k - 1 : k;
}

} // namespace rota

#endif
