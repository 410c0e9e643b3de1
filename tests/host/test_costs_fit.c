/* Costs from measured times: known costs are found again from the times that they make, with noise
 * too; cost files survive the way through lua/costs.lua; damaged ones are refused with a reason. */
#include "generator/costs_fit.h"
#include "generator/script_tuning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Small problems in which costs weigh differently ---- */

enum { CHAINS = 8, TILES = 32, VISITS = CHAINS * TILES, HEADS = 4, PROBLEMS = 16 };

typedef struct Shape {
  DagPlane plane;
  DagProblem problem;
  int64_t chain_begin[CHAINS + 1], queue_begin[CHAINS * HEADS + 1];
  DagVisit visits[VISITS];
  DagItem items[CHAINS * HEADS];
  int32_t plane_of[HEADS];
} Shape;

/* Full or causal; chain i begins `shift` tiles further than its neighbour and turns round. */
static void build(Shape *shape, int tiles, bool causal, int shift, int workers) {
  *shape = (Shape){.plane = {CHAINS, tiles, shape->chain_begin, shape->visits}};
  int32_t seen[TILES] = {0};
  int64_t count = 0;
  for (int chain = 0; chain < CHAINS; chain++) {
    int first = causal ? tiles / CHAINS * chain : 0, length = tiles - first;
    for (int t = 0; t < length; t++) {
      int tile = first + (t + shift * chain) % length;
      shape->visits[count++] =
          (DagVisit){tile, seen[tile]++, causal && tile < first + tiles / CHAINS};
    }
    shape->chain_begin[chain + 1] = count;
  }
  if (shift) { /* ranks by time: by step, then by chain */
    int32_t start[CHAINS];
    for (int i = 0; i < CHAINS; i++)
      start[i] = i;
    DagOrderRequest request = {CHAINS, tiles, shape->chain_begin, start, CHAINS};
    Costs even = costs_paper(1, 0);
    assert_int_equal(dag_order_by_time(&request, &even, shape->visits), ROTA_OK);
  }
  int64_t items = 0;
  for (int w = 0; w < workers; w++) {
    for (int i = 0; i < CHAINS * HEADS; i++)
      if (i % workers == w)
        shape->items[items++] = (DagItem){i / CHAINS, i % CHAINS};
    shape->queue_begin[w + 1] = items;
  }
  shape->problem = (DagProblem){.planes = &shape->plane,
                                .plane_count = 1,
                                .plane_of = shape->plane_of,
                                .instances = HEADS,
                                .workers = workers,
                                .queues = workers,
                                .queue_begin = shape->queue_begin,
                                .items = shape->items};
}

static void build_all(Shape *shapes) {
  for (int i = 0; i < PROBLEMS; i++)
    build(&shapes[i], i < 8 ? CHAINS : TILES, i % 2, i / 2 % 2 * 2, CHAINS << (i / 4 % 2));
}

static void measure(const Shape *shapes, const Fit *truth, double noise, FitSample *samples) {
  for (int i = 0; i < PROBLEMS; i++) {
    double ticks;
    assert_int_equal(costs_fit_time(&shapes[i].problem, truth, &ticks), ROTA_OK);
    samples[i] = (FitSample){&shapes[i].problem, ticks * (1 + (i % 3 - 1) * noise)};
  }
}

static void assert_near(int64_t found, int64_t truth, double tolerance) {
  double ratio = (double)found / (double)truth;
  if (ratio < 1 - tolerance || ratio > 1 + tolerance)
    fail_msg("%lld where %lld is the truth", (long long)found, (long long)truth);
}

static int rounds_seen;
static void count_round(int round) {
  assert_int_equal(round, rounds_seen);
  rounds_seen++;
}

static void test_fit(void **state) {
  (void)state;
  static Shape shapes[PROBLEMS];
  FitSample samples[PROBLEMS];
  build_all(shapes);
  for (int staging = 0; staging < 2; staging++)
    for (int noisy = 0; noisy < 2; noisy++) {
      Fit truth = {.costs = {.visit = 3100,
                             .partial = 3900,
                             .reduce = 700,
                             .handoff = 1200,
                             .start = 5000,
                             .staging = staging},
                   .base = 30000};
      measure(shapes, &truth, noisy ? 0.01 : 0, samples);
      Fit fit = {.costs = {.visit = 2300,
                           .partial = 2400,
                           .reduce = 700,
                           .handoff = 700,
                           .start = 4400,
                           .staging = staging},
                 .base = 20000};
      rounds_seen = 0;
      assert_int_equal(costs_fit(samples, PROBLEMS, count_round, &fit), ROTA_OK);
      assert_true(rounds_seen > 2 && rounds_seen <= FIT_ROUNDS);
      assert_true(fit.error < (noisy ? 0.02 : 0.01));
      print_message("staging %d, noise %d %%: visit %.2f partial %.2f handoff %.2f start %.2f base "
                    "%.1f; error %.2f %%\n",
                    staging, noisy, costs_units(fit.costs.visit), costs_units(fit.costs.partial),
                    costs_units(fit.costs.handoff), costs_units(fit.costs.start),
                    fit.base / COSTS_TICKS, 100 * fit.error);
      assert_near(fit.costs.visit, truth.costs.visit, 0.1);
      assert_near(fit.costs.partial, truth.costs.partial, 0.2);
      assert_near(fit.costs.handoff, truth.costs.handoff, 0.2);
      assert_int_equal(fit.costs.reduce, 700);
    }
}

