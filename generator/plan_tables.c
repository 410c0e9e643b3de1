/* Level 6. The tables of a plan. Runs and visits are written once per plane; rows and chains of all
 * sequences on that plane point to them. */
#include "generator/plan_tables.h"

#include "generator/plan_assign.h"
#include "generator/plan_items.h"

#include <stdlib.h>

enum { RANK_MAX = ROTA_VISIT_RANK, GROUP_INDEX_MAX = 4095 };

/* Tiles cover the slot, not the rows in use: outputs beyond these need their zeros. */
static int32_t sequence_q_tiles(const TablesRequest *request, int32_t sequence) {
  return tiles_covering(request->lengths->rows_q[sequence], request->tile_q);
}

static int32_t sequence_kv_tiles(const TablesRequest *request, int32_t sequence) {
  return tiles_covering(request->lengths->rows_k[sequence], request->tile_kv);
}

static int64_t map_count(const Planes *planes) {
  return (int64_t)planes->class_count * planes->map_heads;
}

static int64_t map_runs(const Planes *planes) {
  int64_t runs = 0;
  for (int64_t i = 0; i < map_count(planes); i++)
    runs += planes->maps[i]->row_begin[planes->maps[i]->q_tiles];
  return runs;
}

static int64_t pattern_count(const Planes *planes) {
  return planes->patterns ? (int64_t)planes->class_count * planes->pattern_heads : 0;
}

/* ---- Counting ---- */

static rota_status check_entries(const char *table, int64_t count) {
  if (count <= INT32_MAX)
    return ROTA_OK;
  return status_fail(
      ROTA_UNSUPPORTED,
      "the plan would have %lld %s, table indices end at 2^31 - 1; split the batch or "
      "use larger tiles",
      (long long)count, table);
}

/* Forward: what pieces add. */
static void count_pieces(const TablesRequest *request, TableCounts *counts) {
  PieceCounts more =
      pieces_count(&request->pieces, request->lengths, request->planes, request->heads);
  counts->pieces = more.pieces;
  counts->runs += more.runs;
  counts->row_items += more.items;
  counts->joins = more.joins;
  counts->partials = more.partials;
}

/* The tables' index types, from the most likely to overflow. */
static rota_status check_counts(const TablesRequest *request, const TableCounts *counts) {
  ROTA_TRY(check_entries("query tiles", counts->q_tiles));
  ROTA_TRY(check_entries("rows", counts->rows + counts->pieces));
  ROTA_TRY(check_entries("rows of partial results", counts->partials));
  ROTA_TRY(check_entries("runs", counts->runs));
  ROTA_TRY(check_entries("(query tile, head) pairs", counts->row_items));
  ROTA_TRY(check_entries("chains", counts->chains));
  ROTA_TRY(check_entries("visits", counts->visits));
  ROTA_TRY(check_entries("(kv tile, kv head) pairs", counts->chain_items + 1));
  if (request->schedule && request->heads / request->kv_heads > GROUP_INDEX_MAX)
    return status_fail(ROTA_UNSUPPORTED,
                       "%d query heads per kv head; the backward pass takes up to %d",
                       request->heads / request->kv_heads, GROUP_INDEX_MAX);
  return ROTA_OK;
}

/* Whether chains wait in start order alone, and none is longer than one that starts later. */
static bool rises(const Pattern *pattern) {
  int64_t before = 0;
  for (int32_t i = 0; i < pattern->chains; i++) {
    const int64_t *begin = &pattern->chain_begin[pattern->start_order[i]];
    if (begin[1] - begin[0] < before)
      return false;
    before = begin[1] - begin[0];
  }
  return pattern->in_order;
}

/* Where chains do not wait for one another, any worker may take any, whatever the schedule says.
 * Under `mixed`, where all chains wait in start order and the longest do not come first, pairs take
 * turns as with tickets. */
static Schedule assigning(const TablesRequest *request) {
  Schedule schedule = *request->schedule;
  bool turns = schedule.assignment == ASSIGN_MIXED && schedule.persistent;
  for (int64_t i = 0; turns && i < pattern_count(request->planes); i++)
    turns = rises(request->planes->patterns[i]);
  if (!request->ordered || turns)
    schedule.assignment = ASSIGN_TICKETS;
  return schedule;
}

