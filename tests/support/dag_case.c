/* Schedules for tests of the DAG model: see dag_case.h. */
#include "tests/support/dag_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct Built {
  int64_t *chain_begin, *queue_begin;
  DagVisit *visits;
  DagItem *items;
  int32_t *start_order, *plane_of;
  int32_t tiles, queues;
} Built;

static void *make(int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  assert_non_null(memory);
  return memory;
}

static int32_t first_tile(const DagCase *c, int32_t chain) {
  return c->causal ? chain * (c->q_tiles / c->kv_tiles) : 0;
}

/* The query tile that a chain visits as its t-th. */
static int32_t tile_at(const DagCase *c, int32_t chain, int32_t t) {
  int32_t first = first_tile(c, chain), n = c->q_tiles, length = n - first;
  int32_t scale = n / c->kv_tiles, half = n / 2;
  switch (c->visits) {
  case CASE_ASCENDING:
    return first + t;
  case CASE_DESCENDING:
    return n - 1 - t;
  case CASE_SHIFT:
    return (chain * scale + t) % n;
  case CASE_SYMMETRIC: /* long: the rectangle, rotated, then the triangle; short: descending */
    if (chain >= c->kv_tiles / 2)
      return n - 1 - t;
    return t < half ? half + (t + chain * scale) % half : first + t - half;
  case CASE_ROTATE:
    return first + (t + chain * scale) % length;
  }
  return 0;
}

/* Heads whose chains make up one plane: chain numbers go on from head to head. */
static int32_t plane_heads(const DagCase *c) {
  return c->batch_time ? c->heads : 1;
}

static DagItem item_of(const DagCase *c, int32_t head, int32_t chain) {
  int32_t heads = plane_heads(c);
  return (DagItem){head / heads, head % heads * c->kv_tiles + chain};
}

/* Visits with ranks by kv tile. */
static void build_visits(const DagCase *c, Built *built) {
  int64_t count = 0;
  int32_t chains = plane_heads(c) * c->kv_tiles, head_tiles = c->q_tiles;
  for (int32_t i = 0; i < chains; i++) {
    count += c->q_tiles - first_tile(c, i % c->kv_tiles);
    built->chain_begin[i + 1] = count;
  }
  built->tiles = plane_heads(c) * head_tiles;
  built->visits = make(count, sizeof(DagVisit));
  int32_t *total = make(built->tiles, sizeof(int32_t));
  for (int32_t i = 0; i < chains; i++)
    for (int64_t v = built->chain_begin[i]; v < built->chain_begin[i + 1]; v++) {
      int32_t tile = i / c->kv_tiles * head_tiles;
      tile += tile_at(c, i % c->kv_tiles, (int32_t)(v - built->chain_begin[i]));
      built->visits[v] = (DagVisit){.tile = tile, .rank = total[tile]++};
    }
  for (int64_t v = 0; v < count && c->ranks == CASE_BY_KV_DOWN; v++)
    built->visits[v].rank = total[built->visits[v].tile] - 1 - built->visits[v].rank;
  free(total);
}

static int32_t gang_of(const DagCase *c) {
  if (c->queues == QUEUE_HALVES)
    return c->kv_tiles / 2;
  int32_t chains = plane_heads(c) * c->kv_tiles;
  return c->workers < chains ? c->workers : chains;
}

static void finish_ranks(const DagCase *c, const Costs *costs, Built *built) {
  int32_t chains = plane_heads(c) * c->kv_tiles;
  if (c->ranks == CASE_BY_TIME) {
    DagOrderRequest request = {chains, built->tiles, built->chain_begin, built->start_order,
                               gang_of(c)};
    assert_int_equal(dag_order_by_time(&request, costs, built->visits), ROTA_OK);
  }
}

/* The place-th chain to start, of all heads' chains; a head and a chain of it. */
static void place_of(const DagCase *c, int32_t place, int32_t *head, int32_t *chain) {
  bool mixed = c->queues == QUEUE_LONGEST; /* causal: chain 0 is the longest */
  *head = mixed ? place % c->heads : place / c->kv_tiles;
  *chain = mixed ? place / c->heads : place % c->kv_tiles;
  if (c->start_down)
    *chain = c->kv_tiles - 1 - *chain;
}

