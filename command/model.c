/* From the command line to a program: see model.h. */
#include "command/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"
#include "runtime/environment.h"

rota_status model_open(const Options *options, Model *model) {
  *model = (Model){0};
  size_t length;
  if (options->chunk) {
    model->text = memory_copy_string(options->chunk);
    if (!model->text)
      return ROTA_OUT_OF_MEMORY;
    model->name = "(command line)";
  } else {
    ROTA_TRY(text_read_file(options->model_path, &model->text, &length));
    model->name = options->model_path;
    if (strlen(model->text) != length)
      return status_fail(ROTA_SCRIPT, "%s: a model script is text; this file has a NUL byte",
                         model->name);
  }
  ROTA_TRY(store_create(environment_get(ENVIRONMENT_OVERRIDE_DIR), &model->store));
  ROTA_TRY(script_create(model->store, &model->script));
  return script_spec(model->script, model->text, model->name, &model->spec);
}

void model_close(Model *model) {
  spec_free(&model->spec);
  script_destroy(model->script);
  store_destroy(model->store);
  free(model->text);
}

rota_status model_target(const Options *options, Model *model, Target *target) {
  if (options->architecture)
    return script_target(model->script, options->architecture, target);
  Device *device;
  if (options->device == ROTA_DEVICE_CPU) /* as its kernels do */
    return script_target(model->script, "sm_80", target);
  if (device_open(options->ordinal, &device) != ROTA_OK) {
    status_clear();
    return script_target(model->script, "sm_80", target);
  }
  *target = device->target;
  device_release(device);
  return ROTA_OK;
}

rota_status model_program(const Options *options, Model *model, rota_direction direction,
                          const Target *target, Tiling *tiling, Program **program) {
  ROTA_TRY(script_tiling(model->script, &model->spec, direction, options->layout, target, tiling));
  return program_build(&model->spec, direction, options->layout, tiling, model->store, program);
}

rota_status model_each_direction(const Options *options, Model *model, DirectionBody *body,
                                 void *state) {
  if (!options->both_directions)
    return body(options, model, options->direction, state);
  ROTA_TRY(body(options, model, ROTA_FORWARD, state));
  return body(options, model, ROTA_BACKWARD, state);
}

rota_status model_set_schedule(Spec *spec, const char *name) {
  if (strlen(name) >= sizeof spec->schedule)
    return status_fail(ROTA_SCHEDULE, "schedule '%.64s...': a name has up to %d characters", name,
                       SYMBOL_NAME_MAX - 1);
  snprintf(spec->schedule, sizeof spec->schedule, "%s", name);
  return ROTA_OK;
}

const char *direction_name(rota_direction direction) {
  return direction == ROTA_FORWARD ? "forward" : "backward";
}

int command_fail(const char *subcommand) {
  fprintf(stderr, "rota %s: %s\n", subcommand, status_message());
  return EXIT_FAILURE;
}

rota_status json_print(json_t *value) {
  if (!value)
    return status_fail(ROTA_OUT_OF_MEMORY, "memory ran out while writing JSON");
  bool written = json_dumpf(value, stdout, JSON_INDENT(2)) == 0;
  json_decref(value);
  putchar('\n');
  return written ? ROTA_OK : status_fail(ROTA_FILE, "standard output cannot be written");
}
