/* Works: how planes are cut, that every product is made once and in order, within the workspace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "generator/plan_cut.h"
#include "generator/plan_works.h"
#include "tests/support/plan_case.h"

enum { TILE = 128, PROCESSORS = 132 };
#define MB ((int64_t)1 << 20)

/* Which kernels take the works: FORWARD; PRODUCTS, backward; CHAINS, backward where dK and dV are
 * made with the scores. */
typedef enum Kind { PRODUCTS, FORWARD, CHAINS, KINDS } Kind;

static void make_case(PlanCase *at, Kind kind, const char *mask, int heads, int kv_heads) {
  plan_case_create(at, kind == FORWARD ? "forward" : "materialised", mask, NULL, heads, kv_heads);
  at->spec.head_dim = kind == CHAINS ? 192 : 320;
  at->spec.head_dim_v = kind == CHAINS ? 128 : 512;
  at->tiling.tile_q = at->tiling.tile_kv = TILE;
  at->tiling.fields[0] = (TilingField){.name = "processors", .value = PROCESSORS};
  at->tiling.fields[1] = (TilingField){.name = "score_planes", .value = kind == PRODUCTS ? 2 : 1};
  at->tiling.field_count = 2;
  at->tiling.launches[0].grid = GRID_WORKS;
  at->schedule = rule_schedule(UPWARDS, UPWARDS);
}

/* The tables of a plan's works. */
typedef struct View {
  const Plan *plan;
  const RotaUnit *units;
  const RotaSegment *segments;
  const RotaChunk *chunks;
  const RotaWork *works;
  const RotaSequence *sequences;
  bool chains;
  int blocks_k, blocks_v, group;
  int64_t *blocks; /* of each unit */
} View;

static View view_of(const Plan *plan) {
  const unsigned char *image = plan->works.image;
  bool chains =
      plan->direction == ROTA_BACKWARD && tiling_get(&plan->tiling, "score_planes", 0) == 1;
  return (View){.plan = plan,
                .units = (const void *)(image + plan->works.units.offset),
                .segments = (const void *)(image + plan->works.segments.offset),
                .chunks = (const void *)(image + plan->works.chunks.offset),
                .works = (const void *)(image + plan->works.works.offset),
                .sequences = plan_section(plan, plan->sequences),
                .chains = chains,
                .blocks_k = chains ? 1 : 2,
                .blocks_v = chains ? 1 : 2,
                .group = plan->heads / plan->kv_heads};
}

static int64_t segment_end(const View *view, int64_t segment) {
  return segment + 1 < view->plan->works.segments.count ? view->segments[segment + 1].first_ticket
                                                        : view->plan->works.tickets;
}

/* What has been done to the plane of one (sequence, kv head). */
typedef struct Plane {
  int32_t rows, pairs;
  int *scores;          /* [rows][pairs] works */
  int *sum_q, *sum_k;   /* works that a row's, a kv tile's sums have been through */
  int *done_q, *done_k; /* those of their last unit */
} Plane;

static TileKind kind_at(const View *view, const RotaUnit *unit, int32_t row, int32_t kv) {
  const RotaSequence *sequence = &view->sequences[unit->sequence];
  const RotaRow *rows = plan_section(view->plan, view->plan->rows);
  const RotaRun *runs = plan_section(view->plan, view->plan->runs);
  int head = unit->kv_head * view->group + row / sequence->q_tiles;
  int64_t per_head = view->plan->rows.count > plan_q_tiles(view->plan) ? sequence->q_tiles : 0;
  const RotaRow *at = &rows[sequence->row_begin + head * per_head + row % sequence->q_tiles];
  for (int32_t i = at->run_begin; i < at->run_end; i++)
    if (kv >= runs[i].begin && kv < (int32_t)(runs[i].end_kind & ~ROTA_RUN_PARTIAL))
      return runs[i].end_kind & ROTA_RUN_PARTIAL ? TILE_PARTIAL : TILE_FULL;
  return TILE_EMPTY;
}

