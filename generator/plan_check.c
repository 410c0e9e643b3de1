/* Level 7. Checks a plan's tables as a kernel would use them, independent of what wrote them: a
 * plan may come from a file. */
#include "generator/plan_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Check {
  const Plan *plan;
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaChain *chains;
  const RotaVisit *visits;
  const RotaPiece *pieces;
  const RotaJoin *joins;
  int64_t whole_rows; /* those of pieces come behind */
  int64_t q_tiles;    /* of all sequences */
  int64_t kv_tiles;   /* likewise */
  int32_t *kv_begin;  /* [batch] kv tiles of all sequences before it */
  /* Per (query tile, query head), numbered (tile_begin + q_tile) * heads + head: */
  int32_t *row_of; /* its row, -1 before it was seen */
  int32_t *total;  /* non-empty tiles */
  int32_t *added;  /* visits so far */
  int32_t *seen;   /* the last chain item that visited it, -1 */
  bool *chained;   /* [kv tile][kv head]: has its chain item */
  bool *wanted;    /* [piece][item head]: is joined, and no item has come yet */
  int64_t items;   /* row items that there must be */
} Check;

/* Bounds inclusive; also false for an empty range. */
static bool within(int64_t value, int64_t low, int64_t high) {
  return value >= low && value <= high;
}

/* kv tile behind the run, without the kind bit. */
static unsigned run_end(const RotaRun *run) {
  return run->end_kind & ROTA_RUN_END;
}

static rota_status damaged(const char *table, int64_t index, const char *what) {
  return status_fail(ROTA_FILE, "plan: %s %lld %s; build the plan again", table, (long long)index,
                     what);
}

/* ---- Sections and sequences ---- */

static rota_status check_section(const Plan *plan, const char *name, RotaSection section,
                                 int64_t count, size_t size) {
  int64_t bytes = (int64_t)plan->image_bytes;
  if (section.offset < 0 || section.offset > bytes || section.offset % 16 != 0 ||
      !within(section.count, 0, INT32_MAX) ||
      section.count > (bytes - section.offset) / (int64_t)size)
    return status_fail(ROTA_FILE, "plan: table '%s' reaches outside its image", name);
  if (count >= 0 && section.count != count)
    return status_fail(ROTA_FILE, "plan: table '%s' has %lld entries instead of %lld", name,
                       (long long)section.count, (long long)count);
  return ROTA_OK;
}

/* The limits that lengths_create keeps. */
static rota_status check_lengths(const Plan *plan) {
  const Lengths *lengths = plan->lengths;
  for (int32_t s = 0; s < lengths->batch; s++)
    if (!within(lengths->rows_q[s], 0, LIMIT_LENGTH) ||
        !within(lengths->rows_k[s], 0, LIMIT_LENGTH) ||
        !within(lengths->n_q[s], 0, lengths->rows_q[s]) ||
        !within(lengths->n_k[s], 0, lengths->rows_k[s]) ||
        !within(lengths->begin_q[s], 0, lengths->packed ? INT32_MAX : 0) ||
        !within(lengths->begin_k[s], 0, lengths->packed ? INT32_MAX : 0))
      return damaged("sequence", s, "has impossible lengths");
  return ROTA_OK;
}

