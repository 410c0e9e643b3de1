/* Level 5. Pieces of forward rows: where few queries stand against many keys, a query tile is cut
 * along the keys, so that more blocks than (query tile, head) pairs have work.
 *
 *     pieces      p = 0                1                2
 *     kv tiles    0 .. tiles/3         .. 2 tiles/3     .. tiles      of those that are not empty
 *
 * Whether and where a row is cut follows from the row's tiles, the queries of its tile, the query
 * tiles of its sequence and the heads: from nothing else in the batch, nor from the GPU. So the
 * bits do not, either. */
#ifndef ROTA_GENERATOR_PLAN_PIECES_H
#define ROTA_GENERATOR_PLAN_PIECES_H

#include "generator/plan_planes.h"
#include "generator/tiling.h"
#include "templates/lib/abi.h"

/* From the tiling. A piece has at least so many keys that
 *     storing and joining its partials is little beside reading them:   row_keys for each row
 *     its block's start is:                                            keys
 *     a sequence has at most so many pieces, over its query tiles and heads:   most;
 *     where that leaves a row less than LEAST_PIECES of them, the sequence stays whole */
typedef struct PieceRule {
  int32_t tile_q, tile_kv, packed; /* of the tiling; rows of a tile are (query, head) pairs */
  int32_t keys, row_keys, most;    /* most 0: nothing is cut */
  int32_t join_rows;               /* of a block of the joining kernel */
} PieceRule;

typedef struct PieceCounts {
  int64_t pieces, runs; /* entries of the tables; runs at most */
  int64_t items, joins; /* items beyond those of whole rows */
  int64_t partials;     /* rows of partials */
} PieceCounts;

PieceRule piece_rule(const Tiling *tiling);
/* How many pieces a row of `tiles` kv tiles becomes, as few as their longest allows; 1: it stays
 * whole. heads: items of a query tile, over all heads. */
int32_t pieces_of_row(const PieceRule *rule, int heads, int32_t n_q, int32_t q_tile, int32_t tiles);

/* Of a batch whose query tiles have `heads` items each. */
PieceCounts pieces_count(const PieceRule *rule, const Lengths *lengths, const Planes *planes,
                         int heads);

/* Tables to be filled; sequences, rows and their runs are there. Behind `rows` rows and `runs` runs
 * there is room for those of the pieces. */
typedef struct PieceTables {
  const RotaSequence *sequences;
  RotaRow *rows;
  RotaRun *runs;
  RotaPiece *pieces;
  RotaJoin *joins;
  int32_t row_count, run_count;
} PieceTables;

/* cut[row]: number of its first piece, -1 for a whole row. */
void pieces_fill(const PieceRule *rule, const Planes *planes, int batch, int heads,
                 const PieceTables *tables, int32_t *cut);
/* Replaces items of rows that are cut by those of their pieces, in place: `count` items, with room
 * for the others behind. */
void pieces_expand(const PieceTables *tables, int64_t piece_count, const int32_t *cut,
                   RotaItem *items, int64_t count, int64_t expanded);
/* kv tiles of a row. */
int32_t row_tiles(const RotaRow *row, const RotaRun *runs);

#endif
