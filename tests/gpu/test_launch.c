/* Launches from rota.h on a GPU: results against the CPU device's, gradients bit for bit from run
 * to run, graphs, streams, threads, the caller's context, resets, guards around the workspace. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/calls.h"
#include "tests/support/gpu.h"

static Gpu gpu;

typedef struct Case {
  const char *fields; /* of rota.attention */
  rota_dtype dtype;
  int n_q, n_k, heads, kv_heads, dim, dim_v;
  bool sink;
  double tolerance; /* of O and the gradients, relative to the largest value */
} Case;

/* The CPU device keeps P and dS in fp32, kernels round them to the dtype: 2^-8 and 2^-11 are its
 * steps. */
static const Case cases[] = {
    {"head_dim = 64, mask = causal", ROTA_BF16, 257, 257, 2, 2, 64, 64, false, 0.02},
    {"head_dim = 64, mask = causal, dtype = 'fp16'", ROTA_FP16, 300, 200, 4, 2, 64, 64, false,
     0.005},
    {"head_dim = 128, mask = causal & window(100, 0), backward = 'ordered'", ROTA_BF16, 500, 500, 4,
     1, 128, 128, false, 0.02},
    {"head_dim = 128, mask = causal, backward = 'two_pass'", ROTA_BF16, 333, 444, 8, 2, 128, 128,
     false, 0.02},
    {"head_dim = 64, backward = 'atomic', deterministic = false", ROTA_BF16, 130, 260, 2, 1, 64, 64,
     false, 0.02},
    {"head_dim = 192, head_dim_v = 128, mask = causal", ROTA_BF16, 200, 200, 2, 2, 192, 128, false,
     0.02},
    {"head_dim = 40, score = softcap(20), sink_logit = true", ROTA_BF16, 113, 190, 4, 2, 40, 40,
     true, 0.02},
    {"head_dim = 32, mask = causal, dtype = 'fp32'", ROTA_FP32, 150, 150, 2, 1, 32, 32, false,
     1e-4},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static Problem make_problem(const Case *one, char script[512]) {
  snprintf(script, 512, "return rota.attention{%s, heads = %d, kv_heads = %d}", one->fields,
           one->heads, one->kv_heads);
  Problem problem = {.dtype = one->dtype,
                     .batch = 2,
                     .n_q = one->n_q,
                     .n_k = one->n_k,
                     .heads = one->heads,
                     .kv_heads = one->kv_heads,
                     .dim = one->dim,
                     .dim_v = one->dim_v,
                     .sink = one->sink};
  problem_create(&problem, 17);
  return problem;
}

/* A workspace of exactly the size asked for, full of ones, between guards. */
enum { GUARD = 256 };
typedef struct Workspace {
  unsigned char *memory;
  size_t bytes;
} Workspace;

static Workspace make_workspace(const rota_plan *plan) {
  Workspace workspace = {.bytes = rota_plan_workspace_size(plan)};
  workspace.memory = gpu_allocate(&gpu, workspace.bytes + 2 * GUARD);
  gpu_fill(&gpu, workspace.memory, 0xff, workspace.bytes + 2 * GUARD);
  return workspace;
}

static void free_workspace(Workspace *workspace) {
  unsigned char guards[2][GUARD];
  gpu_read(&gpu, guards[0], workspace->memory, GUARD);
  gpu_read(&gpu, guards[1], workspace->memory + GUARD + workspace->bytes, GUARD);
  for (int i = 0; i < GUARD; i++)
    if (guards[0][i] != 0xff || guards[1][i] != 0xff)
      fail_msg("a run wrote outside its workspace of %zu bytes", workspace->bytes);
  gpu_free(&gpu, workspace->memory);
}

static rota_status run_in(const rota_plan *plan, const rota_arguments *arguments,
                          const Workspace *workspace, CUstream stream) {
  return rota_run(plan, arguments, workspace->memory + GUARD, workspace->bytes, stream);
}

/* Runs once and waits. */
static void run_here(const rota_plan *plan, const rota_arguments *arguments) {
  Workspace workspace = make_workspace(plan);
  must(run_in(plan, arguments, &workspace, gpu.stream));
  gpu_synchronize(&gpu, gpu.stream);
  free_workspace(&workspace);
}

/* One plan per direction, on one device. */
typedef struct Pair {
  rota_plan *forward, *backward;
} Pair;

static Pair make_pair(rota_context *context, const char *script, rota_device_kind device,
                      const Problem *problem) {
  return (Pair){calls_prepare(context, script, ROTA_FORWARD, device, problem),
                calls_prepare(context, script, ROTA_BACKWARD, device, problem)};
}

static void free_pair(Pair *pair) {
  rota_plan_destroy(pair->forward);
  rota_plan_destroy(pair->backward);
}

/* Copies of a problem's block: on the device, and back. */
static void *upload(const Problem *problem) {
  void *block = gpu_allocate(&gpu, problem->bytes);
  gpu_write(&gpu, block, problem->block, problem->bytes);
  return block;
}

static unsigned char *download(const Problem *problem, const void *block) {
  unsigned char *copy = malloc(problem->bytes);
  assert_non_null(copy);
  gpu_read(&gpu, copy, block, problem->bytes);
  return copy;
}

static void compare(const Case *one, const Problem *problem, const unsigned char *device) {
  static const ProblemTensor outputs[] = {PROBLEM_o, PROBLEM_lse, PROBLEM_d_q, PROBLEM_d_k,
                                          PROBLEM_d_v};
  for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
    double difference = problem_difference(problem, device, problem->block, outputs[i]);
    double limit = outputs[i] == PROBLEM_lse ? 1e-4 : one->tolerance;
    if (!(difference <= limit))
      fail_msg("%s: %s differs by %g (limit %g)", one->fields, problem_tensor_name(outputs[i]),
               difference, limit);
  }
  for (int head = 0; head < problem->heads && problem->sink; head++) {
    float values[2];
    size_t offset = problem->d_sink_offset + sizeof(float) * (size_t)head;
    memcpy(&values[0], device + offset, sizeof(float));
    memcpy(&values[1], problem->block + offset, sizeof(float));
    float limit = (float)one->tolerance * (1 + fabsf(values[1]));
    if (!(fabsf(values[0] - values[1]) <= limit))
      fail_msg("%s: d_sink[%d] is %g, %g on the CPU device", one->fields, head, (double)values[0],
               (double)values[1]);
  }
}