/* Sequence table against lengths; counts query and kv tiles. */
static rota_status check_sequences(Check *check) {
  const Plan *plan = check->plan;
  const Lengths *lengths = plan->lengths;
  for (int32_t s = 0; s < lengths->batch; s++) {
    const RotaSequence *at = &check->sequences[s];
    if (at->n_q != lengths->n_q[s] || at->n_k != lengths->n_k[s] ||
        at->rows_q != lengths->rows_q[s] || at->rows_k != lengths->rows_k[s] ||
        at->begin_q != lengths->begin_q[s] || at->begin_k != lengths->begin_k[s] ||
        at->batch != s || at->slot != (lengths->packed ? 0 : s))
      return damaged("sequence", s, "differs from the plan's lengths");
    if (at->q_tiles != tiles_covering(at->rows_q, plan->tiling.tile_q) ||
        at->kv_tiles != tiles_covering(at->rows_k, plan->tiling.tile_kv) ||
        at->tile_begin != check->q_tiles)
      return damaged("sequence", s, "has wrong tile counts");
    check->kv_begin[s] = (int32_t)check->kv_tiles;
    check->q_tiles += at->q_tiles;
    check->kv_tiles += at->kv_tiles;
    if (check->q_tiles * plan->heads > INT32_MAX || check->kv_tiles * plan->kv_heads > INT32_MAX)
      return damaged("sequence", s, "goes beyond 2^31 tiles");
  }
  return ROTA_OK;
}

/* ---- Rows ---- */

/* Runs ascend, stay inside the sequence, and a full one covers existing keys only. Returns the
 * tiles, or -1. */
static int64_t count_tiles(const Check *check, const RotaRow *row) {
  const RotaSequence *sequence = &check->sequences[row->sequence];
  int32_t tile_kv = check->plan->tiling.tile_kv;
  int64_t tiles = 0, before = 0;
  for (int32_t r = row->run_begin; r < row->run_end; r++) {
    const RotaRun *run = &check->runs[r];
    int64_t end = run_end(run);
    bool full = !(run->end_kind & ROTA_RUN_PARTIAL);
    if (run->begin < before || run->begin >= end || end > tiles_covering(sequence->n_k, tile_kv))
      return -1;
    if (full && end * tile_kv > sequence->n_k)
      return -1;
    tiles += end - run->begin;
    before = end;
  }
  return tiles;
}

/* That the row and its runs are within bounds; its tiles. */
static rota_status check_row(const Check *check, int32_t index, int64_t *tiles) {
  const Plan *plan = check->plan;
  const RotaRow *row = &check->rows[index];
  if (!within(row->sequence, 0, plan->lengths->batch - 1) ||
      !within(row->q_tile, 0, check->sequences[row->sequence].q_tiles - 1) ||
      !within(row->run_begin, 0, row->run_end) || row->run_end > plan->runs.count)
    return damaged("row", index, "is out of range");
  const RotaSequence *sequence = &check->sequences[row->sequence];
  *tiles = count_tiles(check, row);
  if (*tiles < 0)
    return damaged("row", index, "has runs out of range");
  if (*tiles > 0 && (int64_t)row->q_tile * plan->tiling.tile_q >= sequence->n_q)
    return damaged("row", index, "has keys although its queries are past the end");
  return ROTA_OK;
}

/* Of a query tile and head, as in templates/lib/tables.cuh; the row is within range. */
static int64_t tile_number(const Check *check, RotaItem item) {
  const RotaRow *row = &check->rows[item.index];
  int64_t tile = check->sequences[row->sequence].tile_begin + row->q_tile;
  return tile * plan_row_heads(check->plan) + item.head;
}

/* Notes that (row, item head) has its item, or its joins. */
static rota_status take_row(Check *check, const char *table, int64_t index, RotaItem item) {
  int64_t tiles = 0;
  ROTA_TRY(check_row(check, item.index, &tiles));
  int64_t at = tile_number(check, item);
  if (check->row_of[at] >= 0)
    return damaged(table, index, "repeats another");
  check->row_of[at] = item.index;
  check->total[at] = (int32_t)tiles;
  return ROTA_OK;
}

/* Follows the item as a block of the forward pass does, and notes its tiles for the chains' sake.
 */
