/* Level 3. Simulation of the DAG: every time is the maximum of its predecessors' plus a constant,
 * so workers may be advanced in any order, each as far as the reductions it waits for are known.
 * They are advanced by the time of a visit in turn, so that the L2 sees all of them about in order.
 *
 *   staging 0:  compute -- reduce -- compute -- reduce --     one after another
 *   staging 1:  compute -- compute -  - compute               compute t + 1 is stored after
 *                      +-- reduce --++-- reduce --            reduction t has ended
 *
 * Reductions are kept by slot = first slot of the tile + rank, so that a predecessor is slot - 1. A
 * worker that finds its predecessor unfinished leaves its number there and is woken by it. */
#include "generator/dag.h"

#include <assert.h>
#include <stdlib.h>

#include "generator/heap.h"

/* A slot's time while its reduction is unknown; below it: worker -(time + 2) waits for it. */
enum { UNKNOWN = -1 };

typedef struct Slot {
  int64_t end;
  int32_t worker, step;
} Slot;

/* A lane: a worker of the machine, at a position in a queue. */
typedef struct Lane {
  int64_t item, items_end; /* in problem.items */
  int64_t visit;           /* within the item's chain; 0: not started */
  int64_t now;             /* computing is free from here on */
  int64_t turn, last;      /* its last reduction: begin, end */
  int64_t ring[COSTS_STAGING_MAX];
  int32_t step; /* visits so far */
  bool begun;   /* start and memory of its visit are in `now` */
  bool waits;   /* for a lane whose reduction is unknown */
} Lane;

/* What is in the L2: a tile stays until `costs.l2` others have been brought in. */
typedef struct Cache {
  int64_t *brought; /* by a tile's first slot: `count` at its last visit; 0: never visited */
  int64_t count;    /* tiles brought in so far */
  int64_t busy;     /* until when the memory serves what has been asked for */
} Cache;

typedef struct Machine {
  const DagProblem *problem;
  const Costs *costs;
  DagTrace *trace;
  DagFigures *figures;
  int64_t *slot_begin;  /* [instances] */
  int64_t **tile_begin; /* [planes][tiles]: first slot of a tile within its instance */
  Slot *slots;
  Lane *lanes;
  Cache cache;
  int32_t *ready;  /* a stack of lanes that need not wait any longer */
  HeapEntry *idle; /* lanes at the end of their queue, by that time; then they may take the next */
  int32_t ready_count, idle_count;
  int32_t next_queue;
  int64_t finished; /* items */
} Machine;

/* ---- Slots ---- */

/* Offsets of the tiles' slots within an instance of a plane; the number of visits in all. */
static int64_t *tile_offsets(const DagPlane *plane) {
  int64_t *begin = memory_allocate((size_t)plane->tiles + 1, sizeof(int64_t));
  if (!begin)
    return NULL;
  for (int64_t v = 0; v < plane->chain_begin[plane->chains]; v++)
    begin[plane->visits[v].tile]++;
  int64_t total = 0;
  for (int32_t tile = 0; tile < plane->tiles; tile++) {
    int64_t count = begin[tile];
    begin[tile] = total;
    total += count;
  }
  return begin;
}

static rota_status create_slots(Machine *machine) {
  const DagProblem *problem = machine->problem;
  machine->tile_begin = memory_allocate((size_t)problem->plane_count + 1, sizeof(int64_t *));
  machine->slot_begin = memory_allocate((size_t)problem->instances + 1, sizeof(int64_t));
  if (!machine->tile_begin || !machine->slot_begin)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; i < problem->plane_count; i++) {
    machine->tile_begin[i] = tile_offsets(&problem->planes[i]);
    if (!machine->tile_begin[i])
      return ROTA_OUT_OF_MEMORY;
  }
  int64_t total = 0;
  for (int32_t i = 0; i < problem->instances; i++) {
    const DagPlane *plane = &problem->planes[problem->plane_of[i]];
    machine->slot_begin[i] = total;
    total += plane->chain_begin[plane->chains];
  }
  machine->slots = memory_allocate((size_t)total + 1, sizeof(Slot));
  machine->cache.brought = memory_allocate((size_t)total + 1, sizeof(int64_t));
  if (!machine->slots || !machine->cache.brought)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; i < total; i++)
    machine->slots[i].end = UNKNOWN;
  return ROTA_OK;
}

/* ---- The memory ---- */

/* When a visit that could begin at `now` has its tile's Q, dO and sum in the L2. All workers share
 * the memory, which brings back one tile after another; a tile is asked for a visit ahead. What
 * comes in for the first time does so under any schedule, and is not charged. */
