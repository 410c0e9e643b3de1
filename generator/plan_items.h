/* Level 1. The order of a launch's blocks: which (row, query head) or (chain, kv head) is block 0,
 * 1, ... An assignment, so it may look at the whole batch; it never changes bits.
 *
 * Blocks start about in order, so neighbours run together. Items are laid out in waves of
 * (sequence, kv head) pairs whose K and V (or, for chains, Q, dO and dQ) fit the L2 together; pairs
 * follow one another, sequences with the longest item first. Within a wave, longest item first: the
 * short ones fill the gaps at the end. Items with a start order take turns by their place in it:
 * chains of different heads do not wait for each other, so the pipeline of waits is short. */
#ifndef ROTA_GENERATOR_PLAN_ITEMS_H
#define ROTA_GENERATOR_PLAN_ITEMS_H

#include "generator/status.h"
#include "templates/lib/abi.h"

typedef struct ItemsRequest {
  int32_t batch;
  int kv_heads;
  int heads_per_pair;   /* item heads of one kv head: the group for rows, 1 for chains */
  bool per_head;        /* the table has entries for each item head, one head after another */
  const int32_t *first; /* [batch] a sequence's first entry in the table */
  const int32_t *tiles; /* [batch] its entries per head */
  const int64_t *bytes; /* [batch] what the items of one pair read in common */
  const int32_t *work;  /* [table] tiles of an entry */
  const int32_t *start; /* NULL, or [table]: tiles in the order in which they must start */
  bool turns;           /* with `start`: the pairs of a wave take turns, else one follows another */
} ItemsRequest;

/* Writes sum(tiles) * kv_heads * heads_per_pair items. */
rota_status items_order(const ItemsRequest *request, RotaItem *items);

/* Item by item, to the worker that is free first: worker[i] for an item that takes time[i]. Then
 * the most and the least loaded worker trade items as long as that levels them. */
rota_status items_deal(const int64_t *time, int64_t count, int32_t workers, int32_t *worker);

/* Sorts items by worker, each worker's in the order in which they were: worker w has items
 * queue[w] .. queue[w + 1]. Trailing workers without any are left out of `queues`; `queue` holds
 * zeros before. */
rota_status items_gather(const int32_t *worker, RotaItem *items, int64_t count, int *queue,
                         int32_t *queues);

#endif
