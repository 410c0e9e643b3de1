// What host and kernels agree on: the tables of a plan and the argument block of a launch. Plain
// C11 and CUDA: the library includes this very file, NVRTC gets it from the store. 64-bit, no
// padding left to chance.
//
// clang-format off
//   sequences[b] -> rows[row_begin + q_tile] -> runs[begin .. end)    tiles of a query tile
//                   chains (one per kv tile) -> visits[begin .. end)    of a kv tile, as visited
//
//   row_items[i]   = (row, query head)   blocks of forward, delta, dQ; longest first, or, for those
//                                        that take them in turn, query tile number i; where a tile
//                                        packs n heads: heads [n * head, n * head + n)
//   chain_items[i] = (chain, kv head)    blocks of two_pass, queue entries of ordered and atomic
//   queue[w] .. queue[w + 1]             chain_items of worker w, or those that somebody takes
//                                        who draws w; numbers are drawn by ticket. NULL: w alone
//                                        forward: row_items of block w
//   rows[piece_begin + p]                pieces[p]: some of the kv tiles of a row that is cut
//   joins[i]                             some rows of a (row, query head) that is cut
// clang-format on
#ifndef ROTA_LIB_ABI_H
#define ROTA_LIB_ABI_H

#include "templates/lib/materialised.h"

#define ROTA_ABI_PARAMETERS 24
#define ROTA_ABI_TENSORS    8
#define ROTA_ABI_RANK       4
#define ROTA_ABI_MAPS       8

// ---- Tables (all indices 32-bit; offsets into the image are bytes) ----

typedef struct RotaSequence {
  int n_q, n_k;       // rows in use
  int rows_q, rows_k; // rows of the slot; outputs in [n, rows) are written as zeros (LSE: -inf)
  long long begin_q, begin_k; // first row of the slot in the packed tensor; 0 for dense tensors
  int batch;                  // b of masks and scores; times stride_batch for dense tensors
  int slot;                   // batch index for addressing: equals batch when dense, 0 when packed
  int row_begin; // its first entry in rows: one per query tile (times heads where the mask depends
                 // on h)
  int q_tiles, kv_tiles; // tiles covering rows_q and rows_k
  int tile_begin; // number of query tiles of all sequences before it: (tile_begin + q_tile) * heads
                  // + head numbers delta blocks, dQ accumulators and rank counters
} RotaSequence;

typedef struct RotaRow { // one query tile (of one head where the mask depends on h)
  int sequence, q_tile;
  int run_begin, run_end; // begin == end: no allowed key
} RotaRow;

// kv tiles [begin, end) of a row; bit 31 of `end_kind`: partial; bit 30, too, where the tiling asks
// (`bounded`): what of the mask is no interval of keys holds throughout
typedef struct RotaRun {
  int begin;
  unsigned end_kind;
} RotaRun;
#define ROTA_RUN_PARTIAL 0x80000000u
#define ROTA_RUN_BOUNDED 0x40000000u
#define ROTA_RUN_END     0x3fffffffu

// Forward, few queries: a row may be cut into pieces of consecutive kv tiles. Each is an item of
// its own, whose results are partial: normalised O in fp32, and LSE, in `rows` rows for each (query
// head, piece), those of a head side by side. Joining combines them in the order of the pieces.
typedef struct RotaPiece {
  int row, number;   // of the row's pieces
  int partial, step; // first row of its partials for item head 0; to those of the next item head
} RotaPiece;

typedef struct RotaJoin { // one block of the joining kernel
  int row, head;          // what is joined, as in an item
  int first, rows;        // rows of the tile: the block's first one; how many there are to store
  int piece, pieces;      // the first of them, how many
  int partial;            // first row of its partials; the next piece's are `rows` further
  int unused;
} RotaJoin;

typedef struct RotaChain { // one kv tile (of one kv head where the mask depends on h)
  int sequence, kv_tile;
  int visit_begin, visit_end; // all query heads of the group
} RotaChain;

