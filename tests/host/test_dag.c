/* The DAG model's simulation against a naive one: random chains, ranks, costs and queues; cycles;
 * bounds; the order by time; costs from text; memory failures. */
#include "generator/dag.h"
#include "tests/support/dag_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Random problems, small enough for the naive simulation ---- */

enum { CHAINS_MAX = 7, TILES_MAX = 9, INSTANCES_MAX = 3, VISITS_MAX = CHAINS_MAX * TILES_MAX };
enum { ITEMS_MAX = CHAINS_MAX * INSTANCES_MAX };

typedef struct Trial {
  uint64_t random;
  DagPlane plane;
  DagProblem problem;
  Costs costs;
  int64_t chain_begin[CHAINS_MAX + 1], queue_begin[ITEMS_MAX + 2];
  DagVisit visits[VISITS_MAX];
  DagItem items[ITEMS_MAX];
  int32_t plane_of[INSTANCES_MAX];
} Trial;

static int draw(Trial *trial, int below) {
  trial->random = trial->random * 6364136223846793005u + 1442695040888963407u;
  return (int)((trial->random >> 33) % (uint64_t)below);
}

static void shuffle_tiles(Trial *trial, int32_t *tiles, int count) {
  for (int i = count - 1; i > 0; i--) {
    int j = draw(trial, i + 1);
    int32_t swap = tiles[i];
    tiles[i] = tiles[j];
    tiles[j] = swap;
  }
}

/* Random tiles in random order; ranks in an order of chains that may differ from tile to tile. */
static void draw_visits(Trial *trial, bool hostile) {
  int32_t total[TILES_MAX] = {0}, tiles[TILES_MAX];
  int64_t count = 0;
  for (int chain = 0; chain < trial->plane.chains; chain++) {
    for (int i = 0; i < trial->plane.tiles; i++)
      tiles[i] = i;
    shuffle_tiles(trial, tiles, trial->plane.tiles);
    int length = draw(trial, trial->plane.tiles + 1);
    for (int i = 0; i < length; i++)
      trial->visits[count++] =
          (DagVisit){.tile = tiles[i], .rank = total[tiles[i]]++, .partial = draw(trial, 2)};
    trial->chain_begin[chain + 1] = count;
  }
  for (int swaps = hostile ? 3 : 0; swaps > 0 && count > 0; swaps--) {
    int a = draw(trial, (int)count), b = draw(trial, (int)count);
    if (trial->visits[a].tile != trial->visits[b].tile)
      continue;
    int32_t rank = trial->visits[a].rank;
    trial->visits[a].rank = trial->visits[b].rank;
    trial->visits[b].rank = rank;
  }
}

/* Items by instance and chain, dealt to queues that keep this order. */
static void draw_queues(Trial *trial, bool tickets) {
  int instances = trial->problem.instances, chains = trial->plane.chains, count = 0;
  int queues = tickets ? instances * chains : 1 + draw(trial, 4);
  trial->problem.workers = tickets ? 1 + draw(trial, 4) : queues + draw(trial, 2);
  trial->problem.queues = queues;
  for (int q = 0; q < queues; q++) {
    for (int i = 0; i < instances * chains; i++)
      if ((tickets ? i : i * 7 / 3 % queues) == q)
        trial->items[count++] = (DagItem){i / chains, i % chains};
    trial->queue_begin[q + 1] = count;
  }
  assert_int_equal(count, instances * chains);
}

static void draw_trial(Trial *trial, uint64_t seed, bool hostile, bool tickets) {
  *trial = (Trial){.random = seed * 2654435761u + 1};
  trial->plane = (DagPlane){.chains = 1 + draw(trial, CHAINS_MAX),
                            .tiles = 1 + draw(trial, TILES_MAX),
                            .chain_begin = trial->chain_begin,
                            .visits = trial->visits};
  trial->problem = (DagProblem){.planes = &trial->plane,
                                .plane_count = 1,
                                .plane_of = trial->plane_of,
                                .instances = 1 + draw(trial, INSTANCES_MAX),
                                .queue_begin = trial->queue_begin,
                                .items = trial->items};
  trial->costs = (Costs){.visit = 1 + draw(trial, 9),
                         .partial = 1 + draw(trial, 9),
                         .reduce = 1 + draw(trial, 5), /* so that a cycle grows without end */
                         .handoff = draw(trial, 4),
                         .start = draw(trial, 5),
                         .staging = draw(trial, 4)};
  draw_visits(trial, hostile);
  draw_queues(trial, tickets);
}

