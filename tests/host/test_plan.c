/* Plans: tables against tile maps and patterns built one by one, sharing, order of the items, batch
 * independence, digests, workspace, empty shapes, memory failures, time. */
#include "tests/support/plan_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Milliseconds that planning may take; sanitizers take their own. */
#if defined(__SANITIZE_ADDRESS__)
enum { TIME_MAX = 5000 };
#else
enum { TIME_MAX = 500 };
#endif

static rota_lengths dense(int batch, int n_q, int n_k) {
  return (rota_lengths){.batch = batch, .n_q = n_q, .n_k = n_k};
}

/* ---- Tables against maps and patterns ---- */

/* The map and pattern of (sequence, head), made without a plan. */
static void check_head(const PlanCase *at, const Plan *plan, int sequence, int head) {
  Bindings bindings = plan->bindings; /* tensors, without ranges: slower, same answers */
  TileMapRequest place = {plan->lengths->n_q[sequence],
                          plan->lengths->n_k[sequence],
                          at->tiling.tile_q,
                          at->tiling.tile_kv,
                          sequence,
                          head};
  TileMap *want, *got;
  assert_int_equal(tile_map_build(at->spec.mask, &bindings, &place, &want), ROTA_OK);
  assert_int_equal(plan_tile_map(plan, sequence, head, &got), ROTA_OK);
  assert_true(tile_map_equal(want, got));
  assert_int_equal(want->full_tiles, got->full_tiles);
  assert_int_equal(want->partial_tiles, got->partial_tiles);
  tile_map_destroy(want);
  tile_map_destroy(got);
}

static void check_kv_head(const PlanCase *at, const Plan *plan, int sequence, int kv_head) {
  TileMap *maps[8];
  int group = plan->heads / plan->kv_heads;
  for (int g = 0; g < group; g++)
    assert_int_equal(plan_tile_map(plan, sequence, kv_head * group + g, &maps[g]), ROTA_OK);
  const TileMap *const *views = (const TileMap *const *)maps;
  Pattern *want, *got;
  assert_int_equal(pattern_build(&at->schedule, views, group, NULL, 0, &want), ROTA_OK);
  assert_int_equal(plan_pattern(plan, sequence, kv_head, &got), ROTA_OK);
  if (plan_is_ordered(plan)) {
    assert_int_equal(pattern_verify(got, views, true), ROTA_OK);
    assert_true(patterns_equal(want, got));
  }
  pattern_destroy(want);
  pattern_destroy(got);
  for (int g = 0; g < group; g++)
    tile_map_destroy(maps[g]);
}

static void check_plan(const PlanCase *at, const Plan *plan) {
  for (int s = 0; s < plan->lengths->batch; s++) {
    for (int head = 0; head < plan->heads; head++)
      check_head(at, plan, s, head);
    for (int kv_head = 0; kv_head < plan->kv_heads && plan->direction == ROTA_BACKWARD; kv_head++)
      check_kv_head(at, plan, s, kv_head);
  }
}

enum { BATCH = 5 };

/* Random lengths of one of three forms; the arrays belong to the caller. */
typedef struct Arrays {
  int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], used_q[BATCH], used_k[BATCH];
} Arrays;

static rota_lengths random_lengths(uint64_t *random, Arrays *arrays) {
  rota_lengths lengths =
      dense(case_random(random, BATCH + 1), case_random(random, 300), case_random(random, 300));
  bool packed = case_random(random, 2), used = case_random(random, 2);
  arrays->cu_q[0] = arrays->cu_k[0] = case_random(random, 3);
  for (int s = 0; s < BATCH; s++) {
    int rows_q = packed ? case_random(random, 3) * 97 : lengths.n_q;
    int rows_k = packed ? case_random(random, 4) * 61 : lengths.n_k;
    arrays->cu_q[s + 1] = arrays->cu_q[s] + rows_q;
    arrays->cu_k[s + 1] = arrays->cu_k[s] + rows_k;
    arrays->used_q[s] = case_random(random, rows_q + 1);
    arrays->used_k[s] = case_random(random, rows_k + 1);
  }
  if (packed)
    lengths.cu_seqlens_q = arrays->cu_q;
  if (packed)
    lengths.cu_seqlens_k = arrays->cu_k;
  if (used)
    lengths.seqused_q = arrays->used_q;
  if (used)
    lengths.seqused_k = arrays->used_k;
  return lengths;
}