rota_status tables_count(const TablesRequest *request, TableCounts *counts) {
  const Planes *planes = request->planes;
  *counts = (TableCounts){.sequences = request->lengths->batch};
  int64_t kv_tiles = 0;
  for (int32_t s = 0; s < request->lengths->batch; s++) {
    counts->q_tiles += sequence_q_tiles(request, s);
    kv_tiles += sequence_kv_tiles(request, s);
  }
  counts->rows = counts->q_tiles * planes->map_heads;
  counts->row_items = counts->q_tiles * request->heads;
  counts->runs = map_runs(planes);
  if (!request->schedule) {
    count_pieces(request, counts);
    int64_t workers = request->row_workers;
    if (workers > 0 && counts->row_items > 0)
      counts->queue = (workers < counts->row_items ? workers : counts->row_items) + 1;
    return check_counts(request, counts);
  }
  counts->chains = kv_tiles * planes->pattern_heads;
  counts->chain_items = kv_tiles * request->kv_heads;
  Schedule schedule = assigning(request);
  counts->queue = assign_queues_max(&schedule, counts->chain_items) + 1;
  for (int64_t i = 0; i < pattern_count(planes); i++) {
    const Pattern *pattern = planes->patterns[i];
    counts->visits += pattern->chain_begin[pattern->chains];
    if (pattern->chains > RANK_MAX) /* a row has at most one partial of each chain */
      return status_fail(ROTA_UNSUPPORTED,
                         "%d kv tiles; the backward pass takes up to 2^20 - 1 in one sequence: use "
                         "larger tiles",
                         pattern->chains);
  }
  return check_counts(request, counts);
}

/* ---- Runs and visits, once per plane; `base` tells where a plane's begin ---- */

static void fill_runs(const Planes *planes, RotaRun *runs, int32_t *base) {
  int32_t count = 0;
  for (int64_t i = 0; i < map_count(planes); i++) {
    const TileMap *map = planes->maps[i];
    base[i] = count;
    for (int64_t r = 0; r < map->row_begin[map->q_tiles]; r++) {
      const TileRun *run = &map->runs[r];
      unsigned kind = run->kind == TILE_FULL ? 0 : ROTA_RUN_PARTIAL;
      if (run->kind == TILE_BOUNDED)
        kind |= ROTA_RUN_BOUNDED;
      runs[count++] = (RotaRun){run->begin, (unsigned)run->end | kind};
    }
  }
}

static bool any_bounded(const Planes *planes) {
  for (int64_t i = 0; i < map_count(planes); i++) {
    const TileMap *map = planes->maps[i];
    for (int64_t r = 0; r < map->row_begin[map->q_tiles]; r++)
      if (map->runs[r].kind == TILE_BOUNDED)
        return true;
  }
  return false;
}

/* A pattern counts bounded tiles among the full ones, which cost about as much. */
static unsigned visit_kind(const Planes *planes, int64_t plane, const PatternVisit *visit,
                           int32_t kv_tile) {
  if (visit->partial)
    return ROTA_VISIT_PARTIAL;
  int64_t class = plane / planes->pattern_heads, kv_head = plane % planes->pattern_heads;
  int64_t group = planes->map_heads / planes->pattern_heads;
  const TileMap *map = planes->maps[class * planes->map_heads + kv_head * group +
                                    (planes->map_heads > 1 ? visit->group_head : 0)];
  bool bounded = tile_map_kind(map, visit->q_tile, kv_tile) == TILE_BOUNDED;
  return bounded ? ROTA_VISIT_PARTIAL | ROTA_VISIT_BOUNDED : 0;
}