static void test_fit_refuses(void **state) {
  (void)state;
  static Shape shapes[PROBLEMS];
  FitSample samples[PROBLEMS];
  build_all(shapes);
  Fit fit = {.costs = costs_paper(1, 1), .base = 1};
  measure(shapes, &fit, 0, samples);
  assert_int_equal(costs_fit(samples, 4, NULL, &fit), ROTA_INVALID_ARGUMENT);
  samples[3].ticks = 0;
  assert_int_equal(costs_fit(samples, PROBLEMS, NULL, &fit), ROTA_INVALID_ARGUMENT);
}

/* ---- lua/costs.lua ---- */

typedef struct World {
  Store *store;
  Script *script;
  Spec spec;
  Tiling tiling;
} World;

static void open_world(World *world, const char *model) {
  *world = (World){.store = NULL};
  Target target;
  assert_int_equal(store_create(NULL, &world->store), ROTA_OK);
  assert_int_equal(script_create(world->store, &world->script), ROTA_OK);
  assert_int_equal(script_spec(world->script, model, "model", &world->spec), ROTA_OK);
  assert_int_equal(script_target(world->script, "sm_90", &target), ROTA_OK);
  assert_int_equal(script_tiling(world->script, &world->spec, ROTA_BACKWARD, ROTA_LAYOUT_ALIGNED,
                                 &target, &world->tiling),
                   ROTA_OK);
}

static void close_world(World *world) {
  spec_free(&world->spec);
  script_destroy(world->script);
  store_destroy(world->store);
}

static void test_shipped(void **state) {
  (void)state;
  World world;
  open_world(&world, "return rota.attention{head_dim = 128}");
  Costs costs, wide;
  assert_int_equal(script_costs(world.script, &world.spec, &world.tiling, NULL, NULL, &costs),
                   ROTA_OK);
  assert_string_equal(costs.unit, "us");
  assert_true(costs.partial >= costs.visit && costs.handoff > 0 && costs.reduce > 0);
  world.tiling.tile_q *= 2; /* visits twice as long, twice the bytes, the same K and V */
  assert_int_equal(script_costs(world.script, &world.spec, &world.tiling, NULL, NULL, &wide),
                   ROTA_OK);
  assert_int_equal(wide.visit, 2 * costs.visit);
  assert_int_equal(wide.reduce, 2 * costs.reduce);
  assert_int_equal(wide.start, costs.start);
  assert_int_equal(wide.handoff, 2 * costs.handoff);
  strcpy(world.tiling.algorithm, "two_pass"); /* nothing is added in turn */
  assert_int_equal(script_costs(world.script, &world.spec, &world.tiling, NULL, NULL, &wide),
                   ROTA_OK);
  assert_int_equal(wide.reduce + wide.handoff, 0);
  close_world(&world);
}

/* Written for one tiling, read back for it: the same, to a nanosecond. */
static void test_file(void **state) {
  (void)state;
  static const char *const models[] = {"return rota.attention{head_dim = 128}",
                                       "return rota.attention{head_dim = 64, head_dim_v = 96}"};
  for (int i = 0; i < 2; i++) {
    World world;
    open_world(&world, models[i]);
    Costs costs = {.visit = 5123,
                   .partial = 6001,
                   .reduce = 1099,
                   .handoff = 812,
                   .start = 7777,
                   .staging = 1};
    Costs back;
    char *text;
    assert_int_equal(script_cost_file(world.script, &world.spec, &world.tiling, &costs,
                                      "A \"device\"", "2026-11-29", &text),
                     ROTA_OK);
    assert_int_equal(
        script_costs(world.script, &world.spec, &world.tiling, text, "costs.lua", &back), ROTA_OK);
    assert_true(llabs(back.visit - costs.visit) <= 2 && llabs(back.partial - costs.partial) <= 2);
    assert_true(llabs(back.reduce - costs.reduce) <= 2 && llabs(back.start - costs.start) <= 2);
    assert_true(llabs(back.handoff - costs.handoff) <= 2);
    assert_int_equal(back.staging, 1);
    free(text);
    close_world(&world);
  }
}

static void test_file_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } files[] = {
      {"return 3", "f.lua: a cost file returns {device = ..., kernels = {...}}"},
      {"return {kernels = {portable = 1}}", "f.lua: kernels.portable: a table is expected"},
      {"return {kernels = {portable = {visit = -1}}}", "kernels.portable.visit"},
      {"return {kernels = {portable = {visit = 0/0}}}", "kernels.portable.visit"},
      {"return {device = 'X', kernels = {}}", "costs of device X"},
      {"return os.exit()", "f.lua:1:"},
      {"while true do end", "100 million"},
      {"return {", "f.lua:1:"},
  };
  World world;
  open_world(&world, "return rota.attention{head_dim = 128}");
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    Costs costs;
    assert_int_equal(
        script_costs(world.script, &world.spec, &world.tiling, files[i].text, "f.lua", &costs),
        ROTA_FILE);
    if (!strstr(status_message(), files[i].message))
      fail_msg("'%s' lacks '%s'", status_message(), files[i].message);
  }
  close_world(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fit),          cmocka_unit_test(test_fit_refuses),
      cmocka_unit_test(test_shipped),      cmocka_unit_test(test_file),
      cmocka_unit_test(test_file_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
