/* Plans and kernels as objects: lifetimes, empty shapes, digests, files, missing devices, failing
 * memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/driver.h"
#include "tests/support/calls.h"

static const char window[] = "return rota.attention{head_dim = 16, heads = 4, kv_heads = 2, "
                             "dtype = 'fp32', mask = causal & window(20, 0)}";

static Problem shape(int batch, int n_q, int n_k) {
  Problem problem = {.dtype = ROTA_FP32,
                     .batch = batch,
                     .n_q = n_q,
                     .n_k = n_k,
                     .heads = 4,
                     .kv_heads = 2,
                     .dim = 16,
                     .dim_v = 16};
  problem_create(&problem, 3);
  return problem;
}

/* A file of the test's own; `name` is filled. */
static void scratch_path(char name[64]) {
  snprintf(name, 64, "/tmp/rota_test_XXXXXX");
  int file = mkstemp(name);
  assert_true(file >= 0);
  close(file);
}

/* Case C15: no queries, no keys, no sequences. */
static void test_empty_shapes(void **state) {
  (void)state;
  static const int shapes[][3] = {{2, 9, 0}, {2, 0, 9}, {0, 9, 9}, {1, 0, 0}};
  rota_context *context = calls_context();
  for (int i = 0; i < 4; i++) {
    Problem problem = shape(shapes[i][0], shapes[i][1], shapes[i][2]);
    rota_plan *forward = calls_prepare(context, window, ROTA_FORWARD, ROTA_DEVICE_CPU, &problem);
    rota_plan *backward = calls_prepare(context, window, ROTA_BACKWARD, ROTA_DEVICE_CPU, &problem);
    rota_arguments arguments = problem_arguments(&problem, NULL);
    if (shapes[i][2] == 0)
      arguments.k.data = arguments.v.data = NULL; /* empty tensors */
    must(calls_run_host(forward, &arguments));
    for (size_t j = 0; j < problem.count[PROBLEM_o]; j++)
      assert_true(problem_value(&problem, problem.block, PROBLEM_o, j) == 0);
    for (size_t j = 0; j < problem.count[PROBLEM_lse]; j++)
      assert_true(problem_value(&problem, problem.block, PROBLEM_lse, j) == -INFINITY);
    if (shapes[i][2] == 0)
      arguments.d_k.data = arguments.d_v.data = NULL;
    must(calls_run_host(backward, &arguments));
    for (size_t j = 0; j < problem.count[PROBLEM_d_q]; j++)
      assert_true(problem_value(&problem, problem.block, PROBLEM_d_q, j) == 0);
    for (size_t j = 0; j < problem.count[PROBLEM_d_k]; j++)
      assert_true(problem_value(&problem, problem.block, PROBLEM_d_k, j) == 0);
    rota_plan_destroy(forward);
    rota_plan_destroy(backward);
    problem_free(&problem);
  }
  rota_context_destroy(context);
}

static void test_refused_lengths(void **state) {
  (void)state;
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, window, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ALIGNED);
  rota_plan *plan;
  rota_plan_request request = {.lengths = {.batch = 1, .n_q = -1, .n_k = 4}};
  must_fail(rota_plan_create(kernel, &request, &plan), ROTA_INVALID_ARGUMENT, "n_q|-1");
  assert_null(plan);
  int32_t descending[] = {0, 9, 4};
  request.lengths =
      (rota_lengths){.batch = 2, .cu_seqlens_q = descending, .cu_seqlens_k = descending};
  must_fail(rota_plan_create(kernel, &request, &plan), ROTA_INVALID_ARGUMENT, "cu_seqlens");
  request.lengths = (rota_lengths){.batch = 1, .n_q = 4, .n_k = 4};
  request.heads = 4;
  request.kv_heads = 3;
  must_fail(rota_plan_create(kernel, &request, &plan), ROTA_INVALID_ARGUMENT, "heads");
  request.heads = 8;
  request.kv_heads = 4; /* the same group: served */
  must(rota_plan_create(kernel, &request, &plan));
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
}

/* Dense sequences of one length lie as packed ones do: the same bits, and batch strides are not
 * read. */