// One visit. Word 0: q_tile (29 bits), bit 29 bounded as in a run, bit 30 last, bit 31 partial.
// Word 1: rank (20 bits), head within group (12 bits, high). Rank 0 stores, others add, the last
// one finalises.
typedef struct RotaVisit {
  unsigned tile, rank;
} RotaVisit;
#define ROTA_VISIT_PARTIAL    0x80000000u
#define ROTA_VISIT_LAST       0x40000000u
#define ROTA_VISIT_BOUNDED    0x20000000u
#define ROTA_VISIT_TILE       0x1fffffffu
#define ROTA_VISIT_RANK       0x000fffffu
#define ROTA_VISIT_HEAD_SHIFT 20

typedef struct RotaItem {
  int index, head; // row and query head, or chain and kv head
} RotaItem;

typedef struct RotaSection { // host: where a table lies in the image
  long long offset, count;   // bytes, entries
} RotaSection;

// ---- Workspace of a run: byte offsets, 256-byte aligned; a part that an algorithm does without
// has size 0 ----

typedef struct RotaWorkspace {
  long long delta;          // float [all query tiles * heads * tile_q]: rowsum(dO * O) - dLSE;
                            // with tiling.row_values = 2 then as many: LSE log2 e, +inf for -inf;
                            // with tiling.row_terms then RowTerms of each;
                            // forward, with tiling.spread: that many floats of each kv tile and
                            // head
  long long dq_accumulator; // float [all query tiles * heads][tile_q * padded head dim], in an
                            // order the kernel chooses
  long long
      counters; // int [all query tiles * heads]: finished ranks, negative until the tile's rows are
                // prepared; then the ticket; then a flag of each block that prepares rows
  long long partials;    // forward: float [rows of partials][head dim of V]
  long long partial_lse; // float [rows of partials]
  long long works; // from here on what works need (lib/materialised.h), as far as there are any
  long long scores, stats, sum_q, sum_k, work_counters;
  long long bytes; // total
} RotaWorkspace;

// ---- Arguments of every entry, by value ----

// A tensor as the copy engine of sm_90 sees it, made by the driver (CUtensorMap): dimensions (head
// dim, row, head, slot), a box of 64 columns and the tiling's number of rows, swizzled by 128
// bytes. Rows of all slots where sequences are packed; zeros arrive for what lies beyond the
// tensor.
typedef struct RotaTensorMap {
  unsigned long long opaque[16];
} __attribute__((aligned(64))) RotaTensorMap;

// Second argument of every entry of a tiling that has tensor maps, in its order: kMapQ and so on.
typedef struct RotaTensorMaps {
  RotaTensorMap map[ROTA_ABI_MAPS];
} RotaTensorMaps;

typedef struct RotaTensor { // element (b, row, head, i) = data[slot * stride_batch + (begin + row)
                            // * stride_row + head * stride_head + i]
  void *data;
  long long stride_batch, stride_row, stride_head; // elements
} RotaTensor;

typedef struct RotaIndexed { // a named tensor of the mask or score
  const void *data;
  long long size[ROTA_ABI_RANK], stride[ROTA_ABI_RANK]; // elements
} RotaIndexed;

typedef union RotaScalar {
  int as_int;
  float as_float;
} RotaScalar;

typedef struct RotaArguments {
  RotaTensor q, k, v, o, lse;           // lse: float
  RotaTensor d_o, d_q, d_k, d_v, d_lse; // d_lse: float, data may be null
  RotaTensor mean_square;               // float; only where tiling.spread is 1
  const float *sink;                    // [heads]; null without sink logits
  float *d_sink;                        // [heads]; null: not wanted
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaItem *row_items;
  const RotaChain *chains;
  const RotaVisit *visits;
  const RotaItem *chain_items;
  const int *queue;
  const RotaPiece *pieces;
  const RotaJoin *joins;
  float *delta; // workspace, see RotaWorkspace
  float *dq_accumulator;
  int *counters;
  float *partials, *partial_lse;
  RotaScalar parameters[ROTA_ABI_PARAMETERS];
  RotaIndexed tensors[ROTA_ABI_TENSORS];
  int heads, kv_heads, batch, tiles; // tiles: query tiles of all sequences
  int row_item_count, chain_item_count, workers;
  int preparers;   // blocks that prepare rows, beside the first chains or ahead of all
  int piece_begin; // rows from this one on are those of pieces
  float scale;     // softmax scale
  RotaMaterialised materialised;
} RotaArguments;

#endif
