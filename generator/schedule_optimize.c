/* Level 4. A list scheduler on the DAG.
 *
 * Lanes take chains from a list. The lane that is free first takes, of its chain's tiles, the one
 * at which it would wait least; among equals the one that most others still have to visit, then the
 * next one round. A tile's partials are added in the order in which they were scheduled: that order
 * contains both the lanes' and the tiles', so there is no cycle.
 *
 * Improvement: the same with two chains of the list exchanged, kept if it ends no later. Bounded by
 * a number of attempts; nothing depends on time or chance (the random numbers are always the same).
 */
#include "generator/schedule.h"

#include <stdlib.h>
#include <string.h>

enum { SCAN_MAX = 64 }; /* tiles looked at for one visit */

/* One visit as it was scheduled. */
typedef struct Placed {
  int32_t chain, tile;
} Placed;

typedef struct LaneState {
  int64_t free;
  int32_t lane;
  int32_t chain;       /* -1: none yet */
  int32_t head;        /* its tiles are of that head */
  int64_t begin, left; /* the head's tiles still to visit: left[begin .. begin + left) */
  int32_t previous;    /* query tile, where the search starts */
} LaneState;

typedef struct Optimizer {
  const PatternView *view;
  int32_t gang;
  int32_t *order; /* [chains] the list */
  int32_t *lane;  /* [chains] */
  LaneState *heap;
  uint32_t *tiles; /* as columns->tiles; a chain's visited ones are moved behind the others */
  int64_t *ready;  /* [group * q_tiles] when the next partial may be added */
  int32_t *last_lane, *wanted; /* [group * q_tiles] who added last; visits to come */
  Placed *placed;              /* [visits] in the order in which they were scheduled */
} Optimizer;

typedef struct Result {
  int64_t makespan, waiting;
} Result;

static bool is_sooner(const LaneState *a, const LaneState *b) {
  return a->free != b->free ? a->free < b->free : a->lane < b->lane;
}