/* ---- The naive simulation: raise every time to what its predecessors ask for, until none moves */

typedef struct Naive {
  int64_t end[ITEMS_MAX][TILES_MAX], stored[ITEMS_MAX][TILES_MAX];
  int64_t makespan;
  bool cycle, monotone;
} Naive;

static const DagVisit *visit_of(const Trial *trial, int item, int i) {
  return &trial->visits[trial->chain_begin[trial->items[item].chain] + i];
}

static int length_of(const Trial *trial, int item) {
  int32_t chain = trial->items[item].chain;
  return (int)(trial->chain_begin[chain + 1] - trial->chain_begin[chain]);
}

static int worker_of(const Trial *trial, int item) {
  int queue = 0;
  while (trial->queue_begin[queue + 1] <= item)
    queue++;
  return queue;
}

/* The item and visit that the given one waits for; false: none. */
static bool find_before(const Trial *trial, int item, int i, int *before, int *at) {
  const DagVisit *visit = visit_of(trial, item, i);
  for (*before = 0; *before < trial->queue_begin[trial->problem.queues]; (*before)++) {
    if (trial->items[*before].instance != trial->items[item].instance)
      continue;
    for (*at = 0; *at < length_of(trial, *before); (*at)++)
      if (visit_of(trial, *before, *at)->tile == visit->tile &&
          visit_of(trial, *before, *at)->rank == visit->rank - 1)
        return true;
  }
  return false;
}

/* Steps of a worker's visits so far, and the ends of its reductions, in order. */
typedef struct History {
  int64_t ends[VISITS_MAX * INSTANCES_MAX];
  int steps;
  int64_t now, turn;
} History;

static bool raise(int64_t *time, int64_t to) {
  bool moved = to > *time;
  *time = moved ? to : *time;
  return moved;
}

/* One pass over all visits, worker by worker; whether a time moved. */
static bool relax(const Trial *trial, Naive *naive, int step_of[ITEMS_MAX][TILES_MAX]) {
  bool moved = false;
  for (int w = 0; w < trial->problem.queues; w++) {
    History history = {.steps = 0};
    for (int item = (int)trial->queue_begin[w]; item < trial->queue_begin[w + 1]; item++)
      for (int i = 0; i < length_of(trial, item); i++) {
        const Costs *costs = &trial->costs;
        const DagVisit *visit = visit_of(trial, item, i);
        int64_t ready = history.now + (i == 0 ? costs->start : 0);
        ready += visit->partial ? costs->partial : costs->visit;
        if (costs->staging && history.steps >= costs->staging)
          raise(&ready, history.ends[history.steps - costs->staging]);
        moved |= raise(&naive->stored[item][i], ready);
        int64_t turn = naive->stored[item][i];
        raise(&turn, history.turn);
        int before, at;
        if (find_before(trial, item, i, &before, &at))
          raise(&turn,
                naive->end[before][at] + (worker_of(trial, before) == w ? 0 : costs->handoff));
        moved |= raise(&naive->end[item][i], turn + costs->reduce);
        history.turn = turn;
        raise(&naive->makespan, naive->end[item][i]);
        step_of[item][i] = history.steps;
        history.ends[history.steps++] = naive->end[item][i];
        history.now = costs->staging ? naive->stored[item][i] : naive->end[item][i];
      }
  }
  return moved;
}

/* A cycle shows as times that still grow after as many passes as there are visits: its edges take
 * time, since computing does. */