static void test_packed(void **state) {
  (void)state;
  Problem problem = shape(3, 70, 90);
  rota_context *context = calls_context();
  rota_arguments arguments = problem_arguments(&problem, NULL);
  rota_plan_request request = {.lengths = {.batch = 3,
                                           .cu_seqlens_q = (const int32_t[]){0, 70, 140, 210},
                                           .cu_seqlens_k = (const int32_t[]){0, 90, 180, 270}}};
  unsigned char *copies[2] = {malloc(problem.bytes), malloc(problem.bytes)};
  assert_true(copies[0] && copies[1]);
  for (int direction = ROTA_FORWARD; direction <= ROTA_BACKWARD; direction++) {
    rota_kernel *kernel = calls_kernel(context, window, (rota_direction)direction, ROTA_DEVICE_CPU,
                                       ROTA_LAYOUT_ALIGNED);
    rota_plan *dense = calls_plan(kernel, &problem, NULL, 0), *packed;
    must(rota_plan_create(kernel, &request, &packed));
    must(calls_run_host(dense, &arguments));
    memcpy(copies[0], problem.block, problem.bytes);
    rota_arguments odd = arguments;
    odd.q.stride_batch = odd.k.stride_batch = odd.o.stride_batch = 12345677;
    odd.lse.stride_batch = odd.d_q.stride_batch = odd.d_k.stride_batch = -3;
    memset(problem.block + problem.offset[direction ? PROBLEM_d_q : PROBLEM_o], 0xff,
           problem.count[direction ? PROBLEM_d_q : PROBLEM_o] * sizeof(float));
    must(calls_run_host(packed, &odd));
    memcpy(copies[1], problem.block, problem.bytes);
    assert_memory_equal(copies[0], copies[1], problem.bytes);
    rota_plan_destroy(dense);
    rota_plan_destroy(packed);
    rota_kernel_destroy(kernel);
  }
  free(copies[0]);
  free(copies[1]);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* A plan outlives its kernel, a kernel its spec (calls_prepare destroys both); here the bits agree,
 * too. */
static void test_digests(void **state) {
  (void)state;
  static const struct {
    const char *script;
    int n_q;
  } cases[] = {
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal", 40},
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal", 300},
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = window(20, 0)", 40},
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal, scale = 0.3", 40},
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', score = softcap(30)", 40},
      {"head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', score = softcap(31)", 40},
  };
  enum { CASES = sizeof cases / sizeof cases[0] };
  char digests[CASES][ROTA_DIGEST_SIZE], again[ROTA_DIGEST_SIZE];
  for (int i = 0; i < CASES; i++) {
    Problem problem = shape(2, cases[i].n_q, cases[i].n_q);
    char script[256];
    snprintf(script, sizeof script, "return rota.attention{%s}", cases[i].script);
    for (int round = 0; round < 2; round++) {
      rota_context *context = calls_context();
      rota_plan *plan = calls_prepare(context, script, ROTA_BACKWARD, ROTA_DEVICE_CPU, &problem);
      rota_plan_digest(plan, round ? again : digests[i]);
      rota_plan_destroy(plan);
      rota_context_destroy(context);
    }
    assert_int_equal(strlen(digests[i]), ROTA_DIGEST_SIZE - 1);
    assert_string_equal(digests[i], again);
    for (int j = 0; j < i; j++)
      assert_string_not_equal(digests[i], digests[j]);
    problem_free(&problem);
  }
}

static void test_plan_files(void **state) {
  (void)state;
  char path[64], digests[2][ROTA_DIGEST_SIZE];
  scratch_path(path);
  Problem problem = shape(2, 150, 170);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, window, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ALIGNED);
  rota_plan *made = calls_plan(kernel, &problem, NULL, 0), *loaded;
  must(calls_run_host(made, &arguments));
  unsigned char *copy = malloc(problem.bytes);
  assert_non_null(copy);
  memcpy(copy, problem.block, problem.bytes);
  must(rota_plan_save(made, path));
  must(rota_plan_load(kernel, path, &loaded));
  rota_plan_digest(made, digests[0]);
  rota_plan_digest(loaded, digests[1]);
  assert_string_equal(digests[0], digests[1]);
  assert_int_equal(rota_plan_workspace_size(made), rota_plan_workspace_size(loaded));
  must(calls_run_host(loaded, &arguments));
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_o));
  rota_plan_destroy(loaded);

  rota_kernel *other =
      calls_kernel(context, window, ROTA_BACKWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ALIGNED);
  must_fail(rota_plan_load(other, path, &loaded), ROTA_INVALID_ARGUMENT, "");
  assert_null(loaded);
  assert_int_equal(truncate(path, 40), 0);
  must_fail(rota_plan_load(kernel, path, &loaded), ROTA_FILE, path);
  must_fail(rota_plan_load(kernel, "/nonexistent/plan", &loaded), ROTA_FILE, "/nonexistent/plan");
  must_fail(rota_plan_save(made, "/nonexistent/plan"), ROTA_FILE, "/nonexistent/plan");
  unlink(path);
  free(copy);
  rota_kernel_destroy(other);
  rota_kernel_destroy(kernel);
  rota_plan_destroy(made);
  rota_context_destroy(context);
  problem_free(&problem);
}

