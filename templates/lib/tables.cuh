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

// Walks the kv tiles of a row, run by run, in ascending order. A run is read when the walk comes to
// it: neighbouring runs share a line of the L1, so that only the first is waited for.
//
//   for (RunWalk walk(arguments, row); walk.valid(); walk.advance(arguments)) ... walk.tile
struct RunWalk {
  int tile;          // current
  unsigned end_kind; // of the current run, as in RotaRun
  int run, run_end;  // the next run and the row's end

  ROTA_DEVICE RunWalk(const RotaArguments &arguments, const RotaRow &row)
      : tile(0), end_kind(0), run(row.run_begin), run_end(row.run_end) {
    take(arguments);
  }
  ROTA_DEVICE bool valid() const { return tile < end(); }
  ROTA_DEVICE bool partial() const { return (end_kind & ROTA_RUN_PARTIAL) != 0; }
  ROTA_DEVICE bool bounded() const { return (end_kind & ROTA_RUN_BOUNDED) != 0; }
  ROTA_DEVICE void advance(const RotaArguments &arguments) {
    if (++tile == end())
      take(arguments);
  }

private:
  ROTA_DEVICE int end() const { return (int)(end_kind & ROTA_RUN_END); }
  // Makes the next run the current one; without one the walk stays at its end.
  ROTA_DEVICE void take(const RotaArguments &arguments) {
    if (run < run_end) {
      const RotaRun next = arguments.runs[run++];
      tile = next.begin;
      end_kind = next.end_kind;
    }
  }
};

// What does not vary within a query tile: `at.q` is its first row.
ROTA_DEVICE Position position_of_tile(const RotaSequence &sequence, int q_begin, int head) {
  return {q_begin, 0, head, sequence.batch, sequence.n_q, sequence.n_k};
}
// The query tile and head of a block whose grid is row_items.
struct QueryTile {
  RotaRow row;
  const RotaSequence &sequence;
  Position origin; // first row

  ROTA_DEVICE QueryTile(const RotaArguments &arguments, int tile_q)
      : row(arguments.rows[arguments.row_items[blockIdx.x].index]),
        sequence(arguments.sequences[row.sequence]),
        origin(position_of_tile(sequence, row.q_tile * tile_q,
                                arguments.row_items[blockIdx.x].head)) {}
};
// Where an index of a tensor may depend on a position (kClamp), rows and keys past the end take the
// last one's place, so that no index leaves its tensor; what is computed for them is thrown away.
template <bool kClamp> ROTA_DEVICE int clamp_index(int i, int n) {
  return kClamp && i >= n ? n - 1 : i;
}

} // namespace rota

#endif
