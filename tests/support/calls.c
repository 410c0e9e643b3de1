/* Calls of the public interface for tests. */
#include "tests/support/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail_at(const char *file, int line, const char *what, rota_status status) {
  fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, what, rota_status_name(status),
          rota_error_message());
  abort();
}

void must_at(const char *file, int line, rota_status status) {
  if (status != ROTA_OK)
    fail_at(file, line, "failed", status);
}

void must_fail_at(const char *file, int line, rota_status status, rota_status expected,
                  const char *words) {
  if (status != expected)
    fail_at(file, line, rota_status_name(expected), status);
  char copy[512];
  snprintf(copy, sizeof copy, "%s", words);
  for (char *rest = copy, *word; (word = strsep(&rest, "|"));)
    if (!strstr(rota_error_message(), word))
      fail_at(file, line, word, status);
}

rota_context *calls_context(void) {
  rota_context *context;
  rota_context_options options = {.cache_dir = getenv("ROTA_CACHE_DIR") ? NULL : "", .debug = -1};
  must(rota_context_create(&options, &context));
  return context;
}

rota_kernel *calls_kernel(rota_context *context, const char *script, rota_direction direction,
                          rota_device_kind device, rota_layout layout) {
  rota_spec *spec;
  rota_kernel *kernel;
  rota_kernel_request request = {.direction = direction, .device = device, .layout = layout};
  must(rota_spec_create_from_script(context, script, "test.lua", &spec));
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_spec_destroy(spec);
  return kernel;
}

rota_plan *calls_plan(const rota_kernel *kernel, const Problem *problem,
                      const rota_named_tensor *tensors, int count) {
  rota_plan *plan;
  rota_plan_request request = {
      .lengths = {.batch = problem->batch, .n_q = problem->n_q, .n_k = problem->n_k},
      .heads = problem->heads,
      .kv_heads = problem->kv_heads,
      .tensors = tensors,
      .tensor_count = count};
  must(rota_plan_create(kernel, &request, &plan));
  return plan;
}

rota_plan *calls_prepare(rota_context *context, const char *script, rota_direction direction,
                         rota_device_kind device, const Problem *problem) {
  rota_kernel *kernel = calls_kernel(context, script, direction, device, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, problem, NULL, 0);
  rota_kernel_destroy(kernel);
  return plan;
}

rota_status calls_run_host(const rota_plan *plan, const rota_arguments *arguments) {
  enum { GUARD = 256 };
  size_t bytes = rota_plan_workspace_size(plan);
  size_t total = (bytes + 2 * GUARD + GUARD - 1) / GUARD * GUARD;
  unsigned char *memory = aligned_alloc(GUARD, total);
  if (!memory)
    abort();
  memset(memory, 0xff, total);
  rota_status status = rota_run(plan, arguments, memory + GUARD, bytes, NULL);
  for (size_t i = 0; i < GUARD; i++) {
    bool whole = memory[i] == 0xff && memory[GUARD + bytes + i % (total - GUARD - bytes)] == 0xff;
    if (!whole) {
      fprintf(stderr, "a run wrote outside its workspace of %zu bytes\n", bytes);
      abort();
    }
  }
  free(memory);
  return status;
}
