/* Level 7. Works, see plan_works.h.
 *
 *     sequence -> cut -> units of each kv head -> chunks -> segments -> tickets
 *                          works, shared by the units of equal planes
 *
 * Everything is collected in growing arrays and then laid out in one image. */
#include "generator/plan_works.h"

#include <stdlib.h>
#include <string.h>

#include "generator/plan_cut.h"

enum {
  SECTION_ALIGN = 16,
  WORKSPACE_ALIGN = 256,
  TILE = 128,          /* queries and keys: of the templates */
  PLANE_BYTES = 16384, /* a tile's 128 queries x 64 keys in 16 bits */
  STAT_BYTES = 1024,   /* of a query tile and a pair of kv tiles */
  COLUMNS_MAX = 256,   /* of a block of columns */
  BLOCK_ROWS = 16,     /* scores are ordered in blocks of so many query tiles ... */
  BLOCK_PAIRS = 8,     /* ... by pairs of kv tiles, that share operands in the L2 */
  CHUNKS_WANTED = 6,   /* so that one phase of a chunk overlaps with another's other phase */
};
#define CHUNK_BYTES_LEAST ((int64_t)16 << 20)

typedef struct Array {
  void *data;
  int64_t count, capacity;
} Array;

/* A unit on its way: what its segments need besides. */
typedef struct UnitDraft {
  RotaUnit unit;
  int32_t work_begin, scores, gradients; /* in works */
  bool alone;                            /* shares sums with other units: a chunk of its own */
} UnitDraft;

typedef struct Maker {
  Plan *plan;
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaChain *chains;
  bool backward;
  int blocks_k, blocks_v; /* blocks of columns */
  int64_t wide;           /* bytes of a tile of sums */
  double steps;           /* see plan_cut.h */
  int row_heads, chain_heads, group;
  Array drafts, works, segments, chunks;
  int64_t sum_rows, sum_kv_tiles, place_blocks, place_limit;
  int64_t tickets;
} Maker;

static int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

static rota_status append(Array *array, const void *entry, size_t size) {
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

static int column_blocks(int dim) {
  return (dim + COLUMNS_MAX - 1) / COLUMNS_MAX;
}

static int64_t columns_of(int dim) {
  return round_up((dim + column_blocks(dim) - 1) / column_blocks(dim), 16);
}

/* Of the products of a tile: scores take 128 x 256 at a time, the others a tile's 2 steps for each
 * block of columns. */
static double steps_of(const Spec *spec, bool backward) {
  double scores = (spec->head_dim + (backward ? spec->head_dim_v : 0)) / 128.0;
  int sums = column_blocks(spec->head_dim_v) + (backward ? 2 * column_blocks(spec->head_dim) : 0);
  return scores + 2 * sums;
}

bool works_wanted(const Tiling *tiling) {
  return tiling_get(tiling, "score_planes", 0) > 0;
}

static int64_t block_bytes(const Maker *maker) {
  return PLANE_BYTES * (int64_t)tiling_get(&maker->plan->tiling, "score_planes", 1);
}

/* Of a block and its share of the stats. */
static int64_t block_cost(const Maker *maker) {
  return block_bytes(maker) + (maker->backward ? 0 : STAT_BYTES / 4);
}

/* Bytes of the sums of a group row (of dQ, or O with maxima and sums of P), and of a kv tile. */
static int64_t row_sums(const Maker *maker) {
  return maker->wide * (maker->backward ? maker->blocks_k : maker->blocks_v);
}

static int64_t key_sums(const Maker *maker) {
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
  return append(&maker->works, &(RotaWork){row, what}, sizeof(RotaWork));
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
    ROTA_TRY(append(list, &entry, sizeof entry));
  }
  return ROTA_OK;
}

/* Query tiles of a kv tile's chain: all heads'; the unit's share of rows is not looked for. */
static int32_t chain_visits(const Maker *maker, const RotaUnit *unit, int32_t kv_tile) {
  const RotaChain *chain = &maker->chains[unit->chain_table + kv_tile];
  return chain->visit_end - chain->visit_begin;
}

static rota_status weigh_gradients(Maker *maker, const RotaUnit *unit, Array *list) {
  int32_t kv_end = unit->kv_begin + unit->kv_tiles;
  int32_t kv_tiles = maker->sequences[unit->sequence].kv_tiles;
  for (int32_t kv = unit->kv_begin; maker->backward && kv < kv_end && kv < kv_tiles; kv++) {
    int32_t weight = chain_visits(maker, unit, kv);
    ROTA_TRY(add_weighed(list, kv, ROTA_WORK_DV, maker->blocks_v, weight));
    ROTA_TRY(add_weighed(list, kv, ROTA_WORK_DK, maker->blocks_k, weight));
  }
  int blocks = maker->backward ? maker->blocks_k : maker->blocks_v;
  for (int32_t row = unit->row_begin; row < unit->row_begin + unit->rows; row++) {
    bool partial = false;
    int32_t weight =
        tiles_within(maker, row_of(maker, unit, row), unit->kv_begin, kv_end, &partial);
    ROTA_TRY(add_weighed(list, row, maker->backward ? ROTA_WORK_DQ : ROTA_WORK_O, blocks, weight));
  }
  return ROTA_OK;
}