static int64_t fetched(Machine *machine, int64_t tile, int64_t now) {
  const Costs *costs = machine->costs;
  Cache *cache = &machine->cache;
  int64_t brought = cache->brought[tile];
  if (brought == 0 || cache->count - brought >= costs->l2) {
    int64_t asked = now - costs->visit;
    if (brought > 0)
      cache->busy = (cache->busy > asked ? cache->busy : asked) + costs->miss;
    now = brought > 0 && cache->busy > now ? cache->busy : now;
    cache->count++;
  }
  cache->brought[tile] = cache->count;
  return now;
}

/* ---- Advancing a lane ---- */

/* Times of a visit whose predecessor's reduction, if any, is known. */
static DagSpan time_visit(const Machine *machine, Lane *lane, int32_t worker, const DagVisit *visit,
                          const Slot *before) {
  const Costs *costs = machine->costs;
  DagSpan span = {.begin = lane->now};
  span.computed = lane->now + (visit->partial ? costs->partial : costs->visit);
  int64_t *buffer = costs->staging ? &lane->ring[lane->step % costs->staging] : NULL;
  span.stored = buffer && *buffer > span.computed ? *buffer : span.computed;
  span.turn = span.stored > lane->turn ? span.stored : lane->turn;
  if (before) {
    int64_t free = before->end + (before->worker == worker ? 0 : costs->handoff);
    if (free > span.turn)
      span.turn = free;
  }
  span.end = span.turn + costs->reduce;
  lane->turn = span.turn;
  if (buffer)
    *buffer = span.end;
  lane->now = buffer ? span.stored : span.end;
  return span;
}

static void record(Machine *machine, const Lane *lane, int32_t worker, DagSpan span) {
  DagTrace *trace = machine->trace;
  if (!trace)
    return;
  trace->spans[trace->item_begin[lane->item] + lane->visit] = span;
  trace->worker[lane->item] = worker;
}

/* The lane's next visit; false if it has to wait for another lane. */
static bool advance_visit(Machine *machine, int32_t worker, Lane *lane, const DagVisit *visit) {
  const DagProblem *problem = machine->problem;
  int32_t instance = problem->items[lane->item].instance;
  int64_t tile =
      machine->slot_begin[instance] + machine->tile_begin[problem->plane_of[instance]][visit->tile];
  Slot *slot = &machine->slots[tile + visit->rank];
  assert(slot); /* one for every rank of every tile */
  Slot *before = visit->rank > 0 && !problem->unordered ? slot - 1 : NULL;
  if (!lane->begun) {
    lane->now += lane->visit == 0 ? machine->costs->start : 0;
    lane->now = machine->costs->l2 ? fetched(machine, tile, lane->now) : lane->now;
  }
  lane->begun = lane->waits = before && before->end < 0;
  if (lane->waits) {
    before->end = UNKNOWN - 1 - worker;
    return false;
  }
  DagSpan span = time_visit(machine, lane, worker, visit, before);
  record(machine, lane, worker, span);
  if (before && before->step >= lane->step)
    machine->figures->depth_monotone = false;
  if (slot->end < UNKNOWN) {
    int32_t woken = (int32_t)(UNKNOWN - 1 - slot->end);
    machine->lanes[woken].waits = false;
    machine->ready[machine->ready_count++] = woken;
  }
  *slot = (Slot){span.end, worker, lane->step++};
  lane->last = span.end > lane->last ? span.end : lane->last;
  lane->visit++;
  return true;
}

/* ---- Queues ---- */

/* The visits of the lane's item. */
static const DagVisit *item_visits(const Machine *machine, const Lane *lane, int64_t *count) {
  const DagProblem *problem = machine->problem;
  const DagItem *item = &problem->items[lane->item];
  const DagPlane *plane = &problem->planes[problem->plane_of[item->instance]];
  *count = plane->chain_begin[item->chain + 1] - plane->chain_begin[item->chain];
  return plane->visits + plane->chain_begin[item->chain];
}

/* Leaves items behind that are done; a queue ends with its last reduction. */
static void settle(Machine *machine, int32_t worker) {
  Lane *lane = &machine->lanes[worker];
  for (int64_t count; lane->item < lane->items_end; lane->item++) {
    item_visits(machine, lane, &count);
    if (lane->visit < count)
      return;
    lane->visit = 0;
    machine->finished++;
  }
  lane->now = lane->now > lane->last ? lane->now : lane->last;
  machine->idle[machine->idle_count] = (HeapEntry){lane->now, worker};
  heap_rise(machine->idle, machine->idle_count++);
}

/* Goes on with a lane until it has to wait, its queue ends or its time is `until`. */
static void advance(Machine *machine, int32_t worker, int64_t until) {
  Lane *lane = &machine->lanes[worker];
  while (lane->item < lane->items_end && lane->now < until) {
    int64_t count;
    const DagVisit *visits = item_visits(machine, lane, &count);
    for (; lane->visit < count && lane->now < until;)
      if (!advance_visit(machine, worker, lane, &visits[lane->visit]))
        return;
    if (lane->visit == count)
      settle(machine, worker);
  }
}

