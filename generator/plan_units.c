/* Level 7. Units and their works, see plan_maker.h. */
#include "generator/plan_maker.h"

#include <stdlib.h>
#include <string.h>

enum {
  BLOCK_ROWS = 16, /* scores are ordered in blocks of so many query tiles ... */
  BLOCK_PAIRS = 8, /* ... by pairs of kv tiles, that share operands in the L2 */
};

rota_status array_append(Array *array, const void *entry, size_t size) {
  if (array->count == array->capacity) {
    int64_t capacity = array->capacity ? 2 * array->capacity : 64;
    void *data = memory_resize(array->data, (size_t)capacity, size);
    if (!data)
      return ROTA_OUT_OF_MEMORY;
    array->data = data;
    array->capacity = capacity;
  }
  memcpy((char *)array->data + (size_t)array->count++ * size, entry, size);
  return ROTA_OK;
}

/* ---- Sizes ---- */

int works_column_blocks(int dim) {
  return (dim + WORKS_COLUMNS_MAX - 1) / WORKS_COLUMNS_MAX;
}

int64_t works_columns(int dim) {
  return round_to((dim + works_column_blocks(dim) - 1) / works_column_blocks(dim), 16);
}

int64_t maker_block_bytes(const Maker *maker) {
  return WORKS_PLANE_BYTES * (int64_t)tiling_get(&maker->plan->tiling, "score_planes", 1);
}

/* Of a block and its share of the stats. */
int64_t maker_block_cost(const Maker *maker) {
  return maker_block_bytes(maker) + (maker->backward ? 0 : WORKS_STAT_BYTES / 4);
}

bool maker_chains(const Maker *maker) {
  return maker->backward && tiling_get(&maker->plan->tiling, "score_planes", 1) == 1;
}

/* Bytes of the sums of a group row (of dQ, or O with maxima and sums of P), and of a kv tile. */
int64_t maker_row_sums(const Maker *maker) {
  return maker->wide * (maker->backward ? maker->blocks_k : maker->blocks_v);
}

int64_t maker_key_sums(const Maker *maker) {
  return maker->backward ? maker->wide * (maker->blocks_k + maker->blocks_v) : 0;
}

/* ---- Works of a unit ---- */

/* The row of group row r of a kv head. */
static const RotaRow *row_of(const Maker *maker, const RotaUnit *unit, int32_t row) {
  int32_t q_tiles = maker->sequences[unit->sequence].q_tiles;
  return &maker->rows[unit->row_table + row / q_tiles * unit->row_step + row % q_tiles];
}

/* kv tiles of a row within [begin, end); `partial`: any of them is partial. */
static int32_t tiles_within(const Maker *maker, const RotaRow *row, int32_t begin, int32_t end,
                            bool *partial) {
  int32_t count = 0;
  for (int32_t i = row->run_begin; i < row->run_end; i++) {
    const RotaRun *run = &maker->runs[i];
    int32_t run_end = (int32_t)(run->end_kind & ~ROTA_RUN_PARTIAL);
    int32_t from = run->begin > begin ? run->begin : begin, to = run_end < end ? run_end : end;
    if (to <= from)
      continue;
    count += to - from;
    *partial |= (run->end_kind & ROTA_RUN_PARTIAL) != 0;
  }
  return count;
}

static rota_status add_score(Maker *maker, UnitDraft *draft, int32_t row, int32_t pair) {
  bool partial = false;
  int32_t tiles =
      tiles_within(maker, row_of(maker, &draft->unit, row), 2 * pair, 2 * pair + 2, &partial);
  if (tiles == 0)
    return ROTA_OK;
  /* A tile that is empty beside one that is not gets its zeros by the mask. */
  unsigned what = ROTA_WORK_SCORES | (partial || tiles < 2 ? 3u << 2 : 0u) | (unsigned)pair << 4;
  draft->scores++;
  return array_append(&maker->works, &(RotaWork){row, what}, sizeof(RotaWork));
}

