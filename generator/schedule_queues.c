/* Level 4. Verification of queues, by running them without time.
 *
 * A visit may add when as many partials as its rank have been added to its tile. Adding is never
 * undone, and what one worker may do no other can take away; so the order in which workers are let
 * run does not matter: either all queues end, or the same visits remain stuck.
 *
 * QUEUES_IN_SEQUENCE is the hardest case: a visit that had to wait would wait for ever. If none
 * waits then, none waits for ever with more workers that take the queues in order: of the queues in
 * progress the first depends on finished ones only, hence it proceeds, and so on by induction. */
#include "generator/schedule_queues.h"

#include <stdio.h>
#include <stdlib.h>

/* Who adds to each tile of a plane: chain of rank r at chain[begin[tile] + r]. */
typedef struct Owners {
  int64_t *begin; /* tiles + 1 */
  int32_t *chain;
} Owners;

typedef struct Cursor {
  int64_t item;  /* problem->items index; queue_begin[queue + 1] at the end */
  int64_t visit; /* of its plane */
  bool waits;
} Cursor;

typedef struct Run {
  const DagProblem *problem;
  const QueueNames *names;
  Owners *owners;      /* [planes] */
  int64_t *tile_base;  /* [instances] into added */
  int64_t *chain_base; /* [instances] into queue_of */
  int32_t *added;      /* partials so far */
  int32_t *queue_of;   /* queue of an instance's chain */
  Cursor *cursors;     /* [queues] */
  int32_t *ready;      /* stack of queues */
  int32_t ready_count;
} Run;

static const DagPlane *plane_of(const Run *run, int32_t instance) {
  return &run->problem->planes[run->problem->plane_of[instance]];
}

/* ---- Messages ---- */

enum { WORDS_MAX = 96 };

/* "tile (3, 1) of head 0", and which sequence and kv head if there are several. */
static void name_tile(const Run *run, int32_t instance, int32_t tile, int32_t chain,
                      char words[WORDS_MAX]) {
  int32_t q_tiles = run->names->q_tiles[run->problem->plane_of[instance]];
  int length =
      snprintf(words, WORDS_MAX, "tile (%d, %d) of head %d", tile % q_tiles, chain, tile / q_tiles);
  if (run->names->sequence)
    snprintf(words + length, (size_t)(WORDS_MAX - length), " of sequence %d, kv head %d",
             run->names->sequence[instance], run->names->kv_head[instance]);
}

/* The visit at which a queue is held up, and the chain whose partial it needs first. */
typedef struct Block {
  int32_t instance, chain, tile;
  int32_t needed; /* chain; -1 if its turn is over */
  int32_t queue;  /* of the needed chain */
} Block;

static Block block_of(const Run *run, int32_t queue) {
  const Cursor *cursor = &run->cursors[queue];
  DagItem item = run->problem->items[cursor->item];
  const DagPlane *plane = plane_of(run, item.instance);
  const Owners *owners = &run->owners[run->problem->plane_of[item.instance]];
  int32_t tile = plane->visits[cursor->visit].tile;
  int32_t added = run->added[run->tile_base[item.instance] + tile];
  Block block = {item.instance, item.chain, tile, -1, -1};
  if (owners->begin[tile] + added < owners->begin[tile + 1]) {
    block.needed = owners->chain[owners->begin[tile] + added];
    block.queue = run->queue_of[run->chain_base[item.instance] + block.needed];
  }
  return block;
}

/* Follows who waits for whom until a queue comes up again, and tells the way round. */
static rota_status name_cycle(const Run *run, int32_t queue) {
  enum { STEPS_MAX = 3 };
  for (int32_t i = 0; i < run->problem->queues; i++) /* into the cycle */
    queue = block_of(run, queue).queue;
  char text[STEPS_MAX * (2 * WORDS_MAX + 48)], at[WORDS_MAX], needed[WORDS_MAX];
  int length = 0, steps = 0;
  int32_t first = queue;
  do {
    Block block = block_of(run, queue);
    name_tile(run, block.instance, block.tile, block.chain, at);
    name_tile(run, block.instance, block.tile, block.needed, needed);
    if (steps < STEPS_MAX)
      length += snprintf(text + length, sizeof text - (size_t)length, "%s%s waits for %s",
                         steps ? ", whose worker is held up: " : "", at, needed);
    steps++;
    queue = block.queue;
  } while (queue != first);
  if (steps > STEPS_MAX)
    return status_fail(
        ROTA_SCHEDULE,
        "schedule '%s' would wait for ever: %s, and so on through %d workers back to "
        "the first",
        run->names->schedule, text, steps);
  return status_fail(ROTA_SCHEDULE,
                     "schedule '%s' would wait for ever: %s, whose worker is held up at the first",
                     run->names->schedule, text);
}

