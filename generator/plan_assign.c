/* Level 6. Assignments. All of them permute the items and cut them into queues. */
#include "generator/plan_assign.h"

#include <stdlib.h>
#include <string.h>

#include "generator/heap.h"
#include "generator/plan_items.h"

int64_t assign_queues_max(const Schedule *schedule, int64_t item_count) {
  bool dealt = schedule->assignment == ASSIGN_CYCLIC || schedule->assignment == ASSIGN_LANES;
  if (!dealt && schedule->assignment != ASSIGN_CALL)
    return item_count; /* may have a queue each */
  int64_t workers = schedule->workers;
  if (schedule->assignment == ASSIGN_CALL) /* one per worker, or one per item */
    return item_count > workers ? item_count : workers;
  return item_count < workers ? item_count : workers;
}

/* Among how many items are dealt. */
static int32_t workers_of(const AssignRequest *request) {
  int64_t workers = request->schedule->workers;
  return (int32_t)(request->item_count < workers ? request->item_count : workers);
}

static const Pattern *pattern_of(const AssignRequest *request, RotaItem item) {
  return planes_pattern(request->planes, request->chains[item.index].sequence, item.head);
}

static int32_t visits_of(const AssignRequest *request, RotaItem item) {
  const RotaChain *chain = &request->chains[item.index];
  return chain->visit_end - chain->visit_begin;
}

/* kv tiles past n_k have none: -1. */
static int32_t lane_of(const AssignRequest *request, RotaItem item) {
  const Pattern *pattern = pattern_of(request, item);
  int32_t kv_tile = request->chains[item.index].kv_tile;
  return kv_tile < pattern->chains ? pattern->lane[kv_tile] : -1;
}

/* Ticks that an item keeps its worker busy, if nobody waits. */
static int64_t item_ticks(const AssignRequest *request, RotaItem item) {
  const Costs *costs = &request->schedule->costs;
  int64_t visit = costs->visit + (costs->staging ? 0 : costs->reduce);
  return costs->start + visits_of(request, item) * visit;
}

/* ---- Tickets ---- */

/* A queue per item: they are drawn in item order. */
static void queue_each(int64_t count, int *queue, int32_t *queues) {
  for (int64_t i = 0; i <= count; i++)
    queue[i] = (int)i;
  *queues = (int32_t)count;
}

/* Where the items of the pair that begins here end. */
static int64_t pair_end(const AssignRequest *request, const RotaItem *items, int64_t begin) {
  int32_t sequence = request->chains[items[begin].index].sequence;
  int64_t end = begin + 1;
  while (end < request->item_count && items[end].head == items[begin].head &&
         request->chains[items[end].index].sequence == sequence)
    end++;
  return end;
}

typedef struct Merge {
  HeapEntry *heap;     /* [pairs] by `key`, most on top */
  bool stretches;      /* as ASSIGN_STRETCHES */
  int64_t *left;       /* [pairs] visits of the items that have not been taken */
  int64_t *next, *end; /* [pairs] their items in `copy` */
  RotaItem *copy;
} Merge;

static int64_t merge_key(const AssignRequest *request, const Merge *merge, int32_t pair) {
  return merge->stretches ? merge->left[pair] : visits_of(request, merge->copy[merge->next[pair]]);
}

/* Items of pairs [first, last), each pair's in their order: of the next ones always the longest, or
 * stretches of them. */
static RotaItem *merge_pairs(const AssignRequest *request, Merge *merge, int32_t first,
                             int32_t last, RotaItem *out) {
  HeapEntry *heap = merge->heap;
  int32_t count = 0;
  for (int32_t pair = first; pair < last; pair++) {
    for (int64_t i = merge->next[pair]; i < merge->end[pair]; i++)
      merge->left[pair] += visits_of(request, merge->copy[i]);
    heap[count] = (HeapEntry){-merge_key(request, merge, pair), pair};
    heap_rise(heap, count++);
  }
  while (count > 0) {
    int32_t pair = heap[0].index;
    int32_t visits;
    int64_t end = merge->end[pair];
    do {
      visits = visits_of(request, merge->copy[merge->next[pair]]);
      merge->left[pair] -= visits;
      *out++ = merge->copy[merge->next[pair]++];
    } while (merge->stretches && merge->next[pair] < end &&
             visits_of(request, merge->copy[merge->next[pair]]) >= visits);
    if (merge->next[pair] < end)
      heap[0].time = -merge_key(request, merge, pair);
    else
      heap[0] = heap[--count];
    heap_sink(heap, count, 0);
  }
  return out;
}