static rota_status add_scores(Maker *maker, UnitDraft *draft) {
  const RotaUnit *unit = &draft->unit;
  int32_t row_end = unit->row_begin + unit->rows;
  int32_t pair_begin = unit->kv_begin / 2, pair_end = pair_begin + unit->kv_tiles / 2;
  for (int32_t pairs = pair_begin; pairs < pair_end; pairs += BLOCK_PAIRS)
    for (int32_t rows = unit->row_begin; rows < row_end; rows += BLOCK_ROWS)
      for (int32_t row = rows; row < rows + BLOCK_ROWS && row < row_end; row++)
        for (int32_t pair = pairs; pair < pairs + BLOCK_PAIRS && pair < pair_end; pair++)
          ROTA_TRY(add_score(maker, draft, row, pair));
  return ROTA_OK;
}

typedef struct Weighed {
  RotaWork work;
  int32_t weight, order;
} Weighed;

/* Longest first; equals as they came. */
static int compare_weighed(const void *a, const void *b) {
  const Weighed *x = a, *y = b;
  if (x->weight != y->weight)
    return x->weight > y->weight ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

static rota_status add_weighed(Array *list, int32_t tile, unsigned kind, int blocks,
                               int32_t weight) {
  for (int i = 0; i < blocks; i++) {
    Weighed entry = {{tile, kind | (unsigned)i << 2}, weight, (int32_t)list->count};
    ROTA_TRY(array_append(list, &entry, sizeof entry));
  }
  return ROTA_OK;
}

/* Query tiles of a kv tile's chain: all heads'; the unit's share of rows is not looked for. */
static int32_t chain_visits(const Maker *maker, const RotaUnit *unit, int32_t kv_tile) {
  const RotaChain *chain = &maker->chains[unit->chain_table + kv_tile];
  return chain->visit_end - chain->visit_begin;
}

/* Those within a unit. */
static int32_t unit_visits(const Maker *maker, const RotaUnit *unit, int32_t kv_tile) {
  const RotaChain *chain = &maker->chains[unit->chain_table + kv_tile];
  int32_t q_tiles = maker->sequences[unit->sequence].q_tiles, count = 0;
  for (int32_t i = chain->visit_begin; i < chain->visit_end; i++) {
    const RotaVisit *visit = &maker->visits[i];
    int32_t row = (int32_t)(visit->rank >> ROTA_VISIT_HEAD_SHIFT) * q_tiles +
                  (int32_t)(visit->tile & ROTA_VISIT_TILE);
    count += row >= unit->row_begin && row < unit->row_begin + unit->rows;
  }
  return count;
}

/* A chain goes through the units where it has visits; one that has none, for its zeros, through the
 * last. `kind`: of the chain, or of the sum of its dK. */
static rota_status add_chain(Maker *maker, const RotaUnit *unit, int32_t kv, unsigned kind,
                             Array *list) {
  int32_t visits = unit_visits(maker, unit, kv);
  bool empty = chain_visits(maker, unit, kv) == 0 && (unit->flags & ROTA_UNIT_LAST_K);
  return visits > 0 || empty ? add_weighed(list, kv, kind, 1, visits) : ROTA_OK;
}

/* Works of kv tiles: chains; sums of dK, where these do not make it; sums of dV and dK. */
static rota_status weigh_keys(Maker *maker, const RotaUnit *unit, unsigned kind, Array *list) {
  int32_t kv_end = unit->kv_begin + unit->kv_tiles;
  int32_t kv_tiles = maker->sequences[unit->sequence].kv_tiles;
  for (int32_t kv = unit->kv_begin; kv < kv_end && kv < kv_tiles; kv++) {
    if (maker_chains(maker)) {
      ROTA_TRY(add_chain(maker, unit, kv, kind, list));
      continue;
    }
    int32_t weight = chain_visits(maker, unit, kv);
    ROTA_TRY(add_weighed(list, kv, ROTA_WORK_DV, maker->blocks_v, weight));
    ROTA_TRY(add_weighed(list, kv, ROTA_WORK_DK, maker->blocks_k, weight));
  }
  return ROTA_OK;
}

/* Works of group rows: sums of dQ or O. */
static rota_status weigh_rows(Maker *maker, const RotaUnit *unit, Array *list) {
  int32_t kv_end = unit->kv_begin + unit->kv_tiles;
  int blocks = maker->backward ? maker->blocks_k : maker->blocks_v;
  for (int32_t row = unit->row_begin; row < unit->row_begin + unit->rows; row++) {
    bool partial = false;
    int32_t weight =
        tiles_within(maker, row_of(maker, unit, row), unit->kv_begin, kv_end, &partial);
    ROTA_TRY(add_weighed(list, row, ROTA_WORK_DQ, blocks, weight));
  }
  return ROTA_OK;
}

/* One phase: chains; or sums. */
static rota_status add_sums(Maker *maker, const RotaUnit *unit, bool chains, int32_t *count) {
  Array list = {0};
  rota_status status = ROTA_OK;
  bool made = maker_chains(maker) && tiling_get(&maker->plan->tiling, "makes_keys", 1);
  if (chains || (maker->backward && !made))
    status = weigh_keys(maker, unit, chains ? ROTA_WORK_SCORES : ROTA_WORK_DK, &list);
  if (status == ROTA_OK && !chains)
    status = weigh_rows(maker, unit, &list);
  if (status == ROTA_OK && list.count > 0)
    qsort(list.data, (size_t)list.count, sizeof(Weighed), compare_weighed);
  const Weighed *sorted = list.data;
  for (int64_t i = 0; i < list.count && status == ROTA_OK; i++)
    status = array_append(&maker->works, &sorted[i].work, sizeof(RotaWork));
  *count = (int32_t)list.count;
  free(list.data);
  return status;
}

static rota_status add_works(Maker *maker, UnitDraft *draft) {
  draft->work_begin = (int32_t)maker->works.count;
  draft->scores = draft->gradients = 0;
  ROTA_TRY(maker_chains(maker) ? add_sums(maker, &draft->unit, true, &draft->scores)
                               : add_scores(maker, draft));
  return add_sums(maker, &draft->unit, false, &draft->gradients);
}

/* ---- Units of a sequence ---- */

/* within: as in plan_cut.h. */
static Cut cut_sequence(const Maker *maker, const RotaSequence *sequence, const Cut *within) {
  CutRequest request = {.rows = (int64_t)sequence->q_tiles * maker->group,
                        .kv_tiles = round_to(sequence->kv_tiles, 2),
                        .block_bytes = maker_block_cost(maker),
                        .sum_q = maker_row_sums(maker),
                        .sum_k = maker_key_sums(maker),
                        .places = ROTA_PLACES,
                        .lanes = maker->lanes,
                        .steps = maker->steps,
                        .row_steps = maker_chains(maker) ? WORKS_CHAIN_STEPS : 2,
                        .processors = tiling_get(&maker->plan->tiling, "processors", 1),
                        .limit = maker->limit,
                        .panel = maker->panel,
                        .within = within,
                        .forward = !maker->backward};
  return works_cut(&request);
}

/* The cut of the largest plane, which the others keep to: so all of them share one workspace.
 * Planes take turns if there is room for their sums. */
static Cut cut_largest(Maker *maker) {
  const RotaSequence *largest = NULL;
  int64_t most = -1;
  for (int32_t s = 0; s < maker->plan->lengths->batch; s++) {
    const RotaSequence *sequence = &maker->sequences[s];
    int64_t area = (int64_t)sequence->q_tiles * sequence->kv_tiles;
    if (area <= most)
      continue;
    most = area;
    largest = sequence;
  }
  if (!largest)
    return (Cut){0};
  Cut cut = cut_sequence(maker, largest, NULL);
  if (cut.bytes <= maker->limit || maker->lanes == 1)
    return cut;
  maker->lanes = 1;
  return cut_sequence(maker, largest, NULL);
}

/* Whether a unit has a tile at all. */
static bool has_tiles(const Maker *maker, const RotaUnit *unit) {
  bool partial = false;
  for (int32_t row = unit->row_begin; row < unit->row_begin + unit->rows; row++)
    if (tiles_within(maker, row_of(maker, unit, row), unit->kv_begin,
                     unit->kv_begin + unit->kv_tiles, &partial) > 0)
      return true;
  return false;
}

/* Part `at` of `total` in steps. */
static void place_part(int64_t at, int64_t step, int64_t total, int32_t *begin, int32_t *count) {
  *begin = (int32_t)(at * step);
  *count = (int32_t)(total - at * step < step ? total - at * step : step);
}

/* Forward: a unit's keys end where its rows' do, and begin there. */
static void trim(const Maker *maker, RotaUnit *unit) {
  int32_t begin = unit->kv_begin + unit->kv_tiles, end = unit->kv_begin;
  for (int32_t row = unit->row_begin; row < unit->row_begin + unit->rows; row++) {
    const RotaRow *at = row_of(maker, unit, row);
    if (at->run_begin == at->run_end)
      continue;
    int32_t first = maker->runs[at->run_begin].begin;
    int32_t last = (int32_t)(maker->runs[at->run_end - 1].end_kind & ~ROTA_RUN_PARTIAL);
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
  }
  unit->kv_begin = begin < end ? begin / 2 * 2 : 0;
  unit->kv_tiles = begin < end ? (int32_t)round_to(end - unit->kv_begin, 2) : 0;
}

/* A unit's row or kv tile `at` was met last in unit `last[at]`, from 1; 0: not yet. This is one
 * more: it is not the first, and the one before not the last. */
static void flag_next(UnitDraft *drafts, int64_t unit, int64_t *last, int is_first, int is_last) {
  if (*last > 0) {
    drafts[unit].unit.flags &= ~is_first;
    drafts[*last - 1].unit.flags &= ~is_last;
  }
  *last = unit + 1;
}

/* First and last flags among the units from `first` on, which are in the order of the loops. A
 * dropped unit has no tiles, but every row and every kv tile keeps one, which writes its zeros.
 * In one pass: there may be as many units as tiles. */
static rota_status flag_units(const Maker *maker, int64_t first) {
  UnitDraft *drafts = maker->drafts.data;
  if (first >= maker->drafts.count)
    return ROTA_OK;
  const RotaSequence *sequence = &maker->sequences[drafts[first].unit.sequence];
  int64_t rows =
      (int64_t)sequence->q_tiles * maker->group + 1; /* a unit of none begins at 0, too */
  int64_t *last = memory_allocate((size_t)(rows + sequence->kv_tiles + 1), sizeof *last);
  if (!last)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = first; i < maker->drafts.count; i++) {
    RotaUnit *unit = &drafts[i].unit;
    unit->flags = ROTA_UNIT_FIRST_Q | ROTA_UNIT_FIRST_K | ROTA_UNIT_LAST_Q | ROTA_UNIT_LAST_K;
    flag_next(drafts, i, &last[unit->row_begin], ROTA_UNIT_FIRST_Q, ROTA_UNIT_LAST_Q);
    if (maker->backward)
      flag_next(drafts, i, &last[rows + unit->kv_begin], ROTA_UNIT_FIRST_K, ROTA_UNIT_LAST_K);
  }
  free(last);
  return ROTA_OK;
}