static void take_score(const View *view, const RotaUnit *unit, const RotaWork *work, Plane *plane) {
  int32_t pair = (int32_t)(work->what >> 4);
  assert_in_range(work->tile, unit->row_begin, unit->row_begin + unit->rows - 1);
  assert_true(2 * pair >= unit->kv_begin && 2 * pair < unit->kv_begin + unit->kv_tiles);
  TileKind left = kind_at(view, unit, work->tile, 2 * pair);
  TileKind right = kind_at(view, unit, work->tile, 2 * pair + 1);
  assert_true(left != TILE_EMPTY || right != TILE_EMPTY);
  assert_int_equal((work->what >> 2 & 3) != 0, left != TILE_FULL || right != TILE_FULL);
  plane->scores[work->tile * plane->pairs + pair]++;
}

/* Sums go through units from FIRST to LAST. */
static void take_sum(const RotaUnit *unit, const RotaWork *work, bool keys, Plane *plane,
                     int blocks) {
  int *through = keys ? &plane->sum_k[work->tile] : &plane->sum_q[work->tile];
  int *done = keys ? &plane->done_k[work->tile] : &plane->done_q[work->tile];
  bool first = unit->flags & (keys ? ROTA_UNIT_FIRST_K : ROTA_UNIT_FIRST_Q);
  bool last = unit->flags & (keys ? ROTA_UNIT_LAST_K : ROTA_UNIT_LAST_Q);
  assert_true(first == (*through < blocks));
  ++*through;
  *done += last;
}

/* A chain goes through its tiles of the unit, of which there is one, unless it has none at all. */
static void take_chain(const View *view, const RotaUnit *unit, const RotaWork *work, Plane *plane) {
  int32_t kv = work->tile, tiles = 0, later = 0, all = 0;
  assert_in_range(kv, unit->kv_begin, unit->kv_begin + unit->kv_tiles - 1);
  assert_int_equal(work->what, ROTA_WORK_SCORES);
  for (int32_t row = 0; row < plane->rows; row++) {
    if (kind_at(view, unit, row, kv) == TILE_EMPTY)
      continue;
    all++;
    later += row >= unit->row_begin + unit->rows;
    if (row < unit->row_begin || row >= unit->row_begin + unit->rows)
      continue;
    tiles++;
    plane->scores[row * plane->pairs + kv / 2]++;
  }
  assert_true(tiles > 0 || all == 0);
  plane->done_k[kv] += later == 0;
}

static void take_gradient(const View *view, const RotaUnit *unit, const RotaWork *work,
                          Plane *plane) {
  unsigned kind = work->what & 3;
  int blocks = kind == ROTA_WORK_DV ? view->blocks_v : view->blocks_k;
  assert_true(kind != ROTA_WORK_SCORES && (int)(work->what >> 2) < blocks);
  bool keys = kind == ROTA_WORK_DV || kind == ROTA_WORK_DK;
  assert_false(keys && view->chains);
  if (keys)
    assert_in_range(work->tile, unit->kv_begin, unit->kv_begin + unit->kv_tiles - 1);
  else
    assert_in_range(work->tile, unit->row_begin, unit->row_begin + unit->rows - 1);
  /* dV and dK in one count: both have as many blocks. */
  take_sum(unit, work, keys, plane, keys ? view->blocks_k + view->blocks_v : blocks);
}

static Plane *make_planes(const View *view) {
  const Plan *plan = view->plan;
  size_t count = (size_t)(plan->lengths->batch * plan->kv_heads);
  Plane *planes = calloc(count + 1, sizeof(Plane));
  for (size_t i = 0; i < count; i++) {
    const RotaSequence *sequence = &view->sequences[i / (size_t)plan->kv_heads];
    Plane *plane = &planes[i];
    plane->rows = sequence->q_tiles * view->group;
    plane->pairs = (sequence->kv_tiles + 1) / 2;
    plane->scores = calloc((size_t)plane->rows * (size_t)plane->pairs + 1, sizeof(int));
    size_t rows = (size_t)plane->rows + 1, keys = 2 * (size_t)plane->pairs + 1;
    plane->sum_q = calloc(rows, sizeof(int));
    plane->done_q = calloc(rows, sizeof(int));
    plane->sum_k = calloc(keys, sizeof(int));
    plane->done_k = calloc(keys, sizeof(int));
  }
  return planes;
}

static void free_planes(const View *view, Plane *planes) {
  for (int i = 0; i < view->plan->lengths->batch * view->plan->kv_heads; i++) {
    free(planes[i].scores);
    free(planes[i].sum_q);
    free(planes[i].done_q);
    free(planes[i].sum_k);
    free(planes[i].done_k);
  }
  free(planes);
}