static void take_queue(Machine *machine, int32_t worker) {
  Lane *lane = &machine->lanes[worker];
  lane->item = machine->problem->queue_begin[machine->next_queue];
  lane->items_end = machine->problem->queue_begin[++machine->next_queue];
  settle(machine, worker);
}

/* Lanes that are idle before any other can be take the next queues. */
static void take_queues(Machine *machine, int64_t *earliest) {
  while (machine->next_queue < machine->problem->queues && machine->idle_count > 0 &&
         machine->idle[0].time <= *earliest) {
    *earliest = machine->idle[0].time;
    int32_t worker = machine->idle[0].index;
    machine->idle[0] = machine->idle[--machine->idle_count];
    heap_sink(machine->idle, machine->idle_count, 0);
    take_queue(machine, worker);
  }
}

/* The least time of a lane that can go on; INT64_MAX if none can. */
static int64_t earliest_lane(const Machine *machine) {
  int64_t time = INT64_MAX;
  for (int32_t w = 0; w < machine->problem->workers; w++) {
    const Lane *lane = &machine->lanes[w];
    if (lane->item < lane->items_end && !lane->waits && lane->now < time)
      time = lane->now;
  }
  return time;
}

static rota_status explain_wait(const Machine *machine) {
  for (int32_t w = 0; w < machine->problem->workers; w++) {
    const Lane *lane = &machine->lanes[w];
    if (!lane->waits)
      continue;
    int64_t count;
    const DagVisit *visit = item_visits(machine, lane, &count) + lane->visit;
    return status_fail(ROTA_SCHEDULE,
                       "schedule: worker %d waits for ever in chain %d at tile %d for rank %d", w,
                       machine->problem->items[lane->item].chain, visit->tile, visit->rank - 1);
  }
  return status_fail(ROTA_INTERNAL, "dag: items are missing from the queues");
}

static rota_status run(Machine *machine) {
  const DagProblem *problem = machine->problem;
  for (int32_t w = 0; w < problem->workers && w < problem->queues; w++)
    take_queue(machine, w);
  for (;;) {
    int64_t earliest = earliest_lane(machine);
    take_queues(machine, &earliest);
    if (earliest == INT64_MAX)
      break;
    int64_t until = earliest + machine->costs->visit;
    for (int32_t w = 0; w < problem->workers; w++) {
      if (!machine->lanes[w].waits)
        advance(machine, w, until);
      while (machine->ready_count > 0)
        advance(machine, machine->ready[--machine->ready_count], until);
    }
  }
  return machine->finished == problem->queue_begin[problem->queues] ? ROTA_OK
                                                                    : explain_wait(machine);
}

/* ---- One simulation ---- */

static void machine_free(Machine *machine) {
  for (int32_t i = 0; machine->tile_begin && i < machine->problem->plane_count; i++)
    free(machine->tile_begin[i]);
  free(machine->tile_begin);
  free(machine->slot_begin);
  free(machine->slots);
  free(machine->cache.brought);
  free(machine->lanes);
  free(machine->ready);
  free(machine->idle);
}

static rota_status create_trace(const DagProblem *problem, DagTrace *trace) {
  int64_t items = problem->queue_begin[problem->queues], visits = 0;
  trace->item_begin = memory_allocate((size_t)items + 1, sizeof(int64_t));
  trace->worker = memory_allocate((size_t)items + 1, sizeof(int32_t));
  if (!trace->item_begin || !trace->worker)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; i < items; i++) {
    const DagItem *item = &problem->items[i];
    const int64_t *begin = problem->planes[problem->plane_of[item->instance]].chain_begin;
    visits += begin[item->chain + 1] - begin[item->chain];
    trace->item_begin[i + 1] = visits;
  }
  trace->spans = memory_allocate((size_t)visits + 1, sizeof(DagSpan));
  return trace->spans ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

void dag_trace_free(DagTrace *trace) {
  free(trace->item_begin);
  free(trace->spans);
  free(trace->worker);
  *trace = (DagTrace){0};
}