/* A row's kv tiles within [begin, end), from the first that is not empty to the last. */
static RotaRun span_of(const Maker *maker, const RotaRow *row, int32_t begin, int32_t end) {
  RotaRun span = {end, (unsigned)begin};
  for (int32_t i = row->run_begin; i < row->run_end; i++) {
    const RotaRun *run = &maker->runs[i];
    int32_t run_end = (int32_t)(run->end_kind & ROTA_RUN_END);
    int32_t from = run->begin > begin ? run->begin : begin, to = run_end < end ? run_end : end;
    if (to <= from)
      continue;
    span.begin = from < span.begin ? from : span.begin;
    span.end_kind = (unsigned)to;
  }
  return span;
}

/* Units of whole rows, of `most` at most, with at most `area` tiles each, up to the last key that
 * theirs attend to; the last has all keys. How many there are; with `drafts`, they are added. */
static rota_status add_row_units(Maker *maker, const RotaUnit *head, int64_t most, int64_t area,
                                 bool drafts, int64_t *count) {
  const RotaSequence *sequence = &maker->sequences[head->sequence];
  int64_t rows = (int64_t)sequence->q_tiles * maker->group;
  *count = 0;
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    int32_t keys = 0;
    int64_t tiles = 0;
    for (end = begin; end < rows; end++) {
      RotaRun span = span_of(maker, row_of(maker, head, (int32_t)end), 0, sequence->kv_tiles);
      int64_t width = (int64_t)span.end_kind - span.begin;
      if (end - begin >= most || (width > 0 && end > begin && tiles + width > area))
        break;
      if (width <= 0)
        continue;
      tiles += width;
      keys = (int32_t)span.end_kind > keys ? (int32_t)span.end_kind : keys;
    }
    ++*count;
    if (!drafts)
      continue;
    UnitDraft draft = {.unit = *head, .alone = true};
    draft.unit.row_begin = (int32_t)begin;
    draft.unit.rows = (int32_t)(end - begin);
    draft.unit.kv_tiles = (int32_t)round_to(end == rows ? sequence->kv_tiles : keys, 2);
    ROTA_TRY(array_append(&maker->drafts, &draft, sizeof draft));
  }
  return ROTA_OK;
}