/* Every product of a plane once; outputs of all tiles of the slot. */
static void check_plane(const View *view, int32_t index, const Plane *plane) {
  bool backward = view->plan->direction == ROTA_BACKWARD;
  RotaUnit unit = {.sequence = index / view->plan->kv_heads,
                   .kv_head = index % view->plan->kv_heads};
  for (int32_t row = 0; row < plane->rows; row++) {
    assert_int_equal(plane->done_q[row], backward ? view->blocks_k : view->blocks_v);
    for (int32_t pair = 0; pair < plane->pairs; pair++) {
      int tiles = (kind_at(view, &unit, row, 2 * pair) != TILE_EMPTY) +
                  (kind_at(view, &unit, row, 2 * pair + 1) != TILE_EMPTY);
      assert_int_equal(plane->scores[row * plane->pairs + pair], view->chains ? tiles : tiles > 0);
    }
  }
  int works = !backward ? 0 : view->chains ? 1 : view->blocks_k + view->blocks_v;
  for (int32_t kv = 0; kv < view->sequences[unit.sequence].kv_tiles; kv++)
    assert_int_equal(plane->done_k[kv], works);
}

/* Do both units keep sums of dQ in memory, and in one place; of dK and dV? */
static bool share_q(const RotaUnit *a, const RotaUnit *b) {
  const int whole = ROTA_UNIT_FIRST_Q | ROTA_UNIT_LAST_Q;
  return (a->flags & whole) != whole && (b->flags & whole) != whole &&
         a->sum_q < b->sum_q + b->rows && b->sum_q < a->sum_q + a->rows;
}

static bool share_k(const RotaUnit *a, const RotaUnit *b) {
  const int whole = ROTA_UNIT_FIRST_K | ROTA_UNIT_LAST_K;
  return (a->flags & whole) != whole && (b->flags & whole) != whole &&
         a->sum_k < b->sum_k + b->kv_tiles && b->sum_k < a->sum_k + a->kv_tiles;
}

/* A unit's gradients wait for the last of those that used the place of its sums; chains for the
 * last that used it and has any, which has waited for those before. */
static void check_after(const View *view, int64_t segment) {
  const RotaSegment *own = &view->segments[segment];
  const RotaUnit *unit = &view->units[own->unit];
  int32_t after = view->chunks[own->chunk].after;
  assert_true(unit->after < own->chunk && after < own->chunk);
  assert_true(after < 0 || (view->chains && view->chunks[after].scores > 0));
  for (int64_t s = 0; s < segment; s++) {
    const RotaSegment *other = &view->segments[s];
    const RotaUnit *there = &view->units[other->unit];
    if (other->chunk >= own->chunk)
      continue;
    bool keys = share_k(unit, there);
    if (share_q(unit, there) || keys)
      assert_true(other->chunk <= unit->after);
    if (keys && view->chains && view->chunks[other->chunk].scores > 0)
      assert_true(other->chunk <= after);
  }
}

/* Blocks of a unit. */
static int64_t unit_blocks(const View *view, const RotaUnit *unit) {
  const int32_t *offsets =
      (const void *)(view->plan->works.image + view->plan->works.offsets.offset);
  if (!view->chains)
    return (int64_t)unit->rows * unit->kv_tiles * 2;
  int64_t end = 0;
  for (int32_t row = 0; row < unit->rows; row++)
    for (int32_t kv = unit->kv_begin; kv < unit->kv_begin + unit->kv_tiles; kv++) {
      if (kind_at(view, unit, unit->row_begin + row, kv) == TILE_EMPTY)
        continue;
      int64_t block = offsets[unit->offsets + row] + 2 * kv;
      assert_true(block >= 0);
      if (row > 0 && end > block) /* rows lie one after another */
        assert_int_equal(block, end);
      end = block + 2;
    }
  return end;
}

/* No chunk's scores are written where those of another lie whose gradients may not be done: chunk c
 * waits for some, these have waited for others. */