static void sink(LaneState *heap, int32_t count) {
  for (int32_t at = 0, least = 0;; at = least) {
    for (int32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
      if (is_sooner(&heap[child], &heap[least]))
        least = child;
    if (least == at)
      return;
    LaneState swap = heap[at];
    heap[at] = heap[least];
    heap[least] = swap;
  }
}

/* How good a tile is for a visit that computes until `computed`; smaller is better, in order. */
typedef struct Choice {
  int64_t wait;
  int32_t wanted, distance;
  int64_t place;
} Choice;

static bool is_better(const Choice *a, const Choice *b) {
  if (a->wait != b->wait)
    return a->wait < b->wait;
  if (a->wanted != b->wanted)
    return a->wanted > b->wanted;
  return a->distance < b->distance;
}

static int64_t compute_ticks(const Costs *costs, uint32_t tile) {
  return tile & COLUMN_PARTIAL ? costs->partial : costs->visit;
}

/* When the tile may take this lane's partial. */
static int64_t ready_for(const Optimizer *optimizer, int64_t at, int32_t lane) {
  int64_t ready = optimizer->ready[at];
  bool other = optimizer->last_lane[at] >= 0 && optimizer->last_lane[at] != lane;
  return ready + (other ? optimizer->view->costs->handoff : 0);
}

static Choice choose(const Optimizer *optimizer, const LaneState *state) {
  const PatternView *view = optimizer->view;
  Choice best = {.place = -1};
  int64_t count = state->left < SCAN_MAX ? state->left : SCAN_MAX;
  for (int64_t i = 0; i < count; i++) {
    uint32_t tile = optimizer->tiles[state->begin + i];
    int32_t q_tile = (int32_t)(tile & ~COLUMN_PARTIAL);
    int64_t at = (int64_t)state->head * view->q_tiles + q_tile;
    int64_t wait =
        ready_for(optimizer, at, state->lane) - state->free - compute_ticks(view->costs, tile);
    int32_t distance = q_tile - state->previous;
    Choice choice = {wait > 0 ? wait : 0, optimizer->wanted[at],
                     distance > 0 ? distance : distance + view->q_tiles, state->begin + i};
    if (best.place < 0 || is_better(&choice, &best))
      best = choice;
  }
  return best;
}

/* The next head of the lane's chain that has tiles, or the next chain of the list; false if there
 * is none. A new chain costs its start. */
static bool next_tiles(Optimizer *optimizer, LaneState *state, int32_t *started) {
  const PatternView *view = optimizer->view;
  for (;;) {
    if (state->chain < 0 || ++state->head >= view->group) {
      if (*started >= view->chains)
        return false;
      state->chain = optimizer->order[(*started)++];
      state->head = 0;
      optimizer->lane[state->chain] = state->lane;
      int64_t tiles = 0;
      for (int32_t head = 0; head < view->group; head++) {
        int64_t column = (int64_t)head * view->chains + state->chain;
        tiles += view->columns->begin[column + 1] - view->columns->begin[column];
      }
      state->free += tiles > 0 ? view->costs->start : 0;
    }
    int64_t column = (int64_t)state->head * view->chains + state->chain;
    state->begin = view->columns->begin[column];
    state->left = view->columns->begin[column + 1] - state->begin;
    state->previous = -1;
    if (state->left > 0)
      return true;
  }
}

/* Places one visit of the lane that is free first. */
static void place_visit(Optimizer *optimizer, LaneState *state, Placed *placed, Result *result) {
  const PatternView *view = optimizer->view;
  const Costs *costs = view->costs;
  Choice choice = choose(optimizer, state);
  uint32_t tile = optimizer->tiles[choice.place];
  int32_t q_tile = (int32_t)(tile & ~COLUMN_PARTIAL);
  int64_t at = (int64_t)state->head * view->q_tiles + q_tile;
  int64_t computed = state->free + compute_ticks(costs, tile), begin = computed + choice.wait;
  optimizer->ready[at] = begin + costs->reduce;
  optimizer->last_lane[at] = state->lane;
  optimizer->wanted[at]--;
  *placed = (Placed){state->chain, (int32_t)at};
  result->waiting += choice.wait;
  if (result->makespan < begin + costs->reduce)
    result->makespan = begin + costs->reduce;
  int64_t slack = costs->staging * costs->visit; /* finished partials may wait that long */
  state->free = costs->staging == 0        ? begin + costs->reduce
                : begin - slack > computed ? begin - slack
                                           : computed;
  state->previous = q_tile;
  uint32_t *last = &optimizer->tiles[state->begin + --state->left];
  optimizer->tiles[choice.place] = *last;
  *last = tile;
}

/* Tiles to their first order, counters to zero. */
static void reset(Optimizer *optimizer) {
  const PatternView *view = optimizer->view;
  int64_t columns = (int64_t)view->group * view->chains;
  int64_t tiles = (int64_t)view->group * view->q_tiles;
  memcpy(optimizer->tiles, view->columns->tiles,
         (size_t)view->columns->begin[columns] * sizeof(uint32_t));
  for (int64_t i = 0; i < tiles; i++) {
    optimizer->ready[i] = 0;
    optimizer->last_lane[i] = -1;
    optimizer->wanted[i] = 0;
  }
  for (int32_t head = 0; head < view->group; head++) {
    int64_t first = (int64_t)head * view->chains;
    for (int64_t i = view->columns->begin[first]; i < view->columns->begin[first + view->chains];
         i++)
      optimizer->wanted[(int64_t)head * view->q_tiles +
                        (int64_t)(view->columns->tiles[i] & ~COLUMN_PARTIAL)]++;
  }
  for (int32_t i = 0; i < optimizer->gang; i++)
    optimizer->heap[i] = (LaneState){.lane = i, .chain = -1};
}

static Result schedule_list(Optimizer *optimizer) {
  Result result = {0, 0};
  reset(optimizer);
  int32_t lanes = optimizer->gang, started = 0;
  int64_t count = 0;
  while (lanes > 0) {
    LaneState *state = &optimizer->heap[0];
    if (state->left > 0)
      place_visit(optimizer, state, &optimizer->placed[count++], &result);
    else if (!next_tiles(optimizer, state, &started))
      *state = optimizer->heap[--lanes]; /* the lane has ended */
    sink(optimizer->heap, lanes);
  }
  return result;
}

static bool is_no_worse(Result a, Result b) {
  return a.makespan < b.makespan || (a.makespan == b.makespan && a.waiting <= b.waiting);
}

/* ---- The list of chains ---- */

typedef struct Weight {
  int64_t tiles;
  int32_t chain;
} Weight;

static int compare_weights(const void *a, const void *b) {
  const Weight *x = a, *y = b;
  if (x->tiles != y->tiles)
    return x->tiles > y->tiles ? -1 : 1;
  return x->chain < y->chain ? -1 : x->chain > y->chain;
}

/* Longest first. */
static rota_status first_order(const PatternView *view, int32_t *order) {
  Weight *weights = memory_allocate((size_t)view->chains + 1, sizeof(Weight));
  if (!weights)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t chain = 0; chain < view->chains; chain++) {
    weights[chain].chain = chain;
    for (int32_t head = 0; head < view->group; head++) {
      int64_t column = (int64_t)head * view->chains + chain;
      weights[chain].tiles += view->columns->begin[column + 1] - view->columns->begin[column];
    }
  }
  qsort(weights, (size_t)view->chains, sizeof(Weight), compare_weights);
  for (int32_t i = 0; i < view->chains; i++)
    order[i] = weights[i].chain;
  free(weights);
  return ROTA_OK;
}