static void simulate_naively(const Trial *trial, Naive *naive) {
  int step_of[ITEMS_MAX][TILES_MAX];
  *naive = (Naive){.monotone = true};
  int passes = 0, most = 2 * VISITS_MAX * INSTANCES_MAX;
  while (relax(trial, naive, step_of) && passes < most)
    passes++;
  naive->cycle = passes == most;
  for (int item = 0; item < trial->queue_begin[trial->problem.queues]; item++)
    for (int i = 0; i < length_of(trial, item); i++) {
      int before, at;
      if (find_before(trial, item, i, &before, &at) && step_of[before][at] >= step_of[item][i])
        naive->monotone = false;
    }
}

static void test_random(void **state) {
  (void)state;
  int cycles = 0, monotone = 0;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    Trial trial;
    Naive naive;
    DagFigures figures;
    DagTrace trace;
    draw_trial(&trial, seed, seed % 3 > 0, false);
    simulate_naively(&trial, &naive);
    rota_status status = dag_simulate(&trial.problem, &trial.costs, &figures, &trace);
    if (naive.cycle != (status == ROTA_SCHEDULE))
      fail_msg("seed %d: cycle %d, status %d", (int)seed, naive.cycle, status);
    cycles += naive.cycle;
    if (status == ROTA_OK) {
      assert_int_equal(figures.makespan, naive.makespan);
      assert_int_equal(figures.depth_monotone, naive.monotone);
      monotone += naive.monotone;
      for (int item = 0; item < trial.queue_begin[trial.problem.queues]; item++)
        for (int i = 0; i < length_of(&trial, item); i++) {
          const DagSpan *span = &trace.spans[trace.item_begin[item] + i];
          assert_int_equal(span->end, naive.end[item][i]);
          assert_int_equal(span->stored, naive.stored[item][i]);
          assert_int_equal(span->computed - span->begin, visit_of(&trial, item, i)->partial
                                                             ? trial.costs.partial
                                                             : trial.costs.visit);
          assert_int_equal(span->end - span->turn, trial.costs.reduce);
          assert_int_equal(trace.worker[item], worker_of(&trial, item));
        }
    }
    dag_trace_free(&trace);
  }
  assert_true(cycles > 100 && monotone > 100);
}

/* More queues than workers: never more of them at once than workers, none starts late. */
static void check_turns(const Trial *trial, const DagTrace *trace) {
  int64_t begin[ITEMS_MAX], end[ITEMS_MAX];
  int count = trial->problem.queues; /* of one item each */
  for (int item = 0; item < count; item++) {
    begin[item] = end[item] = -1;
    int length = length_of(trial, item);
    const DagSpan *spans = &trace->spans[trace->item_begin[item]];
    if (length == 0)
      continue;
    begin[item] = spans[0].begin - trial->costs.start;
    for (int i = 0; i < length; i++)
      end[item] = spans[i].end > end[item] ? spans[i].end : end[item];
    int busy = 0;
    bool follows = begin[item] == 0;
    for (int other = 0; other < item; other++) {
      busy += end[other] > begin[item];
      follows = follows || end[other] == begin[item];
    }
    assert_true(busy < trial->problem.workers);
    assert_true(follows);
  }
}

static void test_turns(void **state) {
  (void)state;
  int refused = 0;
  for (uint64_t seed = 0; seed < 2000; seed++) {
    Trial trial;
    DagFigures figures;
    DagTrace trace;
    draw_trial(&trial, seed, seed % 2, true);
    rota_status status = dag_simulate(&trial.problem, &trial.costs, &figures, &trace);
    refused += status != ROTA_OK;
    if (seed % 2 == 0) /* ranks by chain: every wait is for an earlier ticket */
      assert_int_equal(status, ROTA_OK);
    if (status == ROTA_OK && trial.problem.queues > trial.problem.workers)
      check_turns(&trial, &trace);
    dag_trace_free(&trace);
  }
  assert_true(refused > 50);
}

/* ---- Bounds ---- */

