/* rota plan: tile map and schedules of one shape, as figures or as a picture. Needs no GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/commands.h"
#include "command/explain.h"
#include "command/planned.h"
#include "command/tuning.h"
#include "generator/picture.h"

typedef struct PlanState {
  json_t *list;
} PlanState;

static rota_status write_file(const char *path, const Text *text) {
  ROTA_TRY(text_status(text));
  FILE *file = fopen(path, "w");
  bool written = file && fwrite(text->data, 1, text->length, file) == text->length;
  if (file && fclose(file) != 0)
    written = false;
  return written ? ROTA_OK
                 : status_fail(ROTA_FILE, "%s: cannot be written: %s", path, strerror(errno));
}

/* "2048 x 2048: causal mask's text", cut where it would leave the picture. */
static void append_title(const Model *model, const Plan *plan, Text *title) {
  enum { TITLE_MAX = 64 };
  Text mask = {0};
  if (model->spec.mask)
    expression_print(model->spec.mask, &model->spec.symbols, &mask);
  else
    text_append(&mask, "full");
  bool cut = mask.length > TITLE_MAX;
  text_format(title, "%d x %d: %.*s%s", plan->lengths->n_q[0], plan->lengths->n_k[0], TITLE_MAX,
              mask.data ? mask.data : "", cut ? " ..." : "");
  text_free(&mask);
}

/* Query head 0 of the first sequence, and the whole batch on its workers. */
static rota_status draw(const Options *options, const Model *model, const Planned *planned) {
  const Plan *plan = planned->plan;
  if (plan->lengths->batch == 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "--svg: a batch of 0 sequences has no picture");
  TileMap *map = NULL;
  Pattern *pattern = NULL;
  Text text = {0}, title = {0};
  bool backward = plan->direction == ROTA_BACKWARD;
  rota_status status = plan_tile_map(plan, 0, 0, &map);
  if (status == ROTA_OK && backward)
    status = plan_pattern(plan, 0, 0, &pattern);
  if (status == ROTA_OK) {
    append_title(model, plan, &title);
    status = text_status(&title);
  }
  const PlanFigures *figures = &planned->figures;
  Gantt gantt = {&figures->problem.problem, &figures->figures,
                 &figures->trace,           figures->problem.names.q_tiles,
                 planned->costs.start,      planned->costs.unit,
                 planned->schedule};
  Picture picture = {title.data, map, pattern, 0, backward ? &gantt : NULL};
  if (status == ROTA_OK)
    status = picture_draw(&picture, &text);
  if (status == ROTA_OK)
    status = write_file(options->svg, &text);
  text_free(&text);
  text_free(&title);
  pattern_destroy(pattern);
  tile_map_destroy(map);
  return status;
}

/* ---- One line or object per direction ---- */

static void print_run(const Planned *planned) {
  const DagFigures *figures = &planned->figures.figures;
  printf("          modelled on %d workers: %.1f %s, %.3f of the bound, idle %.1f %%\n",
         figures->workers, costs_units(figures->makespan), planned->costs.unit,
         dag_bound_ratio(figures), 100 * dag_stall_share(figures));
}

static bool plan_is_exact(const Plan *plan) {
  return strcmp(plan->tiling.algorithm, backward_name(BACKWARD_EXACT)) == 0;
}

static bool plan_is_spread(const Plan *plan) {
  return tiling_get(&plan->tiling, "spread", 0) != 0;
}

/* Query tiles that are cut along the keys: rows of the plan, which heads may share. */
static long long rows_cut(const Plan *plan) {
  const RotaPiece *pieces = plan_section(plan, plan->pieces);
  long long rows = 0;
  for (int64_t i = 0; i < plan->pieces.count; i++)
    rows += pieces[i].number == 0;
  return rows;
}

static void print_figures(const Planned *planned) {
  const Plan *plan = planned->plan;
  int64_t used = plan->full_tiles + plan->partial_tiles, all = used + plan->empty_tiles;
  printf("%-8s  %s, tiles %d x %d: %lld full, %lld partial, %lld empty (%.1f %% in use)\n",
         direction_name(plan->direction), plan->tiling.algorithm, plan->tiling.tile_q,
         plan->tiling.tile_kv, (long long)plan->full_tiles, (long long)plan->partial_tiles,
         (long long)plan->empty_tiles, all ? 100.0 * (double)used / (double)all : 0.0);
  if (plan->direction == ROTA_BACKWARD) {
    if (plan_is_exact(plan))
      printf("          sums of dQ are scaled by the %s bound: docs/exact.md\n",
             bound_name(plan_is_spread(plan)));
    printf("          schedule %s: %lld chains, %lld visits, verified\n", planned->schedule,
           (long long)plan->chains.count, (long long)plan->visits.count);
    print_run(planned);
  }
  if (plan->pieces.count > 0)
    printf("          query tiles cut along the keys: %lld, into %lld pieces\n", rows_cut(plan),
           (long long)plan->pieces.count);
  printf("          tables %zu bytes, workspace %lld bytes, planned in %.2f ms, pattern %s\n",
         plan->image_bytes, plan->workspace.bytes, planned->milliseconds, plan->pattern_digest.hex);
}

