/* Level 2. What the DAG model charges: the time of a visit, of a reduction, of a hand-off. Times
 * are integer ticks, COSTS_TICKS of them a unit, so that a simulation is exact and the same
 * everywhere. */
#ifndef ROTA_GENERATOR_COSTS_H
#define ROTA_GENERATOR_COSTS_H

#include "generator/value.h"

enum { COSTS_TICKS = 1000, COSTS_STAGING_MAX = 8 };

/* The times: name, the paper's letter or the name again, meaning. */
#define COSTS_LIST(X)                                                                              \
  X(visit, "c", "computing a tile of which every element is allowed")                              \
  X(partial, "partial", "computing a tile on which the mask is evaluated")                         \
  X(reduce, "r", "adding a tile's dQ partial to its query tile")                                   \
  X(handoff, "h", "from one worker's addition to the start of another's")                          \
  X(start, "s", "starting a chain: loading K and V, storing dK and dV")                            \
  X(miss, "m", "bringing a tile's Q, dO and sum back into the L2, one after another")

typedef struct Costs {
#define X(name, letter, meaning) int64_t name; /* ticks */
  COSTS_LIST(X)
#undef X
  /* Finished partials that may wait for their turn while the worker computes on; their turns keep
   * the order of the visits. 0: the worker adds each itself before its next visit, as in the
   * paper's model. */
  int32_t staging;
  /* Tiles that the L2 holds: as many others may be brought in before a tile has left it. 0: nothing
   * is ever brought in, as in the paper's model. */
  int32_t l2;
  char unit[16]; /* "us", "c" */
} Costs;

/* The paper's model: times c and r in units, nothing for the rest. */
Costs costs_paper(double visit, double reduce);
/* "c=2,r=1,handoff=0": the paper's model with these times; names as in COSTS_LIST, and staging.
 * `partial` is a full visit's time unless given. INVALID_ARGUMENT quotes what is wrong. */
rota_status costs_parse(const char *text, Costs *costs);
/* From the table that lua/costs.lua returns: times in units, staging, unit. */
rota_status costs_from_value(const Value *value, Costs *costs);
/* Times within their ranges, a visit positive; INVALID_ARGUMENT. */
rota_status costs_check(const Costs *costs);

static inline double costs_units(int64_t ticks) {
  return (double)ticks / COSTS_TICKS;
}

#endif