/* As many as the cut's units need at least, equally large. */
static rota_status add_even_units(Maker *maker, const RotaUnit *head, const Cut *cut) {
  int64_t rows = cut->rows * 3 / 2 + 1; /* where they have few keys: a chain must not be too long */
  int64_t most = cut->rows * cut->kv_tiles, least = 1, wanted, count;
  ROTA_TRY(add_row_units(maker, head, rows, most, false, &wanted));
  while (least < most) {
    int64_t middle = (least + most) / 2;
    ROTA_TRY(add_row_units(maker, head, rows, middle, false, &count));
    if (count > wanted)
      least = middle + 1;
    else
      most = middle;
  }
  return add_row_units(maker, head, rows, most, true, &count);
}

/* One kv head's units, in the order in which their sums go on. */
static rota_status add_units(Maker *maker, const RotaUnit *head, const Cut *cut) {
  const RotaSequence *sequence = &maker->sequences[head->sequence];
  int64_t rows = (int64_t)sequence->q_tiles * maker->group;
  int64_t kv_tiles = round_to(sequence->kv_tiles, 2), first = maker->drafts.count;
  int64_t parts = rows > 0 ? (rows + cut->rows - 1) / cut->rows : 1;
  int64_t panels = kv_tiles > 0 ? (kv_tiles + cut->kv_tiles - 1) / cut->kv_tiles : 1;
  if (maker_chains(maker) && parts > 1 && panels == 1) {
    ROTA_TRY(add_even_units(maker, head, cut));
    return flag_units(maker, first);
  }
  bool alone = maker->backward ? parts * panels > 1 : panels > 1;
  for (int64_t i = 0; i < parts * panels; i++) {
    int64_t part = cut->rows_outer ? i / panels : i % parts;
    int64_t panel = cut->rows_outer ? i % panels : i / parts;
    UnitDraft draft = {.unit = *head, .alone = alone};
    RotaUnit *unit = &draft.unit;
    place_part(part, cut->rows, rows, &unit->row_begin, &unit->rows);
    place_part(panel, cut->kv_tiles, kv_tiles, &unit->kv_begin, &unit->kv_tiles);
    unit->sum_q = cut->rows_outer ? 0 : unit->row_begin;
    unit->sum_k = cut->rows_outer ? unit->kv_begin : 0;
    /* The first row and the first column of units stay, so that all outputs get written. */
    if (part > 0 && panel > 0 && !has_tiles(maker, unit))
      continue;
    if (!maker->backward && panels == 1)
      trim(maker, unit);
    ROTA_TRY(array_append(&maker->drafts, &draft, sizeof draft));
  }
  return flag_units(maker, first);
}