static void test_tables_match_maps_and_patterns(void **state) {
  (void)state;
  static const char *const masks[] = {NULL,
                                      "k <= q + n_k - n_q",
                                      "k <= q + n_k - n_q and q + n_k - n_q - k < w * 10",
                                      "k <= q + 40 * h",
                                      "k + 50 * b <= q",
                                      "k % 64 < 32 and k <= q + 16 * (h + b)",
                                      "q < 0"};
  static const char *const algorithms[] = {"forward", "ordered", "two_pass", "atomic"};
  uint64_t random = 11;
  for (int round = 0; round < 240; round++) {
    int kv_heads = 1 + case_random(&random, 3), group = 1 + case_random(&random, 3);
    PlanCase at;
    plan_case_create(&at, algorithms[round % 4], masks[round % 7], NULL, kv_heads * group,
                     kv_heads);
    at.schedule = rule_schedule(case_random(&random, 2) ? UPWARDS : DOWNWARDS,
                                case_random(&random, 2) ? UPWARDS : DOWNWARDS);
    Arrays arrays;
    at.request.lengths = random_lengths(&random, &arrays);
    Plan *plan = plan_case_good(&at);
    check_plan(&at, plan);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* Independent of plan_check: every (row, head) once, and tokens past the used ones have their row
 * and chain too. */
static void test_items_are_complete(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q", NULL, 4, 2);
  const int32_t used[] = {100, 0};
  at.request.lengths = dense(2, 200, 100);
  at.request.lengths.seqused_q = used;
  at.request.lengths.seqused_k = used;
  Plan *plan = plan_case_good(&at);
  assert_int_equal(plan->rows.count, 2 * 4);
  assert_int_equal(plan_grid(plan, GRID_ROW_ITEMS), 2 * 4 * 4);
  assert_int_equal(plan_grid(plan, GRID_CHAIN_ITEMS), 2 * 4 * 2);
  assert_int_equal(plan_grid(plan, GRID_WORKERS), 2 * 4 * 2);
  assert_int_equal(plan_grid(plan, GRID_HEADS), 4);
  assert_int_equal(plan_q_tiles(plan), 8);
  bool seen[8][4] = {{false}};
  const RotaItem *items = plan_section(plan, plan->row_items);
  for (int i = 0; i < 2 * 4 * 4; i++) {
    assert_false(seen[items[i].index][items[i].head]);
    seen[items[i].index][items[i].head] = true;
  }
  const RotaRow *rows = plan_section(plan, plan->rows);
  for (int i = 0; i < 8; i++) /* 100 tokens: two query tiles of 64 have keys */
    assert_int_equal(rows[i].run_begin < rows[i].run_end, i < 2);
  const RotaChain *chains = plan_section(plan, plan->chains);
  for (int i = 0; i < 8; i++) /* four kv tiles of 32 have queries */
    assert_int_equal(chains[i].visit_begin < chains[i].visit_end, i < 4);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* ---- Sharing ---- */

static void test_equal_planes_are_shared(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    int maps, patterns; /* written for a batch of 32 with 16 heads, 8 kv heads */
  } cases[] = {{"k <= q", 1, 1},
               {"k <= q + h", 16, 8},
               {"k <= q + b", 32, 32},
               {"k <= q + b + h", 512, 256}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    PlanCase at;
    plan_case_create(&at, "ordered", cases[i].mask, NULL, 16, 8);
    at.request.lengths = dense(32, 256, 256);
    Plan *plan = plan_case_good(&at);
    /* Causal, shifted by less than a tile: rows of 2, 4, 6, 8 kv tiles or up to one more each. */
    int64_t rows = 4, least = 20, most = 24;
    assert_in_range(plan->runs.count, rows * cases[i].maps, 3 * rows * cases[i].maps);
    assert_in_range(plan->visits.count, 2 * least * cases[i].patterns,
                    2 * most * cases[i].patterns);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

/* ---- Order of the items ---- */

static int32_t row_work(const Plan *plan, int32_t index) {
  const RotaRow *row = (const RotaRow *)plan_section(plan, plan->rows) + index;
  const RotaRun *runs = plan_section(plan, plan->runs);
  int32_t work = 0;
  for (int32_t r = row->run_begin; r < row->run_end; r++)
    work += (int32_t)(runs[r].end_kind & ~ROTA_RUN_PARTIAL) - runs[r].begin;
  return work;
}

static void test_rows_longest_first_while_they_share_the_cache(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "forward", "k <= q", NULL, 4, 2);
  const int32_t cu[] = {0, 512, 1536, 1792};
  at.request.lengths = (rota_lengths){.batch = 3, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
  Plan *plan = plan_case_good(&at);
  const RotaItem *items = plan_section(plan, plan->row_items);
  for (int i = 1; i < plan->row_items.count; i++)
    assert_true(row_work(plan, items[i - 1].index) >= row_work(plan, items[i].index));
  plan_destroy(plan);
  /* 65,536 keys of 136 bf16 numbers are 17.8 MB per kv head: one kv head after another. */
  at.request.lengths = dense(1, 65536, 65536);
  plan = plan_case_good(&at);
  items = plan_section(plan, plan->row_items);
  int64_t half = plan->row_items.count / 2;
  for (int64_t i = 0; i < plan->row_items.count; i++) {
    assert_int_equal(items[i].head / 2, i / half);
    if (i % half > 0)
      assert_true(row_work(plan, items[i - 1].index) >= row_work(plan, items[i].index));
  }
  plan_destroy(plan);
  plan_case_free(&at);
}

/* 24,576 queries: Q and dO of two heads (6.7 MB each) would share the cache, with the fp32 sums of
 * dQ (7.1 MB more each) they do not: one head after another. */
static void test_sums_of_dq_take_their_share_of_the_cache(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", NULL, NULL, 2, 2);
  at.request.lengths = dense(1, 24576, 128);
  Plan *plan = plan_case_good(&at);
  const RotaItem *items = plan_section(plan, plan->chain_items);
  assert_int_equal(plan->chain_items.count, 8);
  for (int i = 0; i < 8; i++)
    assert_int_equal(items[i].head, i / 4);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* Ordered: (sequence, kv head) pairs of a wave take turns, each in its start order. Otherwise the
 * longest chain first. */
static void test_chains_in_start_order_where_they_wait(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q", NULL, 4, 2);
  at.request.lengths = dense(2, 128, 128);
  Plan *ordered = plan_case_good(&at);
  snprintf(at.tiling.algorithm, sizeof at.tiling.algorithm, "two_pass");
  Plan *free_order = plan_case_good(&at);
  const RotaChain *chains = plan_section(ordered, ordered->chains);
  const RotaItem *items = plan_section(ordered, ordered->chain_items);
  const int *queue = plan_section(ordered, ordered->queue);
  for (int i = 0; i < 2 * 2 * 4; i++) {
    assert_int_equal(chains[items[i].index].sequence, i % 4 / 2);
    assert_int_equal(items[i].head, i % 2);
    assert_int_equal(chains[items[i].index].kv_tile, 3 - i / 4);
    assert_int_equal(queue[i], i);
  }
  assert_int_equal(queue[16], 16);
  chains = plan_section(free_order, free_order->chains);
  items = plan_section(free_order, free_order->chain_items);
  for (int i = 1; i < 16; i++) {
    RotaChain a = chains[items[i - 1].index], b = chains[items[i].index];
    assert_true(a.visit_end - a.visit_begin >= b.visit_end - b.visit_begin);
  }
  /* The items' order decides no bits. */
  assert_string_equal(ordered->pattern_digest.hex, free_order->pattern_digest.hex);
  plan_destroy(ordered);
  plan_destroy(free_order);
  plan_case_free(&at);
}

/* ---- Batch independence and digest ---- */

static void test_patterns_do_not_depend_on_the_batch(void **state) {
  (void)state;
  const int32_t cu[] = {0, 300, 300, 777, 900, 1200};
  static const int order[] = {4, 0, 3, 2, 1};
  int32_t permuted[6] = {0};
  for (int i = 0; i < 5; i++)
    permuted[i + 1] = permuted[i] + cu[order[i] + 1] - cu[order[i]];
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q and q - k < 200 or k < 4 + 64 * h", NULL, 4, 2);
  at.request.lengths = (rota_lengths){.batch = 5, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
  Plan *together = plan_case_good(&at);
  at.request.lengths.cu_seqlens_q = at.request.lengths.cu_seqlens_k = permuted;
  Plan *shuffled = plan_case_good(&at);
  for (int i = 0; i < 5; i++) {
    int s = order[i];
    at.request.lengths = dense(1, cu[s + 1] - cu[s], cu[s + 1] - cu[s]);
    Plan *alone = plan_case_good(&at);
    for (int kv_head = 0; kv_head < 2; kv_head++) {
      Pattern *patterns[3];
      assert_int_equal(plan_pattern(together, s, kv_head, &patterns[0]), ROTA_OK);
      assert_int_equal(plan_pattern(shuffled, i, kv_head, &patterns[1]), ROTA_OK);
      assert_int_equal(plan_pattern(alone, 0, kv_head, &patterns[2]), ROTA_OK);
      assert_true(patterns_equal(patterns[0], patterns[2]));
      assert_true(patterns_equal(patterns[1], patterns[2]));
      for (int p = 0; p < 3; p++)
        pattern_destroy(patterns[p]);
    }
    plan_destroy(alone);
  }
  plan_destroy(together);
  plan_destroy(shuffled);
  plan_case_free(&at);
}

/* One change at a time: each must show in the digest; repeating must not, nor a larger batch. */
static void test_digest_covers_what_decides_bits(void **state) {
  (void)state;
  Digest seen[12];
  int count = 0;
  for (int change = 0; change < 12; change++) {
    PlanCase at;
    plan_case_create(&at, change == 1 ? "forward" : "ordered", "k <= q and document[q] - k < w",
                     NULL, change == 2 ? 4 : 2, change == 3 ? 1 : 2);
    int32_t ids[256];
    for (int i = 0; i < 256; i++)
      ids[i] = i / 2 + (change == 4 && i == 200);
    rota_named_tensor tensor = {"document", ROTA_INT32, 1, {256}, {1}, ids};
    rota_named_value value = {"w", change == 5 ? 1e6 : 1e6 + 1}; /* same map, other argument */
    at.request.tensors = &tensor;
    at.request.tensor_count = 1;
    at.request.values = &value;
    at.request.value_count = 1;
    at.request.lengths = dense(2, change == 7 ? 255 : 256, 256);
    if (change == 8)
      at.schedule = rule_schedule(UPWARDS, UPWARDS);
    if (change == 9)
      at.schedule = rule_schedule(DOWNWARDS, DOWNWARDS);
    if (change == 10)
      at.tiling.tile_q = 32;
    if (change == 11)
      at.spec.scale = 0.25f;
    Plan *plan = plan_case_good(&at);
    at.request.lengths.batch = change == 6 ? 3 : 2;
    Plan *again = plan_case_good(&at);
    assert_string_equal(plan->pattern_digest.hex, again->pattern_digest.hex);
    for (int i = 0; i < count && change != 6; i++)
      if (strcmp(seen[i].hex, plan->pattern_digest.hex) == 0)
        fail_msg("changes %d and %d have one digest", i, change);
    seen[count++] = plan->pattern_digest;
    plan_destroy(plan);
    plan_destroy(again);
    plan_case_free(&at);
  }
}

/* ---- Figures, workspace, empty shapes ---- */

static void test_figures_and_workspace(void **state) {
  (void)state;
  static const char *const algorithms[] = {"ordered", "atomic", "two_pass", "forward"};
  for (int i = 0; i < 4; i++) {
    PlanCase at;
    plan_case_create(&at, algorithms[i], "k <= q", NULL, 4, 2);
    at.request.lengths = dense(8, 128, 128);
    Plan *plan = plan_case_good(&at);
    /* 2 x 4 tiles of 64 x 32; the diagonal crosses two per row. */
    assert_int_equal(plan->full_tiles, 8 * 2);
    assert_int_equal(plan->partial_tiles, 8 * 4);
    assert_int_equal(plan->empty_tiles, 8 * 2);
    const RotaWorkspace *at_run = &plan->workspace;
    int64_t blocks = 8 * 2 * 4, rows = blocks * 64; /* head dim 72 is padded to 80 */
    int64_t dq = i < 2 ? rows * 80 * 4 : 0;
    assert_int_equal(at_run->delta, 0);
    assert_int_equal(at_run->dq_accumulator, i < 3 ? rows * 4 : 0);
    assert_int_equal(at_run->counters, i < 3 ? rows * 4 + dq : 0);
    assert_int_equal(at_run->bytes, i < 3 ? rows * 4 + dq + 512 : 0); /* 65 counters */
    assert_int_equal(plan_matches(plan, &at.spec, at.direction, &at.tiling), ROTA_OK);
    at.tiling.fields[0].value++;
    assert_int_equal(plan_matches(plan, &at.spec, at.direction, &at.tiling), ROTA_INVALID_ARGUMENT);
    at.tiling.fields[0].value--;
    Tiling other = at.tiling;
    other.map_count = plan->tiling.map_count = 1;
    assert_int_equal(plan_matches(plan, &at.spec, at.direction, &other), ROTA_OK);
    other.maps[0].heads = 2;
    assert_int_equal(plan_matches(plan, &at.spec, at.direction, &other), ROTA_INVALID_ARGUMENT);
    plan->tiling.map_count = 0;
    at.spec.head_dim = 128;
    assert_int_equal(plan_matches(plan, &at.spec, at.direction, &at.tiling),
                     dq ? ROTA_INVALID_ARGUMENT : ROTA_OK);
    plan_destroy(plan);
    plan_case_free(&at);
  }
}

static void test_empty_shapes(void **state) {
  (void)state;
  static const int shapes[][5] = {/* batch, n_q, n_k -> row items, chain items of 2 heads */
                                  {0, 10, 10, 0, 0},
                                  {2, 0, 100, 0, 16},
                                  {2, 100, 0, 8, 0},
                                  {1, 0, 0, 0, 0}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int backward = 0; backward < 2; backward++) {
      PlanCase at;
      plan_case_create(&at, backward ? "ordered" : "forward", "k <= q + n_k - n_q", NULL, 2, 2);
      at.request.lengths = dense(shapes[i][0], shapes[i][1], shapes[i][2]);
      Plan *plan = plan_case_good(&at);
      assert_int_equal(plan_grid(plan, GRID_ROW_ITEMS), shapes[i][3]);
      assert_int_equal(plan_grid(plan, GRID_CHAIN_ITEMS), backward ? shapes[i][4] : 0);
      assert_int_equal(plan_grid(plan, GRID_WORKERS), backward ? shapes[i][4] : 0);
      assert_true(plan->image_bytes >= 16);
      plan_destroy(plan);
      plan_case_free(&at);
    }
}

static void test_too_many_entries(void **state) {
  (void)state;
  PlanCase at;
  Plan *plan;
  plan_case_create(&at, "forward", NULL, NULL, 8192, 8192);
  at.request.lengths = dense(1, 1 << 26, 1); /* 2^20 query tiles x 2^13 heads */
  assert_int_equal(plan_case_build(&at, &plan), ROTA_UNSUPPORTED);
  assert_non_null(strstr(status_message(), "2^31"));
  plan_case_free(&at);
  plan_case_create(&at, "ordered", NULL, NULL, 1, 1);
  at.request.lengths = dense(1, 1, 1 << 26); /* 2^21 kv tiles: ranks have 20 bits */
  assert_int_equal(plan_case_build(&at, &plan), ROTA_UNSUPPORTED);
  assert_non_null(strstr(status_message(), "kv tiles"));
  plan_case_free(&at);
}

static void test_heads_of_the_request(void **state) {
  (void)state;
  PlanCase at;
  Plan *plan;
  plan_case_create(&at, "ordered", "k <= q + h", NULL, 4, 2);
  at.request.lengths = dense(1, 128, 128);
  at.request.heads = 8;
  at.request.kv_heads = 4;
  plan = plan_case_good(&at);
  assert_int_equal(plan->heads, 8);
  check_plan(&at, plan);
  plan_destroy(plan);
  at.request.kv_heads = 0; /* the spec's 2: another quotient */
  assert_int_equal(plan_case_build(&at, &plan), ROTA_INVALID_ARGUMENT);
  assert_string_equal(status_message(),
                      "heads 8, kv_heads 2: the kernel has 2 query heads per kv head");
  at.request.heads = -8;
  at.request.kv_heads = -4;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_INVALID_ARGUMENT);
  plan_case_free(&at);
}

/* ---- Time ---- */

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static double time_plan(const PlanCase *at, const char *name) {
  double best = 1e9;
  for (int i = 0; i < 3; i++) {
    Plan *plan;
    double begin = milliseconds();
    assert_int_equal(plan_case_build(at, &plan), ROTA_OK);
    double took = milliseconds() - begin;
    if (took < best)
      best = took;
    if (i == 2)
      print_message("%-42s %8.2f ms, %9lld visits, %8zu KB\n", name, best,
                    (long long)plan->visits.count, plan->image_bytes / 1024);
    plan_destroy(plan);
  }
  return best;
}

/* Case B6: 800,000 tokens, as packed sequences and as one sequence with document ids. */
static void test_packed_documents_plan_quickly(void **state) {
  (void)state;
  enum { TOKENS = 800000, DOCUMENTS = 400 };
  uint64_t random = 3;
  static int32_t ids[TOKENS];
  int32_t cu[DOCUMENTS + 1] = {0};
  for (int i = 1; i < DOCUMENTS; i++)
    cu[i] = cu[i - 1] + 1 + case_random(&random, 2 * TOKENS / DOCUMENTS - 1);
  cu[DOCUMENTS] = cu[DOCUMENTS - 1] < TOKENS ? TOKENS : cu[DOCUMENTS - 1];
  for (int i = 0; i < DOCUMENTS; i++)
    for (int t = cu[i]; t < cu[i + 1] && t < TOKENS; t++)
      ids[t] = i;
  for (int backward = 0; backward < 2; backward++) {
    const char *algorithm = backward ? "ordered" : "forward";
    PlanCase at;
    plan_case_create(&at, algorithm, "k <= q", NULL, 16, 4);
    at.tiling.tile_kv = 128;
    at.request.lengths = (rota_lengths){.batch = DOCUMENTS, .cu_seqlens_q = cu, .cu_seqlens_k = cu};
    assert_true(time_plan(&at, backward ? "packed, ordered" : "packed, forward") < TIME_MAX);
    plan_case_free(&at);
    plan_case_create(&at, algorithm, "k <= q and document[q] == document[k]", NULL, 16, 4);
    at.tiling.tile_kv = 128;
    rota_named_tensor tensor = {"document", ROTA_INT32, 1, {TOKENS}, {1}, ids};
    at.request.tensors = &tensor;
    at.request.tensor_count = 1;
    at.request.lengths = dense(1, TOKENS, TOKENS);
    assert_true(time_plan(&at, backward ? "document ids, ordered" : "document ids, forward") <
                TIME_MAX);
    plan_case_free(&at);
  }
}

static void test_large_batches_plan_quickly(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q", NULL, 32, 8);
  at.tiling.tile_kv = 128;
  at.request.lengths = dense(32, 4096, 4096);
  assert_true(time_plan(&at, "32 x 4096, 32 heads, ordered") < 500);
  at.request.lengths = dense(65536, 4, 4);
  assert_true(time_plan(&at, "65536 x 4, 32 heads, ordered") < 2000);
  plan_case_free(&at);
}

/* ---- Memory ---- */

static void test_memory_failures(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "ordered", "k <= q + h and document[q] == document[k]", NULL, 2, 1);
  int32_t ids[128];
  for (int i = 0; i < 128; i++)
    ids[i] = i / 50;
  rota_named_tensor tensor = {"document", ROTA_INT32, 1, {128}, {1}, ids};
  at.request.tensors = &tensor;
  at.request.tensor_count = 1;
  at.request.lengths = dense(2, 128, 128);
  Plan *plan = NULL;
  for (long n = 1; !plan; n++) {
    memory_fail_at(n);
    rota_status status = plan_case_build(&at, &plan);
    memory_fail_at(0);
    assert_int_equal(status, plan ? ROTA_OK : ROTA_OUT_OF_MEMORY);
    if (plan)
      assert_true(n > 30);
  }
  TileMap *map = NULL;
  for (long n = 1; !map; n++) {
    memory_fail_at(n);
    plan_tile_map(plan, 0, 0, &map);
    memory_fail_at(0);
  }
  Pattern *pattern = NULL;
  for (long n = 1; !pattern; n++) {
    memory_fail_at(n);
    plan_pattern(plan, 0, 0, &pattern);
    memory_fail_at(0);
  }
  rota_status status = ROTA_OUT_OF_MEMORY;
  for (long n = 1; status != ROTA_OK; n++) {
    memory_fail_at(n);
    status = plan_check(plan);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
  }
  tile_map_destroy(map);
  pattern_destroy(pattern);
  plan_destroy(plan);
  plan_case_free(&at);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tables_match_maps_and_patterns),
      cmocka_unit_test(test_items_are_complete),
      cmocka_unit_test(test_equal_planes_are_shared),
      cmocka_unit_test(test_rows_longest_first_while_they_share_the_cache),
      cmocka_unit_test(test_sums_of_dq_take_their_share_of_the_cache),
      cmocka_unit_test(test_chains_in_start_order_where_they_wait),
      cmocka_unit_test(test_patterns_do_not_depend_on_the_batch),
      cmocka_unit_test(test_digest_covers_what_decides_bits),
      cmocka_unit_test(test_figures_and_workspace),
      cmocka_unit_test(test_empty_shapes),
      cmocka_unit_test(test_too_many_entries),
      cmocka_unit_test(test_heads_of_the_request),
      cmocka_unit_test(test_packed_documents_plan_quickly),
      cmocka_unit_test(test_large_batches_plan_quickly),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