static void check_place(const View *view, int64_t segment) {
  const RotaSegment *own = &view->segments[segment];
  const RotaUnit *unit = &view->units[own->unit];
  const RotaChunk *chunk = &view->chunks[own->chunk];
  int64_t end = unit->scores + view->blocks[own->unit];
  assert_true(unit->scores >= 0);
  int32_t done = chunk->free_count > 0 ? chunk->free_first + chunk->free_count : 0;
  if (view->chains && done > 0) { /* the last one has waited for all that this one does not */
    const RotaChunk *last = &view->chunks[done - 1];
    assert_true(last->free_first + last->free_count >= chunk->free_first);
  }
  for (int64_t s = 0; s < segment; s++) {
    const RotaSegment *other = &view->segments[s];
    const RotaUnit *there = &view->units[other->unit];
    if (other->chunk < own->chunk && other->chunk >= done && there->scores < end)
      assert_true(there->scores + view->blocks[other->unit] <= unit->scores);
  }
}

/* Goes through the tickets in order, as if one block took them all. */
static void check_works(const Plan *plan) {
  View view = view_of(plan);
  const Works *works = &plan->works;
  Plane *planes = make_planes(&view);
  RotaChunk *counted = calloc((size_t)works->chunks.count + 1, sizeof(RotaChunk));
  view.blocks = calloc((size_t)works->units.count + 1, sizeof(int64_t));
  for (int64_t i = 0; i < works->units.count; i++)
    view.blocks[i] = unit_blocks(&view, &view.units[i]);
  int64_t ticket = 0;
  for (int64_t s = 0; s < works->segments.count; s++) {
    const RotaSegment *segment = &view.segments[s];
    const RotaUnit *unit = &view.units[segment->unit];
    Plane *plane = &planes[unit->sequence * plan->kv_heads + unit->kv_head];
    assert_int_equal(segment->first_ticket, ticket);
    check_after(&view, s);
    check_place(&view, s);
    for (; ticket < segment_end(&view, s); ticket++) {
      const RotaWork *work = &view.works[segment->work_begin + ticket - segment->first_ticket];
      bool scores = (work->what & 3) == ROTA_WORK_SCORES;
      if (scores && view.chains)
        take_chain(&view, unit, work, plane);
      else if (scores)
        take_score(&view, unit, work, plane);
      else
        take_gradient(&view, unit, work, plane);
      if (scores) /* gradients that it waits for have lower tickets */
        for (int32_t i = 0; i < view.chunks[segment->chunk].free_count; i++) {
          int32_t freed = view.chunks[segment->chunk].free_first + i;
          assert_int_equal(counted[freed].gradients, view.chunks[freed].gradients);
        }
      counted[segment->chunk].scores += scores;
      counted[segment->chunk].gradients += !scores;
      if (!scores) /* all scores of its chunk have lower tickets */
        assert_int_equal(counted[segment->chunk].scores, view.chunks[segment->chunk].scores);
    }
  }
  assert_int_equal(ticket, works->tickets);
  for (int64_t i = 0; i < works->chunks.count; i++)
    assert_true(counted[i].scores == view.chunks[i].scores &&
                counted[i].gradients == view.chunks[i].gradients);
  for (int32_t i = 0; i < plan->lengths->batch * plan->kv_heads; i++)
    check_plane(&view, i, &planes[i]);
  free(counted);
  free(view.blocks);
  free_planes(&view, planes);
}

static const char *const masks[] = {
    NULL,   "k <= q + n_k - n_q", "k <= q and q - k < w * 40", "k <= q + 200 * h", "k % 512 < 128",
    "q < 0"};
enum { MASKS = sizeof masks / sizeof masks[0] };