static void fill_visits(const Planes *planes, RotaVisit *visits, int32_t *base) {
  bool bounded = any_bounded(planes);
  int32_t count = 0;
  for (int64_t i = 0; i < pattern_count(planes); i++) {
    const Pattern *pattern = planes->patterns[i];
    int32_t kv_tile = 0;
    base[i] = count;
    for (int64_t v = 0; v < pattern->chain_begin[pattern->chains]; v++) {
      const PatternVisit *visit = &pattern->visits[v];
      while (v >= pattern->chain_begin[kv_tile + 1])
        kv_tile++;
      unsigned tile = (unsigned)visit->q_tile | (visit->partial ? ROTA_VISIT_PARTIAL : 0) |
                      (visit->last ? ROTA_VISIT_LAST : 0);
      if (bounded)
        tile |= visit_kind(planes, i, visit, kv_tile);
      unsigned head = (unsigned)visit->group_head << ROTA_VISIT_HEAD_SHIFT;
      visits[count++] = (RotaVisit){tile, (unsigned)visit->rank | head};
    }
  }
}

/* ---- Sequences, rows and chains ---- */

static void fill_sequences(const TablesRequest *request, RotaSequence *sequences) {
  const Lengths *lengths = request->lengths;
  int32_t tiles = 0;
  for (int32_t s = 0; s < lengths->batch; s++) {
    sequences[s] = (RotaSequence){.n_q = lengths->n_q[s],
                                  .n_k = lengths->n_k[s],
                                  .rows_q = lengths->rows_q[s],
                                  .rows_k = lengths->rows_k[s],
                                  .begin_q = lengths->begin_q[s],
                                  .begin_k = lengths->begin_k[s],
                                  .batch = s,
                                  .slot = lengths->packed ? 0 : s,
                                  .row_begin = tiles * request->planes->map_heads,
                                  .q_tiles = sequence_q_tiles(request, s),
                                  .kv_tiles = sequence_kv_tiles(request, s),
                                  .tile_begin = tiles};
    tiles += sequences[s].q_tiles;
  }
}

/* work[row]: its tiles. Query tiles past n_q, and rows without keys, have no runs. */
static void fill_rows(const TablesRequest *request, const Tables *tables, const int32_t *base,
                      int32_t *work) {
  const Planes *planes = request->planes;
  int32_t at = 0;
  for (int32_t s = 0; s < request->lengths->batch; s++)
    for (int head = 0; head < planes->map_heads; head++) {
      int64_t index = (int64_t)planes->class_of[s] * planes->map_heads + head;
      const TileMap *map = planes->maps[index];
      for (int32_t q = 0; q < tables->sequences[s].q_tiles; q++, at++) {
        RotaRow row = {.sequence = s, .q_tile = q};
        if (q < map->q_tiles) {
          row.run_begin = base[index] + (int32_t)map->row_begin[q];
          row.run_end = base[index] + (int32_t)map->row_begin[q + 1];
        }
        for (int32_t r = row.run_begin; r < row.run_end; r++)
          work[at] += (int32_t)(tables->runs[r].end_kind & ROTA_RUN_END) - tables->runs[r].begin;
        tables->rows[at] = row;
      }
    }
}

/* work[chain]: its visits; start[chain]: the kv tile that starts as this one's number. kv tiles
 * past n_k have no visits but zeros to write; they start last. */
static void fill_chains(const TablesRequest *request, const Tables *tables, const int32_t *base,
                        int32_t *work, int32_t *start) {
  const Planes *planes = request->planes;
  int32_t at = 0;
  for (int32_t s = 0; s < request->lengths->batch; s++)
    for (int head = 0; head < planes->pattern_heads; head++) {
      int64_t index = (int64_t)planes->class_of[s] * planes->pattern_heads + head;
      const Pattern *pattern = planes->patterns[index];
      for (int32_t kv = 0; kv < tables->sequences[s].kv_tiles; kv++, at++) {
        RotaChain chain = {.sequence = s, .kv_tile = kv};
        if (kv < pattern->chains) {
          chain.visit_begin = base[index] + (int32_t)pattern->chain_begin[kv];
          chain.visit_end = base[index] + (int32_t)pattern->chain_begin[kv + 1];
        }
        work[at] = chain.visit_end - chain.visit_begin;
        start[at] = kv < pattern->chains ? pattern->start_order[kv] : kv;
        tables->chains[at] = chain;
      }
    }
}

