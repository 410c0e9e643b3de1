/* The CUDA path without a GPU: contexts, captures, resets, uploads and launches, seen by a stand-in
 * for the driver (fake_driver.c), which is built here and found as libcuda.so.1 by a second run of
 * this program. */
#include <dlfcn.h>
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

#include "generator/plan.h"
#include "runtime/driver.h"
#include "tests/host/fake_driver.h"
#include "tests/support/calls.h"
#include "tests/support/workbench.h"

static const char script[] = "return rota.attention{head_dim = 64, heads = 4, kv_heads = 2, mask = "
                             "causal & window(30, 0), scale = 0.25}";
static FakeDriver *fake;
static const char *fake_nvrtc; /* path, from the first run */
static Problem problem = {.dtype = ROTA_BF16,
                          .batch = 2,
                          .n_q = 300,
                          .n_k = 300,
                          .heads = 4,
                          .kv_heads = 2,
                          .dim = 64,
                          .dim_v = 64};

static rota_context *make_context(void) {
  rota_context *context;
  rota_context_options options = {.cache_dir = "", .nvrtc_path = fake_nvrtc, .debug = 0};
  must(rota_context_create(&options, &context));
  return context;
}

static rota_plan *make_plan(rota_context *context, rota_direction direction) {
  return calls_prepare(context, script, direction, ROTA_DEVICE_CUDA, &problem);
}

/* With a workspace, as the plan asks. */
static rota_status run(const rota_plan *plan, void *stream) {
  rota_arguments arguments = problem_arguments(&problem, NULL);
  size_t bytes = rota_plan_workspace_size(plan);
  void *workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  rota_status status = rota_run(plan, &arguments, workspace, bytes, stream);
  free(workspace);
  return status;
}

static int begin(void **state) {
  (void)state;
  fake->errors = fake->launches = 0;
  fake->capability = 80; /* the portable kernels serve */
  return 0;
}

/* Whatever a test did: no call was refused, nothing is held, no context is left current. */
static int end(void **state) {
  (void)state;
  bool clean = !fake->errors && !fake->modules && !fake->memory_blocks && !fake->retained &&
               !fake->depth && !fake->capture_mode;
  if (!clean)
    fprintf(stderr, "left: %d errors, %d modules, %d blocks, %d retained, depth %d, mode %d\n",
            fake->errors, fake->modules, fake->memory_blocks, fake->retained, fake->depth,
            fake->capture_mode);
  return clean ? 0 : -1;
}

static void test_looked_for_when_needed(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_spec *spec;
  must(rota_spec_create_from_script(context, script, "test.lua", &spec));
  rota_kernel_request request = {.device = ROTA_DEVICE_CPU};
  must(rota_supports(context, spec, &request));
  /* Neither loading the library nor any of the above started the driver. */
  assert_int_equal(fake->inits, 0);
  request.device = ROTA_DEVICE_AUTO;
  rota_kernel *kernel;
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_int_equal(info.device, ROTA_DEVICE_CUDA);
  assert_string_equal(info.architecture, "sm_80");
  assert_int_equal(info.registers, 111); /* as the driver says */
  assert_int_equal(info.spill_bytes, 8);
  assert_true(info.shared_bytes >= 1024);
  assert_int_equal(fake->inits, 1);
  request.device_ordinal = 3;
  rota_kernel *none;
  must_fail(rota_kernel_prepare(context, spec, &request, &none), ROTA_INVALID_ARGUMENT,
            "device_ordinal 3|1 GPU");
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
}

