/* rota emit: the generated source of a model. Needs neither GPU nor NVRTC. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/commands.h"
#include "command/model.h"
#include "command/tuning.h"

static rota_status emit_source(const Options *options, Model *model, char **source) {
  Target target;
  Tiling tiling;
  Program *program;
  ROTA_TRY(model_target(options, model, &target));
  ROTA_TRY(model_program(options, model, options->direction, &target, &tiling, &program));
  rota_status status = program_flatten(program, source);
  program_destroy(program);
  return status;
}

static rota_status write_source(const char *path, const char *source) {
  if (!path) {
    fputs(source, stdout);
    return ROTA_OK;
  }
  FILE *file = fopen(path, "w");
  bool written = file && fputs(source, file) >= 0;
  if (file && fclose(file) != 0)
    written = false;
  if (written)
    return ROTA_OK;
  return status_fail(ROTA_FILE, "%s: cannot be written: %s", path, strerror(errno));
}

int command_emit(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_TARGET | OPTIONS_SHAPE | OPTIONS_TUNING | OPTIONS_OUTPUT,
                "MODEL.lua",
                "Prints the CUDA source that the model compiles to, as one self-contained file "
                "(forward unless --direction backward). The shape counts with --tuning alone.",
                &options);
  if (options.both_directions)
    options.direction = ROTA_FORWARD;
  Model model;
  char *source = NULL;
  rota_status status = model_open(&options, &model);
  if (status == ROTA_OK && options.tuning)
    status = tuning_adopt(&options, &model);
  if (status == ROTA_OK)
    status = emit_source(&options, &model, &source);
  if (status == ROTA_OK)
    status = write_source(options.output, source);
  int result = status == ROTA_OK ? EXIT_SUCCESS : command_fail("emit");
  free(source);
  model_close(&model);
  return result;
}