static void test_bounds(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 1000; seed++) {
    Trial trial;
    DagFigures figures;
    draw_trial(&trial, seed, false, seed % 2);
    assert_int_equal(dag_simulate(&trial.problem, &trial.costs, &figures, NULL), ROTA_OK);
    assert_true((double)figures.makespan >= dag_work_bound(&figures));
    assert_true(figures.makespan >= figures.chain_path);
    assert_true(figures.critical_path >= figures.chain_path);
    assert_true(figures.makespan == 0 || dag_bound_ratio(&figures) >= 1);
    assert_true(dag_stall_share(&figures) >= 0 && dag_stall_share(&figures) < 1);
  }
}

/* Hand-offs: two workers at one tile; the second waits for reduction and hand-off, itself alone
 * would not. */
static void test_handoff(void **state) {
  (void)state;
  DagVisit visits[] = {{0, 0, false}, {0, 1, true}};
  int64_t chain_begin[] = {0, 1, 2}, two[] = {0, 1, 2}, one[] = {0, 2};
  DagPlane plane = {2, 1, chain_begin, visits};
  DagItem items[] = {{0, 0}, {0, 1}};
  int32_t plane_of = 0;
  Costs costs = {.visit = 10, .partial = 13, .reduce = 4, .handoff = 7, .start = 5};
  DagProblem problem = {&plane, 1, &plane_of, 1, 2, 2, two, items, false};
  DagFigures figures;
  assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_OK);
  assert_int_equal(figures.makespan, 5 + 10 + 4 + 7 + 4); /* 18 when ready, its turn at 26 */
  assert_int_equal(figures.critical_path, 30);
  assert_int_equal(figures.chain_path, 5 + 13 + 4);
  assert_int_equal(figures.work, 5 + 10 + 4 + 5 + 13 + 4);
  problem.workers = problem.queues = 1;
  problem.queue_begin = one;
  assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_OK);
  assert_int_equal(figures.makespan, figures.work);
  assert_true(dag_stall_share(&figures) == 0);
}

/* A chain brings three tiles in, a second one finds them there if the L2 holds three. */
static void test_l2(void **state) {
  (void)state;
  DagVisit visits[] = {{0, 0, false}, {1, 0, false}, {2, 0, false},
                       {0, 1, false}, {1, 1, false}, {2, 1, false}};
  int64_t chain_begin[] = {0, 3, 6}, queue_begin[] = {0, 2};
  DagPlane plane = {2, 3, chain_begin, visits};
  DagItem items[] = {{0, 0}, {0, 1}};
  int32_t plane_of = 0;
  DagProblem problem = {&plane, 1, &plane_of, 1, 1, 1, queue_begin, items, false};
  DagFigures figures;
  Costs costs = {.visit = 10, .partial = 10, .miss = 25};
  const struct {
    int64_t miss;
    int32_t l2;
    int64_t makespan;
  } expected[] = {
      {25, 0, 60},               /* no memory */
      {25, 3, 60},               /* the second chain finds its tiles */
      {25, 2, 20 + 3 * 25 + 10}, /* it asks for one after another, the first a visit ahead */
      {10, 2, 60},               /* fetched while the worker computes */
      {11, 2, 20 + 3 * 11 + 10},
  };
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
    costs.miss = expected[i].miss;
    costs.l2 = expected[i].l2;
    assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_OK);
    assert_int_equal(figures.makespan, expected[i].makespan);
    assert_int_equal(figures.critical_path, 30); /* two workers, whose memory is not slow */
  }
}

/* Two workers on the same tiles at the same time: the second finds what the first has brought in,
 * though the L2 holds one tile, since they are advanced in turn. */
static void test_l2_sees_workers_in_turn(void **state) {
  (void)state;
  DagVisit visits[] = {{0, 0, false}, {1, 0, false}, {2, 0, false},
                       {0, 1, false}, {1, 1, false}, {2, 1, false}};
  int64_t chain_begin[] = {0, 3, 6}, queue_begin[] = {0, 1, 2};
  DagPlane plane = {2, 3, chain_begin, visits};
  DagItem items[] = {{0, 0}, {0, 1}};
  int32_t plane_of = 0;
  DagProblem problem = {&plane, 1, &plane_of, 1, 2, 2, queue_begin, items, true};
  DagFigures figures;
  Costs costs = {.visit = 10, .partial = 10, .miss = 25, .l2 = 1};
  assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_OK);
  assert_int_equal(figures.makespan, 30);
}

