/* Level 4. A list scheduler on the DAG.
 *
 * Lanes take chains from a list. The lane that is free first goes round its chain's tiles, up or
 * down, and takes the next at which it need not wait, or else the one at which it waits least:
 * lanes that turn alike do not meet again. A tile's partials are added in the order in which
 * they were scheduled: that order contains both the lanes' and the tiles', so there is no cycle.
 *
 * Improvement: the same with two chains of the list exchanged, kept if it ends no later. Bounded by
 * a number of attempts; nothing depends on time or chance (the random numbers are always the same).
 */
#include "generator/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "generator/heap.h"

/* Tiles looked at for one visit, but for a chain's first. */
enum { SCAN = 24 };

/* One visit as it was scheduled. */
typedef struct Placed {
  int32_t chain, tile;
} Placed;

typedef struct LaneState {
  int32_t chain;        /* -1: none yet */
  int32_t head;         /* its tiles are of that head */
  int64_t before, left; /* the head's tiles still to visit: a ring of so many after `before` */
  bool fresh;           /* none of them has been visited */
} LaneState;

/* Of a query tile of a head. */
typedef struct TileState {
  int64_t ready;     /* when the next partial may be added */
  int32_t last_lane; /* who added last, -1 */
} TileState;

typedef struct Optimizer {
  const PatternView *view;
  int32_t gang;
  int32_t *order;    /* [chains] the list */
  int32_t *lane;     /* [chains] */
  LaneState *states; /* [gang] */
  HeapEntry *heap;   /* [gang] when a lane is free */
  int32_t *next;     /* by place in columns->tiles: the place after it in its ring */
  TileState *state;  /* [group * q_tiles] */
  Placed *placed;    /* [visits] in the order in which they were scheduled */
} Optimizer;

typedef struct Result {
  int64_t makespan, waiting;
} Result;

/* A tile for a visit. */
typedef struct Choice {
  int64_t wait;
  int64_t before; /* the place before it in the ring */
} Choice;

static int64_t compute_ticks(const Costs *costs, uint32_t tile) {
  return tile & COLUMN_PARTIAL ? costs->partial : costs->visit;
}

/* How long the lane would wait at the tile of a place in columns->tiles. */
static int64_t wait_at(const Optimizer *optimizer, const LaneState *state, HeapEntry lane,
                       int64_t place) {
  const PatternView *view = optimizer->view;
  const Costs *costs = view->costs;
  uint32_t tile = view->columns->tiles[place];
  const TileState *at =
      &optimizer->state[(int64_t)state->head * view->q_tiles + (int64_t)(tile & ~COLUMN_PARTIAL)];
  bool other = at->last_lane >= 0 && at->last_lane != lane.index;
  int64_t wait = at->ready + (other ? costs->handoff : 0) - lane.time - compute_ticks(costs, tile);
  return wait > 0 ? wait : 0;
}

static Choice choose(const Optimizer *optimizer, const LaneState *state, HeapEntry lane) {
  Choice best = {.wait = INT64_MAX};
  int64_t count = state->fresh || state->left < SCAN ? state->left : SCAN;
  int64_t before = state->before;
  for (int64_t i = 0; i < count && best.wait > 0; i++, before = optimizer->next[before]) {
    int64_t wait = wait_at(optimizer, state, lane, optimizer->next[before]);
    if (wait < best.wait)
      best = (Choice){wait, before};
  }
  return best;
}

/* The ring of a head's tiles: from the first on, or from the last where that one is free sooner. */
static void begin_ring(Optimizer *optimizer, LaneState *state, HeapEntry lane) {
  const PatternView *view = optimizer->view;
  int64_t column = (int64_t)state->head * view->chains + state->chain;
  int32_t begin = (int32_t)view->columns->begin[column];
  int32_t end = (int32_t)view->columns->begin[column + 1];
  state->left = end - begin;
  state->fresh = true;
  if (begin == end)
    return;
  bool down = wait_at(optimizer, state, lane, end - 1) < wait_at(optimizer, state, lane, begin);
  state->before = down ? begin : end - 1;
  for (int32_t place = begin; place < end; place++)
    optimizer->next[place] =
        down ? (place > begin ? place : end) - 1 : (place + 1 < end ? place + 1 : begin);
}

