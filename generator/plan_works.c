/* Level 7. Works, see plan_works.h: from units to chunks, segments and tickets, and one image. */
#include "generator/plan_works.h"

#include <stdlib.h>
#include <string.h>

#include "generator/plan_maker.h"

enum {
  SECTION_ALIGN = 16,
  WORKSPACE_ALIGN = 256,
  CHUNKS_AHEAD = 3,  /* of scores at most, before a chunk's gradients */
  CHUNKS_AROUND = 5, /* that the workspace holds at least, of chains */
  CHUNKS_WANTED = 6, /* so that one phase of a chunk overlaps with another's other phase */
};
#define CHUNK_BYTES_LEAST ((int64_t)16 << 20)

/* Of the products of a tile: scores take 128 x 256 at a time, the others a tile's 2 steps for each
 * block of columns. */
static double steps_of(const Spec *spec, bool backward, bool chains) {
  if (chains)
    return WORKS_CHAIN_STEPS + 2 * works_column_blocks(spec->head_dim);
  double scores = (spec->head_dim + (backward ? spec->head_dim_v : 0)) / 128.0;
  int sums = works_column_blocks(spec->head_dim_v) +
             (backward ? 2 * works_column_blocks(spec->head_dim) : 0);
  return scores + 2 * sums;
}

bool works_wanted(const Tiling *tiling) {
  return tiling_get(tiling, "score_planes", 0) > 0;
}

/* ---- Chunks and segments ---- */

/* The end of the units of a draft's plane. */
static int64_t plane_end(const Maker *maker, int64_t begin) {
  const UnitDraft *drafts = maker->drafts.data;
  int64_t end = begin;
  while (end < maker->drafts.count && drafts[end].unit.sequence == drafts[begin].unit.sequence &&
         drafts[end].unit.kv_head == drafts[begin].unit.kv_head)
    end++;
  return end;
}

/* The order of the units: planes one after another; those that are cut in turns with the next, so
 * that a unit's gradients need not wait for those of the one just before it. A lane of chains
 * starts a turn after the one before it, and goes ahead of it: under a causal mask a plane's first
 * unit has few and long ones, beside which its last unit's many short ones go. lane[unit] says
 * whose sums it uses. */
static void order_units(const Maker *maker, int64_t *order, int *lane) {
  const UnitDraft *drafts = maker->drafts.data;
  int64_t next = 0, count = 0, at[WORKS_LANES_MAX] = {0}, end[WORKS_LANES_MAX] = {0};
  int begun = maker_chains(maker) ? 1 : maker->lanes;
  for (; count < maker->drafts.count; begun += begun < maker->lanes)
    for (int turn = 0; turn < begun; turn++) {
      int i = maker_chains(maker) ? begun - 1 - turn : turn;
      if (at[i] == end[i] && next < maker->drafts.count) {
        at[i] = next;
        next = end[i] = plane_end(maker, next);
      }
      bool whole = at[i] < end[i] && !drafts[at[i]].alone;
      for (; at[i] < end[i]; at[i]++) {
        lane[at[i]] = i;
        order[count++] = at[i];
        if (!whole) {
          at[i]++;
          break;
        }
      }
    }
}

/* Adds a unit to the last chunk, or begins one; returns its number, -1 without memory. */
static int32_t chunk_of(Maker *maker, UnitDraft *draft, bool fresh) {
  int64_t *fill = maker->chunk_blocks.data;
  if (fresh || fill[maker->chunks.count - 1] + draft->blocks > maker->place_limit) {
    if (array_append(&maker->chunks, &(RotaChunk){.after = -1}, sizeof(RotaChunk)) != ROTA_OK ||
        array_append(&maker->chunk_blocks, &(int64_t){0}, sizeof(int64_t)) != ROTA_OK)
      return -1;
    fill = maker->chunk_blocks.data;
  }
  int64_t last = maker->chunks.count - 1;
  RotaChunk *chunk = (RotaChunk *)maker->chunks.data + last;
  chunk->scores += draft->scores;
  chunk->gradients += draft->gradients;
  draft->unit.scores = fill[last];
  fill[last] += draft->blocks;
  return (int32_t)last;
}

/* Units that follow one another share a chunk while its place holds them; one that shares sums with
 * others is a chunk by itself. maker->segments: until they are made, unit and chunk of each. */
