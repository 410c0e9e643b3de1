/* rota run: attention on a file's tensors or on random ones; checked, repeated, timed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/commands.h"
#include "command/run_state.h"

static void print_pass(const RunState *run, int pass) {
  rota_kernel_info kernel;
  rota_plan_info plan;
  char digest[ROTA_DIGEST_SIZE];
  rota_kernel_get_info(run->kernels[pass], &kernel);
  rota_plan_get_info(run->plans[pass], &plan);
  rota_plan_digest(run->plans[pass], digest);
  printf("%-8s  %s on %s (%s), tiles %d x %d: %lld full, %lld partial, %lld empty\n",
         pass ? "backward" : "forward", kernel.algorithm,
         kernel.device == ROTA_DEVICE_CUDA ? "cuda" : "cpu", kernel.architecture, plan.tile_q,
         plan.tile_kv, (long long)plan.full_tiles, (long long)plan.partial_tiles,
         (long long)plan.empty_tiles);
  if (kernel.device == ROTA_DEVICE_CUDA) {
    if (kernel.cache_hit)
      printf("          cubin from the cache, ready in %.1f ms", 1e3 * kernel.load_seconds);
    else
      printf("          compiled in %.2f s", kernel.compile_seconds);
    printf("; %d registers, %d bytes spilled\n", kernel.registers, kernel.spill_bytes);
  }
  printf("          %.3f ms, planned in %.2f ms, digest %s\n", 1e3 * run->seconds[pass],
         1e3 * plan.plan_seconds, digest);
}

static json_t *describe_pass(const RunState *run, int pass) {
  rota_kernel_info kernel;
  rota_plan_info plan;
  char digest[ROTA_DIGEST_SIZE];
  rota_kernel_get_info(run->kernels[pass], &kernel);
  rota_plan_get_info(run->plans[pass], &plan);
  rota_plan_digest(run->plans[pass], digest);
  return json_pack("{s:s s:s s:s s:s s:b s:f s:f s:i s:i s:I s:I s:I s:f s:f s:s}", "direction",
                   pass ? "backward" : "forward", "algorithm", kernel.algorithm, "device",
                   kernel.device == ROTA_DEVICE_CUDA ? "cuda" : "cpu", "architecture",
                   kernel.architecture, "cache_hit", kernel.cache_hit, "compile_seconds",
                   kernel.compile_seconds, "load_seconds", kernel.load_seconds, "tile_q",
                   plan.tile_q, "tile_kv", plan.tile_kv, "full_tiles", (json_int_t)plan.full_tiles,
                   "partial_tiles", (json_int_t)plan.partial_tiles, "empty_tiles",
                   (json_int_t)plan.empty_tiles, "plan_seconds", plan.plan_seconds, "seconds",
                   run->seconds[pass], "digest", digest);
}

static void print_results(const RunState *run, const RunErrors *errors) {
  for (int pass = 0; pass < run->passes; pass++)
    print_pass(run, pass);
  if (run->options->check) {
    printf("error against fp64:");
    for (int i = 0; i < RUN_TENSOR_COUNT; i++)
      if (errors->error[i] >= 0)
        printf("  %s %.2e", run->tensors[i].name, errors->error[i]);
    printf("\n");
  }
  if (run->repeats > 1)
    printf("same bits in %d of %d runs\n", run->equal, run->repeats);
}

static rota_status print_json(const RunState *run, const RunErrors *errors) {
  json_t *passes = json_array(), *error = json_object();
  for (int pass = 0; pass < run->passes; pass++)
    json_array_append_new(passes, describe_pass(run, pass));
  for (int i = 0; i < RUN_TENSOR_COUNT; i++)
    if (run->options->check && errors->error[i] >= 0)
      json_object_set_new(error, run->tensors[i].name, json_real(errors->error[i]));
  return json_print(json_pack("{s:o s:o s:i s:i}", "passes", passes, "errors", error, "runs",
                              run->repeats, "equal_runs", run->equal));
}

/* The outputs as a .safetensors file. */
static rota_status write_outputs(const RunState *run, const char *path) {
  SafetensorsEntry entries[RUN_TENSOR_COUNT] = {0};
  int count = 0;
  for (int i = 0; i < RUN_TENSOR_COUNT; i++) {
    const RunTensor *tensor = &run->tensors[i];
    if (!tensor->output || !tensor->address)
      continue;
    bool shared = i == RUN_d_sink;
    entries[count++] =
        (SafetensorsEntry){.name = tensor->name,
                           .dtype = tensor->fp32 ? ROTA_FP32 : run->model.spec.dtype,
                           .rank = shared                             ? 1
                                   : tensor->dim == 1 && i == RUN_lse ? 3
                                                                      : 4,
                           .size = {shared ? tensor->heads : run->inputs.lengths.batch,
                                    tensor->rows, tensor->heads, tensor->dim},
                           .data = tensor->host,
                           .bytes = tensor->bytes};
  }
  return safetensors_write(path, entries, count, NULL, 0);
}

/* What an error may be before a check fails: some roundings of the dtype. */
static double tolerance(rota_dtype dtype) {
  return dtype == ROTA_BF16 ? 2e-2 : dtype == ROTA_FP16 ? 4e-3 : 1e-4;
}

static rota_status judge(const RunState *run, const RunErrors *errors) {
  if (run->equal != run->repeats && run->model.spec.deterministic)
    return status_fail(ROTA_INTERNAL, "%d of %d runs gave other bits than the first",
                       run->repeats - run->equal, run->repeats);
  if (!run->options->check)
    return ROTA_OK;
  double limit = tolerance(run->model.spec.dtype);
  for (int i = 0; i < RUN_TENSOR_COUNT; i++)
    if (!(errors->error[i] <= limit))
      return status_fail(ROTA_INTERNAL, "%s is wrong: its error against fp64 is %.2e, over %.0e",
                         run->tensors[i].name, errors->error[i], limit);
  return ROTA_OK;
}

int command_run(int count, char **arguments) {
  Options options;
  options_parse(count, arguments,
                OPTIONS_MODEL | OPTIONS_SHAPE | OPTIONS_RUN | OPTIONS_DEVICE | OPTIONS_SCHEDULE |
                    OPTIONS_TUNING | OPTIONS_OUTPUT | OPTIONS_JSON,
                "MODEL.lua",
                "Runs the model's attention on tensors of a file, or on random ones. --output "
                "writes the results as .safetensors. Fails if --check finds a result wrong, or "
                "if a deterministic model gives other bits on another run.",
                &options);
  RunState run;
  RunErrors errors = {0};
  rota_status status = run_open(&options, &run);
  if (status == ROTA_OK)
    status = run_repeat(&run);
  if (status == ROTA_OK && options.check)
    status = run_check(&run, &errors);
  if (status == ROTA_OK && options.output)
    status = write_outputs(&run, options.output);
  if (status == ROTA_OK) {
    if (options.json)
      status = print_json(&run, &errors);
    else
      print_results(&run, &errors);
  }
  if (status == ROTA_OK)
    status = judge(&run, &errors);
  int result = status == ROTA_OK ? EXIT_SUCCESS : command_fail("run");
  run_close(&run);
  return result;
}