static rota_status add_gradients(Maker *maker, UnitDraft *draft) {
  Array list = {0};
  rota_status status = weigh_gradients(maker, &draft->unit, &list);
  if (status == ROTA_OK && list.count > 0)
    qsort(list.data, (size_t)list.count, sizeof(Weighed), compare_weighed);
  const Weighed *sorted = list.data;
  for (int64_t i = 0; i < list.count && status == ROTA_OK; i++)
    status = append(&maker->works, &sorted[i].work, sizeof(RotaWork));
  draft->gradients = (int32_t)list.count;
  free(list.data);
  return status;
}

static rota_status add_works(Maker *maker, UnitDraft *draft) {
  draft->work_begin = (int32_t)maker->works.count;
  draft->scores = draft->gradients = 0;
  ROTA_TRY(add_scores(maker, draft));
  return add_gradients(maker, draft);
}

/* ---- Units of a sequence ---- */

static Cut cut_sequence(const Maker *maker, const RotaSequence *sequence) {
  CutRequest request = {.rows = (int64_t)sequence->q_tiles * maker->group,
                        .kv_tiles = round_up(sequence->kv_tiles, 2),
                        .block_bytes = block_cost(maker),
                        .sum_q = row_sums(maker),
                        .sum_k = key_sums(maker),
                        .places = ROTA_PLACES,
                        .steps = maker->steps,
                        .processors = tiling_get(&maker->plan->tiling, "processors", 1),
                        .limit = maker->plan->workspace_limit - maker->plan->workspace.works,
                        .forward = !maker->backward};
  return works_cut(&request);
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
  unit->kv_tiles = begin < end ? (int32_t)round_up(end - unit->kv_begin, 2) : 0;
}

/* First and last flags among the units from `first` on, which are in the order of the loops. A
 * dropped unit has no tiles, but every row and every kv tile keeps one, which writes its zeros. */
static void flag_units(const Maker *maker, int64_t first) {
  UnitDraft *drafts = maker->drafts.data;
  for (int64_t i = first; i < maker->drafts.count; i++) {
    RotaUnit *unit = &drafts[i].unit;
    unit->flags = ROTA_UNIT_FIRST_Q | ROTA_UNIT_FIRST_K | ROTA_UNIT_LAST_Q | ROTA_UNIT_LAST_K;
    for (int64_t j = first; j < i; j++) {
      if (drafts[j].unit.row_begin == unit->row_begin) {
        unit->flags &= ~ROTA_UNIT_FIRST_Q;
        drafts[j].unit.flags &= ~ROTA_UNIT_LAST_Q;
      }
      if (maker->backward && drafts[j].unit.kv_begin == unit->kv_begin) {
        unit->flags &= ~ROTA_UNIT_FIRST_K;
        drafts[j].unit.flags &= ~ROTA_UNIT_LAST_K;
      }
    }
  }
}

/* One kv head's units, in the order in which their sums go on. */
static rota_status add_units(Maker *maker, const RotaUnit *head, const Cut *cut) {
  const RotaSequence *sequence = &maker->sequences[head->sequence];
  int64_t rows = (int64_t)sequence->q_tiles * maker->group;
  int64_t kv_tiles = round_up(sequence->kv_tiles, 2), first = maker->drafts.count;
  int64_t parts = rows > 0 ? (rows + cut->rows - 1) / cut->rows : 1;
  int64_t panels = kv_tiles > 0 ? (kv_tiles + cut->kv_tiles - 1) / cut->kv_tiles : 1;
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
    ROTA_TRY(append(&maker->drafts, &draft, sizeof draft));
  }
  flag_units(maker, first);
  return ROTA_OK;
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

/* Works of the units from `first` on; those of the units from `like` on (-1: none) serve if they
 * are of an equal plane. */
static rota_status fill_units(Maker *maker, int64_t first, int64_t like) {
  for (int64_t i = first; i < maker->drafts.count; i++) {
    UnitDraft *drafts = maker->drafts.data, *draft = &drafts[i];
    if (like >= 0) {
      const UnitDraft *same = &drafts[like + i - first];
      draft->work_begin = same->work_begin;
      draft->scores = same->scores;
      draft->gradients = same->gradients;
    } else {
      ROTA_TRY(add_works(maker, draft));
    }
  }
  return ROTA_OK;
}

