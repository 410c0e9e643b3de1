/* Level 6. The tables that kernels read (templates/lib/abi.h), written from the planes of a batch
 * into memory of the caller. */
#ifndef ROTA_GENERATOR_PLAN_TABLES_H
#define ROTA_GENERATOR_PLAN_TABLES_H

#include "generator/plan_pieces.h"
#include "generator/plan_planes.h"
#include "templates/lib/abi.h"

typedef struct TablesRequest {
  const Lengths *lengths;
  const Planes *planes;
  int heads; /* row items of a query tile: plan_row_heads */
  int kv_heads, tile_q, tile_kv;
  const Schedule *schedule;  /* NULL: forward, without chains, visits and queue */
  bool ordered;              /* chains wait for one another: assigned as the schedule says */
  bool rows_in_order;        /* row item i is query tile number i (templates/lib/tables.cuh), for
                                kernels that go by that; else the longest come first */
  int row_workers;           /* forward: blocks that share the row items, each with a queue; 0: a
                                block per item */
  PieceRule pieces;          /* forward: which rows are cut */
  int64_t q_bytes, kv_bytes; /* of one token and head: Q, dO and sums of dQ; K and V */
} TablesRequest;

/* Entries of each table; q_tiles: query tiles of all sequences; partials: rows of them. */
typedef struct TableCounts {
  int64_t sequences, rows, runs, row_items, chains, visits, chain_items, queue, q_tiles;
  int64_t pieces, joins, partials; /* the rows of pieces lie behind the others */
} TableCounts;

typedef struct Tables {
  RotaSequence *sequences;
  RotaRow *rows;
  RotaRun *runs;
  RotaItem *row_items;
  RotaChain *chains;
  RotaVisit *visits;
  RotaItem *chain_items;
  int *queue;
  RotaPiece *pieces;
  RotaJoin *joins;
} Tables;

/* UNSUPPORTED where an index would leave its bits: 2^31 entries, rank 2^20, group 4095. */
rota_status tables_count(const TablesRequest *request, TableCounts *counts);
/* `tables` points to zeroed memory of the counted sizes; counts->queue becomes that of the queues
 * in use, and one. */
rota_status tables_fill(const TablesRequest *request, TableCounts *counts, const Tables *tables);

#endif
