/* Level 7. A plan's chains, ranks and queues as a problem of the DAG model: for verification, for
 * figures and for pictures. Read from the tables alone, whatever made them. */
#ifndef ROTA_GENERATOR_PLAN_PROBLEM_H
#define ROTA_GENERATOR_PLAN_PROBLEM_H

#include "generator/plan.h"
#include "generator/schedule_queues.h"

/* Instance = sequence * kv_heads + kv head. Tile = head of the group * q_tiles + query tile. */
typedef struct PlanProblem {
  DagProblem problem;
  QueueNames names;
  void *block[8]; /* what the pointers above point to; owned */
  int blocks;
  DagPlane *planes; /* owned, with their arrays */
} PlanProblem;

/* A backward plan whose indices are in range, each (sequence, kv head, kv tile) an item once. The
 * plan must outlive the problem. problem.workers is the plan's gang. */
rota_status plan_problem_build(const Plan *plan, PlanProblem *problem);
void plan_problem_free(PlanProblem *problem);

/* That no worker waits for ever; tells whether the workers must all be resident. */
rota_status plan_verify_queues(const Plan *plan, bool *co_resident);

#endif