static rota_status name_wait(const Run *run, int32_t queue) {
  Block block = block_of(run, queue);
  char at[WORDS_MAX], needed[WORDS_MAX];
  name_tile(run, block.instance, block.tile, block.chain, at);
  name_tile(run, block.instance, block.tile, block.needed, needed);
  return status_fail(
      ROTA_SCHEDULE, "schedule '%s': %s waits for %s, %s", run->names->schedule, at, needed,
      block.needed == block.chain ? "of its own chain" : "whose chain starts no earlier");
}

/* ---- Preparing ---- */

/* Owners of a plane: each tile's ranks once each, without a gap. */
static rota_status index_owners(const DagPlane *plane, int32_t q_tiles, const char *schedule,
                                Owners *owners) {
  int64_t visits = plane->chain_begin[plane->chains];
  owners->begin = memory_allocate((size_t)plane->tiles + 1, sizeof(int64_t));
  owners->chain = memory_allocate((size_t)visits + 1, sizeof(int32_t));
  if (!owners->begin || !owners->chain)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t v = 0; v < visits; v++)
    owners->begin[plane->visits[v].tile + 1]++;
  for (int32_t tile = 0; tile < plane->tiles; tile++)
    owners->begin[tile + 1] += owners->begin[tile];
  for (int64_t i = 0; i < visits; i++)
    owners->chain[i] = -1;
  for (int32_t chain = 0; chain < plane->chains; chain++)
    for (int64_t v = plane->chain_begin[chain]; v < plane->chain_begin[chain + 1]; v++) {
      int32_t tile = plane->visits[v].tile, rank = plane->visits[v].rank;
      int64_t count = owners->begin[tile + 1] - owners->begin[tile];
      if (rank < 0 || rank >= count || owners->chain[owners->begin[tile] + rank] >= 0)
        return status_fail(ROTA_SCHEDULE,
                           "schedule '%s': tile (%d, %d) of head %d has rank %d of %lld, %s",
                           schedule, tile % q_tiles, chain, tile / q_tiles, rank, (long long)count,
                           rank < 0 || rank >= count ? "which is none" : "which another has too");
      owners->chain[owners->begin[tile] + rank] = chain;
    }
  return ROTA_OK;
}

/* Each chain once. */
static rota_status index_queues(Run *run) {
  const DagProblem *problem = run->problem;
  int64_t chains = run->chain_base[problem->instances];
  for (int64_t i = 0; i < chains; i++)
    run->queue_of[i] = -1;
  for (int32_t queue = 0; queue < problem->queues; queue++)
    for (int64_t i = problem->queue_begin[queue]; i < problem->queue_begin[queue + 1]; i++) {
      DagItem item = problem->items[i];
      int32_t *at = &run->queue_of[run->chain_base[item.instance] + item.chain];
      if (*at >= 0)
        return status_fail(ROTA_SCHEDULE,
                           "schedule '%s': chain %d has a place with workers %d and %d",
                           run->names->schedule, item.chain, *at, queue);
      *at = queue;
    }
  for (int64_t i = 0; i < chains; i++)
    if (run->queue_of[i] < 0)
      return status_fail(ROTA_SCHEDULE, "schedule '%s': a chain is in no worker's queue",
                         run->names->schedule);
  return ROTA_OK;
}

static bool allocate(Run *run) {
  const DagProblem *problem = run->problem;
  size_t instances = (size_t)problem->instances + 1, queues = (size_t)problem->queues + 1;
  run->owners = memory_allocate((size_t)problem->plane_count + 1, sizeof(Owners));
  run->tile_base = memory_allocate(instances, sizeof(int64_t));
  run->chain_base = memory_allocate(instances, sizeof(int64_t));
  run->cursors = memory_allocate(queues, sizeof(Cursor));
  run->ready = memory_allocate(queues, sizeof(int32_t));
  if (!run->owners || !run->tile_base || !run->chain_base || !run->cursors || !run->ready)
    return false;
  for (int32_t i = 0; i < problem->instances; i++) {
    run->tile_base[i + 1] = run->tile_base[i] + plane_of(run, i)->tiles;
    run->chain_base[i + 1] = run->chain_base[i] + plane_of(run, i)->chains;
  }
  run->added = memory_allocate((size_t)run->tile_base[problem->instances] + 1, sizeof(int32_t));
  run->queue_of = memory_allocate((size_t)run->chain_base[problem->instances] + 1, sizeof(int32_t));
  return run->added && run->queue_of;
}