/* Of all heads. */
static int64_t chain_tiles(const PatternView *view, int32_t chain) {
  int64_t tiles = 0;
  for (int32_t head = 0; head < view->group; head++) {
    int64_t column = (int64_t)head * view->chains + chain;
    tiles += view->columns->begin[column + 1] - view->columns->begin[column];
  }
  return tiles;
}

/* The next head of the lane's chain that has tiles, or the next chain of the list; false if there
 * is none. A new chain costs its start. */
static bool next_tiles(Optimizer *optimizer, LaneState *state, HeapEntry *lane, int32_t *started) {
  const PatternView *view = optimizer->view;
  for (;;) {
    if (state->chain < 0 || ++state->head >= view->group) {
      if (*started >= view->chains)
        return false;
      state->chain = optimizer->order[(*started)++];
      state->head = 0;
      optimizer->lane[state->chain] = lane->index;
      lane->time += chain_tiles(view, state->chain) > 0 ? view->costs->start : 0;
    }
    begin_ring(optimizer, state, *lane);
    if (state->left > 0)
      return true;
  }
}

/* Places one visit of the lane that is free first. */
static void place_visit(Optimizer *optimizer, LaneState *state, HeapEntry *lane, Placed *placed,
                        Result *result) {
  const PatternView *view = optimizer->view;
  const Costs *costs = view->costs;
  Choice choice = choose(optimizer, state, *lane);
  int32_t place = optimizer->next[choice.before];
  uint32_t tile = view->columns->tiles[place];
  int32_t q_tile = (int32_t)(tile & ~COLUMN_PARTIAL);
  int64_t at = (int64_t)state->head * view->q_tiles + q_tile;
  int64_t computed = lane->time + compute_ticks(costs, tile), begin = computed + choice.wait;
  optimizer->state[at].ready = begin + costs->reduce;
  optimizer->state[at].last_lane = lane->index;
  *placed = (Placed){state->chain, (int32_t)at};
  result->waiting += choice.wait;
  if (result->makespan < begin + costs->reduce)
    result->makespan = begin + costs->reduce;
  int64_t slack = costs->staging * costs->visit; /* finished partials may wait that long */
  lane->time = costs->staging == 0        ? begin + costs->reduce
               : begin - slack > computed ? begin - slack
                                          : computed;
  optimizer->next[choice.before] = optimizer->next[place];
  state->before = choice.before;
  state->left--;
  state->fresh = false;
}

/* No tile has been added to. */
static void reset(Optimizer *optimizer) {
  const PatternView *view = optimizer->view;
  for (int64_t i = 0; i < (int64_t)view->group * view->q_tiles; i++)
    optimizer->state[i] = (TileState){0, -1};
  for (int32_t i = 0; i < optimizer->gang; i++) {
    optimizer->states[i] = (LaneState){.chain = -1};
    optimizer->heap[i] = (HeapEntry){0, i};
  }
}