/* ---- Items ---- */

/* Scratch per sequence, per plane and per table entry. */
typedef struct Scratch {
  int32_t *first, *tiles; /* [batch] */
  int64_t *bytes;         /* [batch] */
  int32_t *base;          /* [maps or patterns] */
  int32_t *work, *start;  /* [rows or chains] */
} Scratch;

static void scratch_free(Scratch *scratch) {
  free(scratch->first);
  free(scratch->tiles);
  free(scratch->bytes);
  free(scratch->base);
  free(scratch->work);
  free(scratch->start);
}

static bool scratch_allocate(Scratch *scratch, int32_t batch, int64_t planes, int64_t entries) {
  size_t sequences = (size_t)batch + 1;
  scratch->first = memory_allocate(sequences, sizeof(int32_t));
  scratch->tiles = memory_allocate(sequences, sizeof(int32_t));
  scratch->bytes = memory_allocate(sequences, sizeof(int64_t));
  scratch->base = memory_allocate((size_t)planes + 1, sizeof(int32_t));
  scratch->work = memory_allocate((size_t)entries + 1, sizeof(int32_t));
  scratch->start = memory_allocate((size_t)entries + 1, sizeof(int32_t));
  return scratch->first && scratch->tiles && scratch->bytes && scratch->base && scratch->work &&
         scratch->start;
}

/* Row items to a forward kernel's workers: each takes time in proportion to its tiles, and half a
 * tile more. */
static rota_status deal_rows(const TableCounts *counts, const Tables *tables) {
  size_t size = (size_t)counts->row_items + 1;
  int64_t *time = memory_allocate(size, sizeof(int64_t));
  int32_t *worker = memory_allocate(size, sizeof(int32_t)), queues;
  rota_status status = time && worker ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; status == ROTA_OK && i < counts->row_items; i++)
    time[i] = 2 * (int64_t)row_tiles(&tables->rows[tables->row_items[i].index], tables->runs) + 1;
  if (status == ROTA_OK)
    status = items_deal(time, counts->row_items, (int32_t)counts->queue - 1, worker);
  if (status == ROTA_OK)
    status = items_gather(worker, tables->row_items, counts->row_items, tables->queue, &queues);
  free(time);
  free(worker);
  return status;
}

/* Pieces of rows and their items in place of the whole ones'. */
static rota_status cut_rows(const TablesRequest *request, const TableCounts *counts,
                            const Tables *tables) {
  if (counts->pieces == 0)
    return ROTA_OK;
  int32_t *cut = memory_allocate((size_t)counts->rows + 1, sizeof(int32_t));
  if (!cut)
    return ROTA_OUT_OF_MEMORY;
  PieceTables pieces = {.sequences = tables->sequences,
                        .rows = tables->rows,
                        .runs = tables->runs,
                        .pieces = tables->pieces,
                        .joins = tables->joins,
                        .row_count = (int32_t)counts->rows,
                        .run_count = (int32_t)map_runs(request->planes)};
  pieces_fill(&request->pieces, request->planes, request->lengths->batch, request->heads, &pieces,
              cut);
  pieces_expand(&pieces, counts->pieces, cut, tables->row_items, counts->q_tiles * request->heads,
                counts->row_items);
  free(cut);
  return ROTA_OK;
}

static void number_row_items(const TablesRequest *request, const Tables *tables) {
  RotaItem *item = tables->row_items;
  bool per_head = request->planes->map_heads > 1;
  for (int32_t s = 0; s < request->lengths->batch; s++) {
    const RotaSequence *sequence = &tables->sequences[s];
    for (int32_t q = 0; q < sequence->q_tiles; q++)
      for (int head = 0; head < request->heads; head++)
        *item++ =
            (RotaItem){sequence->row_begin + (per_head ? head * sequence->q_tiles : 0) + q, head};
  }
}

/* Runs, rows and row items, the latter dealt to workers where a forward kernel has some. What a
 * (sequence, kv head)'s rows share in the L2: its K and V. */
