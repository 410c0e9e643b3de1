/* Level 5. Pieces of forward rows: see plan_pieces.h. */
#include "generator/plan_pieces.h"

#include <assert.h>

/* With 2 or 3, one sequence takes down to two thirds of the time, several up to a fifth more. */
#define LEAST_PIECES 4

PieceRule piece_rule(const Tiling *tiling) {
  return (PieceRule){.tile_q = tiling->tile_q,
                     .tile_kv = tiling->tile_kv,
                     .packed = tiling_packed(tiling),
                     .keys = tiling_get(tiling, "piece_keys", 1),
                     .row_keys = tiling_get(tiling, "piece_row_keys", 0),
                     .most = tiling_get(tiling, "pieces", 0),
                     .join_rows = tiling_get(tiling, "join_rows", 1)};
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Queries of a tile among the `rows` of its sequence. */
static int32_t tile_queries(const PieceRule *rule, int32_t rows, int32_t q_tile) {
  int32_t left = rows - q_tile * rule->tile_q;
  return left < rule->tile_q ? left : rule->tile_q;
}

int32_t pieces_of_row(const PieceRule *rule, int heads, int32_t n_q, int32_t q_tile,
                      int32_t tiles) {
  if (rule->most < 2 || tiles == 0)
    return 1;
  int64_t most = rule->most / ((int64_t)heads * tiles_covering(n_q, rule->tile_q));
  if (most < LEAST_PIECES)
    return 1;
  int64_t rows = (int64_t)tile_queries(rule, n_q, q_tile) * rule->packed;
  int64_t keys = larger(rule->keys, rows * rule->row_keys);
  int64_t pieces = tiles / ((keys + rule->tile_kv - 1) / rule->tile_kv);
  pieces = larger(pieces < most ? pieces : most, 1);
  return tiles_covering(tiles, tiles_covering(tiles, (int32_t)pieces));
}

/* ---- Counting ---- */

static int32_t map_tiles(const TileMap *map, int32_t q_tile) {
  int32_t tiles = 0;
  for (int64_t r = map->row_begin[q_tile]; r < map->row_begin[q_tile + 1]; r++)
    tiles += map->runs[r].end - map->runs[r].begin;
  return tiles;
}

/* Rows of partials of an item: those that are stored, in use or not. */
static int32_t item_rows(const PieceRule *rule, int32_t rows_q, int32_t q_tile) {
  return tile_queries(rule, rows_q, q_tile) * rule->packed;
}

PieceCounts pieces_count(const PieceRule *rule, const Lengths *lengths, const Planes *planes,
                         int heads) {
  PieceCounts counts = {0};
  int64_t items = planes->map_heads > 1 ? 1 : heads; /* of a row */
  for (int32_t s = 0; s < lengths->batch && rule->most > 1; s++)
    for (int head = 0; head < planes->map_heads; head++) {
      const TileMap *map = planes_map(planes, s, head);
      for (int32_t q = 0; q < map->q_tiles; q++) {
        int64_t pieces = pieces_of_row(rule, heads, lengths->n_q[s], q, map_tiles(map, q));
        int64_t rows = item_rows(rule, lengths->rows_q[s], q);
        if (pieces == 1)
          continue;
        counts.pieces += pieces;
        counts.runs += map->row_begin[q + 1] - map->row_begin[q] + pieces - 1;
        counts.items += items * (pieces - 1);
        counts.joins += items * tiles_covering((int32_t)rows, rule->join_rows);
        counts.partials += items * pieces * rows;
      }
    }
  return counts;
}

/* ---- Tables ---- */

int32_t row_tiles(const RotaRow *row, const RotaRun *runs) {
  int32_t tiles = 0;
  for (int32_t r = row->run_begin; r < row->run_end; r++)
    tiles += (int32_t)(runs[r].end_kind & ROTA_RUN_END) - runs[r].begin;
  return tiles;
}

/* Where the next entries go. */
typedef struct Filling {
  const PieceTables *tables;
  int32_t run, piece, join, partial;
} Filling;

/* Writes the row's tiles [begin, end), counted among those it has, as runs of their own. */
static void fill_piece_runs(Filling *at, const RotaRow *row, int32_t begin, int32_t end) {
  RotaRun *runs = at->tables->runs;
  int32_t before = 0;
  for (int32_t r = row->run_begin; r < row->run_end && before < end; r++) {
    RotaRun run = runs[r];
    unsigned kind = run.end_kind & ~ROTA_RUN_END;
    int32_t tiles = (int32_t)(run.end_kind & ROTA_RUN_END) - run.begin;
    int32_t from = begin > before ? begin - before : 0;
    int32_t to = end - before < tiles ? end - before : tiles;
    if (from < to)
      runs[at->run++] = (RotaRun){run.begin + from, (unsigned)(run.begin + to) | kind};
    before += tiles;
  }
}

static void fill_pieces(Filling *at, int32_t index, int32_t pieces, int32_t step) {
  const PieceTables *tables = at->tables;
  const RotaRow row = tables->rows[index];
  int64_t tiles = row_tiles(&row, tables->runs);
  for (int32_t i = 0; i < pieces; i++) {
    RotaRow *to = &tables->rows[tables->row_count + at->piece];
    *to = (RotaRow){.sequence = row.sequence, .q_tile = row.q_tile, .run_begin = at->run};
    fill_piece_runs(at, &row, (int32_t)(i * tiles / pieces), (int32_t)((i + 1) * tiles / pieces));
    to->run_end = at->run;
    tables->pieces[at->piece++] = (RotaPiece){.row = index, .number = i, .step = step};
  }
}

/* Partials and joins of one item of a row that is cut. */
static void fill_joins(Filling *at, const RotaJoin *whole, int32_t join_rows) {
  for (int32_t first = 0; first < whole->rows; first += join_rows) {
    RotaJoin *join = &at->tables->joins[at->join++];
    *join = *whole;
    join->first = first;
    join->partial = at->partial;
  }
  at->partial += whole->pieces * whole->rows;
}

/* One row that is cut, with its items: heads [first, first + heads). */
static void fill_row(Filling *at, const PieceRule *rule, int32_t index, int32_t pieces, int first,
                     int heads) {
  const PieceTables *tables = at->tables;
  const RotaRow *row = &tables->rows[index];
  int32_t rows = item_rows(rule, tables->sequences[row->sequence].rows_q, row->q_tile);
  RotaJoin join = {.row = index, .rows = rows, .piece = at->piece, .pieces = pieces};
  int32_t step = pieces * rows, begin = at->partial - first * step;
  fill_pieces(at, index, pieces, step);
  for (int32_t i = 0; i < pieces; i++)
    tables->pieces[join.piece + i].partial = begin + i * rows;
  for (join.head = first; join.head < first + heads; join.head++)
    fill_joins(at, &join, rule->join_rows);
}

void pieces_fill(const PieceRule *rule, const Planes *planes, int batch, int heads,
                 const PieceTables *tables, int32_t *cut) {
  Filling at = {.tables = tables, .run = tables->run_count};
  bool per_head = planes->map_heads > 1;
  for (int32_t s = 0; s < batch; s++) {
    const RotaSequence *sequence = &tables->sequences[s];
    for (int head = 0; head < planes->map_heads; head++)
      for (int32_t q = 0; q < sequence->q_tiles; q++) {
        int32_t index = sequence->row_begin + head * sequence->q_tiles + q;
        int32_t tiles = row_tiles(&tables->rows[index], tables->runs);
        int32_t pieces = pieces_of_row(rule, heads, sequence->n_q, q, tiles);
        cut[index] = pieces > 1 ? at.piece : -1;
        if (pieces > 1)
          fill_row(&at, rule, index, pieces, head, per_head ? 1 : heads);
      }
  }
}

void pieces_expand(const PieceTables *tables, int64_t piece_count, const int32_t *cut,
                   RotaItem *items, int64_t count, int64_t expanded) {
  int64_t to = expanded; /* from the back, so that nothing is overwritten unread */
  for (int64_t i = count; i-- > 0;) {
    RotaItem item = items[i];
    int64_t first = cut[item.index], last = first;
    if (first < 0) {
      items[--to] = item;
      continue;
    }
    while (last + 1 < piece_count && tables->pieces[last + 1].row == item.index)
      last++;
    for (; last >= first; last--)
      items[--to] = (RotaItem){tables->row_count + (int32_t)last, item.head};
  }
  assert(to == 0);
}
