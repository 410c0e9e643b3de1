/* Level 7. The works of kernels that pass matrices through memory: the plane of each (sequence, kv
 * head) cut into units that the workspace can hold, bundled into chunks (lib/materialised.h).
 *
 * They follow from a plan's rows, runs and chains and the workspace's limit, so a plan's file does
 * not hold them. How the plane is cut does not change bits: a sum that goes through several units
 * goes through them in ascending order. */
#ifndef ROTA_GENERATOR_PLAN_WORKS_H
#define ROTA_GENERATOR_PLAN_WORKS_H

#include "generator/plan.h"

/* Whether a tiling's kernels take works. */
bool works_wanted(const Tiling *tiling);
/* Nothing where the tiling wants none. Fills plan->works and adds to plan->workspace what they
 * need; the tables have been checked. WORKSPACE where even the smallest units need more than the
 * plan's limit. */
rota_status works_build(const Spec *spec, Plan *plan);

#endif