static void test_cycle_message(void **state) {
  (void)state;
  /* Chain 0 waits at tile 1 for chain 1, which waits at tile 0 for chain 0's later visit. */
  DagVisit visits[] = {{1, 1, false}, {0, 0, false}, {0, 1, false}, {1, 0, false}};
  int64_t chain_begin[] = {0, 2, 4}, queue_begin[] = {0, 1, 2};
  DagPlane plane = {2, 2, chain_begin, visits};
  DagItem items[] = {{0, 0}, {0, 1}};
  int32_t plane_of = 0;
  Costs costs = costs_paper(1, 1);
  DagProblem problem = {&plane, 1, &plane_of, 1, 2, 2, queue_begin, items, false};
  DagFigures figures;
  assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_SCHEDULE);
  assert_string_equal(status_message(),
                      "schedule: worker 0 waits for ever in chain 0 at tile 1 for rank 0");
  problem.workers = 0;
  assert_int_equal(dag_simulate(&problem, &costs, &figures, NULL), ROTA_INVALID_ARGUMENT);
}

/* ---- Order by time ---- */

/* A gang large enough for all chains runs in that order without a cycle, and ranks follow time. */
static void test_order(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 1000; seed++) {
    Trial trial;
    DagFigures figures;
    DagTrace trace;
    draw_trial(&trial, seed, true, true);
    int32_t start[CHAINS_MAX], chains = trial.plane.chains;
    for (int32_t i = 0; i < chains; i++)
      start[i] = i;
    shuffle_tiles(&trial, start, chains);
    int32_t gang = 1 + draw(&trial, chains);
    DagOrderRequest request = {chains, trial.plane.tiles, trial.chain_begin, start, gang};
    assert_int_equal(dag_order_by_time(&request, &trial.costs, trial.visits), ROTA_OK);
    /* Each tile's ranks are complete. */
    uint64_t seen[TILES_MAX] = {0};
    for (int64_t v = 0; v < trial.chain_begin[chains]; v++) {
      assert_int_equal(seen[trial.visits[v].tile] >> trial.visits[v].rank & 1, 0);
      seen[trial.visits[v].tile] |= (uint64_t)1 << trial.visits[v].rank;
    }
    for (int tile = 0; tile < trial.plane.tiles; tile++)
      assert_int_equal(seen[tile] & (seen[tile] + 1), 0);
    /* One worker per chain: no cycle. */
    for (int32_t i = 0; i < chains; i++) {
      trial.items[i] = (DagItem){0, i};
      trial.queue_begin[i + 1] = i + 1;
    }
    trial.problem.instances = 1;
    trial.problem.queues = trial.problem.workers = chains;
    assert_int_equal(dag_simulate(&trial.problem, &trial.costs, &figures, &trace), ROTA_OK);
    dag_trace_free(&trace);
  }
}

/* Chains of one tile each: ties go to the chain that starts first. */
static void test_order_ties(void **state) {
  (void)state;
  DagVisit visits[] = {{0, 0, false}, {0, 0, false}, {0, 0, true}};
  int64_t chain_begin[] = {0, 1, 2, 3};
  int32_t start[] = {1, 2, 0};
  Costs costs = costs_paper(2, 1);
  DagOrderRequest request = {3, 1, chain_begin, start, 3};
  assert_int_equal(dag_order_by_time(&request, &costs, visits), ROTA_OK);
  assert_int_equal(visits[1].rank, 0);
  assert_int_equal(visits[2].rank, 1);
  assert_int_equal(visits[0].rank, 2);
  costs.partial = 5 * COSTS_TICKS; /* chain 2 comes later now */
  assert_int_equal(dag_order_by_time(&request, &costs, visits), ROTA_OK);
  assert_int_equal(visits[0].rank, 1);
  assert_int_equal(visits[2].rank, 2);
  request.gang = 1; /* one after another: start order */
  assert_int_equal(dag_order_by_time(&request, &costs, visits), ROTA_OK);
  assert_int_equal(visits[0].rank, 2);
  request.gang = 0;
  assert_int_equal(dag_order_by_time(&request, &costs, visits), ROTA_INVALID_ARGUMENT);
}