static Result schedule_list(Optimizer *optimizer) {
  Result result = {0, 0};
  reset(optimizer);
  int32_t lanes = optimizer->gang, started = 0;
  int64_t count = 0;
  while (lanes > 0) {
    HeapEntry *lane = &optimizer->heap[0];
    LaneState *state = &optimizer->states[lane->index];
    if (state->left > 0)
      place_visit(optimizer, state, lane, &optimizer->placed[count++], &result);
    else if (!next_tiles(optimizer, state, lane, &started))
      *lane = optimizer->heap[--lanes]; /* the lane has ended */
    if (lanes > 0)
      heap_sink(optimizer->heap, lanes, 0);
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
    weights[chain] = (Weight){chain_tiles(view, chain), chain};
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

/* Ticks until the last of so many lanes ends, if nobody waits. */
static int64_t longest_lane(Optimizer *optimizer, int32_t gang) {
  const PatternView *view = optimizer->view;
  const Costs *costs = view->costs;
  int64_t latest = 0;
  for (int32_t i = 0; i < gang; i++)
    optimizer->heap[i] = (HeapEntry){0, i};
  for (int32_t i = 0; i < view->chains; i++) {
    int64_t tiles = chain_tiles(view, optimizer->order[i]);
    HeapEntry *lane = &optimizer->heap[0];
    lane->time += tiles ? costs->start + tiles * (costs->visit + costs->reduce) : 0;
    latest = lane->time > latest ? lane->time : latest;
    heap_sink(optimizer->heap, gang, 0);
  }
  return latest;
}

/* How many lanes: heads follow one another on the same workers, so lanes of equal length count for
 * more than a short makespan of one head. Of all lanes that there are, and as many as the longest
 * chain allows to be filled, those that waste the least. */
static void choose_gang(Optimizer *optimizer) {
  const PatternView *view = optimizer->view;
  int32_t most = optimizer->gang;
  if (view->chains == 0)
    return;
  int64_t visits = view->columns->begin[(int64_t)view->group * view->chains];
  int64_t longest = chain_tiles(view, optimizer->order[0]);
  int64_t waste = most * longest_lane(optimizer, most);
  for (int64_t gang = visits / (longest + !longest) + 1; gang >= 1; gang--) {
    if (gang >= most)
      continue;
    int64_t other = gang * longest_lane(optimizer, (int32_t)gang);
    if (other < waste) {
      waste = other;
      optimizer->gang = (int32_t)gang;
    }
    if (gang * longest < visits)
      break;
  }
}

/* Leaves the best list's visits in `placed`. */
static void improve(Optimizer *optimizer, int32_t iterations) {
  uint64_t random = 1;
  choose_gang(optimizer);
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

/* Visits chain by chain, each a run of its own, timed by its place in `placed`. */
static rota_status write_answer(Optimizer *optimizer, PatternAnswer *answer) {
  const PatternView *view = optimizer->view;
  int64_t visits = view->columns->begin[(int64_t)view->group * view->chains];
  int64_t *next = memory_allocate((size_t)view->chains + 1, sizeof(int64_t));
  answer->runs = memory_allocate((size_t)visits + 1, sizeof(VisitRun));
  if (!next || !answer->runs) {
    free(next);
    return ROTA_OUT_OF_MEMORY;
  }
  for (int32_t chain = 0; chain < view->chains; chain++)
    next[chain + 1] = next[chain] + chain_tiles(view, chain);
  for (int64_t i = 0; i < visits; i++) {
    Placed placed = optimizer->placed[i];
    int32_t head = placed.tile / view->q_tiles, q_tile = placed.tile - head * view->q_tiles;
    answer->runs[next[placed.chain]++] = (VisitRun){placed.chain, head, head, q_tile, q_tile, 1, i};
  }
  free(next);
  answer->run_count = answer->run_capacity = visits;
  answer->ranks = RANKS_BY_TIME_GIVEN;
  answer->gang = optimizer->gang;
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
  optimizer->states = memory_allocate(gang, sizeof(LaneState));
  optimizer->heap = memory_allocate(gang, sizeof(HeapEntry));
  optimizer->next = memory_allocate(visits, sizeof(int32_t));
  optimizer->state = memory_allocate(tiles, sizeof(TileState));
  optimizer->placed = memory_allocate(visits, sizeof(Placed));
  return optimizer->order && optimizer->lane && optimizer->states && optimizer->heap &&
         optimizer->next && optimizer->state && optimizer->placed;
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
  free(optimizer.states);
  free(optimizer.heap);
  free(optimizer.next);
  free(optimizer.state);
  free(optimizer.placed);
  return status;
}