static int32_t below(uint64_t *state, int32_t count) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (int32_t)((*state >> 33) % (uint64_t)count);
}

static void swap_chains(int32_t *order, int32_t a, int32_t b) {
  int32_t chain = order[a];
  order[a] = order[b];
  order[b] = chain;
}

/* Leaves the best list's visits in `placed`. */
static void improve(Optimizer *optimizer, int32_t iterations) {
  uint64_t random = 1;
  Result best = schedule_list(optimizer);
  int32_t chains = optimizer->view->chains;
  bool stale = false; /* `placed` is of an attempt that was given up */
  for (int32_t i = 0; i < iterations && chains > 1; i++) {
    int32_t a = below(&random, chains), b = below(&random, chains);
    if (a == b)
      continue;
    swap_chains(optimizer->order, a, b);
    Result result = schedule_list(optimizer);
    stale = !is_no_worse(result, best);
    if (stale)
      swap_chains(optimizer->order, a, b);
    else
      best = result;
  }
  if (stale)
    schedule_list(optimizer);
}

/* ---- The answer ---- */

static rota_status write_answer(Optimizer *optimizer, PatternAnswer *answer) {
  const PatternView *view = optimizer->view;
  int64_t visits = view->columns->begin[(int64_t)view->group * view->chains];
  for (int64_t i = 0; i < visits; i++) {
    Placed placed = optimizer->placed[i];
    int32_t q_tile = placed.tile % view->q_tiles;
    ROTA_TRY(answer_add(
        answer, (VisitRun){placed.chain, placed.tile / view->q_tiles, q_tile, q_tile, 1, i}));
  }
  answer->ranks = RANKS_BY_TIME_GIVEN;
  answer->start = optimizer->order;
  answer->lane = optimizer->lane;
  optimizer->order = optimizer->lane = NULL;
  return ROTA_OK;
}

static bool allocate(const PatternView *view, Optimizer *optimizer) {
  size_t chains = (size_t)view->chains + 1, gang = (size_t)optimizer->gang + 1;
  size_t tiles = (size_t)view->group * (size_t)view->q_tiles + 1;
  size_t visits = (size_t)view->columns->begin[(int64_t)view->group * view->chains] + 1;
  optimizer->order = memory_allocate(chains, sizeof(int32_t));
  optimizer->lane = memory_allocate(chains, sizeof(int32_t));
  optimizer->heap = memory_allocate(gang, sizeof(LaneState));
  optimizer->tiles = memory_allocate(visits, sizeof(uint32_t));
  optimizer->ready = memory_allocate(tiles, sizeof(int64_t));
  optimizer->last_lane = memory_allocate(tiles, sizeof(int32_t));
  optimizer->wanted = memory_allocate(tiles, sizeof(int32_t));
  optimizer->placed = memory_allocate(visits, sizeof(Placed));
  return optimizer->order && optimizer->lane && optimizer->heap && optimizer->tiles &&
         optimizer->ready && optimizer->last_lane && optimizer->wanted && optimizer->placed;
}

rota_status pattern_optimize(const PatternView *view, int32_t iterations, PatternAnswer *answer) {
  Optimizer optimizer = {.view = view};
  optimizer.gang = view->gang < view->chains ? view->gang : view->chains;
  rota_status status = allocate(view, &optimizer) ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK)
    status = first_order(view, optimizer.order);
  if (status == ROTA_OK) {
    improve(&optimizer, iterations);
    status = write_answer(&optimizer, answer);
  }
  free(optimizer.order);
  free(optimizer.lane);
  free(optimizer.heap);
  free(optimizer.tiles);
  free(optimizer.ready);
  free(optimizer.last_lane);
  free(optimizer.wanted);
  free(optimizer.placed);
  return status;
}