static rota_status check_row_item(Check *check, int64_t index, RotaItem item) {
  int heads = plan_row_heads(check->plan);
  bool in_order = tiling_get(&check->plan->tiling, "rows_beside", 0) != 0;
  if (!within(item.index, 0, check->plan->rows.count - 1) || !within(item.head, 0, heads - 1))
    return damaged("row item", index, "names no row or head");
  if (item.index < check->whole_rows) {
    ROTA_TRY(take_row(check, "row item", index, item));
    return in_order && tile_number(check, item) != index
               ? damaged("row item", index, "is not the query tile of that number")
               : ROTA_OK;
  }
  bool *wanted = &check->wanted[(item.index - check->whole_rows) * heads + item.head];
  if (!*wanted)
    return damaged("row item", index, "repeats another, or nothing joins its piece");
  *wanted = false;
  return ROTA_OK;
}

/* ---- Pieces ---- */

/* The pieces' runs, one after another, are those of the row. */
static rota_status check_piece_runs(const Check *check, const RotaJoin *join) {
  const RotaRow *row = &check->rows[join->row];
  int32_t run = row->run_begin;
  unsigned at = run < row->run_end ? (unsigned)check->runs[run].begin : 0;
  for (int32_t p = 0; p < join->pieces; p++) {
    int32_t index = (int32_t)check->whole_rows + join->piece + p;
    const RotaRow *piece = &check->rows[index];
    int64_t tiles = 0;
    ROTA_TRY(check_row(check, index, &tiles));
    if (piece->sequence != row->sequence || piece->q_tile != row->q_tile || tiles == 0)
      return damaged("row", index, "is no piece of the row that it is joined to");
    for (int32_t r = piece->run_begin; r < piece->run_end; r++) {
      const RotaRun *part = &check->runs[r], *whole = run < row->run_end ? &check->runs[run] : NULL;
      if (!whole || (unsigned)part->begin != at || run_end(part) > run_end(whole) ||
          ((part->end_kind ^ whole->end_kind) & ~ROTA_RUN_END) != 0)
        return damaged("row", index, "has other tiles than the row that it is a piece of");
      at = run_end(part);
      if (at == run_end(whole) && ++run < row->run_end)
        at = (unsigned)check->runs[run].begin;
    }
  }
  return run == row->run_end ? ROTA_OK : damaged("row", join->row, "is not all in its pieces");
}

/* The first join of an item: its row, pieces and partials, which lie from `partial` on. */
static rota_status check_first_join(Check *check, int64_t index, int64_t partial) {
  const Plan *plan = check->plan;
  const RotaJoin *join = &check->joins[index];
  int heads = plan_row_heads(plan);
  if (!within(join->row, 0, check->whole_rows - 1) || !within(join->head, 0, heads - 1) ||
      join->pieces < 2 || !within(join->piece, 0, plan->pieces.count - join->pieces))
    return damaged("join", index, "names no row, head or pieces");
  ROTA_TRY(take_row(check, "join", index, (RotaItem){join->row, join->head}));
  const RotaRow *row = &check->rows[join->row];
  int64_t tile_q = plan->tiling.tile_q;
  int64_t left = check->sequences[row->sequence].rows_q - row->q_tile * tile_q;
  if (join->first != 0 || join->partial != partial ||
      join->rows != (left < tile_q ? left : tile_q) * tiling_packed(&plan->tiling))
    return damaged("join", index, "has wrong rows");
  for (int32_t p = 0; p < join->pieces; p++) {
    const RotaPiece *piece = &check->pieces[join->piece + p];
    bool *wanted = &check->wanted[(int64_t)(join->piece + p) * heads + join->head];
    if (piece->row != join->row || piece->number != p || *wanted ||
        piece->partial + (int64_t)join->head * piece->step != partial + (int64_t)p * join->rows)
      return damaged("piece", join->piece + p, "differs from what is joined");
    *wanted = true;
  }
  check->items += join->pieces - 1;
  return check_piece_runs(check, join);
}