/* Makespan and depths of the problem as it stands. */
static rota_status simulate(const DagProblem *problem, const Costs *costs, DagFigures *figures,
                            DagTrace *trace) {
  Machine machine = {.problem = problem, .costs = costs, .trace = trace, .figures = figures};
  figures->depth_monotone = true;
  machine.lanes = memory_allocate((size_t)problem->workers, sizeof(Lane));
  /* A lane waits for one other at a time, which pushes it: never twice. */
  machine.ready = memory_allocate((size_t)problem->workers, sizeof(int32_t));
  machine.idle = memory_allocate((size_t)problem->workers, sizeof(HeapEntry));
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (machine.lanes && machine.ready && machine.idle)
    status = create_slots(&machine);
  if (status == ROTA_OK && trace)
    status = create_trace(problem, trace);
  if (status == ROTA_OK)
    status = run(&machine);
  figures->makespan = 0;
  for (int32_t w = 0; status == ROTA_OK && w < problem->workers; w++) {
    int64_t end = machine.lanes[w].now; /* of its last queue */
    figures->makespan = end > figures->makespan ? end : figures->makespan;
  }
  machine_free(&machine);
  return status;
}

/* ---- Bounds ---- */

/* With a worker for each chain, instances do not meet: one of each plane will do. All that so many
 * workers need is in the L2. */
static rota_status critical_path(const DagPlane *plane, bool unordered, const Costs *costs,
                                 int64_t *path) {
  Costs unlimited = *costs;
  unlimited.l2 = 0;
  const int32_t plane_of = 0;
  size_t chains = (size_t)plane->chains;
  int64_t *begin = memory_allocate(chains + 1, sizeof(int64_t));
  DagItem *items = memory_allocate(chains + 1, sizeof(DagItem));
  rota_status status = begin && items ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK && plane->chains > 0) {
    for (int32_t i = 0; i < plane->chains; i++) {
      begin[i + 1] = i + 1;
      items[i] = (DagItem){0, i};
    }
    DagProblem alone = {plane,         1,     &plane_of, 1,        plane->chains,
                        plane->chains, begin, items,     unordered};
    DagFigures figures;
    status = simulate(&alone, &unlimited, &figures, NULL);
    if (status == ROTA_OK && figures.makespan > *path)
      *path = figures.makespan;
  }
  free(begin);
  free(items);
  return status;
}

/* A chain by itself: the ticks in which it occupies its worker, and until its last reduction. */
static void chain_alone(const DagPlane *plane, int32_t chain, const Costs *costs, int64_t *work,
                        int64_t *path) {
  int64_t now = costs->start, end = 0;
  int64_t ring[COSTS_STAGING_MAX] = {0};
  int64_t count = plane->chain_begin[chain + 1] - plane->chain_begin[chain];
  const DagVisit *visits = plane->visits + plane->chain_begin[chain];
  *work = count > 0 ? costs->start : 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t compute = visits[i].partial ? costs->partial : costs->visit;
    now += compute;
    *work += compute + (costs->staging ? 0 : costs->reduce);
    if (costs->staging && ring[i % costs->staging] > now)
      now = ring[i % costs->staging];
    end = now + costs->reduce;
    if (costs->staging)
      ring[i % costs->staging] = end;
    else
      now = end;
  }
  *path = end;
}

static rota_status bounds(const DagProblem *problem, const Costs *costs, DagFigures *figures) {
  int64_t *work = memory_allocate((size_t)problem->plane_count + 1, sizeof(int64_t));
  if (!work)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = ROTA_OK;
  for (int32_t p = 0; p < problem->plane_count && status == ROTA_OK; p++) {
    const DagPlane *plane = &problem->planes[p];
    for (int32_t chain = 0; chain < plane->chains; chain++) {
      int64_t busy, path;
      chain_alone(plane, chain, costs, &busy, &path);
      work[p] += busy;
      figures->chain_path = path > figures->chain_path ? path : figures->chain_path;
    }
    status = critical_path(plane, problem->unordered, costs, &figures->critical_path);
  }
  for (int32_t i = 0; i < problem->instances; i++)
    figures->work += work[problem->plane_of[i]];
  free(work);
  return status;
}

rota_status dag_simulate(const DagProblem *problem, const Costs *costs, DagFigures *figures,
                         DagTrace *trace) {
  *figures = (DagFigures){.workers = problem->workers, .depth_monotone = true};
  if (trace)
    *trace = (DagTrace){0};
  ROTA_TRY(costs_check(costs));
  if (problem->workers < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "%d workers: at least one is needed",
                       problem->workers);
  ROTA_TRY(simulate(problem, costs, figures, trace));
  return bounds(problem, costs, figures);
}

double dag_work_bound(const DagFigures *figures) {
  return figures->workers > 0 ? (double)figures->work / figures->workers : 0;
}

double dag_stall_share(const DagFigures *figures) {
  return figures->makespan > 0 ? 1 - dag_work_bound(figures) / (double)figures->makespan : 0;
}

double dag_bound_ratio(const DagFigures *figures) {
  double bound = dag_work_bound(figures);
  if ((double)figures->chain_path > bound)
    bound = (double)figures->chain_path;
  return bound > 0 ? (double)figures->makespan / bound : 0;
}