static rota_status fill_row_side(const TablesRequest *request, const TableCounts *counts,
                                 const Tables *tables, Scratch *scratch) {
  fill_runs(request->planes, tables->runs, scratch->base);
  fill_rows(request, tables, scratch->base, scratch->work);
  if (request->rows_in_order) {
    number_row_items(request, tables);
    return ROTA_OK;
  }
  for (int32_t s = 0; s < request->lengths->batch; s++) {
    scratch->first[s] = tables->sequences[s].row_begin;
    scratch->tiles[s] = tables->sequences[s].q_tiles;
    scratch->bytes[s] = request->lengths->n_k[s] * request->kv_bytes;
  }
  ItemsRequest items = {.batch = request->lengths->batch,
                        .kv_heads = request->kv_heads,
                        .heads_per_pair = request->heads / request->kv_heads,
                        .per_head = request->planes->map_heads > 1,
                        .first = scratch->first,
                        .tiles = scratch->tiles,
                        .bytes = scratch->bytes,
                        .work = scratch->work};
  ROTA_TRY(items_order(&items, tables->row_items));
  if (request->schedule)
    return ROTA_OK;
  ROTA_TRY(cut_rows(request, counts, tables));
  return counts->queue > 0 ? deal_rows(counts, tables) : ROTA_OK;
}

/* Chain items and queue. */
static rota_status fill_queue(const TablesRequest *request, const Tables *tables,
                              ItemsRequest *items, TableCounts *counts) {
  Schedule schedule = assigning(request);
  items->turns = schedule.assignment == ASSIGN_TICKETS;
  if (!request->ordered)
    items->start = NULL; /* the longest come first */
  ROTA_TRY(items_order(items, tables->chain_items));
  AssignRequest assign = {.schedule = &schedule,
                          .planes = request->planes,
                          .chains = tables->chains,
                          .batch = request->lengths->batch,
                          .kv_heads = request->kv_heads,
                          .item_count = counts->chain_items,
                          .ordered = request->ordered};
  int32_t queues;
  ROTA_TRY(assign_items(&assign, tables->chain_items, tables->queue, &queues));
  counts->queue = queues + 1;
  return ROTA_OK;
}

/* Visits, chains, chain items and queue. What chains share: Q and dO of the group's heads. */
static rota_status fill_chain_side(const TablesRequest *request, TableCounts *counts,
                                   const Tables *tables, Scratch *scratch) {
  fill_visits(request->planes, tables->visits, scratch->base);
  fill_chains(request, tables, scratch->base, scratch->work, scratch->start);
  int32_t first = 0, group = request->heads / request->kv_heads;
  for (int32_t s = 0; s < request->lengths->batch; s++) {
    scratch->first[s] = first;
    scratch->tiles[s] = tables->sequences[s].kv_tiles;
    scratch->bytes[s] = request->lengths->n_q[s] * request->q_bytes * group;
    first += scratch->tiles[s] * request->planes->pattern_heads;
  }
  ItemsRequest items = {.batch = request->lengths->batch,
                        .kv_heads = request->kv_heads,
                        .heads_per_pair = 1,
                        .per_head = request->planes->pattern_heads > 1,
                        .first = scratch->first,
                        .tiles = scratch->tiles,
                        .bytes = scratch->bytes,
                        .work = scratch->work,
                        .start = scratch->start};
  return fill_queue(request, tables, &items, counts);
}

rota_status tables_fill(const TablesRequest *request, TableCounts *counts, const Tables *tables) {
  fill_sequences(request, tables->sequences);
  int32_t batch = request->lengths->batch;
  Scratch rows = {0}, chains = {0};
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (scratch_allocate(&rows, batch, map_count(request->planes), counts->rows))
    status = fill_row_side(request, counts, tables, &rows);
  scratch_free(&rows);
  if (status != ROTA_OK || !request->schedule)
    return status;
  status = ROTA_OUT_OF_MEMORY;
  if (scratch_allocate(&chains, batch, pattern_count(request->planes), counts->chains))
    status = fill_chain_side(request, counts, tables, &chains);
  scratch_free(&chains);
  return status;
}