/* Joins of an item follow one another and take all its rows; partials lie one after another. */
static rota_status check_joins(Check *check) {
  const Plan *plan = check->plan;
  int64_t partial = 0;
  int32_t step = tiling_get(&plan->tiling, "join_rows", 1);
  for (int64_t i = 0; i < plan->pieces.count; i++)
    if (!within(check->pieces[i].row, 0, check->whole_rows - 1))
      return damaged("piece", i, "names no row");
  for (int64_t i = 0, next = 0; i < plan->joins.count; i = next) {
    ROTA_TRY(check_first_join(check, i, partial));
    const RotaJoin *join = &check->joins[i];
    partial += (int64_t)join->pieces * join->rows;
    for (next = i + 1; (next - i) * step < join->rows; next++) {
      RotaJoin want = *join;
      want.first = (int32_t)(next - i) * step;
      if (next == plan->joins.count || memcmp(&want, &check->joins[next], sizeof want) != 0)
        return damaged("join", next, "does not go on where the one before it ends");
    }
  }
  if (partial != plan->partial_rows || partial > INT32_MAX)
    return status_fail(ROTA_FILE, "plan: its pieces have %lld rows of results, not %lld",
                       (long long)partial, (long long)plan->partial_rows);
  return ROTA_OK;
}

/* ---- Chains ---- */

/* Kind bits of tile (row, kv_tile) in a visit: -1 if empty. */
static int64_t tile_kind_bits(const Check *check, const RotaRow *row, int32_t kv_tile) {
  int32_t low = row->run_begin, high = row->run_end;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (run_end(&check->runs[middle]) <= (unsigned)kv_tile)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == row->run_end || check->runs[low].begin > kv_tile)
    return -1;
  unsigned kind = check->runs[low].end_kind;
  return (kind & ROTA_RUN_PARTIAL ? ROTA_VISIT_PARTIAL : 0) |
         (kind & ROTA_RUN_BOUNDED ? ROTA_VISIT_BOUNDED : 0);
}

/* Follows one visit as the item's worker does. */
static rota_status check_visit(Check *check, int32_t item, const RotaChain *chain, int kv_head,
                               int32_t index) {
  const Plan *plan = check->plan;
  const RotaSequence *sequence = &check->sequences[chain->sequence];
  RotaVisit visit = check->visits[index];
  int32_t q_tile = (int32_t)(visit.tile & ROTA_VISIT_TILE), group = plan->heads / plan->kv_heads;
  int32_t rank = (int32_t)(visit.rank & ROTA_VISIT_RANK);
  int32_t head = (int32_t)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
  if (q_tile >= sequence->q_tiles || head >= group)
    return damaged("visit", index, "names no query tile or head");
  int64_t at =
      ((int64_t)sequence->tile_begin + q_tile) * plan->heads + (int64_t)kv_head * group + head;
  int64_t kind = tile_kind_bits(check, &check->rows[check->row_of[at]], chain->kv_tile);
  if (kind < 0)
    return damaged("visit", index, "is of an empty tile");
  if (kind != (visit.tile & (ROTA_VISIT_PARTIAL | ROTA_VISIT_BOUNDED)))
    return damaged("visit", index, "has the wrong tile kind");
  if (check->seen[at] == item)
    return damaged("visit", index, "repeats another of its chain");
  check->seen[at] = item;
  check->added[at]++;
  if (rank >= check->total[at] ||
      ((visit.tile & ROTA_VISIT_LAST) != 0) != (rank == check->total[at] - 1))
    return damaged("visit", index, "has a wrong rank");
  return ROTA_OK;
}

static rota_status check_chain_item(Check *check, int32_t index, RotaItem item) {
  const Plan *plan = check->plan;
  if (!within(item.index, 0, plan->chains.count - 1) || !within(item.head, 0, plan->kv_heads - 1))
    return damaged("chain item", index, "names no chain or head");
  const RotaChain *chain = &check->chains[item.index];
  if (!within(chain->sequence, 0, plan->lengths->batch - 1) ||
      !within(chain->kv_tile, 0, check->sequences[chain->sequence].kv_tiles - 1) ||
      !within(chain->visit_begin, 0, chain->visit_end) || chain->visit_end > plan->visits.count)
    return damaged("chain", item.index, "is out of range");
  int64_t at =
      ((int64_t)check->kv_begin[chain->sequence] + chain->kv_tile) * plan->kv_heads + item.head;
  if (check->chained[at])
    return damaged("chain item", index, "repeats another");
  check->chained[at] = true;
  for (int32_t v = chain->visit_begin; v < chain->visit_end; v++)
    ROTA_TRY(check_visit(check, index, chain, item.head, v));
  return ROTA_OK;
}