/* How many of `left` pairs are dealt together from the one on whose item is `at`. */
static int32_t pairs_together(const AssignRequest *request, RotaItem at, int32_t left) {
  const Pattern *pattern = pattern_of(request, at);
  if (pattern->abreast > 0) { /* those that would not fill the workers at the end join the last */
    int32_t fill = request->schedule->workers / pattern->abreast;
    int32_t together = fill > 1 ? fill : 1;
    return together <= left / 2 ? together : left;
  }
  int32_t together = pattern->together > 0 ? pattern->together : request->schedule->together;
  return together > 0 && together < left ? together : left;
}

enum { TIERED, MERGED, OTHERS };

/* How a pattern's pairs are dealt, and when. */
static int place_of(const Pattern *pattern, bool apart) {
  return pattern->tier ? TIERED : pattern->in_order || !apart ? MERGED : OTHERS;
}

/* (sequence, kv head) pairs come in groups of `together`; group by group, the longest chain first.
 * Before them those in tiers, untouched: how many items, in *tiered. After them, if they are
 * `apart`, those whose chains do not wait in order: where these begin, in *others. */
static rota_status longest_first(const AssignRequest *request, bool apart, RotaItem *items,
                                 int64_t *tiered, int64_t *others) {
  size_t count = (size_t)request->item_count;
  size_t pairs = (size_t)request->batch * (size_t)request->kv_heads;
  int32_t merged = 0;
  Merge merge = {memory_allocate(pairs + 1, sizeof(HeapEntry)),
                 request->schedule->assignment == ASSIGN_STRETCHES,
                 memory_allocate(pairs + 1, sizeof(int64_t)),
                 memory_allocate(pairs + 1, sizeof(int64_t)),
                 memory_allocate(pairs + 1, sizeof(int64_t)),
                 memory_allocate(count + 1, sizeof(RotaItem))};
  bool done = merge.heap && merge.left && merge.next && merge.end && merge.copy;
  if (done) {
    RotaItem *last = items; /* where the next one goes; `copy` has all of them */
    memcpy(merge.copy, items, count * sizeof(RotaItem));
    for (int64_t i = 0, end; i < request->item_count; i = end) {
      end = pair_end(request, merge.copy, i);
      int place = place_of(pattern_of(request, merge.copy[i]), apart);
      if (place == MERGED) {
        merge.next[merged] = i;
        merge.end[merged++] = end;
      }
      for (; place == TIERED && i < end; i++)
        *last++ = merge.copy[i];
    }
    *tiered = last - items;
    for (int32_t pair = 0, end; pair < merged; pair = end) {
      end = pair + pairs_together(request, merge.copy[merge.next[pair]], merged - pair);
      last = merge_pairs(request, &merge, pair, end, last);
    }
    *others = last - items;
    for (int64_t i = 0, end; i < request->item_count; i = end) {
      end = pair_end(request, merge.copy, i);
      int place = place_of(pattern_of(request, merge.copy[i]), apart);
      for (; place == OTHERS && i < end; i++)
        *last++ = merge.copy[i];
    }
  }
  free(merge.heap);
  free(merge.left);
  free(merge.next);
  free(merge.end);
  free(merge.copy);
  return done ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* ---- Tiers ---- */

/* Chains of a tier of a pair, or of some that take turns: a unit. */
typedef struct Stretch {
  int64_t key; /* what has been dealt of first tiers, in ticks, when it starts */
  int32_t tier, unit;
  int64_t begin, end;
} Stretch;

static int compare_stretches(const void *a, const void *b) {
  const Stretch *x = a, *y = b;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  if (x->tier != y->tier)
    return x->tier < y->tier ? -1 : 1;
  if (x->unit != y->unit)
    return x->unit < y->unit ? -1 : 1;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* kv tiles past n_k have none: those of the last tier before them. */
static int32_t tier_of(const AssignRequest *request, RotaItem item, int32_t before) {
  const Pattern *pattern = pattern_of(request, item);
  int32_t kv_tile = request->chains[item.index].kv_tile;
  return kv_tile < pattern->chains ? pattern->tier[kv_tile] : before;
}

/* Cuts items of pairs in tiers into stretches; returns how many. */
static int64_t cut_tiers(const AssignRequest *request, const RotaItem *items, int64_t count,
                         Stretch *stretches) {
  int64_t cut = 0;
  int32_t unit = -1, left = 0; /* pairs that the unit may still have */
  for (int64_t i = 0, end = 0; i < count; i++) {
    bool first = i == end; /* of a pair */
    if (first) {
      int32_t together = pattern_of(request, items[i])->together;
      end = pair_end(request, items, i);
      unit += left == 0;
      left = (left == 0 ? (together > 1 ? together : 1) : left) - 1;
    }
    int32_t before = first ? 0 : stretches[cut - 1].tier;
    int32_t tier = tier_of(request, items[i], before);
    if (first || tier != before)
      stretches[cut++] = (Stretch){0, tier, unit, i, i};
    stretches[cut - 1].end = i + 1;
  }
  return cut;
}

/* When each stretch starts. Those of first tiers follow one another; a second tier keeps its
 * distance from the first, so that at the end enough of the later tiers are left to level the
 * workers, but no more, since their query tiles may still be in the L2; others follow a round
 * later each. At the end tier follows tier. */
static void time_stretches(const AssignRequest *request, const RotaItem *items, Stretch *stretches,
                           int64_t count) {
  double first = 0, later = 1, longest = 0, base = 0;
  for (int64_t s = 0; s < count; s++) {
    base = s > 0 && stretches[s].unit == stretches[s - 1].unit ? base : first;
    stretches[s].key = (int64_t)base;
    for (int64_t i = stretches[s].begin; i < stretches[s].end; i++) {
      double ticks = (double)item_ticks(request, items[i]);
      *(stretches[s].tier == 0 ? &first : &later) += ticks;
      longest = ticks > longest ? ticks : longest;
    }
  }
  double workers = (double)workers_of(request);
  double round = workers * longest * first / (first + later);
  double distance = 1.4 * workers * longest * first / later;
  for (int64_t s = 0; s < count; s++) {
    double key = (double)stretches[s].key + distance + (stretches[s].tier - 1) * round;
    if (stretches[s].tier > 0)
      stretches[s].key = (int64_t)(key < first ? key : first);
  }
}

/* The stretches of a tier of a unit take turns; returns the next item's place. */
static RotaItem *take_turns(const Stretch *stretches, int64_t count, const RotaItem *items,
                            RotaItem *out) {
  bool more = true;
  for (int64_t turn = 0; more; turn++) {
    more = false;
    for (int64_t s = 0; s < count; s++)
      if (stretches[s].begin + turn < stretches[s].end) {
        *out++ = items[stretches[s].begin + turn];
        more = true;
      }
  }
  return out;
}

/* The first `count` items, of pairs in tiers, into the order in which they are dealt. */
static rota_status order_tiers(const AssignRequest *request, RotaItem *items, int64_t count) {
  Stretch *stretches = memory_allocate((size_t)count + 1, sizeof(Stretch));
  RotaItem *copy = memory_allocate((size_t)count + 1, sizeof(RotaItem));
  bool done = stretches && copy;
  if (done) {
    int64_t cut = cut_tiers(request, items, count, stretches);
    time_stretches(request, items, stretches, cut);
    qsort(stretches, (size_t)cut, sizeof(Stretch), compare_stretches);
    memcpy(copy, items, (size_t)count * sizeof(RotaItem));
    for (int64_t s = 0, end; s < cut; s = end) {
      for (end = s + 1; end < cut && stretches[end].unit == stretches[s].unit &&
                        stretches[end].tier == stretches[s].tier;)
        end++;
      items = take_turns(stretches + s, end - s, copy, items);
    }
  }
  free(stretches);
  free(copy);
  return done ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* ---- To the worker that is free first ---- */

/* The sum of a query tile of a (sequence, kv head) pair: when the last partial so far has been
 * added, and by whom. */
typedef struct Sum {
  int64_t end;
  int32_t worker;
} Sum;

/* From a worker's time on, the visits of an item's chain as the DAG model has them (dag.c), whose
 * partials follow those of earlier items; returns when the worker is free again. */
static int64_t run_item(const AssignRequest *request, RotaItem item, int32_t worker, int64_t now,
                        Sum *sums) {
  const Costs *costs = &request->schedule->costs;
  const Pattern *pattern = pattern_of(request, item);
  int32_t kv_tile = request->chains[item.index].kv_tile;
  int64_t turn = 0, ring[COSTS_STAGING_MAX] = {0};
  now += costs->start;
  if (kv_tile >= pattern->chains)
    return now;
  int64_t begin = pattern->chain_begin[kv_tile], end = pattern->chain_begin[kv_tile + 1];
  for (int64_t v = begin; v < end; v++) {
    const PatternVisit *visit = &pattern->visits[v];
    Sum *sum = &sums[(int64_t)visit->group_head * pattern->q_tiles + visit->q_tile];
    int64_t *buffer = costs->staging ? &ring[(v - begin) % costs->staging] : NULL;
    int64_t handoff = sum->worker == worker ? 0 : costs->handoff;
    now += visit->partial ? costs->partial : costs->visit;
    if (buffer && *buffer > now)
      now = *buffer;
    turn = now > turn ? now : turn;
    if (request->ordered && visit->rank > 0 && sum->end + handoff > turn)
      turn = sum->end + handoff;
    *sum = (Sum){turn + costs->reduce, worker};
    if (buffer)
      *buffer = sum->end;
    else
      now = sum->end;
  }
  return now;
}

/* The first `count` items, which wait for earlier ones only. `heap`: workers by their time. */
static rota_status deal_in_order(const AssignRequest *request, const RotaItem *items, int64_t count,
                                 HeapEntry *heap, int32_t workers, int32_t *worker) {
  int64_t tiles = 0; /* of a pair, at most */
  for (int64_t i = 0; i < count; i++) {
    const Pattern *pattern = pattern_of(request, items[i]);
    int64_t all = (int64_t)pattern->group * pattern->q_tiles;
    tiles = all > tiles ? all : tiles;
  }
  size_t pairs = (size_t)request->batch * (size_t)request->kv_heads;
  Sum *sums = memory_allocate(pairs * (size_t)tiles + 1, sizeof(Sum));
  if (!sums)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; i < count; i++) {
    int64_t sequence = request->chains[items[i].index].sequence;
    Sum *of_pair = sums + (sequence * request->kv_heads + items[i].head) * tiles;
    worker[i] = heap[0].index;
    heap[0].time = run_item(request, items[i], worker[i], heap[0].time, of_pair);
    heap_sink(heap, workers, 0);
  }
  free(sums);
  return ROTA_OK;
}

/* ---- Workers of their own ---- */

static int compare_most(const void *a, const void *b) {
  const HeapEntry *x = a, *y = b;
  if (x->time != y->time)
    return x->time > y->time ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

typedef struct Lanes {
  int32_t workers;
  HeapEntry *heap;  /* [workers] by ticks: the least busy on top */
  HeapEntry *lanes; /* [workers] of the pair at hand */
  int32_t *target;  /* [workers] lane -> worker */
  HeapEntry *taken; /* [workers] */
} Lanes;

/* The lanes of the pair of items [begin, end), longest first, into state->lanes; how many. */
static int32_t sort_lanes(const AssignRequest *request, Lanes *state, const RotaItem *items,
                          int64_t begin, int64_t end) {
  const Pattern *pattern = pattern_of(request, items[begin]);
  int32_t lanes = pattern->lanes < state->workers ? pattern->lanes : state->workers;
  for (int32_t lane = 0; lane < lanes; lane++)
    state->lanes[lane] = (HeapEntry){0, lane};
  for (int64_t i = begin; i < end; i++) {
    int32_t lane = lane_of(request, items[i]);
    if (lane >= 0 && visits_of(request, items[i]) > 0)
      state->lanes[lane].time += item_ticks(request, items[i]);
  }
  qsort(state->lanes, (size_t)lanes, sizeof(HeapEntry), compare_most);
  return lanes;
}

/* Lanes of one pair that start at different times wait for each other. Where all pairs have as many
 * lanes, of unequal lengths, workers that are left over would always be the least busy, take some
 * lanes of the next pair early and so upset all that follow: they get none. Equal lanes keep step
 * even so. */
static int32_t workers_in_step(const AssignRequest *request, Lanes *state, const RotaItem *items) {
  int32_t common = 0;
  bool equal = true;
  for (int64_t begin = 0, end; begin < request->item_count; begin = end) {
    end = pair_end(request, items, begin);
    int32_t lanes = sort_lanes(request, state, items, begin, end);
    if (lanes < 1 || (common > 0 && lanes != common))
      return state->workers;
    common = lanes;
    equal = equal && state->lanes[0].time == state->lanes[lanes - 1].time;
  }
  return equal ? state->workers : state->workers / common * common;
}

/* The pair's lanes, longest first, to the least busy workers, each to another: so the lanes of a
 * pair run at once, and pairs follow one another in the same order everywhere. */
static void deal_pair(const AssignRequest *request, Lanes *state, const RotaItem *items,
                      int64_t begin, int64_t end, int32_t *worker) {
  int32_t lanes = sort_lanes(request, state, items, begin, end);
  int32_t left = state->workers;
  for (int32_t i = 0; i < lanes; i++) { /* off the heap, so that none is taken twice */
    state->taken[i] = state->heap[0];
    state->heap[0] = state->heap[--left];
    heap_sink(state->heap, left, 0);
    state->taken[i].time += state->lanes[i].time;
    state->target[state->lanes[i].index] = state->taken[i].index;
  }
  for (int32_t i = 0; i < lanes; i++)
    state->heap[left++] = state->taken[i];
  for (int32_t at = left / 2; at-- > 0;)
    heap_sink(state->heap, left, at);
  for (int64_t i = begin; i < end; i++) {
    int32_t lane = lane_of(request, items[i]);
    worker[i] = lane >= 0 ? state->target[lane] : state->heap[0].index;
  }
}

static rota_status deal_lanes(const AssignRequest *request, RotaItem *items, int32_t *worker,
                              bool *in_order) {
  int32_t workers = workers_of(request);
  size_t size = (size_t)workers + 1;
  int64_t tiered = 0, others = 0;
  Lanes state = {workers, memory_allocate(size, sizeof(HeapEntry)),
                 memory_allocate(size, sizeof(HeapEntry)), memory_allocate(size, sizeof(int32_t)),
                 memory_allocate(size, sizeof(HeapEntry))};
  rota_status status =
      state.heap && state.lanes && state.target && state.taken ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK && request->schedule->assignment != ASSIGN_LANES)
    status = longest_first(request, true, items, &tiered, &others);
  if (status == ROTA_OK)
    status = order_tiers(request, items, tiered);
  *in_order = others == request->item_count;
  if (status == ROTA_OK && !*in_order) {
    for (int32_t w = 0; w < workers; w++)
      state.heap[w].index = w;
    status = deal_in_order(request, items, others, state.heap, workers, worker);
  }
  if (status == ROTA_OK && others == 0 && request->item_count > 0)
    state.workers = workers_in_step(request, &state, items);
  if (status == ROTA_OK) {
    for (int64_t begin = others, end; begin < request->item_count; begin = end) {
      end = pair_end(request, items, begin);
      deal_pair(request, &state, items, begin, end, worker);
    }
  }
  free(state.heap);
  free(state.lanes);
  free(state.target);
  free(state.taken);
  return status;
}

static rota_status to_workers(const AssignRequest *request, RotaItem *items, int *queue,
                              int32_t *queues) {
  int64_t workers = workers_of(request);
  int32_t *worker = memory_allocate((size_t)request->item_count + 1, sizeof(int32_t));
  rota_status status = worker ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  Assignment assignment = request->schedule->assignment;
  bool in_order = false;
  if (status == ROTA_OK &&
      (assignment == ASSIGN_LANES || assignment == ASSIGN_MIXED || assignment == ASSIGN_STRETCHES))
    status = deal_lanes(request, items, worker, &in_order);
  else if (status == ROTA_OK)
    for (int64_t i = 0; i < request->item_count; i++)
      worker[i] = (int32_t)(i % workers);
  if (status == ROTA_OK && in_order)
    queue_each(request->item_count, queue, queues);
  else if (status == ROTA_OK)
    status = items_gather(worker, items, request->item_count, queue, queues);
  free(worker);
  return status;
}

/* ---- By a function of the schedule ---- */

static rota_status take_answer(const AssignRequest *request, const BatchAnswer *answer,
                               RotaItem *items, const RotaItem *copy, bool *taken, int *queue) {
  const char *name = request->schedule->name;
  for (int64_t i = 0; i < answer->count; i++) {
    int64_t item = answer->items[i];
    if (item < 0 || item >= request->item_count)
      return status_fail(ROTA_SCHEDULE, "schedule '%s': item %lld is assigned; there are %lld",
                         name, (long long)item, (long long)request->item_count);
    if (taken[item])
      return status_fail(ROTA_SCHEDULE, "schedule '%s': item %lld is assigned twice", name,
                         (long long)item);
    taken[item] = true;
    items[i] = copy[item];
  }
  for (int64_t i = 0; i < request->item_count; i++)
    if (!taken[i])
      return status_fail(ROTA_SCHEDULE, "schedule '%s': item %lld is assigned to no worker", name,
                         (long long)i);
  queue[0] = 0;
  for (int32_t w = 0; w < answer->queues; w++)
    queue[w + 1] = (int)answer->queue_end[w];
  return ROTA_OK;
}

static rota_status by_call(const AssignRequest *request, RotaItem *items, int *queue,
                           int32_t *queues) {
  size_t count = (size_t)request->item_count + 1;
  int64_t most = assign_queues_max(request->schedule, request->item_count);
  BatchItem *views = memory_allocate(count, sizeof(BatchItem));
  RotaItem *copy = memory_allocate(count, sizeof(RotaItem));
  bool *taken = memory_allocate(count, sizeof(bool));
  BatchAnswer answer = {.items = memory_allocate(count, sizeof(int64_t)),
                        .queue_end = memory_allocate((size_t)most + 1, sizeof(int64_t)),
                        .queue_capacity = (int32_t)most};
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (views && copy && taken && answer.items && answer.queue_end) {
    for (int64_t i = 0; i < request->item_count; i++) {
      const RotaChain *chain = &request->chains[items[i].index];
      copy[i] = items[i];
      views[i] = (BatchItem){chain->sequence, items[i].head, chain->kv_tile,
                             visits_of(request, items[i]), lane_of(request, items[i])};
    }
    BatchView view = {request->batch, request->kv_heads, request->schedule->workers, views,
                      request->item_count};
    status = request->schedule->assign(request->schedule, &view, &answer);
  }
  if (status == ROTA_OK)
    status = take_answer(request, &answer, items, copy, taken, queue);
  *queues = answer.queues;
  free(views);
  free(copy);
  free(taken);
  free(answer.items);
  free(answer.queue_end);
  return status;
}

rota_status assign_items(const AssignRequest *request, RotaItem *items, int *queue,
                         int32_t *queues) {
  const Schedule *schedule = request->schedule;
  int64_t tiered, others;
  memset(queue, 0, sizeof(int));
  *queues = 0;
  switch (schedule->assignment) {
  case ASSIGN_CYCLIC:
  case ASSIGN_LANES:
  case ASSIGN_MIXED:
  case ASSIGN_STRETCHES:
    return to_workers(request, items, queue, queues);
  case ASSIGN_CALL:
    return by_call(request, items, queue, queues);
  case ASSIGN_LONGEST:
    ROTA_TRY(longest_first(request, false, items, &tiered, &others));
    ROTA_TRY(order_tiers(request, items, tiered));
    break;
  case ASSIGN_TICKETS:
    break;
  }
  queue_each(request->item_count, queue, queues);
  return ROTA_OK;
}