/* The argument block as a kernel would see it; its tables are where the block says. */
static void test_launch(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_plan *plan = make_plan(context, ROTA_FORWARD);
  fake->block_bytes = sizeof(RotaArguments);
  must(run(plan, NULL));
  assert_int_equal(fake->launches, 1);
  RotaArguments block;
  memcpy(&block, fake->last_block, sizeof block);
  assert_int_equal(fake->last_grid, block.row_item_count);
  rota_plan_info info;
  rota_plan_get_info(plan, &info);
  int q_tiles = (problem.n_q + info.tile_q - 1) / info.tile_q;
  assert_int_equal(block.row_item_count, q_tiles * problem.batch * problem.heads);
  assert_int_equal(block.tiles, q_tiles * problem.batch);
  assert_ptr_equal(block.q.data, problem.block + problem.offset[PROBLEM_q]);
  assert_ptr_equal(block.lse.data, problem.block + problem.offset[PROBLEM_lse]);
  assert_int_equal(block.k.stride_row, 128);
  assert_true(block.scale == 0.25f);
  assert_int_equal(block.heads, 4);
  assert_int_equal(block.kv_heads, 2);
  assert_int_equal(block.parameters[0].as_int, 30);
  assert_int_equal(block.sequences[1].n_q, 300);
  assert_int_equal(block.sequences[1].batch, 1);
  assert_in_range(block.row_items[5].head, 0, 3);
  assert_null(block.sink);
  if (fake->last_shared > 48 << 10)
    assert_int_equal(fake->max_dynamic, fake->last_shared);
  rota_plan_destroy(plan);

  plan = make_plan(context, ROTA_BACKWARD);
  fake->launches = 0;
  must(run(plan, NULL));
  assert_true(fake->launches >= 2);
  memcpy(&block, fake->last_block, sizeof block);
  const RotaTensor *tensors[] = {
#define X(name, rows, heads, dim, element) &block.name,
      PROBLEM_TENSORS(X)
#undef X
  };
  rota_arguments given = problem_arguments(&problem, NULL);
  const rota_tensor *expected[] = {
#define X(name, rows, heads, dim, element) &given.name,
      PROBLEM_TENSORS(X)
#undef X
  };
  for (int i = 0; i < PROBLEM_TENSOR_COUNT; i++) {
    assert_ptr_equal(tensors[i]->data, expected[i]->data);
    assert_int_equal(tensors[i]->stride_batch, expected[i]->stride_batch);
    assert_int_equal(tensors[i]->stride_row, expected[i]->stride_row);
    assert_int_equal(tensors[i]->stride_head, expected[i]->stride_head);
  }
  must_fail(run(plan, (void *)1), ROTA_DRIVER, "cuLaunchKernel|CUDA_ERROR_FAKE|stream|device 0");
  fake->errors = 0; /* that one was meant */
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* A tensor of the score reaches the kernel from the plan's image, or from the run's arguments. */
static void test_tensors(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_kernel *kernel = calls_kernel(context,
                                     "return rota.attention{head_dim = 64, heads = 4, "
                                     "kv_heads = 2, mask = causal, score = alibi}",
                                     ROTA_BACKWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  float slopes[8] = {1, 0, 2, 0, 3, 0, 4, 0};
  rota_named_tensor slope = {"slope", ROTA_FP32, 1, {4}, {2}, slopes};
  rota_arguments arguments = problem_arguments(&problem, NULL);
  RotaArguments block;
  fake->block_bytes = sizeof block;
  for (int passed = 0; passed < 2; passed++) {
    slope.data = passed ? NULL : slopes;
    rota_plan *plan = calls_plan(kernel, &problem, &slope, 1);
    slope.data = slopes;
    arguments.tensors = passed ? &slope : NULL;
    arguments.tensor_count = passed;
    size_t bytes = rota_plan_workspace_size(plan);
    char *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    must(rota_run(plan, &arguments, workspace, bytes, NULL));
    memcpy(&block, fake->last_block, sizeof block);
    const float *data = block.tensors[0].data;
    assert_int_equal(block.tensors[0].size[0], 4);
    assert_true((data == slopes) == passed);
    for (int i = 0; i < 4; i++)
      assert_true(data[i * block.tensors[0].stride[0]] == (float)(i + 1));
    /* Parts of the workspace lie in the workspace. */
    assert_true((char *)block.delta >= workspace && (char *)block.delta < workspace + bytes);
    assert_true((char *)block.counters >= workspace);
    free(workspace);
    rota_plan_destroy(plan);
  }
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* A gang's workers wait for one another: launched together, or refused before anything starts. */
static void test_cooperative_launch(void **state) {
  (void)state;
  static const char gang[] = "return rota.attention{head_dim = 64, heads = 4, kv_heads = 2, "
                             "backward = 'ordered', schedule = 'shift'}";
  static const char alone[] = "return rota.attention{head_dim = 64, heads = 4, kv_heads = 2, "
                              "backward = 'ordered', schedule = 'descending'}";
  rota_context *context = make_context();
  rota_plan *plan = calls_prepare(context, gang, ROTA_BACKWARD, ROTA_DEVICE_CUDA, &problem);
  fake->cooperative_launches = 0;
  must(run(plan, NULL));
  assert_int_equal(fake->cooperative_launches, 1);
  rota_plan_destroy(plan);

  fake->resident_blocks = 0;
  rota_spec *spec;
  rota_kernel *kernel;
  rota_kernel_request request = {.direction = ROTA_BACKWARD, .device = ROTA_DEVICE_CUDA};
  rota_plan_request shape = {
      .lengths = {.batch = problem.batch, .n_q = problem.n_q, .n_k = problem.n_k}};
  rota_context *small = make_context(); /* its modules are measured anew */
  must(rota_spec_create_from_script(small, gang, "test.lua", &spec));
  must(rota_kernel_prepare(small, spec, &request, &kernel));
  must_fail(rota_plan_create(kernel, &shape, &plan), ROTA_UNSUPPORTED,
            "schedule 'shift'|wait for one another|holds 0 at once|shortest_first");
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  /* Portable: by tickets then. */
  plan = calls_prepare(small, alone, ROTA_BACKWARD, ROTA_DEVICE_CUDA, &problem);
  fake->cooperative_launches = 0;
  must(run(plan, NULL));
  assert_int_equal(fake->cooperative_launches, 0);
  rota_plan_destroy(plan);
  fake->resident_blocks = 1;
  rota_context_destroy(small);
  rota_context_destroy(context);
}

/* A batch without rows launches nothing: a grid of 0 blocks is an error of the driver. */
static void test_empty_grid(void **state) {
  (void)state;
  rota_context *context = make_context();
  Problem empty = problem;
  empty.n_q = 0;
  rota_plan *plan = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, &empty);
  must(run(plan, NULL));
  assert_int_equal(fake->launches, 0);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* Promise 5: the caller's current context is left as found. */
static void test_caller_context(void **state) {
  (void)state;
  const Driver *driver;
  CUcontext mine, now;
  must(driver_get(&driver));
  assert_int_equal(driver->context_create(&mine, 0, 7), 0);
  rota_context *context = make_context();
  rota_plan *plan = make_plan(context, ROTA_BACKWARD);
  driver->context_get_current(&now);
  assert_ptr_equal(now, mine);
  must(run(plan, NULL));
  driver->context_get_current(&now);
  assert_ptr_equal(now, mine);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  driver->context_get_current(&now);
  assert_ptr_equal(now, mine);
  driver->context_pop(&now);
}

static void *run_there(void *plan) {
  must(run(plan, NULL));
  return NULL;
}

/* Case D12: a fresh thread has no current context. */
static void test_fresh_thread(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_plan *plan = make_plan(context, ROTA_FORWARD);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, run_there, plan), 0);
  pthread_join(thread, NULL);
  assert_int_equal(fake->launches, 1);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
}

/* Case D11: loading and uploading during a capture that forbids it in its strictest mode. */
static void test_capture(void **state) {
  (void)state;
  fake->capturing = 1;
  rota_context *context = make_context();
  rota_plan *plan = make_plan(context, ROTA_BACKWARD);
  must(run(plan, NULL));
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  fake->capturing = 0;
}

/* Case D12: handles of before a reset are not used, and what was lost is said. */
static void test_reset(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_FORWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0);
  const Driver *driver;
  must(driver_get(&driver));
  driver->primary_reset(7);
  must_fail(run(plan, NULL), ROTA_DRIVER, "primary context of device 0 was reset|this plan");
  rota_plan_request request = {.lengths = {.batch = 1, .n_q = 8, .n_k = 8}};
  rota_plan *none;
  must_fail(rota_plan_create(kernel, &request, &none), ROTA_DRIVER, "was reset|this kernel");
  rota_plan *again = make_plan(context, ROTA_FORWARD);
  must(run(again, NULL));
  assert_int_equal(fake->launches, 1);
  must_fail(run(plan, NULL), ROTA_DRIVER, "was reset|this plan");
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  must(run(again, NULL));
  rota_plan_destroy(again);
  rota_context_destroy(context);
}

