/* Level 3. Simulation of the DAG: every time is the maximum of its predecessors' plus a constant,
 * so workers may be advanced in any order, each as far as the reductions it waits for are known.
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
} Lane;

typedef struct Machine {
  const DagProblem *problem;
  const Costs *costs;
  DagTrace *trace;
  DagFigures *figures;
  int64_t *slot_begin;  /* [instances] */
  int64_t **tile_begin; /* [planes][tiles]: first slot of a tile within its instance */
  Slot *slots;
  Lane *lanes;
  int32_t *ready; /* a stack of lanes that may go on */
  int32_t ready_count;
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
  if (!machine->slots)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; i < total; i++)
    machine->slots[i].end = UNKNOWN;
  return ROTA_OK;
}

/* ---- Advancing a lane ---- */

static void push_ready(Machine *machine, int32_t lane) {
  machine->ready[machine->ready_count++] = lane;
}

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

/* Runs the visits of the lane's item; false if it has to wait for another lane. */
static bool advance_item(Machine *machine, int32_t worker, Lane *lane) {
  const DagProblem *problem = machine->problem;
  const DagItem *item = &problem->items[lane->item];
  int32_t index = problem->plane_of[item->instance];
  const DagPlane *plane = &problem->planes[index];
  const DagVisit *visits = plane->visits + plane->chain_begin[item->chain];
  int64_t count = plane->chain_begin[item->chain + 1] - plane->chain_begin[item->chain];
  const int64_t *tile_begin = machine->tile_begin[index];
  Slot *slots = machine->slots + machine->slot_begin[item->instance];
  while (lane->visit < count) {
    const DagVisit *visit = &visits[lane->visit];
    Slot *slot = &slots[tile_begin[visit->tile] + visit->rank];
    assert(slot); /* one for every rank of every tile */
    Slot *before = visit->rank > 0 && !problem->unordered ? slot - 1 : NULL;
    if (before && before->end < 0) {
      before->end = UNKNOWN - 1 - worker;
      return false;
    }
    if (lane->visit == 0)
      lane->now += machine->costs->start;
    DagSpan span = time_visit(machine, lane, worker, visit, before);
    record(machine, lane, worker, span);
    if (before && before->step >= lane->step)
      machine->figures->depth_monotone = false;
    if (slot->end < UNKNOWN)
      push_ready(machine, (int32_t)(UNKNOWN - 1 - slot->end));
    *slot = (Slot){span.end, worker, lane->step++};
    lane->last = span.end > lane->last ? span.end : lane->last;
    lane->visit++;
  }
  return true;
}

/* Goes on with a lane until its queue ends or it has to wait. */
static void advance(Machine *machine, int32_t worker) {
  Lane *lane = &machine->lanes[worker];
  while (lane->item < lane->items_end) {
    if (!advance_item(machine, worker, lane))
      return;
    lane->item++;
    lane->visit = 0;
    machine->finished++;
  }
}

static void drain(Machine *machine) {
  while (machine->ready_count > 0)
    advance(machine, machine->ready[--machine->ready_count]);
}

/* ---- Queues ---- */

static int64_t lane_end(const Lane *lane) {
  return lane->now > lane->last ? lane->now : lane->last;
}

static void take_queue(Machine *machine, int32_t worker, int32_t queue) {
  Lane *lane = &machine->lanes[worker];
  lane->item = machine->problem->queue_begin[queue];
  lane->items_end = machine->problem->queue_begin[queue + 1];
  lane->now = lane_end(lane); /* the block ends with its last reduction */
  lane->visit = 0;
  push_ready(machine, worker);
}

/* More queues than workers: each queue waits for earlier ones only, so once a queue is taken all of
 * its times follow, and the lane that ends first takes the next. */
static rota_status run_in_turn(Machine *machine) {
  const DagProblem *problem = machine->problem;
  HeapEntry *heap = memory_allocate((size_t)problem->workers, sizeof(HeapEntry));
  if (!heap)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t w = 0; w < problem->workers; w++)
    heap[w] = (HeapEntry){lane_end(&machine->lanes[w]), w};
  for (int32_t queue = 0; queue < problem->queues; queue++) {
    take_queue(machine, heap[0].index, queue);
    drain(machine);
    if (machine->finished < problem->queue_begin[queue + 1])
      break; /* a later queue would have to finish first */
    heap[0].time = lane_end(&machine->lanes[heap[0].index]);
    heap_sink(heap, problem->workers, 0);
  }
  free(heap);
  return ROTA_OK;
}

static rota_status run(Machine *machine) {
  const DagProblem *problem = machine->problem;
  if (problem->queues > problem->workers)
    ROTA_TRY(run_in_turn(machine));
  else
    for (int32_t queue = problem->queues - 1; queue >= 0; queue--)
      take_queue(machine, queue, queue);
  drain(machine);
  if (machine->finished == problem->queue_begin[problem->queues])
    return ROTA_OK;
  for (int32_t w = 0; w < problem->workers; w++) {
    const Lane *lane = &machine->lanes[w];
    if (lane->item == lane->items_end)
      continue;
    const DagItem *item = &problem->items[lane->item];
    const DagPlane *plane = &problem->planes[problem->plane_of[item->instance]];
    const DagVisit *visit = &plane->visits[plane->chain_begin[item->chain] + lane->visit];
    return status_fail(ROTA_SCHEDULE,
                       "schedule: worker %d waits for ever in chain %d at tile %d for rank %d", w,
                       item->chain, visit->tile, visit->rank - 1);
  }
  return status_fail(ROTA_INTERNAL, "dag: items are missing from the queues");
}

/* ---- One simulation ---- */

static void machine_free(Machine *machine) {
  for (int32_t i = 0; machine->tile_begin && i < machine->problem->plane_count; i++)
    free(machine->tile_begin[i]);
  free(machine->tile_begin);
  free(machine->slot_begin);
  free(machine->slots);
  free(machine->lanes);
  free(machine->ready);
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
  /* A lane is pushed when it takes a queue, and by the one that it waits for: never twice. */
  machine.ready = memory_allocate((size_t)problem->workers, sizeof(int32_t));
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (machine.lanes && machine.ready)
    status = create_slots(&machine);
  if (status == ROTA_OK && trace)
    status = create_trace(problem, trace);
  if (status == ROTA_OK)
    status = run(&machine);
  figures->makespan = 0;
  for (int32_t w = 0; status == ROTA_OK && w < problem->workers; w++) {
    int64_t end = lane_end(&machine.lanes[w]);
    figures->makespan = end > figures->makespan ? end : figures->makespan;
  }
  machine_free(&machine);
  return status;
}

/* ---- Bounds ---- */

/* With a worker for each chain, instances do not meet: one of each plane will do. */
static rota_status critical_path(const DagPlane *plane, bool unordered, const Costs *costs,
                                 int64_t *path) {
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
    status = simulate(&alone, costs, &figures, NULL);
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
