/* One context, many threads: specs, kernels and plans made at once, one plan run at once, messages
 * kept apart. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/driver.h"
#include "tests/support/calls.h"
#include "tests/support/workbench.h"

enum { THREADS = 8, ROUNDS = 6 };

typedef struct Worker {
  pthread_t thread;
  int index;
  rota_context *context;
  const rota_plan *shared; /* a plan that all run at once */
  const Problem *expected; /* with the results of one undisturbed run */
  char digest[ROTA_DIGEST_SIZE];
  bool failed;
} Worker;

static const Problem shape = {.dtype = ROTA_BF16,
                              .batch = 1,
                              .n_q = 100,
                              .n_k = 120,
                              .heads = 2,
                              .kv_heads = 1,
                              .dim = 32,
                              .dim_v = 32};

static void script_of(int index, char text[256]) {
  snprintf(text, 256,
           "return rota.attention{head_dim = 32, heads = 2, kv_heads = 1, "
           "mask = causal & window(%d, 0)}",
           10 + index);
}

static void run_shared(Worker *worker) {
  Problem mine = shape;
  problem_create(&mine, 5);
  memcpy(mine.block + mine.offset[PROBLEM_o], worker->expected->block + mine.offset[PROBLEM_o],
         mine.offset[PROBLEM_d_q] - mine.offset[PROBLEM_o]); /* O, LSE, dO */
  rota_arguments arguments = problem_arguments(&mine, NULL);
  for (int round = 0; round < ROUNDS; round++) {
    must(calls_run_host(worker->shared, &arguments));
    for (int tensor = PROBLEM_d_q; tensor <= PROBLEM_d_v; tensor++)
      if (!problem_same_bits(&mine, mine.block, worker->expected->block, (ProblemTensor)tensor))
        worker->failed = true;
  }
  problem_free(&mine);
}

/* Even threads fail on purpose, each in its own words, and must read them back. */
static void check_message(Worker *worker) {
  rota_spec *spec;
  char script[64], words[32];
  snprintf(script, sizeof script, "return rota.attention{head_dim = 8, field_%d = 1}",
           worker->index);
  snprintf(words, sizeof words, "field_%d", worker->index);
  for (int round = 0; round < ROUNDS; round++)
    must_fail(rota_spec_create_from_script(worker->context, script, "test.lua", &spec), ROTA_SCRIPT,
              words);
}

static void *work(void *argument) {
  Worker *worker = argument;
  char script[256];
  script_of(worker->index / 2, script); /* pairs of threads ask for the same */
  for (int round = 0; round < ROUNDS; round++) {
    rota_plan *plan =
        calls_prepare(worker->context, script, ROTA_BACKWARD, ROTA_DEVICE_CPU, &shape);
    rota_plan_digest(plan, worker->digest);
    rota_plan_destroy(plan);
  }
  if (worker->index % 2 == 0)
    check_message(worker);
  run_shared(worker);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  Problem expected = shape;
  problem_create(&expected, 5);
  rota_context *context = calls_context();
  rota_arguments arguments = problem_arguments(&expected, NULL);
  char script[256];
  script_of(0, script);
  rota_plan *forward = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CPU, &shape);
  rota_plan *backward = calls_prepare(context, script, ROTA_BACKWARD, ROTA_DEVICE_CPU, &shape);
  must(calls_run_host(forward, &arguments));
  must(calls_run_host(backward, &arguments));
  Worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] =
        (Worker){.index = i, .context = context, .shared = backward, .expected = &expected};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < THREADS; i++) {
    assert_false(workers[i].failed);
    assert_string_equal(workers[i].digest, workers[i / 2 * 2].digest);
    assert_int_equal(strlen(workers[i].digest), ROTA_DIGEST_SIZE - 1);
  }
  assert_string_not_equal(workers[0].digest, workers[2].digest);
  rota_plan_destroy(forward);
  rota_plan_destroy(backward);
  rota_context_destroy(context);
  problem_free(&expected);
}

enum { ASKERS = 16 };
typedef struct Asker {
  pthread_t thread;
  rota_context *context;
  int head_dim;
} Asker;

static void ask(Asker *asker, int head_dim) {
  char script[128];
  rota_spec *spec;
  rota_kernel *kernel;
  rota_kernel_request request = {.device = ROTA_DEVICE_CUDA, .architecture = "sm_90"};
  snprintf(script, sizeof script, "return rota.attention{head_dim = %d}", head_dim);
  must(rota_spec_create_from_script(asker->context, script, "test.lua", &spec));
  must(rota_kernel_prepare(asker->context, spec, &request, &kernel));
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
}

static void *ask_twice(void *argument) {
  Asker *asker = argument;
  ask(asker, asker->head_dim);
  ask(asker, 8 * (ASKERS + 1));
  return NULL;
}

/* Case D15: 16 threads ask for 16 kernels, then for one, cold: a compile per kernel, seen by a
 * stand-in for NVRTC. */
static void test_one_compile_per_kernel(void **state) {
  (void)state;
  const Driver *driver;
  if (driver_get(&driver) == ROTA_OK)
    skip(); /* what the stand-in makes would not load */
  Workbench bench;
  workbench_open(&bench);
  rota_context *context;
  rota_context_options options = {.cache_dir = workbench_path(&bench, "cache"),
                                  .nvrtc_path = workbench_fake_nvrtc(&bench, "libnvrtc.so", ""),
                                  .debug = 0};
  const char *log = workbench_path(&bench, "log");
  setenv("FAKE_NVRTC_LOG", log, 1);
  setenv("FAKE_NVRTC_MS", "30", 1);
  must(rota_context_create(&options, &context));
  Asker askers[ASKERS];
  for (int i = 0; i < ASKERS; i++) {
    askers[i] = (Asker){.context = context, .head_dim = 8 * (i + 1)};
    assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_twice, &askers[i]), 0);
  }
  for (int i = 0; i < ASKERS; i++)
    pthread_join(askers[i].thread, NULL);
  assert_int_equal(workbench_count_lines(log, "begin"), ASKERS + 1);
  rota_context_destroy(context);
  unsetenv("FAKE_NVRTC_LOG");
  unsetenv("FAKE_NVRTC_MS");
  workbench_close(&bench);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads),
                                     cmocka_unit_test(test_one_compile_per_kernel)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