/* The GPU backward reads the CPU's O and LSE only through the problem's own forward run there. */
static void test_against_cpu(void **state) {
  (void)state;
  rota_context *context = calls_context();
  for (int i = 0; i < CASES; i++) {
    char script[512];
    Problem problem = make_problem(&cases[i], script);
    void *block = upload(&problem);
    Pair cpu = make_pair(context, script, ROTA_DEVICE_CPU, &problem);
    Pair cuda = make_pair(context, script, ROTA_DEVICE_CUDA, &problem);
    rota_arguments arguments = problem_arguments(&problem, NULL);
    must(calls_run_host(cpu.forward, &arguments));
    must(calls_run_host(cpu.backward, &arguments));
    arguments = problem_arguments(&problem, block);
    run_here(cuda.forward, &arguments);
    run_here(cuda.backward, &arguments);
    unsigned char *copy = download(&problem, block);
    compare(&cases[i], &problem, copy);
    free(copy);
    gpu_free(&gpu, block);
    free_pair(&cpu);
    free_pair(&cuda);
    problem_free(&problem);
  }
  rota_context_destroy(context);
}

static void expect_same(const Problem *problem, const unsigned char *a, const unsigned char *b,
                        const char *when) {
  for (int tensor = PROBLEM_o; tensor <= PROBLEM_d_v; tensor++)
    if (!problem_same_bits(problem, a, b, (ProblemTensor)tensor))
      fail_msg("%s: other bits in %s", when, problem_tensor_name((ProblemTensor)tensor));
}

/* Promise 5, case D11: captured runs replay a hundred times to the eager bits. The plan is made
 * during the capture, in the strictest mode, which stays valid. */