/* Same lengths, and rows with the same runs: the same works. */
static bool same_plane(const Maker *maker, int32_t a, int32_t b) {
  const RotaSequence *x = &maker->sequences[a], *y = &maker->sequences[b];
  if (x->n_q != y->n_q || x->n_k != y->n_k || x->q_tiles != y->q_tiles ||
      x->kv_tiles != y->kv_tiles)
    return false;
  for (int64_t i = 0; i < (int64_t)x->q_tiles * maker->row_heads; i++) {
    const RotaRow *r = &maker->rows[x->row_begin + i], *s = &maker->rows[y->row_begin + i];
    if (r->run_begin != s->run_begin || r->run_end != s->run_end)
      return false;
  }
  return true;
}

/* Blocks of a unit: all of its rows and kv tiles; of chains, each row's from its first tile to its
 * last, one after another. */
static rota_status place_rows(Maker *maker, UnitDraft *draft) {
  RotaUnit *unit = &draft->unit;
  draft->blocks = (int64_t)unit->rows * unit->kv_tiles * 2;
  if (!maker_chains(maker))
    return ROTA_OK;
  unit->offsets = (int32_t)maker->offsets.count;
  int32_t blocks = 0;
  for (int32_t row = unit->row_begin; row < unit->row_begin + unit->rows; row++) {
    RotaRun span =
        span_of(maker, row_of(maker, unit, row), unit->kv_begin, unit->kv_begin + unit->kv_tiles);
    int32_t offset = blocks - 2 * span.begin, width = (int32_t)span.end_kind - span.begin;
    ROTA_TRY(array_append(&maker->offsets, &offset, sizeof offset));
    blocks += width > 0 ? 2 * width : 0;
  }
  draft->blocks = blocks;
  return ROTA_OK;
}

