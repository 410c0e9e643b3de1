/* From the command line to a spec, a tiling and a program: what the subcommands share. */
#ifndef ROTA_COMMAND_MODEL_H
#define ROTA_COMMAND_MODEL_H

#include <jansson.h>

#include "command/options.h"
#include "generator/program.h"
#include "generator/script.h"

/* A model script that was run. Zero-initialised it can be closed. */
typedef struct Model {
  Store *store;
  Script *script;
  Spec spec;
  char *text;       /* the script */
  const char *name; /* its name in messages; borrowed */
} Model;

/* Opens the store (with ROTA_OVERRIDE_DIR) and Lua, and runs the model. Close it in any case. */
rota_status model_open(const Options *options, Model *model);
void model_close(Model *model);

/* --arch, else the GPU's own, else (and for --device cpu) sm_80. */
rota_status model_target(const Options *options, Model *model, Target *target);
/* The program of one direction; the caller destroys it. */
rota_status model_program(const Options *options, Model *model, rota_direction direction,
                          const Target *target, Tiling *tiling, Program **program);

/* Calls `body` for the directions that were asked for, forward first, until one fails. */
typedef rota_status DirectionBody(const Options *options, Model *model, rota_direction direction,
                                  void *state);
rota_status model_each_direction(const Options *options, Model *model, DirectionBody *body,
                                 void *state);

/* Puts a schedule's name, perhaps with options, into a spec. SCHEDULE if it is too long. */
rota_status model_set_schedule(Spec *spec, const char *name);

const char *direction_name(rota_direction direction);
/* "rota NAME: message" on stderr, and exit status 1. */
int command_fail(const char *subcommand);
/* Prints a JSON value and releases it; OUT_OF_MEMORY if it is NULL. */
rota_status json_print(json_t *value);

#endif