static void test_graph(void **state) {
  (void)state;
  char script[512];
  Problem problem = make_problem(&cases[2], script);
  rota_context *context = calls_context();
  void *block = upload(&problem);
  rota_arguments arguments = problem_arguments(&problem, block);
  Pair eager = make_pair(context, script, ROTA_DEVICE_CUDA, &problem);
  run_here(eager.forward, &arguments);
  run_here(eager.backward, &arguments);
  unsigned char *expected = download(&problem, block);

  gpu_write(&gpu, block, problem.block, problem.bytes); /* NaN in all outputs */
  CUstream stream = gpu_stream_create(&gpu);
  Workspace workspaces[2] = {make_workspace(eager.forward), make_workspace(eager.backward)};
  rota_context *fresh = calls_context();
  gpu_capture_begin(&gpu, stream, CAPTURE_GLOBAL);
  Pair captured = make_pair(fresh, script, ROTA_DEVICE_CUDA, &problem);
  must(run_in(captured.forward, &arguments, &workspaces[0], stream));
  must(run_in(captured.backward, &arguments, &workspaces[1], stream));
  CUgraphExec graph = gpu_capture_end(&gpu, stream);
  for (int i = 0; i < 100; i++) {
    gpu_graph_launch(&gpu, graph, stream);
    if (i % 10)
      continue;
    gpu_synchronize(&gpu, stream);
    unsigned char *copy = download(&problem, block);
    expect_same(&problem, copy, expected, "a replayed graph");
    free(copy);
  }
  gpu_synchronize(&gpu, stream);
  unsigned char *copy = download(&problem, block);
  expect_same(&problem, copy, expected, "the hundredth replay");
  free(copy);
  gpu_graph_destroy(&gpu, graph);
  gpu_stream_destroy(&gpu, stream);
  free_workspace(&workspaces[0]);
  free_workspace(&workspaces[1]);
  free_pair(&captured);
  free_pair(&eager);
  gpu_free(&gpu, block);
  free(expected);
  rota_context_destroy(fresh);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* What eight threads share, and what each has. */
typedef struct Worker {
  pthread_t thread;
  const Pair *plans;
  const Problem *problem;
  const unsigned char *expected;
} Worker;

/* A fresh thread: no context is current at first; its own memory is made under one that it pushes,
 * and Rota runs without. */
static void *work(void *argument) {
  Worker *worker = argument;
  CUcontext popped;
  gpu.driver->context_push(gpu.device->context);
  void *block = upload(worker->problem);
  CUstream stream = gpu_stream_create(&gpu);
  Workspace workspaces[2] = {make_workspace(worker->plans->forward),
                             make_workspace(worker->plans->backward)};
  gpu.driver->context_pop(&popped);
  rota_arguments arguments = problem_arguments(worker->problem, block);
  for (int i = 0; i < 20; i++) {
    must(run_in(worker->plans->forward, &arguments, &workspaces[0], stream));
    must(run_in(worker->plans->backward, &arguments, &workspaces[1], stream));
  }
  if (gpu_current_context(&gpu))
    abort();
  gpu.driver->context_push(gpu.device->context);
  gpu_synchronize(&gpu, stream);
  unsigned char *copy = download(worker->problem, block);
  for (int tensor = PROBLEM_o; tensor <= PROBLEM_d_v; tensor++)
    if (!problem_same_bits(worker->problem, copy, worker->expected, (ProblemTensor)tensor)) {
      fprintf(stderr, "a thread got other bits in %s\n",
              problem_tensor_name((ProblemTensor)tensor));
      abort();
    }
  free(copy);
  free_workspace(&workspaces[0]);
  free_workspace(&workspaces[1]);
  gpu_stream_destroy(&gpu, stream);
  gpu_free(&gpu, block);
  gpu.driver->context_pop(&popped);
  return NULL;
}

/* Case D12, and promise 1 under load: one pair of plans on eight streams of eight threads at once.
 */
static void test_threads(void **state) {
  (void)state;
  enum { THREADS = 8 };
  char script[512];
  Problem problem = make_problem(&cases[2], script);
  rota_context *context = calls_context();
  Pair plans = make_pair(context, script, ROTA_DEVICE_CUDA, &problem);
  void *block = upload(&problem);
  rota_arguments arguments = problem_arguments(&problem, block);
  run_here(plans.forward, &arguments);
  run_here(plans.backward, &arguments);
  unsigned char *expected = download(&problem, block);
  Worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (Worker){.plans = &plans, .problem = &problem, .expected = expected};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(workers[i].thread, NULL);
  free(expected);
  gpu_free(&gpu, block);
  free_pair(&plans);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* Case D12: whatever context is current in the calling thread, or none, stays so. */
static void test_caller_context(void **state) {
  (void)state;
  char script[512];
  Problem problem = make_problem(&cases[0], script);
  void *block = upload(&problem);
  rota_arguments arguments = problem_arguments(&problem, block);
  CUcontext popped, own = NULL;
  assert_int_equal(gpu.driver->context_pop(&popped), 0);
  for (int round = 0; round < 2; round++) {
    if (round == 1) { /* with a context that is not the primary one */
      assert_int_equal(gpu.driver->context_create(&own, 0, gpu.device->handle), 0);
    }
    rota_context *context = calls_context();
    rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &problem);
    assert_ptr_equal(gpu_current_context(&gpu), own);
    must(rota_run(plan, &arguments, NULL, 0, gpu.stream));
    assert_ptr_equal(gpu_current_context(&gpu), own);
    gpu.driver->context_push(gpu.device->context);
    gpu_synchronize(&gpu, gpu.stream);
    gpu.driver->context_pop(&popped);
    rota_plan_destroy(plan);
    rota_context_destroy(context);
    assert_ptr_equal(gpu_current_context(&gpu), own);
  }
  gpu.driver->context_destroy(own);
  assert_int_equal(gpu.driver->context_push(gpu.device->context), 0);
  gpu_free(&gpu, block);
  problem_free(&problem);
}

static void test_info(void **state) {
  (void)state;
  rota_context *context = calls_context();
  rota_kernel *kernel = calls_kernel(context, "return rota.attention{head_dim = 64, mask = causal}",
                                     ROTA_BACKWARD, ROTA_DEVICE_AUTO, ROTA_LAYOUT_ALIGNED);
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_int_equal(info.device, ROTA_DEVICE_CUDA);
  /* "sm_90", or "sm_90a" where kernels for that alone serve. */
  const char *name = gpu.device->target.name;
  assert_int_equal(strncmp(info.architecture, name, strlen(name)), 0);
  assert_true(info.registers > 16 && info.registers <= 255);
  assert_true(info.shared_bytes > 0 && info.shared_bytes <= gpu.device->target.shared_per_block);
  assert_true(info.cubin_bytes > 0);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Exported here, imported by a context that has no compiler: the same digest and bits. */
static void test_export(void **state) {
  (void)state;
  char script[512], path[] = "/tmp/rota_test_XXXXXX", digests[2][ROTA_DIGEST_SIZE];
  close(mkstemp(path));
  Problem problem = make_problem(&cases[2], script);
  void *block = upload(&problem);
  rota_arguments arguments = problem_arguments(&problem, block);
  rota_context *context = calls_context(), *other;
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_kernel *imported;
  rota_context_options options = {.cache_dir = "", .nvrtc_path = "/nonexistent", .debug = -1};
  must(rota_context_create(&options, &other));
  must(rota_kernel_export(kernel, path));
  must(rota_kernel_import(other, path, 0, &imported));
  unsigned char *copies[2];
  for (int i = 0; i < 2; i++) {
    rota_plan *plan = calls_plan(i ? imported : kernel, &problem, NULL, 0);
    gpu_write(&gpu, block, problem.block, problem.bytes);
    run_here(plan, &arguments);
    rota_plan_digest(plan, digests[i]);
    copies[i] = download(&problem, block);
    rota_plan_destroy(plan);
  }
  assert_string_equal(digests[0], digests[1]);
  assert_memory_equal(copies[0], copies[1], problem.bytes);
  free(copies[0]);
  free(copies[1]);
  unlink(path);
  rota_kernel_destroy(imported);
  rota_kernel_destroy(kernel);
  rota_context_destroy(other);
  rota_context_destroy(context);
  gpu_free(&gpu, block);
  problem_free(&problem);
}

/* Last, since it takes all memory along. Case D12: after a reset nothing stale is used, and a fresh
 * start works. */
static void test_reset(void **state) {
  (void)state;
  char script[512];
  Problem problem = make_problem(&cases[0], script);
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0), *none;
  rota_arguments arguments = problem_arguments(&problem, NULL); /* not reached */
  assert_int_equal(gpu.driver->primary_reset(gpu.device->handle), 0);
  must_fail(rota_run(plan, &arguments, NULL, 0, NULL), ROTA_DRIVER, "was reset|this plan");
  rota_plan_request request = {.lengths = {.batch = 1, .n_q = 8, .n_k = 8}};
  must_fail(rota_plan_create(kernel, &request, &none), ROTA_DRIVER, "was reset");
  rota_plan *again = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &problem);
  must_fail(rota_run(plan, &arguments, NULL, 0, NULL), ROTA_DRIVER, "was reset|this plan");
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  Gpu fresh;
  assert_true(gpu_open(&fresh));
  void *block = gpu_allocate(&fresh, problem.bytes);
  gpu_write(&fresh, block, problem.block, problem.bytes);
  arguments = problem_arguments(&problem, block);
  must(rota_run(again, &arguments, NULL, 0, fresh.stream));
  gpu_synchronize(&fresh, fresh.stream);
  gpu_read(&fresh, problem.block, block, problem.bytes);
  for (size_t i = 0; i < problem.count[PROBLEM_o]; i++)
    assert_true(isfinite(problem_value(&problem, problem.block, PROBLEM_o, i)));
  gpu_free(&fresh, block);
  gpu_close(&fresh);
  rota_plan_destroy(again);
  rota_context_destroy(context);
  problem_free(&problem);
}

int main(void) {
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_cpu), cmocka_unit_test(test_graph),
      cmocka_unit_test(test_threads),     cmocka_unit_test(test_caller_context),
      cmocka_unit_test(test_info),        cmocka_unit_test(test_export),
      cmocka_unit_test(test_reset),
  };
  /* Of the GPU opened above nothing is left after the reset, so it is not closed. */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