/* `*like`: the first unit of the sequence before, -1 if there is none. */
static rota_status add_sequence(Maker *maker, int32_t s, int64_t *like, int32_t chain_base) {
  const Plan *plan = maker->plan;
  const RotaSequence *sequence = &maker->sequences[s];
  Cut cut = cut_sequence(maker, sequence);
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

/* ---- Chunks and segments ---- */

/* Units that follow one another share a chunk while its place holds them. */
static rota_status bundle(Maker *maker) {
  UnitDraft *drafts = maker->drafts.data;
  int64_t fill = 0;
  for (int64_t i = 0; i < maker->drafts.count; i++) {
    int64_t blocks = (int64_t)drafts[i].unit.rows * drafts[i].unit.kv_tiles * 2;
    bool fresh =
        i == 0 || drafts[i].alone || drafts[i - 1].alone || fill + blocks > maker->place_limit;
    if (fresh) {
      ROTA_TRY(append(&maker->chunks, &(RotaChunk){0, 0}, sizeof(RotaChunk)));
      fill = 0;
    }
    RotaChunk *chunk = (RotaChunk *)maker->chunks.data + maker->chunks.count - 1;
    chunk->scores += drafts[i].scores;
    chunk->gradients += drafts[i].gradients;
    drafts[i].unit.scores = fill;
    fill += blocks;
    if (fill > maker->place_blocks)
      maker->place_blocks = fill;
    /* Until segments are made: the chunk of each unit. */
    RotaSegment segment = {.unit = (int32_t)i, .chunk = (int32_t)maker->chunks.count - 1};
    ROTA_TRY(append(&maker->segments, &segment, sizeof segment));
  }
  return ROTA_OK;
}

/* One phase of the units [*unit, ...) of a chunk. */
static rota_status add_phase(Maker *maker, const RotaSegment *units, int64_t *unit, int32_t chunk,
                             bool scores, Array *segments) {
  const UnitDraft *drafts = maker->drafts.data;
  for (; *unit < maker->drafts.count && units[*unit].chunk == chunk; (*unit)++) {
    const UnitDraft *draft = &drafts[*unit];
    RotaSegment segment = {.first_ticket = (int32_t)maker->tickets,
                           .work_begin = draft->work_begin + (scores ? 0 : draft->scores),
                           .unit = (int32_t)*unit,
                           .chunk = chunk};
    ROTA_TRY(append(segments, &segment, sizeof segment));
    maker->tickets += scores ? draft->scores : draft->gradients;
    if (maker->tickets > INT32_MAX)
      return status_fail(ROTA_UNSUPPORTED, "plan: more than 2^31 - 1 works; split the batch");
  }
  return ROTA_OK;
}

/* scores 0 | scores 1 | gradients 0 | ...: see lib/materialised.h. */
static rota_status order_segments(Maker *maker) {
  Array segments = {0};
  int64_t scored = 0, summed = 0;
  int32_t count = (int32_t)maker->chunks.count;
  const RotaSegment *units = maker->segments.data;
  rota_status status = ROTA_OK;
  for (int32_t chunk = 0; chunk <= count && status == ROTA_OK; chunk++) {
    if (chunk < count)
      status = add_phase(maker, units, &scored, chunk, true, &segments);
    if (chunk > 0 && status == ROTA_OK)
      status = add_phase(maker, units, &summed, chunk - 1, false, &segments);
  }
  free(maker->segments.data);
  maker->segments = segments;
  return status;
}

/* ---- Laying out ---- */

static void place(size_t *end, RotaSection *section, const Array *array, size_t size) {
  section->offset = (long long)*end;
  section->count = array->count;
  *end = (size_t)round_up((int64_t)(*end + (size_t)array->count * size), SECTION_ALIGN);
}

static void copy_section(Works *works, RotaSection section, const Array *array, size_t size) {
  if (array->count > 0)
    memcpy(works->image + section.offset, array->data, (size_t)array->count * size);
}

static rota_status lay_out(const Maker *maker) {
  Works *works = &maker->plan->works;
  size_t end = 0;
  place(&end, &works->units, &maker->drafts, sizeof(RotaUnit));
  place(&end, &works->segments, &maker->segments, sizeof(RotaSegment));
  place(&end, &works->chunks, &maker->chunks, sizeof(RotaChunk));
  place(&end, &works->works, &maker->works, sizeof(RotaWork));
  works->image_bytes = end > 0 ? end : SECTION_ALIGN;
  works->image = memory_allocate(works->image_bytes, 1);
  if (!works->image)
    return ROTA_OUT_OF_MEMORY;
  const UnitDraft *drafts = maker->drafts.data;
  for (int64_t i = 0; i < maker->drafts.count; i++)
    memcpy(works->image + works->units.offset + (size_t)i * sizeof(RotaUnit), &drafts[i].unit,
           sizeof(RotaUnit));
  copy_section(works, works->segments, &maker->segments, sizeof(RotaSegment));
  copy_section(works, works->chunks, &maker->chunks, sizeof(RotaChunk));
  copy_section(works, works->works, &maker->works, sizeof(RotaWork));
  works->tickets = (int32_t)maker->tickets;
  works->place_blocks = (int32_t)maker->place_blocks;
  return ROTA_OK;
}

static int64_t take(int64_t *end, int64_t bytes) {
  int64_t at = *end;
  *end = round_up(at + bytes, WORKSPACE_ALIGN);
  return at;
}

static rota_status reserve_workspace(const Maker *maker) {
  Plan *plan = maker->plan;
  RotaWorkspace *workspace = &plan->workspace;
  int64_t end = workspace->works, blocks = ROTA_PLACES * maker->place_blocks;
  workspace->scores = take(&end, blocks * block_bytes(maker));
  workspace->stats = take(&end, maker->backward ? 0 : blocks / 4 * STAT_BYTES);
  workspace->sum_q = take(&end, maker->sum_rows * row_sums(maker));
  workspace->sum_k = take(&end, maker->sum_kv_tiles * key_sums(maker));
  workspace->work_counters = take(&end, (1 + 2 * maker->chunks.count) * (int64_t)sizeof(int32_t));
  workspace->bytes = end;
  if (end <= plan->workspace_limit + WORKSPACE_ALIGN * 8 || maker->chunks.count == 0)
    return ROTA_OK;
  return status_fail(ROTA_WORKSPACE,
                     "plan: the smallest units need %lld bytes of workspace, the limit is %lld: "
                     "raise the limit, or split the batch",
                     (long long)end, (long long)plan->workspace_limit);
}

static rota_status make(Maker *maker) {
  const Plan *plan = maker->plan;
  int64_t like = -1;
  int32_t chain_base = 0;
  for (int32_t s = 0; s < plan->lengths->batch; s++) {
    ROTA_TRY(add_sequence(maker, s, &like, chain_base));
    chain_base += maker->sequences[s].kv_tiles * maker->chain_heads;
  }
  int64_t all = 0, largest = 0;
  const UnitDraft *drafts = maker->drafts.data;
  for (int64_t i = 0; i < maker->drafts.count; i++) {
    int64_t blocks = (int64_t)drafts[i].unit.rows * drafts[i].unit.kv_tiles * 2;
    all += blocks;
    largest = blocks > largest ? blocks : largest;
  }
  int64_t sums = maker->sum_rows * row_sums(maker) + maker->sum_kv_tiles * key_sums(maker);
  int64_t room = plan->workspace_limit - plan->workspace.works - sums;
  int64_t limit = room / ROTA_PLACES / block_cost(maker), wanted = all / CHUNKS_WANTED;
  int64_t least = CHUNK_BYTES_LEAST / block_bytes(maker);
  wanted = wanted < least ? least : wanted;
  maker->place_limit = wanted < limit ? wanted : limit;
  if (maker->place_limit < largest)
    maker->place_limit = largest;
  ROTA_TRY(bundle(maker));
  ROTA_TRY(order_segments(maker));
  ROTA_TRY(lay_out(maker));
  return reserve_workspace(maker);
}

rota_status works_build(const Spec *spec, Plan *plan) {
  if (!works_wanted(&plan->tiling))
    return ROTA_OK;
  int64_t kv_tiles = 0, q_tiles = plan_q_tiles(plan);
  const RotaSequence *sequences = plan_section(plan, plan->sequences);
  for (int32_t s = 0; s < plan->lengths->batch; s++)
    kv_tiles += sequences[s].kv_tiles;
  int64_t columns_k = columns_of(spec->head_dim), columns_v = columns_of(spec->head_dim_v);
  Maker maker = {.plan = plan,
                 .sequences = sequences,
                 .rows = plan_section(plan, plan->rows),
                 .runs = plan_section(plan, plan->runs),
                 .chains = plan_section(plan, plan->chains),
                 .backward = plan->direction == ROTA_BACKWARD,
                 .blocks_k = column_blocks(spec->head_dim),
                 .blocks_v = column_blocks(spec->head_dim_v),
                 .wide = plan->direction == ROTA_FORWARD
                             ? TILE * 4 * columns_v + STAT_BYTES
                             : TILE * 4 * (columns_k > columns_v ? columns_k : columns_v),
                 .steps = steps_of(spec, plan->direction == ROTA_BACKWARD),
                 .row_heads = plan->rows.count > q_tiles ? plan->heads : 1,
                 .chain_heads = plan->chains.count > kv_tiles ? plan->kv_heads : 1,
                 .group = plan->heads / plan->kv_heads};
  rota_status status = make(&maker);
  free(maker.drafts.data);
  free(maker.works.data);
  free(maker.segments.data);
  free(maker.chunks.data);
  return status;
}
