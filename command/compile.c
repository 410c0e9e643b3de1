/* rota compile: what the compiler makes of a model. Needs NVRTC (or a warm cache), no GPU. */
#include <stdio.h>
#include <stdlib.h>

#include "command/commands.h"
#include "command/model.h"
#include "command/tuning.h"
#include "runtime/compile.h"

typedef struct CompileState {
  Compiler *compiler;
  json_t *list;
} CompileState;

static void print_line(const Tiling *tiling, const Target *target, rota_direction direction,
                       const Cubin *cubin) {
  printf("%-8s  %-8s %-6s %3d x %-3d  %3d registers  %3d bytes spilled  %6d bytes shared  "
         "%7zu bytes  %s",
         direction_name(direction), tiling->algorithm, tiling_code(tiling, target), tiling->tile_q,
         tiling->tile_kv, cubin->registers, cubin->spill_bytes,
         cubin->shared_bytes + tiling_shared_bytes(tiling), cubin->bytes,
         cubin->hit ? "from the cache\n" : "");
  if (!cubin->hit)
    printf("compiled in %.2f s\n", cubin->seconds);
  printf("          %s kernels", tiling->architecture);
  if (tiling->passed_over[0])
    printf(" (%s)", tiling->passed_over);
  putchar('\n');
}

static json_t *describe(const Tiling *tiling, const Target *target, rota_direction direction,
                        const Cubin *cubin) {
  return json_pack("{s:s s:s s:s s:s s:s s:s s:i s:i s:i s:i s:i s:I s:f s:b s:s}", "direction",
                   direction_name(direction), "algorithm", tiling->algorithm, "architecture",
                   tiling_code(tiling, target), "kernels", tiling->architecture, "passed_over",
                   tiling->passed_over, "template", tiling->template_path, "tile_q", tiling->tile_q,
                   "tile_kv", tiling->tile_kv, "registers", cubin->registers, "spill_bytes",
                   cubin->spill_bytes, "shared_bytes",
                   cubin->shared_bytes + tiling_shared_bytes(tiling), "cubin_bytes",
                   (json_int_t)cubin->bytes, "compile_seconds", cubin->seconds, "cache_hit",
                   cubin->hit, "key", cubin->key.hex);
}

static rota_status compile_direction(const Options *options, Model *model, rota_direction direction,
                                     void *opaque) {
  CompileState *state = opaque;
  Target target;
  Tiling tiling;
  Program *program;
  Cubin *cubin;
  ROTA_TRY(model_target(options, model, &target));
  ROTA_TRY(model_program(options, model, direction, &target, &tiling, &program));
  rota_status status =
      compile_program(state->compiler, program, tiling_code(&tiling, &target), &cubin);
  program_destroy(program);
  ROTA_TRY(status);
  if (options->json)
    json_array_append_new(state->list, describe(&tiling, &target, direction, cubin));
  else
    print_line(&tiling, &target, direction, cubin);
  cubin_destroy(cubin);
  return ROTA_OK;
}

static rota_status compile_model(const Options *options, Model *model, CompileState *state) {
  Log log;
  log_init(&log, -1);
  CompilerOptions compiler_options = {.log = &log};
  ROTA_TRY(model_open(options, model));
  if (options->tuning)
    ROTA_TRY(tuning_adopt(options, model));
  ROTA_TRY(compiler_create(&compiler_options, &state->compiler));
  rota_status status = model_each_direction(options, model, compile_direction, state);
  compiler_destroy(state->compiler);
  if (status == ROTA_OK && options->json)
    status = json_print(json_incref(state->list));
  return status;
}

int command_compile(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_TARGET | OPTIONS_SHAPE | OPTIONS_TUNING | OPTIONS_JSON,
                "MODEL.lua",
                "Compiles the model's kernels with NVRTC, or finds them in the cache. The shape "
                "counts with --tuning alone.",
                &options);
  Model model = {0};
  CompileState state = {NULL, json_array()};
  rota_status status = compile_model(&options, &model, &state);
  json_decref(state.list);
  model_close(&model);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("compile");
}
