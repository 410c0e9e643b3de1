/* Workers that follow their lists, as a kernel's blocks do: an executor that knows nothing of how
 * plans are verified. */
#ifndef ROTA_TESTS_JOB_H
#define ROTA_TESTS_JOB_H

#include "generator/plan.h"

/* One visit: wait until `rank` partials have been added to `slot`, then add. */
typedef struct JobStep {
  int64_t slot;
  int32_t rank;
  int32_t kv_tile;
} JobStep;

typedef struct Job {
  int64_t slots;  /* (query tile, head) pairs */
  int32_t queues; /* lists of steps, in the order in which workers take them */
  int64_t *begin; /* [queues + 1] into steps */
  JobStep *steps;
} Job;

/* What a plan's kernel would do, from its tables. */
Job job_of_plan(const Plan *plan);
/* A pattern's chains, one list for each lane, or one for each chain in start order. */
Job job_of_pattern(const Pattern *pattern, bool by_lane);
void job_free(Job *job);

/* `workers` take the lists in order, and take turns at random. True if all steps are done; false if
 * a moment comes at which everybody waits. `order` (NULL or [steps]): kv tiles as they were added,
 * slot by slot. */
bool job_run(const Job *job, int32_t workers, uint64_t *random, int32_t *order);

#endif
