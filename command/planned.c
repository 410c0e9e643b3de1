/* A model planned for one shape: see planned.h. */
#include "command/planned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/inputs.h"
#include "generator/clock.h"

rota_status planned_costs(const Options *options, Model *model, const Tiling *tiling,
                          Costs *costs) {
  const char *text = options->costs;
  if (!text)
    return script_costs(model->script, &model->spec, tiling, NULL, NULL, costs);
  if (strchr(text, '='))
    return costs_parse(text, costs);
  char *file = NULL;
  size_t length;
  ROTA_TRY(text_read_file(text, &file, &length));
  rota_status status = strlen(file) == length
                           ? script_costs(model->script, &model->spec, tiling, file, text, costs)
                           : status_fail(ROTA_FILE, "%s: not a text file", text);
  free(file);
  return status;
}

/* --tiles: square tiles, so that a causal grid is a triangle, and lengths that they divide. */
static rota_status fix_tiles(const Options *options, Tiling *tiling, Options *fixed) {
  *fixed = *options;
  if (options->tiles_q == 0)
    return ROTA_OK;
  if (options->input)
    return status_fail(ROTA_INVALID_ARGUMENT, "--tiles and --input both say how long it is");
  if (options->tiles_q > INT32_MAX / SQUARE_TILE || options->tiles_kv > INT32_MAX / SQUARE_TILE)
    return status_fail(ROTA_INVALID_ARGUMENT, "--tiles: %d x %d tiles of %d are too many",
                       options->tiles_q, options->tiles_kv, SQUARE_TILE);
  tiling->tile_q = tiling->tile_kv = SQUARE_TILE;
  fixed->n_q = options->tiles_q * SQUARE_TILE;
  fixed->n_k = options->tiles_kv * SQUARE_TILE;
  return ROTA_OK;
}

/* Planning alone is timed: what rota_plan_create does. */
static rota_status build(const Options *options, Model *model, const Spec *spec,
                         rota_direction direction, const Target *target, Planned *planned) {
  Tiling tiling;
  Options fixed;
  Schedule schedule;
  Inputs inputs;
  ROTA_TRY(script_tiling(model->script, spec, direction, options->layout, target, &tiling));
  ROTA_TRY(fix_tiles(options, &tiling, &fixed));
  ROTA_TRY(script_schedule(model->script, spec, &tiling, target, &schedule));
  ROTA_TRY(planned_costs(options, model, &tiling, &planned->costs));
  if (options->costs)
    schedule.costs = planned->costs;
  if (options->workers)
    schedule.workers = options->workers;
  snprintf(planned->schedule, sizeof planned->schedule, "%s", schedule.name);
  planned->batch_variant = schedule.batch_variant;
  rota_status status = inputs_open(&fixed, spec, &inputs);
  double start = clock_seconds();
  if (status == ROTA_OK) {
    rota_plan_request request = inputs_plan_request(&fixed, &inputs);
    status = plan_build(spec, direction, &tiling, &schedule, &request, &planned->plan);
  }
  planned->milliseconds = 1e3 * (clock_seconds() - start);
  inputs_close(&inputs);
  return status;
}

rota_status planned_create(const Options *options, Model *model, rota_direction direction,
                           const char *schedule, bool trace, Planned *planned) {
  *planned = (Planned){0};
  Target target;
  Spec spec;
  ROTA_TRY(model_target(options, model, &target));
  spec_copy(&spec, &model->spec);
  rota_status status = schedule ? model_set_schedule(&spec, schedule) : ROTA_OK;
  if (status == ROTA_OK)
    status = build(options, model, &spec, direction, &target, planned);
  spec_free(&spec);
  if (status == ROTA_OK && direction == ROTA_BACKWARD)
    status = figures_of_plan(planned->plan, &planned->costs, trace, &planned->figures);
  return status;
}

void planned_free(Planned *planned) {
  figures_free(&planned->figures);
  plan_destroy(planned->plan);
  *planned = (Planned){0};
}

json_t *planned_describe(const Planned *planned) {
  const DagFigures *figures = &planned->figures.figures;
  return json_pack("{s:s s:f s:f s:f s:f s:f s:b s:b s:b s:s s:f s:i s:s}", "schedule",
                   planned->schedule, "makespan", costs_units(figures->makespan), "work_bound",
                   dag_work_bound(figures) / COSTS_TICKS, "critical_path",
                   costs_units(figures->critical_path), "stall_share", dag_stall_share(figures),
                   "bound_ratio", dag_bound_ratio(figures), "depth_monotone",
                   figures->depth_monotone, "verified", true, "batch_variant",
                   planned->batch_variant, "digest", planned->plan->pattern_digest.hex, "plan_ms",
                   planned->milliseconds, "workers", figures->workers, "unit", planned->costs.unit);
}
