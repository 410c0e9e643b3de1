/* rota plan: tile map and schedule of one shape, as figures or as a picture. Needs no GPU. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "command/commands.h"
#include "command/inputs.h"
#include "command/model.h"
#include "generator/picture.h"
#include "generator/plan.h"

typedef struct PlanState {
  json_t *list;

} PlanState;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

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

/* Query head 0 of the first sequence. */
static rota_status draw(const Options *options, const Model *model, const Plan *plan) {
  if (plan->lengths->batch == 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "--svg: a batch of 0 sequences has no picture");
  TileMap *map = NULL;
  Pattern *pattern = NULL;
  Text text = {0}, title = {0};
  rota_status status = plan_tile_map(plan, 0, 0, &map);
  if (status == ROTA_OK && plan->direction == ROTA_BACKWARD)
    status = plan_pattern(plan, 0, 0, &pattern);
  if (status == ROTA_OK) {
    append_title(model, plan, &title);
    status = text_status(&title);
  }
  Picture picture = {title.data, map, pattern, 0};
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

static void print_figures(const Plan *plan, const char *schedule, double milliseconds) {
  int64_t used = plan->full_tiles + plan->partial_tiles, all = used + plan->empty_tiles;
  printf("%-8s  %s, tiles %d x %d: %lld full, %lld partial, %lld empty (%.1f %% in use)\n",
         direction_name(plan->direction), plan->tiling.algorithm, plan->tiling.tile_q,
         plan->tiling.tile_kv, (long long)plan->full_tiles, (long long)plan->partial_tiles,
         (long long)plan->empty_tiles, all ? 100.0 * (double)used / (double)all : 0.0);
  if (plan->direction == ROTA_BACKWARD)
    printf("          schedule %s: %lld chains, %lld visits, verified\n", schedule,
           (long long)plan->chains.count, (long long)plan->visits.count);
  printf("          tables %zu bytes, workspace %lld bytes, planned in %.2f ms, pattern %s\n",
         plan->image_bytes, plan->workspace.bytes, milliseconds, plan->pattern_digest.hex);
}

static json_t *describe(const Plan *plan, const char *schedule, double milliseconds) {
  return json_pack("{s:s s:s s:s s:i s:i s:I s:I s:I s:I s:I s:I s:I s:f s:b s:s}", "direction",
                   direction_name(plan->direction), "algorithm", plan->tiling.algorithm, "schedule",
                   schedule, "tile_q", plan->tiling.tile_q, "tile_kv", plan->tiling.tile_kv,
                   "full_tiles", (json_int_t)plan->full_tiles, "partial_tiles",
                   (json_int_t)plan->partial_tiles, "empty_tiles", (json_int_t)plan->empty_tiles,
                   "chains", (json_int_t)plan->chains.count, "visits",
                   (json_int_t)plan->visits.count, "table_bytes", (json_int_t)plan->image_bytes,
                   "workspace_bytes", (json_int_t)plan->workspace.bytes, "plan_ms", milliseconds,
                   "verified", true, "digest", plan->pattern_digest.hex);
}

static rota_status plan_direction(const Options *options, Model *model, rota_direction direction,
                                  void *opaque) {
  PlanState *state = opaque;
  Target target;
  Tiling tiling;
  ScheduleRule rule;
  Inputs inputs;
  ROTA_TRY(model_target(options, model, &target));
  ROTA_TRY(
      script_tiling(model->script, &model->spec, direction, options->layout, &target, &tiling));
  ROTA_TRY(script_schedule(model->script, &model->spec, &tiling, &rule));
  rota_status status = inputs_open(options, &model->spec, &inputs);
  Plan *plan = NULL;
  double start = now();
  if (status == ROTA_OK) {
    rota_plan_request request = inputs_plan_request(options, &inputs);
    status = plan_build(&model->spec, direction, &tiling, &rule, &request, &plan);
  }
  double milliseconds = 1e3 * (now() - start);
  inputs_close(&inputs);
  ROTA_TRY(status);
  if (options->json)
    json_array_append_new(state->list, describe(plan, rule.name, milliseconds));
  else
    print_figures(plan, rule.name, milliseconds);
  if (options->svg)
    status = draw(options, model, plan);
  plan_destroy(plan);
  return status;
}

int command_plan(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_TARGET | OPTIONS_SHAPE | OPTIONS_SVG | OPTIONS_JSON,
                "MODEL.lua",
                "Plans one shape: tile map, schedule, tables. --svg draws the map, and for the "
                "backward pass the order of visits.",
                &options);
  Model model;
  PlanState state = {json_array()};
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK)
    status = model_each_direction(&options, &model, plan_direction, &state);
  if (status == ROTA_OK && options.json)
    status = json_print(json_incref(state.list));
  json_decref(state.list);
  model_close(&model);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("plan");
}