static rota_status bundle(Maker *maker, const int64_t *order, const int *lane) {
  UnitDraft *drafts = maker->drafts.data;
  /* The last chunk that used a lane's sums, and the last that did with its scores. */
  int32_t users[WORKS_LANES_MAX], scorers[WORKS_LANES_MAX];
  for (int i = 0; i < WORKS_LANES_MAX; i++)
    users[i] = scorers[i] = -1;
  for (int64_t i = 0; i < maker->drafts.count; i++) {
    UnitDraft *draft = &drafts[order[i]];
    bool fresh = i == 0 || draft->alone || drafts[order[i - 1]].alone;
    int32_t chunk = chunk_of(maker, draft, fresh);
    if (chunk < 0)
      return ROTA_OUT_OF_MEMORY;
    draft->unit.after = -1;
    if (draft->alone) {
      int own = lane[order[i]];
      draft->unit.after = users[own];
      users[own] = chunk;
      RotaChunk *made = (RotaChunk *)maker->chunks.data + chunk;
      made->after = maker_chains(maker) ? scorers[own] : -1;
      if (made->scores > 0)
        scorers[own] = chunk;
      draft->unit.sum_q += (int32_t)(own * maker->sum_rows);
      draft->unit.sum_k += (int32_t)(own * maker->sum_kv_tiles);
    }
    RotaSegment segment = {.unit = (int32_t)order[i], .chunk = chunk};
    ROTA_TRY(array_append(&maker->segments, &segment, sizeof segment));
  }
  return ROTA_OK;
}

static rota_status bundle_units(Maker *maker) {
  size_t count = (size_t)maker->drafts.count + 1;
  int64_t *order = memory_allocate(count, sizeof *order);
  int *lane = memory_allocate(count, sizeof *lane);
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (order && lane) {
    order_units(maker, order, lane);
    status = bundle(maker, order, lane);
  }
  free(order);
  free(lane);
  return status;
}

/* One phase of a chunk: of units[*unit], ... */
static rota_status add_phase(Maker *maker, const RotaSegment *units, int64_t *unit, int32_t chunk,
                             bool scores, Array *segments) {
  const UnitDraft *drafts = maker->drafts.data;
  for (; *unit < maker->drafts.count && units[*unit].chunk == chunk; (*unit)++) {
    const UnitDraft *draft = &drafts[units[*unit].unit];
    RotaSegment segment = {.first_ticket = (int32_t)maker->tickets,
                           .work_begin = draft->work_begin + (scores ? 0 : draft->scores),
                           .unit = units[*unit].unit,
                           .chunk = chunk};
    ROTA_TRY(array_append(segments, &segment, sizeof segment));
    maker->tickets += scores ? draft->scores : draft->gradients;
    if (maker->tickets > INT32_MAX)
      return status_fail(ROTA_UNSUPPORTED, "plan: more than 2^31 - 1 works; split the batch");
  }
  return ROTA_OK;
}

/* Three places, which chunks take in turns. */
static void place_in_turns(Maker *maker, int64_t *begin) {
  RotaChunk *chunks = maker->chunks.data;
  const int64_t *blocks = maker->chunk_blocks.data;
  int64_t place = 0;
  for (int64_t c = 0; c < maker->chunks.count; c++)
    place = blocks[c] > place ? blocks[c] : place;
  for (int32_t c = 0; c < maker->chunks.count; c++) {
    begin[c] = c % ROTA_PLACES * place;
    chunks[c].free_first = c - ROTA_PLACES;
    chunks[c].free_count = c >= ROTA_PLACES;
  }
  maker->score_blocks = ROTA_PLACES * place;
}

/* One chunk after the other, around the workspace. A chunk waits for the last one that lay where it
 * does, and for those before it that this one did not wait for: so that all of them are done. */
static void place_around(Maker *maker, int64_t room, int64_t *begin) {
  RotaChunk *chunks = maker->chunks.data;
  const int64_t *blocks = maker->chunk_blocks.data;
  int64_t at = 0;
  for (int32_t c = 0; c < maker->chunks.count; c++) {
    if (at + blocks[c] > room)
      at = 0;
    begin[c] = at;
    at += blocks[c];
    maker->score_blocks = at > maker->score_blocks ? at : maker->score_blocks;
    int32_t last = c - 1;
    while (last >= 0 && (begin[last] >= at || begin[c] >= begin[last] + blocks[last]))
      last--;
    chunks[c].free_first = last < 0 ? 0 : chunks[last].free_first + chunks[last].free_count;
    chunks[c].free_count = last + 1 - chunks[c].free_first;
  }
}

static rota_status place_chunks(Maker *maker, int64_t room) {
  UnitDraft *drafts = maker->drafts.data;
  const RotaSegment *units = maker->segments.data;
  int64_t *begin = memory_allocate((size_t)maker->chunks.count + 1, sizeof *begin);
  if (!begin)
    return ROTA_OUT_OF_MEMORY;
  if (maker_chains(maker))
    place_around(maker, room, begin);
  else
    place_in_turns(maker, begin);
  for (int64_t i = 0; i < maker->segments.count; i++)
    drafts[units[i].unit].unit.scores += begin[units[i].chunk];
  free(begin);
  return ROTA_OK;
}