static void release(Run *run) {
  for (int32_t i = 0; run->owners && i < run->problem->plane_count; i++) {
    free(run->owners[i].begin);
    free(run->owners[i].chain);
  }
  free(run->owners);
  free(run->tile_base);
  free(run->chain_base);
  free(run->cursors);
  free(run->ready);
  free(run->added);
  free(run->queue_of);
}

/* ---- Running ---- */

/* Moves on to the next chain with visits, if the item at hand has none left. */
static void settle(Run *run, int32_t queue, bool entered) {
  const DagProblem *problem = run->problem;
  Cursor *cursor = &run->cursors[queue];
  for (; cursor->item < problem->queue_begin[queue + 1]; cursor->item++, entered = false) {
    DagItem item = problem->items[cursor->item];
    const DagPlane *plane = plane_of(run, item.instance);
    if (!entered)
      cursor->visit = plane->chain_begin[item.chain];
    if (cursor->visit < plane->chain_begin[item.chain + 1])
      return;
  }
}

/* Whoever adds next to the tile may run on, if it has come that far. */
static void wake(Run *run, int32_t instance, int32_t tile, int32_t rank) {
  const Owners *owners = &run->owners[run->problem->plane_of[instance]];
  int64_t next = owners->begin[tile] + rank + 1;
  if (next >= owners->begin[tile + 1])
    return;
  int32_t chain = owners->chain[next];
  int32_t queue = run->queue_of[run->chain_base[instance] + chain];
  Cursor *cursor = &run->cursors[queue];
  if (!cursor->waits)
    return;
  DagItem item = run->problem->items[cursor->item];
  if (item.instance != instance || item.chain != chain ||
      plane_of(run, instance)->visits[cursor->visit].tile != tile)
    return;
  cursor->waits = false;
  run->ready[run->ready_count++] = queue;
}

/* Runs a queue until it waits or ends; true if it has ended. */
static bool advance(Run *run, int32_t queue) {
  Cursor *cursor = &run->cursors[queue];
  while (cursor->item < run->problem->queue_begin[queue + 1]) {
    DagItem item = run->problem->items[cursor->item];
    const DagVisit *visit = &plane_of(run, item.instance)->visits[cursor->visit];
    int32_t *added = &run->added[run->tile_base[item.instance] + visit->tile];
    if (*added != visit->rank) {
      cursor->waits = true;
      return false;
    }
    ++*added;
    cursor->visit++;
    settle(run, queue, true);
    wake(run, item.instance, visit->tile, visit->rank);
  }
  return true;
}

static rota_status run_queues(Run *run, QueueMode mode) {
  int32_t queues = run->problem->queues, ended = 0;
  for (int32_t queue = 0; queue < queues; queue++) {
    run->cursors[queue].item = run->problem->queue_begin[queue];
    settle(run, queue, false);
  }
  if (mode == QUEUES_IN_SEQUENCE) {
    for (int32_t queue = 0; queue < queues; queue++)
      if (!advance(run, queue))
        return name_wait(run, queue);
    return ROTA_OK;
  }
  for (int32_t queue = queues; queue-- > 0;)
    run->ready[run->ready_count++] = queue;
  while (run->ready_count > 0)
    ended += advance(run, run->ready[--run->ready_count]);
  for (int32_t queue = 0; queue < queues && ended < queues; queue++)
    if (run->cursors[queue].waits)
      return name_cycle(run, queue);
  return ROTA_OK;
}

static rota_status verify(Run *run, QueueMode mode) {
  if (!allocate(run))
    return ROTA_OUT_OF_MEMORY;
  for (int32_t i = 0; i < run->problem->plane_count; i++)
    ROTA_TRY(index_owners(&run->problem->planes[i], run->names->q_tiles[i], run->names->schedule,
                          &run->owners[i]));
  ROTA_TRY(index_queues(run));
  return run_queues(run, mode);
}

rota_status queues_verify(const DagProblem *problem, QueueMode mode, const QueueNames *names) {
  Run run = {.problem = problem, .names = names};
  rota_status status = verify(&run, mode);
  release(&run);
  return status;
}