/* ---- Queues ---- */

static int64_t static_queues(const DagCase *c, Built *built) {
  int64_t count = 0;
  int32_t n = c->kv_tiles, sets = c->queues == QUEUE_HALVES ? c->workers / (n / 2) : 1;
  built->queues = c->workers;
  for (int32_t w = 0; w < c->workers; w++) {
    for (int32_t head = 0; head < c->heads; head++) {
      int32_t lane = c->queues == QUEUE_HALVES ? w % (n / 2) : w;
      if (c->queues == QUEUE_HALVES && head % sets != w / (n / 2))
        continue;
      bool mirrored = c->queues == QUEUE_PAIRS && head % 2 == 1;
      built->items[count++] = item_of(c, head, mirrored ? n - 1 - lane : lane);
      if (c->queues == QUEUE_HALVES)
        built->items[count++] = item_of(c, head, n - 1 - lane);
    }
    built->queue_begin[w + 1] = count;
  }
  return count;
}

/* Chains in their order, each to the worker that would be free first if nobody waited. */
static int64_t list_queues(const DagCase *c, const Costs *costs, Built *built) {
  int64_t count = (int64_t)c->heads * c->kv_tiles;
  int64_t *free_at = make(c->workers, sizeof(int64_t));
  int32_t *worker = make(count, sizeof(int32_t));
  DagItem *items = make(count, sizeof(DagItem));
  for (int32_t i = 0; i < count; i++) {
    int32_t head, chain;
    place_of(c, i, &head, &chain);
    items[i] = item_of(c, head, chain);
    for (int32_t w = 1; w < c->workers; w++)
      worker[i] = free_at[w] < free_at[worker[i]] ? w : worker[i];
    int64_t step = costs->visit + (costs->staging ? 0 : costs->reduce);
    free_at[worker[i]] += costs->start + step * (c->q_tiles - first_tile(c, chain));
  }
  int64_t at = 0;
  for (int32_t w = 0; w < c->workers; w++) {
    for (int32_t i = 0; i < count; i++)
      if (worker[i] == w)
        built->items[at++] = items[i];
    built->queue_begin[w + 1] = at;
  }
  built->queues = c->workers;
  free(free_at);
  free(worker);
  free(items);
  return at;
}

DagFigures dag_case_run(const DagCase *c, const Costs *costs) {
  int64_t chains = (int64_t)c->kv_tiles * c->heads;
  int64_t queues = chains > c->workers ? chains : c->workers;
  int32_t plane_chains = plane_heads(c) * c->kv_tiles;
  Built built = {.chain_begin = make(plane_chains, sizeof(int64_t)),
                 .queue_begin = make(queues, sizeof(int64_t)),
                 .items = make(chains, sizeof(DagItem)),
                 .start_order = make(plane_chains, sizeof(int32_t)),
                 .plane_of = make(c->heads, sizeof(int32_t))};
  for (int32_t i = 0; i < plane_chains; i++) {
    int32_t head, chain;
    place_of(c, i, &head, &chain);
    built.start_order[i] = item_of(c, head, chain).chain;
  }
  build_visits(c, &built);
  finish_ranks(c, costs, &built);
  bool listed = c->queues == QUEUE_LIST || c->queues == QUEUE_LONGEST;
  int64_t items = listed ? list_queues(c, costs, &built) : static_queues(c, &built);
  assert_int_equal(items, chains);
  DagPlane plane = {plane_chains, built.tiles, built.chain_begin, built.visits};
  DagProblem problem = {&plane,
                        1,
                        built.plane_of,
                        c->heads / plane_heads(c),
                        c->workers,
                        built.queues,
                        built.queue_begin,
                        built.items,
                        c->unordered};
  DagFigures figures;
  rota_status status = dag_simulate(&problem, costs, &figures, NULL);
  free(built.chain_begin);
  free(built.queue_begin);
  free(built.visits);
  free(built.items);
  free(built.start_order);
  free(built.plane_of);
  if (status != ROTA_OK)
    fail_msg("%s", status_message());
  return figures;
}