/* How many chunks' gradients go ahead of the scores of chunk + 1: where chunks take turns in three
 * places, all but this one's. Of chains those that chunk + 2 waits for, so that they run beside a
 * whole chunk of scores; the more chunks the workspace holds, the fewer need to be waited for. */
static int32_t gradients_due(const Maker *maker, int32_t chunk) {
  const RotaChunk *chunks = maker->chunks.data;
  int32_t later = chunk + 2, due = chunk - CHUNKS_AHEAD + 1;
  if (!maker_chains(maker))
    return chunk;
  later = later < maker->chunks.count ? later : (int32_t)maker->chunks.count - 1;
  int32_t freed = chunks[later].free_first + chunks[later].free_count;
  due = freed > due ? freed : due;
  return due < chunk ? due : chunk;
}

/* scores 0 | scores 1 | gradients 0 | ...: see lib/materialised.h. */
static rota_status order_segments(Maker *maker) {
  Array segments = {0};
  int64_t scored = 0, summed = 0;
  int32_t count = (int32_t)maker->chunks.count, done = 0;
  const RotaSegment *units = maker->segments.data;
  const RotaChunk *chunks = maker->chunks.data;
  rota_status status = ROTA_OK;
  for (int32_t chunk = 0; chunk < count && status == ROTA_OK; chunk++) {
    int32_t freed = chunks[chunk].free_first + chunks[chunk].free_count;
    for (; done < freed && status == ROTA_OK; done++)
      status = add_phase(maker, units, &summed, done, false, &segments);
    if (status == ROTA_OK)
      status = add_phase(maker, units, &scored, chunk, true, &segments);
    for (int32_t due = gradients_due(maker, chunk); done < due && status == ROTA_OK; done++)
      status = add_phase(maker, units, &summed, done, false, &segments);
  }
  for (; done < count && status == ROTA_OK; done++)
    status = add_phase(maker, units, &summed, done, false, &segments);
  free(maker->segments.data);
  maker->segments = segments;
  return status;
}

/* ---- Laying out ---- */

static void place(size_t *end, RotaSection *section, const Array *array, size_t size) {
  section->offset = (long long)*end;
  section->count = array->count;
  *end = (size_t)round_to((int64_t)(*end + (size_t)array->count * size), SECTION_ALIGN);
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
  place(&end, &works->offsets, &maker->offsets, sizeof(int32_t));
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
  copy_section(works, works->offsets, &maker->offsets, sizeof(int32_t));
  works->tickets = (int32_t)maker->tickets;
  return ROTA_OK;
}

static int64_t take(int64_t *end, int64_t bytes) {
  int64_t at = *end;
  *end = round_to(at + bytes, WORKSPACE_ALIGN);
  return at;
}

static void reserve_workspace(const Maker *maker) {
  RotaWorkspace *workspace = &maker->plan->workspace;
  int64_t end = workspace->works, blocks = maker->score_blocks;
  workspace->scores = take(&end, blocks * maker_block_bytes(maker));
  workspace->stats = take(&end, maker->backward ? 0 : blocks / 4 * WORKS_STAT_BYTES);
  workspace->sum_q = take(&end, maker->lanes * maker->sum_rows * maker_row_sums(maker));
  workspace->sum_k = take(&end, maker->lanes * maker->sum_kv_tiles * maker_key_sums(maker));
  workspace->work_counters = take(&end, (1 + 2 * maker->chunks.count) * (int64_t)sizeof(int32_t));
  workspace->bytes = end;
}

/* Where sums of dK and dV go through several units, these must be those of ascending rows, or the
 * cut would change bits. */
static rota_status check_order(const Maker *maker) {
  const Plan *plan = maker->plan;
  const UnitDraft *drafts = maker->drafts.data;
  const RotaVisit *visits = plan_section(plan, plan->visits);
  bool cut = false;
  for (int64_t i = 0; i < maker->drafts.count; i++)
    cut = cut || (maker->backward && drafts[i].alone);
  for (int64_t c = 0; cut && c < plan->chains.count; c++)
    for (int32_t v = maker->chains[c].visit_begin + 1; v < maker->chains[c].visit_end; v++) {
      unsigned head = visits[v].rank >> ROTA_VISIT_HEAD_SHIFT;
      unsigned before = visits[v - 1].rank >> ROTA_VISIT_HEAD_SHIFT;
      unsigned tile = visits[v].tile & ROTA_VISIT_TILE;
      if (head < before || (head == before && tile <= (visits[v - 1].tile & ROTA_VISIT_TILE)))
        return status_fail(ROTA_SCHEDULE,
                           "schedule '%s': `materialised` adds in ascending order where the "
                           "workspace holds a part of the plane; use `ascending`",
                           plan->schedule);
    }
  return ROTA_OK;
}