/* Works of the units from `first` on; those of the units from `like` on (-1: none) serve if they
 * are of an equal plane. */
static rota_status fill_units(Maker *maker, int64_t first, int64_t like) {
  for (int64_t i = first; i < maker->drafts.count; i++) {
    UnitDraft *drafts = maker->drafts.data, *draft = &drafts[i];
    if (like >= 0) {
      const UnitDraft *same = &drafts[like + i - first];
      draft->unit.offsets = same->unit.offsets;
      draft->blocks = same->blocks;
      draft->work_begin = same->work_begin;
      draft->scores = same->scores;
      draft->gradients = same->gradients;
    } else {
      ROTA_TRY(place_rows(maker, draft));
      ROTA_TRY(add_works(maker, draft));
    }
  }
  return ROTA_OK;
}

/* `*like`: the first unit of the sequence before, -1 if there is none. */
static rota_status add_sequence(Maker *maker, int32_t s, const Cut *largest, int64_t *like,
                                int32_t chain_base) {
  const Plan *plan = maker->plan;
  const RotaSequence *sequence = &maker->sequences[s];
  Cut cut = cut_sequence(maker, sequence, largest);
  if (cut.sum_rows > maker->sum_rows)
    maker->sum_rows = cut.sum_rows;
  if (cut.sum_kv_tiles > maker->sum_kv_tiles)
    maker->sum_kv_tiles = cut.sum_kv_tiles;
  int64_t begin = maker->drafts.count, before = *like;
  bool shares = before >= 0 && same_plane(maker, s - 1, s);
  for (int head = 0; head < plan->kv_heads; head++) {
    int first_head = maker->row_heads > 1 ? head * maker->group : 0;
    RotaUnit unit = {.sequence = s,
                     .kv_head = head,
                     .row_table = sequence->row_begin + first_head * sequence->q_tiles,
                     .row_step = maker->row_heads > 1 ? sequence->q_tiles : 0,
                     .chain_table =
                         chain_base + (maker->chain_heads > 1 ? head * sequence->kv_tiles : 0)};
    int64_t first = maker->drafts.count, same = -1;
    ROTA_TRY(add_units(maker, &unit, &cut));
    if (shares)
      same = before + (first - begin);
    else if (head > 0 && maker->row_heads == 1)
      same = first - (maker->drafts.count - first);
    ROTA_TRY(fill_units(maker, first, same));
  }
  *like = begin;
  return ROTA_OK;
}

rota_status maker_add_sequences(Maker *maker) {
  Cut largest = cut_largest(maker);
  int64_t like = -1;
  int32_t chain_base = 0;
  for (int32_t s = 0; s < maker->plan->lengths->batch; s++) {
    ROTA_TRY(add_sequence(maker, s, &largest, &like, chain_base));
    chain_base += maker->sequences[s].kv_tiles * maker->chain_heads;
  }
  return ROTA_OK;
}
