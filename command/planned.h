/* One direction of a model, planned for one shape with one schedule, and what the DAG model says of
 * it. */
#ifndef ROTA_COMMAND_PLANNED_H
#define ROTA_COMMAND_PLANNED_H

#include "command/model.h"
#include "generator/figures.h"

enum { SQUARE_TILE = 128 }; /* tokens: the tiles of --tiles */

typedef struct Planned {
  Plan *plan;
  double milliseconds; /* that planning took */
  Costs costs;
  PlanFigures figures; /* of a backward plan */
  char schedule[SYMBOL_NAME_MAX];
  bool batch_variant;
} Planned;

/* `schedule` NULL: the model's. `trace`: with times for the chart. Free in any case. */
rota_status planned_create(const Options *options, Model *model, rota_direction direction,
                           const char *schedule, bool trace, Planned *planned);
void planned_free(Planned *planned);

/* --costs, else lua/costs.lua's for the tiling. */
rota_status planned_costs(const Options *options, Model *model, const Tiling *tiling, Costs *costs);

/* The fields of `rota plan --schedule --json`; NULL when memory ran out. */
json_t *planned_describe(const Planned *planned);

#endif