/* Workers' shares join without gaps, so that item order is ticket order. */
static rota_status check_queue(const Plan *plan) {
  const int *queue = plan_section(plan, plan->queue);
  bool forward = plan->direction == ROTA_FORWARD;
  if (queue[0] != 0 ||
      queue[plan->workers] != (forward ? plan->row_items.count : plan->chain_items.count))
    return status_fail(ROTA_FILE, "plan: the workers' queues do not cover the items");
  for (int32_t w = 0; w < plan->workers; w++)
    if (queue[w] > queue[w + 1])
      return damaged("worker", w, "has a negative queue");
  return ROTA_OK;
}

/* Workers take up their items in order: an ordered kernel ends if none waits for ever. */
static rota_status check_waits(const Plan *plan) {
  bool co_resident;
  rota_status status = plan_verify_queues(plan, &co_resident);
  if (status == ROTA_SCHEDULE) {
    char message[512];
    snprintf(message, sizeof message, "%s", status_message());
    return status_fail(ROTA_FILE, "plan: %s; build the plan again", message);
  }
  if (status == ROTA_OK && co_resident && !plan->co_resident)
    return status_fail(ROTA_FILE, "plan: its workers wait for one another, but it does not say so; "
                                  "build the plan again");
  return status;
}

/* ---- All together ---- */

static rota_status check_rows(Check *check) {
  const Plan *plan = check->plan;
  const RotaItem *items = plan_section(plan, plan->row_items);
  check->items = check->q_tiles * plan_row_heads(plan);
  ROTA_TRY(check_joins(check));
  if (plan->row_items.count != check->items)
    return status_fail(ROTA_FILE, "plan: it has %lld row items; its lengths and pieces give %lld",
                       (long long)plan->row_items.count, (long long)check->items);
  for (int64_t i = 0; i < plan->row_items.count; i++)
    ROTA_TRY(check_row_item(check, i, items[i]));
  if (plan->direction == ROTA_FORWARD && plan->workers > 0)
    ROTA_TRY(check_queue(plan));
  /* Informative for kernels, which follow items; still no index out of its table. */
  for (int32_t s = 0; s < plan->lengths->batch; s++)
    if (!within(check->sequences[s].row_begin, 0, check->whole_rows - check->sequences[s].q_tiles))
      return damaged("sequence", s, "has rows out of range");
  return ROTA_OK;
}

static rota_status check_chains(Check *check) {
  const Plan *plan = check->plan;
  const RotaItem *items = plan_section(plan, plan->chain_items);
  ROTA_TRY(check_queue(plan));
  for (int64_t i = 0; i < plan->chain_items.count; i++)
    ROTA_TRY(check_chain_item(check, (int32_t)i, items[i]));
  for (int64_t i = 0; i < plan->row_items.count; i++)
    if (check->added[i] != check->total[i])
      return damaged("query tile and head", i, "does not get all of its partials");
  return plan_is_ordered(plan) ? check_waits(plan) : ROTA_OK;
}