/* With the fields of planned_describe where there is a schedule. */
static json_t *describe(const Planned *planned) {
  const Plan *plan = planned->plan;
  json_t *object = json_pack(
      "{s:s s:s s:s s:i s:i s:I s:I s:I s:I s:I s:I s:I s:f s:b s:s}", "direction",
      direction_name(plan->direction), "algorithm", plan->tiling.algorithm, "schedule",
      planned->schedule, "tile_q", plan->tiling.tile_q, "tile_kv", plan->tiling.tile_kv,
      "full_tiles", (json_int_t)plan->full_tiles, "partial_tiles", (json_int_t)plan->partial_tiles,
      "empty_tiles", (json_int_t)plan->empty_tiles, "chains", (json_int_t)plan->chains.count,
      "visits", (json_int_t)plan->visits.count, "table_bytes", (json_int_t)plan->image_bytes,
      "workspace_bytes", (json_int_t)plan->workspace.bytes, "plan_ms", planned->milliseconds,
      "verified", true, "digest", plan->pattern_digest.hex);
  if (plan->direction == ROTA_BACKWARD) {
    json_t *figures = planned_describe(planned);
    json_object_update_missing(object, figures);
    json_decref(figures);
  }
  if (plan->pieces.count > 0)
    json_object_set_new(object, "pieces", json_integer((json_int_t)plan->pieces.count));
  if (plan_is_exact(plan))
    json_object_set_new(object, "bound", json_string(bound_name(plan_is_spread(plan))));
  return object;
}

static rota_status plan_direction(const Options *options, Model *model, rota_direction direction,
                                  void *opaque) {
  PlanState *state = opaque;
  Planned planned;
  rota_status status =
      planned_create(options, model, direction, NULL, options->svg != NULL, &planned);
  if (status == ROTA_OK) {
    json_t *object = options->json ? describe(&planned) : NULL;
    if (options->json)
      json_array_append_new(state->list, object);
    else
      print_figures(&planned);
    if (options->explain && direction == ROTA_BACKWARD)
      status = explain(options, model, planned.plan, object);
    if (status == ROTA_OK && options->svg)
      status = draw(options, model, &planned);
  }
  planned_free(&planned);
  return status;
}

/* ---- Schedules side by side ---- */

static void print_schedule(const Planned *planned, bool first) {
  const DagFigures *figures = &planned->figures.figures;
  if (first) {
    if (!plan_is_ordered(planned->plan))
      printf("`%s` adds nothing in turn: nobody waits, a schedule only orders the work\n",
             planned->plan->tiling.algorithm);
    printf("%d workers, work bound %.2f %s\n", figures->workers,
           dag_work_bound(figures) / COSTS_TICKS, planned->costs.unit);
    printf("%-24s %12s %8s %7s %12s %9s %8s  %s\n", "schedule", "makespan", "/ bound", "idle",
           "critical", "monotone", "plan ms", "pattern");
  }
  printf("%-24s %12.2f %8.3f %5.1f %% %12.2f %9s %8.2f  %.12s%s\n", planned->schedule,
         costs_units(figures->makespan), dag_bound_ratio(figures), 100 * dag_stall_share(figures),
         costs_units(figures->critical_path), figures->depth_monotone ? "yes" : "no",
         planned->milliseconds, planned->plan->pattern_digest.hex,
         planned->batch_variant ? "  batch-variant" : "");
}

static rota_status plan_schedule(const Options *options, Model *model, const char *name, bool first,
                                 PlanState *state) {
  Planned planned;
  rota_status status =
      planned_create(options, model, ROTA_BACKWARD, name, options->svg != NULL, &planned);
  if (status == ROTA_OK) {
    if (options->json)
      json_array_append_new(state->list, planned_describe(&planned));
    else
      print_schedule(&planned, first);
    if (options->svg)
      status = draw(options, model, &planned);
  }
  planned_free(&planned);
  return status;
}

static rota_status plan_schedules(const Options *options, Model *model, PlanState *state) {
  if (strcmp(options->schedule, "all") != 0)
    return plan_schedule(options, model, options->schedule, true, state);
  if (options->svg)
    return status_fail(ROTA_INVALID_ARGUMENT, "--svg draws one schedule: name it");
  const char *const *names = script_names(model->script, "schedules");
  if (!names)
    return status_fail(ROTA_OUT_OF_MEMORY, "the names of the schedules");
  for (int i = 0; names[i]; i++)
    ROTA_TRY(plan_schedule(options, model, names[i], i == 0, state));
  return ROTA_OK;
}

int command_plan(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_TARGET | OPTIONS_SHAPE | OPTIONS_COSTS | OPTIONS_SCHEDULE |
                    OPTIONS_TUNING | OPTIONS_EXPLAIN | OPTIONS_SVG | OPTIONS_JSON,
                "MODEL.lua",
                "Plans one shape: tile map, schedule, verification, and what the DAG model says of "
                "it. --schedule all compares the schedules. Needs no GPU.",
                &options);
  Model model;
  PlanState state = {json_array()};
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK && options.tuning)
    status = tuning_adopt(&options, &model);
  if (status == ROTA_OK)
    status = options.schedule ? plan_schedules(&options, &model, &state)
                              : model_each_direction(&options, &model, plan_direction, &state);
  if (status == ROTA_OK && options.json)
    status = json_print(json_incref(state.list));
  json_decref(state.list);
  model_close(&model);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("plan");
}
