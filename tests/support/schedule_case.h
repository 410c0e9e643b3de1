/* Schedules for tests, made without Lua. */
#ifndef ROTA_TESTS_SCHEDULE_CASE_H
#define ROTA_TESTS_SCHEDULE_CASE_H

#include "generator/schedule.h"

typedef enum Direction { UPWARDS, DOWNWARDS } Direction;

/* Chains start, and add, by kv tile in one direction; each visits its query tiles in the other. A
 * portable schedule of 132 workers, by tickets. */
Schedule rule_schedule(Direction chains, Direction visits);

/* What it visits and where, at random; see schedule_case.c. */
typedef struct RandomSchedule {
  uint64_t random;
  bool portable;
  bool hostile; /* ranks, lanes and queues that may well deadlock */
  int workers;
} RandomSchedule;
/* The schedule borrows `random`. */
Schedule random_schedule(RandomSchedule *random);

/* Costs of 3 for a visit, 4 for a partial one, 2 for a reduction, in the first unit. */
Costs case_costs(void);

#endif