/* Every later access relies on these. */
static rota_status check_sections(const Plan *plan) {
  bool backward = plan->direction == ROTA_BACKWARD;
  int64_t any = backward ? -1 : 0; /* a forward plan has no chains */
  int32_t batch = plan->lengths->batch;
  ROTA_TRY(check_section(plan, "sequences", plan->sequences, batch, sizeof(RotaSequence)));
  ROTA_TRY(check_section(plan, "rows", plan->rows, -1, sizeof(RotaRow)));
  ROTA_TRY(check_section(plan, "runs", plan->runs, -1, sizeof(RotaRun)));
  ROTA_TRY(check_section(plan, "row_items", plan->row_items, -1, sizeof(RotaItem)));
  ROTA_TRY(check_section(plan, "chains", plan->chains, any, sizeof(RotaChain)));
  ROTA_TRY(check_section(plan, "visits", plan->visits, any, sizeof(RotaVisit)));
  ROTA_TRY(check_section(plan, "chain_items", plan->chain_items, any, sizeof(RotaItem)));
  int64_t none = backward ? 0 : -1; /* and a backward plan no pieces */
  ROTA_TRY(check_section(plan, "pieces", plan->pieces, none, sizeof(RotaPiece)));
  ROTA_TRY(check_section(plan, "joins", plan->joins, none, sizeof(RotaJoin)));
  if (plan->pieces.count > plan->rows.count)
    return status_fail(ROTA_FILE, "plan: its pieces have no rows");
  if (plan->workers < 0 || (backward && plan->gang < 1))
    return status_fail(ROTA_FILE, "plan: %d workers for a gang of %d", plan->workers, plan->gang);
  int64_t queue = backward || plan->workers > 0 ? (int64_t)plan->workers + 1 : 0;
  return check_section(plan, "queue", plan->queue, queue, sizeof(int));
}

static bool allocate_state(Check *check) {
  size_t heads = (size_t)plan_row_heads(check->plan);
  size_t blocks = (size_t)check->q_tiles * heads + 1;
  size_t chains = (size_t)check->plan->chain_items.count + 1;
  check->row_of = memory_allocate(blocks, sizeof(int32_t));
  check->total = memory_allocate(blocks, sizeof(int32_t));
  check->added = memory_allocate(blocks, sizeof(int32_t));
  check->seen = memory_allocate(blocks, sizeof(int32_t));
  check->chained = memory_allocate(chains, sizeof(bool));
  check->wanted = memory_allocate((size_t)check->plan->pieces.count * heads + 1, sizeof(bool));
  if (!check->row_of || !check->total || !check->added || !check->seen || !check->chained ||
      !check->wanted)
    return false;
  for (size_t i = 0; i < blocks; i++)
    check->row_of[i] = check->seen[i] = -1;
  return true;
}

static rota_status check_tables(Check *check) {
  const Plan *plan = check->plan;
  check->kv_begin = memory_allocate((size_t)plan->lengths->batch + 1, sizeof(int32_t));
  if (!check->kv_begin)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(check_sequences(check));
  int64_t chain_items = plan->direction == ROTA_BACKWARD ? check->kv_tiles * plan->kv_heads : 0;
  if (plan->chain_items.count != chain_items)
    return status_fail(ROTA_FILE, "plan: it has %lld chain items; its lengths give %lld",
                       (long long)plan->chain_items.count, (long long)chain_items);
  if (!allocate_state(check))
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(check_rows(check));
  return plan->direction == ROTA_BACKWARD ? check_chains(check) : ROTA_OK;
}

rota_status plan_check(const Plan *plan) {
  ROTA_TRY(check_lengths(plan));
  ROTA_TRY(check_sections(plan));
  Check check = {.plan = plan,
                 .sequences = plan_section(plan, plan->sequences),
                 .rows = plan_section(plan, plan->rows),
                 .runs = plan_section(plan, plan->runs),
                 .chains = plan_section(plan, plan->chains),
                 .visits = plan_section(plan, plan->visits),
                 .pieces = plan_section(plan, plan->pieces),
                 .joins = plan_section(plan, plan->joins),
                 .whole_rows = plan_whole_rows(plan)};
  rota_status status = check_tables(&check);
  free(check.kv_begin);
  free(check.row_of);
  free(check.total);
  free(check.added);
  free(check.seen);
  free(check.chained);
  free(check.wanted);
  return status;
}
