/* Plans for tests, made without Lua: a spec from expression texts, a tiling from a few numbers. */
#ifndef ROTA_TESTS_PLAN_CASE_H
#define ROTA_TESTS_PLAN_CASE_H

#include "generator/plan.h"
#include "tests/support/schedule_case.h"

typedef struct PlanCase {
  Spec spec;
  Tiling tiling;
  Schedule schedule; /* descending chains, ascending visits */
  rota_direction direction;
  rota_plan_request request; /* zero-filled: the test sets lengths, tensors, values */
} PlanCase;

/* `algorithm`: "forward" or a backward's name. Texts may be NULL; int parameters w (of the mask)
 * and f (float, of the score) exist and are 5 and 0.5, const_w is constant. */
void plan_case_create(PlanCase *at, const char *algorithm, const char *mask, const char *score,
                      int heads, int kv_heads);
void plan_case_free(PlanCase *at);
rota_status plan_case_build(const PlanCase *at, Plan **plan);
/* Builds, checks the tables; fails the test otherwise. */
Plan *plan_case_good(const PlanCase *at);

/* Pseudo-random integers below `count`, the same on every machine. */
int case_random(uint64_t *state, int count);

bool patterns_equal(const Pattern *a, const Pattern *b);

#endif