/* Case D10: which versions do not go together. */
static void test_driver_too_old(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_spec *spec;
  rota_kernel *kernel;
  rota_kernel_request request = {.device = ROTA_DEVICE_CUDA};
  must(rota_spec_create_from_script(context, script, "test.lua", &spec));
  fake->refuse_load = 1;
  must_fail(rota_kernel_prepare(context, spec, &request, &kernel), ROTA_DRIVER,
            "sm_80|NVRTC 13.0|CUDA 12.2|cuModuleLoadData|CUDA_ERROR_NO_BINARY_FOR_GPU|209");
  assert_null(kernel);
  fake->refuse_load = 0;
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
}

/* The same kernel is compiled and loaded once per context. */
static void test_loaded_once(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_kernel *kernels[3];
  for (int i = 0; i < 3; i++)
    kernels[i] = calls_kernel(context, script, i < 2 ? ROTA_FORWARD : ROTA_BACKWARD,
                              ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  assert_int_equal(fake->modules, 2);
  rota_kernel_info info;
  rota_kernel_get_info(kernels[0], &info);
  assert_false(info.cache_hit);
  rota_kernel_get_info(kernels[1], &info);
  assert_true(info.cache_hit);
  for (int i = 0; i < 3; i++)
    rota_kernel_destroy(kernels[i]);
  rota_context_destroy(context);
}

/* An architecture that this GPU does not run is compiled for export; AUTO prefers what runs here.
 */
static void test_other_architecture(void **state) {
  (void)state;
  rota_context *context = make_context();
  rota_spec *spec;
  rota_kernel *kernel;
  rota_kernel_request request = {.device = ROTA_DEVICE_CUDA, .architecture = "sm_90"};
  must(rota_spec_create_from_script(context, script, "test.lua", &spec));
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  assert_int_equal(fake->modules, 0);
  rota_plan_request lengths = {.lengths = {.batch = 1, .n_q = 8, .n_k = 8}};
  rota_plan *plan;
  must_fail(rota_plan_create(kernel, &lengths, &plan), ROTA_NO_DEVICE, "sm_90|export");
  rota_kernel_destroy(kernel);
  request.device = ROTA_DEVICE_AUTO;
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_int_equal(info.device, ROTA_DEVICE_CPU);
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
}

/* From one context to another through a file, without a compiler there. */
static void test_export(void **state) {
  (void)state;
  char path[] = "/tmp/rota_test_XXXXXX", digests[2][ROTA_DIGEST_SIZE];
  close(mkstemp(path));
  rota_context *context = make_context();
  rota_kernel *kernel =
      calls_kernel(context, script, ROTA_BACKWARD, ROTA_DEVICE_CUDA, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0);
  rota_plan_digest(plan, digests[0]);
  rota_plan_destroy(plan);
  must(rota_kernel_export(kernel, path));
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);

  rota_context_options options = {.cache_dir = "", .nvrtc_path = "/nonexistent", .debug = 0};
  must(rota_context_create(&options, &context));
  must(rota_kernel_import(context, path, 0, &kernel));
  plan = calls_plan(kernel, &problem, NULL, 0);
  rota_plan_digest(plan, digests[1]);
  assert_string_equal(digests[0], digests[1]);
  must(run(plan, NULL));
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  fake->capability = 90;
  must(rota_context_create(&options, &context));
  must_fail(rota_kernel_import(context, path, 0, &kernel), ROTA_UNSUPPORTED, "sm_80|sm_90");
  rota_context_destroy(context);
  unlink(path);
}