static void test_every_product_once(void **state) {
  (void)state;
  uint64_t random = 5;
  for (int round = 0; round < 54; round++) {
    int kv_heads = 1 + case_random(&random, 2), group = 1 + case_random(&random, 3);
    PlanCase at;
    make_case(&at, round % KINDS, masks[round / KINDS % MASKS], kv_heads * group, kv_heads);
    int32_t used[2] = {case_random(&random, 700), case_random(&random, 700)};
    at.request.lengths = (rota_lengths){.batch = 2,
                                        .n_q = 700 + case_random(&random, 2000),
                                        .n_k = 700 + case_random(&random, 2000)};
    if (round % 3 == 0)
      at.request.lengths.seqused_q = at.request.lengths.seqused_k = used;
    at.request.workspace_limit = (size_t)((12 + case_random(&random, 60)) * MB);
    Plan *plan = plan_case_good(&at);
    check_works(plan);
    assert_true(plan->workspace.bytes <= (int64_t)at.request.workspace_limit + 4096);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

static void test_nothing_to_do(void **state) {
  (void)state;
  static const int lengths[][3] = {{0, 5, 5}, {2, 0, 300}, {2, 300, 0}, {1, 0, 0}};
  for (int i = 0; i < 4 * KINDS; i++) {
    PlanCase at;
    make_case(&at, i % KINDS, NULL, 2, 1);
    at.request.lengths = (rota_lengths){
        .batch = lengths[i / KINDS][0], .n_q = lengths[i / KINDS][1], .n_k = lengths[i / KINDS][2]};
    Plan *plan = plan_case_good(&at);
    check_works(plan);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* Many short sequences share chunks; one long one is cut. */
static void test_chunks(void **state) {
  (void)state;
  PlanCase at;
  make_case(&at, PRODUCTS, "k <= q", 4, 4);
  at.request.lengths = (rota_lengths){.batch = 64, .n_q = 512, .n_k = 512};
  Plan *plan = plan_case_good(&at);
  assert_in_range(plan->works.chunks.count, 2, 32);
  assert_true(plan->works.works.count < 100); /* one plane's */
  plan_destroy(plan);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 65536, .n_k = 65536};
  plan = plan_case_good(&at);
  assert_true(plan->works.chunks.count > 100);
  assert_true(plan->workspace.bytes <= 512 * MB + 4096);
  plan_destroy(plan);
  at.request.workspace_limit = 100000;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_WORKSPACE);
  assert_non_null(strstr(status_message(), "the limit is 100000"));
  plan_case_free(&at);
}

/* A plane of 1024 x 1024 tiles in the smallest units, half a million: each is met a fixed number of
 * times (pairs of them would be 10^11). The message says what they need. */
static void test_refused(void **state) {
  (void)state;
  PlanCase at;
  make_case(&at, PRODUCTS, "k <= q", 1, 1);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 131072, .n_k = 131072};
  at.request.workspace_limit = (size_t)(100 * MB);
  Plan *plan;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_WORKSPACE);
  const char *need = strstr(status_message(), "the smallest units need ");
  assert_non_null(need);
  assert_non_null(strstr(status_message(), "the limit is 104857600: raise the limit"));
  long long bytes = strtoll(need + strlen("the smallest units need "), NULL, 10);
  assert_in_range(bytes, 100 * MB, 400 * MB);
  at.request.workspace_limit = (size_t)bytes; /* what it says suffices */
  plan = plan_case_good(&at);
  assert_true(plan->workspace.bytes <= bytes + 4096);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* As much as the message asks for suffices, whatever the shape. */
static void test_what_is_asked_for_suffices(void **state) {
  (void)state;
  uint64_t random = 3;
  int refused = 0;
  for (int round = 0; round < 120; round++) {
    PlanCase at;
    int group = 1 + case_random(&random, 3), kv_heads = 1 + case_random(&random, 4);
    make_case(&at, (Kind)case_random(&random, KINDS), round % 2 ? "k <= q" : NULL, group * kv_heads,
              kv_heads);
    if (round % 3 == 0)
      at.spec.dtype = ROTA_FP16;
    at.request.lengths = (rota_lengths){.batch = 1 + case_random(&random, 2),
                                        .n_q = 1 + case_random(&random, 12000),
                                        .n_k = 1 + case_random(&random, 26000)};
    at.request.workspace_limit = (size_t)(1 + case_random(&random, (int)(12 * MB)));
    Plan *plan = NULL;
    rota_status status = plan_case_build(&at, &plan);
    if (status == ROTA_WORKSPACE) {
      const char *need = strstr(status_message(), "the smallest units need ");
      assert_non_null(need);
      at.request.workspace_limit =
          (size_t)strtoll(need + strlen("the smallest units need "), NULL, 10);
      plan = plan_case_good(&at);
      refused++;
    } else {
      assert_int_equal(status, ROTA_OK);
    }
    assert_true(plan->workspace.bytes <= (int64_t)at.request.workspace_limit + 4096);
    plan_destroy(plan);
    plan_case_free(&at);
  }
  assert_in_range(refused, 40, 110);
}

/* In fp16 a forward unit has 128 kv tiles, or all that are left, whatever the limit and the batch,
 * so that its rows' sums are put together in the same places. */
static void test_fp16_rows_are_cut_at_the_same_keys(void **state) {
  (void)state;
  static const int32_t cu[] = {0, 40000, 41000, 71000};
  const size_t limits[] = {0, (size_t)(60 * MB), (size_t)(20 * MB)};
  for (int packed = 0; packed < 2; packed++)
    for (int fp16 = 0; fp16 < 2; fp16++) {
      bool moved = false;
      for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        PlanCase at;
        make_case(&at, FORWARD, NULL, 2, 2);
        at.spec.dtype = fp16 ? ROTA_FP16 : ROTA_BF16;
        at.request.lengths =
            packed ? (rota_lengths){.batch = 3, .cu_seqlens_q = cu, .cu_seqlens_k = cu}
                   : (rota_lengths){.batch = 1, .n_q = 3000, .n_k = 40000};
        at.request.workspace_limit = limits[i];
        Plan *plan = plan_case_good(&at);
        View view = view_of(plan);
        for (int64_t u = 0; u < plan->works.units.count; u++) {
          const RotaUnit *unit = &view.units[u];
          int left = view.sequences[unit->sequence].kv_tiles - unit->kv_begin;
          left += left % 2;
          moved = moved || unit->kv_begin % 128 != 0 || unit->kv_tiles != (left < 128 ? left : 128);
        }
        plan_destroy(plan);
        plan_case_free(&at);
      }
      assert_int_equal(moved, !fp16);
    }
}

