/* Level 6. Assignments: which worker runs which chain, and when. May look at the whole batch; never
 * changes bits.
 *
 * Workers draw queues in their order. Where items wait for earlier ones only, each is a queue of
 * its own: whoever is free takes the next, and any number of workers may be resident. Else items
 * are dealt to as many queues as there are workers.
 *
 * Items come in pairs' order: (sequence, kv head) after (sequence, kv head), the chains of each in
 * start order, then its kv tiles past n_k, which only write zeros. */
#ifndef ROTA_GENERATOR_PLAN_ASSIGN_H
#define ROTA_GENERATOR_PLAN_ASSIGN_H

#include "generator/plan_planes.h"
#include "templates/lib/abi.h"

typedef struct AssignRequest {
  const Schedule *schedule;
  const Planes *planes;
  const RotaChain *chains;
  int32_t batch;
  int kv_heads;
  int64_t item_count;
  bool ordered; /* chains wait for one another */
} AssignRequest;

/* Most queues that an assignment may make. */
int64_t assign_queues_max(const Schedule *schedule, int64_t item_count);
/* Reorders the items and writes `queue` (queues + 1 offsets). SCHEDULE where a user's assignment
 * leaves an item out or names one twice. */
rota_status assign_items(const AssignRequest *request, RotaItem *items, int *queue,
                         int32_t *queues);

#endif