/* ---- Costs ---- */

static void test_costs(void **state) {
  (void)state;
  Costs costs;
  assert_int_equal(costs_parse("c=2,r=1,handoff=0.5", &costs), ROTA_OK);
  assert_int_equal(costs.visit, 2000);
  assert_int_equal(costs.partial, 2000);
  assert_int_equal(costs.reduce, 1000);
  assert_int_equal(costs.handoff, 500);
  assert_int_equal(costs.start, 0);
  assert_int_equal(costs.staging, 0);
  assert_int_equal(costs_parse("partial=3,visit=2,start=1.25,staging=2", &costs), ROTA_OK);
  assert_int_equal(costs.partial, 3000);
  assert_int_equal(costs.start, 1250);
  assert_int_equal(costs.staging, 2);
  assert_int_equal(costs.l2, 0);
  assert_int_equal(costs_parse("l2=450,m=0.026", &costs), ROTA_OK);
  assert_int_equal(costs.l2, 450);
  assert_int_equal(costs.miss, 26);
  assert_int_equal(costs_parse("", &costs), ROTA_OK);
  assert_int_equal(costs.visit, COSTS_TICKS);
  static const char *const wrong[] = {
      "c",           "c=",      "c=x",    "c=-1",   "c=1e3", "d=1", "c=0",          "staging=9",
      "staging=1.5", "c=2;r=1", "l2=1.5", "c=1..2", "=1",    ",",   "c=9999999999", "visit=nan"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(costs_parse(wrong[i], &costs), ROTA_INVALID_ARGUMENT);
    assert_int_equal(strncmp(status_message(), "costs: ", 7), 0);
  }
}

/* ---- Failures and speed ---- */

static void test_memory(void **state) {
  (void)state;
  Trial trial;
  draw_trial(&trial, 4, false, false);
  rota_status status = ROTA_OUT_OF_MEMORY;
  int failures = 0;
  for (int n = 1; status != ROTA_OK; n++) {
    DagFigures figures;
    DagTrace trace;
    memory_fail_at(n);
    status = dag_simulate(&trial.problem, &trial.costs, &figures, &trace);
    memory_fail_at(0);
    dag_trace_free(&trace);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
    failures += status != ROTA_OK;
  }
  assert_true(failures > 10);
}

/* 131,072 tokens causal in tiles of 128 x 128, half a million visits: figures well under a second
 * even where the machine is busy. */
static void test_speed(void **state) {
  (void)state;
  DagCase large = {.q_tiles = 1024,
                   .kv_tiles = 1024,
                   .causal = true,
                   .heads = 1,
                   .workers = 132,
                   .ranks = CASE_BY_TIME,
                   .queues = QUEUE_LIST,
                   .visits = CASE_DESCENDING};
  Costs costs;
  assert_int_equal(costs_parse("c=2.3,r=1.1,h=0.7,staging=1", &costs), ROTA_OK);
  clock_t begin = clock();
  DagFigures figures = dag_case_run(&large, &costs);
  double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  assert_true(dag_bound_ratio(&figures) >= 1);
  print_message("524,800 visits: %.0f ms\n", 1e3 * seconds);
  assert_true(seconds < 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random),
      cmocka_unit_test(test_turns),
      cmocka_unit_test(test_bounds),
      cmocka_unit_test(test_handoff),
      cmocka_unit_test(test_l2),
      cmocka_unit_test(test_l2_sees_workers_in_turn),
      cmocka_unit_test(test_cycle_message),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_order_ties),
      cmocka_unit_test(test_costs),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_speed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