/* A plan's file has no works: they are made again, the same. */
static void test_loaded(void **state) {
  (void)state;
  char path[] = "/tmp/rota_works_XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  PlanCase at;
  make_case(&at, PRODUCTS, "k <= q", 4, 2);
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 1000, .n_k = 700};
  at.request.workspace_limit = (size_t)(8 * MB);
  Plan *plan = plan_case_good(&at), *loaded;
  Digest key = {"0123456789abcdef0123456789abcdef"};
  assert_int_equal(plan_save(plan, &key, path), ROTA_OK);
  assert_int_equal(plan_load(path, &key, &loaded), ROTA_OK);
  assert_int_equal(plan_matches(loaded, &at.spec, ROTA_BACKWARD, &at.tiling), ROTA_OK);
  assert_int_equal(works_build(&at.spec, loaded), ROTA_OK);
  assert_int_equal(loaded->works.image_bytes, plan->works.image_bytes);
  assert_memory_equal(loaded->works.image, plan->works.image, plan->works.image_bytes);
  assert_memory_equal(&loaded->workspace, &plan->workspace, sizeof plan->workspace);
  plan_destroy(loaded);
  plan_destroy(plan);
  plan_case_free(&at);
  unlink(path);
}

/* Sums that go through several units do so in ascending order, or not at all. */
static void test_other_schedules(void **state) {
  (void)state;
  PlanCase at;
  make_case(&at, PRODUCTS, "k <= q", 2, 2);
  at.schedule = rule_schedule(UPWARDS, DOWNWARDS);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 2000, .n_k = 2000};
  Plan *plan = plan_case_good(&at);
  plan_destroy(plan);
  at.request.workspace_limit = (size_t)(8 * MB);
  assert_int_equal(plan_case_build(&at, &plan), ROTA_SCHEDULE);
  plan_case_free(&at);
}

static void test_out_of_memory(void **state) {
  (void)state;
  PlanCase at;
  make_case(&at, PRODUCTS, "k <= q", 4, 2);
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 1000, .n_k = 700};
  rota_status status = ROTA_OUT_OF_MEMORY;
  for (long n = 1; status != ROTA_OK; n++) {
    Plan *plan;
    memory_fail_at(n);
    status = plan_case_build(&at, &plan);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    if (status == ROTA_OK)
      plan_destroy(plan);
  }
  plan_case_free(&at);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_product_once),
                                     cmocka_unit_test(test_nothing_to_do),
                                     cmocka_unit_test(test_chunks),
                                     cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_what_is_asked_for_suffices),
                                     cmocka_unit_test(test_fp16_rows_are_cut_at_the_same_keys),
                                     cmocka_unit_test(test_loaded),
                                     cmocka_unit_test(test_other_schedules),
                                     cmocka_unit_test(test_out_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