static void test_plan_info(void **state) {
  (void)state;
  Problem problem = shape(1, 512, 512);
  rota_context *context = calls_context();
  rota_plan *plan = calls_prepare(
      context, "return rota.attention{head_dim = 16, heads = 4, kv_heads = 2, mask = causal}",
      ROTA_FORWARD, ROTA_DEVICE_CPU, &problem);
  rota_plan_info info;
  rota_plan_get_info(plan, &info);
  int q_tiles = (512 + info.tile_q - 1) / info.tile_q;
  int kv_tiles = (512 + info.tile_kv - 1) / info.tile_kv;
  assert_int_equal(info.full_tiles + info.partial_tiles + info.empty_tiles, q_tiles * kv_tiles);
  assert_true(info.full_tiles > 0 && info.partial_tiles > 0 && info.empty_tiles > 0);
  assert_true(info.table_bytes > 0 && info.plan_seconds > 0);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* Without a GPU: CUDA says why not, AUTO takes the CPU, and a named architecture is compiled for
 * export. */
static void test_without_gpu(void **state) {
  (void)state;
  const Driver *driver;
  if (driver_get(&driver) == ROTA_OK)
    skip();
  rota_context *context = calls_context();
  rota_spec *spec;
  rota_kernel *kernel;
  must(rota_spec_create_from_script(context, window, "test.lua", &spec));
  rota_kernel_request request = {.device = ROTA_DEVICE_CUDA};
  must_fail(rota_kernel_prepare(context, spec, &request, &kernel), ROTA_NO_DEVICE,
            "libcuda.so.1|CPU device");
  must_fail(rota_supports(context, spec, &request), ROTA_NO_DEVICE, "libcuda.so.1");
  request.device = ROTA_DEVICE_AUTO;
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_int_equal(info.device, ROTA_DEVICE_CPU);
  rota_kernel_destroy(kernel);

  request = (rota_kernel_request){.device = ROTA_DEVICE_CUDA, .architecture = "sm_90"};
  must(rota_supports(context, spec, &request));
  rota_status status = rota_kernel_prepare(context, spec, &request, &kernel);
  if (status == ROTA_OK) {
    rota_plan *plan;
    rota_plan_request lengths = {.lengths = {.batch = 1, .n_q = 8, .n_k = 8}};
    rota_kernel_get_info(kernel, &info);
    assert_int_equal(info.device, ROTA_DEVICE_CUDA);
    assert_string_equal(info.architecture, "sm_90");
    assert_true(info.cubin_bytes > 0 && info.registers > 0);
    must_fail(rota_plan_create(kernel, &lengths, &plan), ROTA_NO_DEVICE, "sm_90|export");
    rota_kernel_destroy(kernel);
  } else {
    assert_int_equal(status, ROTA_NO_COMPILER); /* NVRTC is optional on a host */
  }
  rota_spec_destroy(spec);
  rota_context_destroy(context);
}

/* The whole path once; what was made is destroyed, whatever failed. */
static rota_status whole_path(const Problem *problem, const rota_arguments *arguments,
                              void *workspace, size_t bytes) {
  rota_context *context = NULL;
  rota_spec *spec = NULL;
  rota_kernel *kernel = NULL;
  rota_plan *plan = NULL;
  rota_context_options options = {.cache_dir = "", .debug = -1};
  rota_kernel_request request = {.direction = ROTA_BACKWARD, .device = ROTA_DEVICE_CPU};
  rota_plan_request lengths = {
      .lengths = {.batch = problem->batch, .n_q = problem->n_q, .n_k = problem->n_k}};
  rota_status status = rota_context_create(&options, &context);
  if (status == ROTA_OK)
    status = rota_spec_create_from_script(context, window, "test.lua", &spec);
  if (status == ROTA_OK)
    status = rota_kernel_prepare(context, spec, &request, &kernel);
  if (status == ROTA_OK)
    status = rota_plan_create(kernel, &lengths, &plan);
  if (status == ROTA_OK) {
    assert_true(rota_plan_workspace_size(plan) <= bytes);
    status = rota_run(plan, arguments, workspace, bytes, NULL);
  }
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
  return status;
}

/* Wherever memory runs out: OUT_OF_MEMORY, no crash, no leak (the sanitizer build looks for those).
 */
static void test_memory_failures(void **state) {
  (void)state;
  enum { WORKSPACE = 1 << 22 };
  Problem problem = shape(1, 40, 40);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  void *workspace = aligned_alloc(256, WORKSPACE);
  assert_non_null(workspace);
  must(whole_path(&problem, &arguments, workspace, WORKSPACE));
  int failures = 0;
  /* Every allocation of the first hundred, then sparser: the path makes thousands. */
  for (long n = 1; n < 1000000; n += n < 100 ? 1 : n / 16) {
    memory_fail_at(n);
    rota_status status = whole_path(&problem, &arguments, workspace, WORKSPACE);
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    if (status != ROTA_OUT_OF_MEMORY)
      fail_msg("allocation %ld: %s: %s", n, rota_status_name(status), rota_error_message());
    failures++;
  }
  assert_true(failures > 20);
  must(whole_path(&problem, &arguments, workspace, WORKSPACE));
  free(workspace);
  problem_free(&problem);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty_shapes), cmocka_unit_test(test_refused_lengths),
      cmocka_unit_test(test_packed),       cmocka_unit_test(test_digests),
      cmocka_unit_test(test_plan_files),   cmocka_unit_test(test_plan_info),
      cmocka_unit_test(test_without_gpu),  cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