/* Wherever memory runs out on the way from script to launch: said, and everything given back. */
static rota_status whole_path(void) {
  rota_context *context = NULL;
  rota_spec *spec = NULL;
  rota_kernel *kernel = NULL;
  rota_plan *plan = NULL;
  rota_context_options options = {.cache_dir = "", .nvrtc_path = fake_nvrtc, .debug = 0};
  rota_kernel_request request = {.device = ROTA_DEVICE_CUDA};
  rota_plan_request lengths = {.lengths = {.batch = 2, .n_q = 300, .n_k = 300}};
  rota_status status = rota_context_create(&options, &context);
  if (status == ROTA_OK)
    status = rota_spec_create_from_script(context, script, "test.lua", &spec);
  if (status == ROTA_OK)
    status = rota_kernel_prepare(context, spec, &request, &kernel);
  if (status == ROTA_OK)
    status = rota_plan_create(kernel, &lengths, &plan);
  if (status == ROTA_OK)
    status = run(plan, NULL);
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
  return status;
}

static void test_memory_failures(void **state) {
  (void)state;
  must(whole_path());
  int failures = 0;
  for (long n = 1; n < 1000000; n += 1 + n / 40) {
    memory_fail_at(n);
    rota_status status = whole_path();
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    if (status != ROTA_OUT_OF_MEMORY)
      fail_msg("allocation %ld: %s: %s", n, rota_status_name(status), rota_error_message());
    failures++;
  }
  assert_true(failures > 20);
}

/* The second run: with the stand-in on the linker's path. */
static int second_run(const char *nvrtc) {
  fake_nvrtc = nvrtc;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  fake = library ? dlsym(library, "fake_driver") : NULL;
  if (!fake) {
    fprintf(stderr, "the stand-in for libcuda.so.1 was not found\n");
    return 1;
  }
  problem_create(&problem, 1);
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
  const struct CMUnitTest tests[] = {
      TEST(test_looked_for_when_needed),
      TEST(test_launch),
      TEST(test_cooperative_launch),
      TEST(test_tensors),
      TEST(test_empty_grid),
      TEST(test_caller_context),
      TEST(test_fresh_thread),
      TEST(test_capture),
      TEST(test_reset),
      TEST(test_driver_too_old),
      TEST(test_loaded_once),
      TEST(test_other_architecture),
      TEST(test_export),
      TEST(test_memory_failures),
  };
  int failures = cmocka_run_group_tests(tests, NULL, NULL);
  problem_free(&problem);
  dlclose(library);
  return failures;
}

int main(int count, char **words) {
  if (count == 2)
    return second_run(words[1]);
  Workbench bench;
  workbench_open(&bench);
  workbench_clean_environment();
  int result = workbench_fake_driver(&bench);
  workbench_close(&bench);
  return result;
}