static rota_status make(Maker *maker) {
  ROTA_TRY(maker_add_sequences(maker));
  ROTA_TRY(check_order(maker));
  int64_t all = 0, largest = 0;
  const UnitDraft *drafts = maker->drafts.data;
  for (int64_t i = 0; i < maker->drafts.count; i++) {
    all += drafts[i].blocks;
    largest = drafts[i].blocks > largest ? drafts[i].blocks : largest;
  }
  int64_t sums = maker->lanes * (maker->sum_rows * maker_row_sums(maker) +
                                 maker->sum_kv_tiles * maker_key_sums(maker));
  int64_t room = (maker->limit - sums) / maker_block_cost(maker);
  int64_t limit = room / (maker_chains(maker) ? CHUNKS_AROUND : ROTA_PLACES);
  int64_t wanted = all / CHUNKS_WANTED, least = CHUNK_BYTES_LEAST / maker_block_bytes(maker);
  wanted = wanted < least ? least : wanted;
  maker->place_limit = wanted < limit ? wanted : limit;
  if (maker->place_limit < largest)
    maker->place_limit = largest;
  ROTA_TRY(bundle_units(maker));
  ROTA_TRY(place_chunks(maker, room));
  ROTA_TRY(order_segments(maker));
  ROTA_TRY(lay_out(maker));
  reserve_workspace(maker);
  return ROTA_OK;
}

/* Works whose scores, stats and sums take at most `limit` bytes, or the smallest units. */
static rota_status build_within(const Spec *spec, Plan *plan, int64_t limit) {
  int64_t kv_tiles = 0, q_tiles = plan_q_tiles(plan);
  const RotaSequence *sequences = plan_section(plan, plan->sequences);
  for (int32_t s = 0; s < plan->lengths->batch; s++)
    kv_tiles += sequences[s].kv_tiles;
  int64_t columns_k = works_columns(spec->head_dim), columns_v = works_columns(spec->head_dim_v);
  Maker maker = {
      .plan = plan,
      .limit = limit,
      .sequences = sequences,
      .rows = plan_section(plan, plan->rows),
      .runs = plan_section(plan, plan->runs),
      .chains = plan_section(plan, plan->chains),
      .visits = plan_section(plan, plan->visits),
      .backward = plan->direction == ROTA_BACKWARD,
      .blocks_k = works_column_blocks(spec->head_dim),
      .blocks_v = works_column_blocks(spec->head_dim_v),
      .wide = plan->direction == ROTA_FORWARD
                  ? WORKS_TILE * 4 * columns_v + WORKS_STAT_BYTES
                  : WORKS_TILE * 4 * (columns_k > columns_v ? columns_k : columns_v),
      .row_heads = plan->rows.count > q_tiles ? plan->heads : 1,
      .chain_heads = plan->chains.count > kv_tiles ? plan->kv_heads : 1,
      .group = plan->heads / plan->kv_heads,
      .lanes = WORKS_LANES_SUMS,
      .panel = plan->direction == ROTA_FORWARD && spec->dtype == ROTA_FP16 ? WORKS_PANEL_FP16 : 0};
  maker.steps = steps_of(spec, maker.backward, maker_chains(&maker));
  if (maker_chains(&maker))
    maker.lanes = WORKS_LANES_MAX;
  int64_t planes = (int64_t)plan->lengths->batch * plan->kv_heads;
  if (planes < maker.lanes)
    maker.lanes = planes > 1 ? (int)planes : 1;
  rota_status status = make(&maker);
  free(maker.drafts.data);
  free(maker.works.data);
  free(maker.segments.data);
  free(maker.chunks.data);
  free(maker.chunk_blocks.data);
  free(maker.offsets.data);
  return status;
}

/* The more and smaller the units, the more counters come on top: how many is known only then. The
 * last attempt looks at no limit, so that as much as it needs always suffices. */
rota_status works_build(const Spec *spec, Plan *plan) {
  if (!works_wanted(&plan->tiling))
    return ROTA_OK;
  int64_t limit = plan->workspace_limit - plan->workspace.works, least = INT64_MAX;
  for (;;) {
    ROTA_TRY(build_within(spec, plan, limit));
    int64_t bytes = plan->workspace.bytes, over = bytes - plan->workspace_limit;
    if (over <= WORKSPACE_ALIGN * 8 || plan->works.chunks.count == 0)
      return ROTA_OK;
    if (limit == 0)
      return status_fail(ROTA_WORKSPACE,
                         "plan: the smallest units need %lld bytes of workspace, the limit is "
                         "%lld: raise the limit, or split the batch",
                         (long long)bytes, (long long)plan->workspace_limit);
    limit = bytes >= least || limit <= over ? 0 : limit - over;
    least = bytes;
    free(plan->works.image);
    plan->works = (Works){0};
  }
}
