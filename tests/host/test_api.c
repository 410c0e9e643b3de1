/* The public interface, on the CPU device: each call's success, each refusal with its message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/calls.h"

static const char causal[] =
    "return rota.attention{head_dim = 16, heads = 4, kv_heads = 2, dtype = 'fp32', mask = causal}";
static const char with_sink[] = "return rota.attention{head_dim = 16, heads = 4, kv_heads = 2, "
                                "dtype = 'fp32', sink_logit = true}";
static const char with_slope[] = "return rota.attention{head_dim = 16, heads = 4, kv_heads = 2, "
                                 "dtype = 'fp32', score = alibi}";

static Problem small(bool sink) {
  Problem problem = {.dtype = ROTA_FP32,
                     .batch = 2,
                     .n_q = 37,
                     .n_k = 53,
                     .heads = 4,
                     .kv_heads = 2,
                     .dim = 16,
                     .dim_v = 16,
                     .sink = sink};
  problem_create(&problem, 7);
  return problem;
}

static void test_version_and_names(void **state) {
  (void)state;
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", ROTA_VERSION_MAJOR, ROTA_VERSION_MINOR,
           ROTA_VERSION_PATCH);
  assert_string_equal(rota_version(), version);
  assert_string_equal(rota_status_name(ROTA_OK), "OK");
  assert_string_equal(rota_status_name(ROTA_NOT_PREPARED), "NOT_PREPARED");
  assert_string_equal(rota_status_name((rota_status)1234), "UNKNOWN");
}

/* A missing argument is an answer, never a crash. */
static void test_missing_arguments(void **state) {
  (void)state;
  rota_context *context = calls_context();
  rota_spec *spec = (rota_spec *)(void *)context; /* anything: a failure leaves NULL */
  rota_kernel *kernel;
  rota_plan *plan;
  rota_kernel_request request = {0};
  rota_plan_request shape = {0};
  rota_arguments arguments = {0};
  must_fail(rota_context_create(NULL, NULL), ROTA_INVALID_ARGUMENT, "context");
  must_fail(rota_spec_create_from_script(NULL, causal, "x", &spec), ROTA_INVALID_ARGUMENT,
            "context is NULL");
  assert_null(spec);
  must_fail(rota_spec_create_from_script(context, NULL, "x", &spec), ROTA_INVALID_ARGUMENT,
            "text is NULL");
  must_fail(rota_spec_create_from_script(context, causal, "x", NULL), ROTA_INVALID_ARGUMENT,
            "spec is NULL");
  must_fail(rota_spec_create_from_file(context, NULL, &spec), ROTA_INVALID_ARGUMENT, "path");
  must_fail(rota_spec_create(context, NULL, &spec), ROTA_INVALID_ARGUMENT, "fields is NULL");
  must_fail(rota_supports(context, NULL, &request), ROTA_INVALID_ARGUMENT, "spec is NULL");
  must_fail(rota_kernel_prepare(context, NULL, &request, &kernel), ROTA_INVALID_ARGUMENT, "spec");
  must_fail(rota_kernel_prepare(context, NULL, &request, NULL), ROTA_INVALID_ARGUMENT, "kernel");
  must_fail(rota_kernel_export(NULL, "x"), ROTA_INVALID_ARGUMENT, "kernel is NULL");
  must_fail(rota_kernel_import(context, NULL, 0, &kernel), ROTA_INVALID_ARGUMENT, "path is NULL");
  must_fail(rota_plan_create(NULL, &shape, &plan), ROTA_INVALID_ARGUMENT, "kernel is NULL");
  must_fail(rota_plan_save(NULL, "x"), ROTA_INVALID_ARGUMENT, "plan is NULL");
  must_fail(rota_plan_load(NULL, "x", &plan), ROTA_INVALID_ARGUMENT, "kernel is NULL");
  must_fail(rota_run(NULL, &arguments, NULL, 0, NULL), ROTA_INVALID_ARGUMENT, "plan is NULL");
  rota_kernel_info kernel_info;
  rota_plan_info plan_info;
  rota_spec_fields fields;
  char digest[ROTA_DIGEST_SIZE] = "x";
  rota_kernel_get_info(NULL, &kernel_info);
  assert_string_equal(kernel_info.compile_log, "");
  rota_plan_get_info(NULL, &plan_info);
  rota_spec_get(NULL, &fields);
  rota_plan_digest(NULL, digest);
  assert_string_equal(digest, "");
  assert_string_equal(rota_kernel_source(NULL), "");
  assert_int_equal(rota_plan_workspace_size(NULL), 0);
  rota_plan_destroy(NULL);
  rota_kernel_destroy(NULL);
  rota_spec_destroy(NULL);
  rota_context_destroy(NULL);
  rota_context_destroy(context);
}

static void test_context_options(void **state) {
  (void)state;
  rota_context *context;
  rota_context_options options = {.cache_max_bytes = -1, .debug = -1};
  must_fail(rota_context_create(&options, &context), ROTA_INVALID_ARGUMENT, "cache_max_bytes");
  options = (rota_context_options){.debug = 9};
  must_fail(rota_context_create(&options, &context), ROTA_INVALID_ARGUMENT, "debug is 9");
  assert_null(context);
}

static void test_specs(void **state) {
  (void)state;
  rota_context *context = calls_context();
  rota_spec *spec;
  rota_spec_fields fields = {.dtype = ROTA_FP16,
                             .head_dim = 96,
                             .head_dim_v = 64,
                             .heads = 8,
                             .kv_heads = 2,
                             .mask = "causal & window(64, 0)",
                             .scale = 0.5f,
                             .backward = "two_pass"};
  must(rota_spec_create(context, &fields, &spec));
  rota_spec_fields back;
  rota_spec_get(spec, &back);
  assert_int_equal(back.dtype, ROTA_FP16);
  assert_int_equal(back.head_dim, 96);
  assert_int_equal(back.head_dim_v, 64);
  assert_int_equal(back.heads, 8);
  assert_int_equal(back.kv_heads, 2);
  assert_true(back.scale == 0.5f);
  assert_string_equal(back.backward, "two_pass");
  assert_false(back.allow_nondeterministic);
  rota_spec_destroy(spec);
  must(rota_spec_create_from_script(context, causal, "test.lua", &spec));
  rota_spec_get(spec, &back);
  assert_true(back.scale == 0.25f); /* 1/sqrt(16) */
  rota_spec_destroy(spec);

  must_fail(rota_spec_create_from_script(context, "return rota.attention{head_dim = 16,\n x = 1}",
                                         "model.lua", &spec),
            ROTA_SCRIPT, "model.lua:|x");
  must_fail(rota_spec_create_from_file(context, "/nonexistent/model.lua", &spec), ROTA_FILE,
            "/nonexistent/model.lua");
  fields.backward = "atomic";
  must_fail(rota_spec_create(context, &fields, &spec), ROTA_NONDETERMINISTIC, "atomic");
  fields.backward = NULL;
  fields.head_dim = -3;
  assert_int_not_equal(rota_spec_create(context, &fields, &spec), ROTA_OK);
  rota_context_destroy(context);
}

static void test_requests(void **state) {
  (void)state;
  rota_context *context = calls_context();
  rota_spec *spec;
  rota_kernel *kernel;
  must(rota_spec_create_from_script(context, causal, "test.lua", &spec));
  rota_kernel_request request = {.direction = ROTA_BACKWARD, .device = ROTA_DEVICE_CPU};
  must(rota_supports(context, spec, &request));
  request.direction = (rota_direction)7;
  must_fail(rota_supports(context, spec, &request), ROTA_INVALID_ARGUMENT, "direction is 7");
  request.direction = ROTA_FORWARD;
  request.device = (rota_device_kind)9;
  must_fail(rota_supports(context, spec, &request), ROTA_INVALID_ARGUMENT, "device is 9");
  request.device = ROTA_DEVICE_CPU;
  request.layout = (rota_layout)5;
  must_fail(rota_supports(context, spec, &request), ROTA_INVALID_ARGUMENT, "layout is 5");
  request.layout = ROTA_LAYOUT_ALIGNED;
  request.architecture = "sm_12345";
  must_fail(rota_supports(context, spec, &request), ROTA_UNSUPPORTED, "sm_12345");
  request.architecture = NULL;
  must(rota_kernel_prepare(context, spec, &request, &kernel));
  rota_kernel_info info;
  rota_kernel_get_info(kernel, &info);
  assert_int_equal(info.device, ROTA_DEVICE_CPU);
  assert_string_equal(info.algorithm, "forward");
  assert_string_equal(info.architecture, "sm_80");
  assert_non_null(strstr(rota_kernel_source(kernel), "rota_forward"));
  rota_kernel_destroy(kernel);
  rota_spec_destroy(spec);
  rota_context_destroy(context);
}

/* softmax(scale Q K^T) V of one row, in double. */
static void naive_row(const Problem *problem, int b, int h, int q, double *o, double *lse) {
  const Problem *p = problem;
  int kv = h / (p->heads / p->kv_heads);
  double sum = 0, weight[64];
  for (int k = 0; k <= q + p->n_k - p->n_q; k++) {
    double dot = 0;
    for (int i = 0; i < p->dim; i++) {
      size_t at_q = (size_t)(((b * p->n_q + q) * p->heads + h) * p->dim + i);
      size_t at_k = (size_t)(((b * p->n_k + k) * p->kv_heads + kv) * p->dim + i);
      dot +=
          problem_value(p, p->block, PROBLEM_q, at_q) * problem_value(p, p->block, PROBLEM_k, at_k);
    }
    weight[k] = exp(dot / sqrt(p->dim));
    sum += weight[k];
  }
  *lse = log(sum);
  for (int i = 0; i < p->dim_v; i++) {
    o[i] = 0;
    for (int k = 0; k <= q + p->n_k - p->n_q; k++) {
      size_t at_v = (size_t)(((b * p->n_k + k) * p->kv_heads + kv) * p->dim_v + i);
      o[i] += weight[k] / sum * problem_value(p, p->block, PROBLEM_v, at_v);
    }
  }
}

/* Every tensor arrives in its place: forward against plain sums. */
static void test_forward_numbers(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_context *context = calls_context();
  rota_plan *plan = calls_prepare(context, causal, ROTA_FORWARD, ROTA_DEVICE_CPU, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  must(calls_run_host(plan, &arguments));
  double worst = 0;
  for (int b = 0; b < problem.batch; b++)
    for (int h = 0; h < problem.heads; h++)
      for (int q = 0; q < problem.n_q; q++) {
        double o[16], lse;
        size_t row = (size_t)((b * problem.n_q + q) * problem.heads + h);
        naive_row(&problem, b, h, q, o, &lse);
        worst = fmax(worst, fabs(lse - problem_value(&problem, problem.block, PROBLEM_lse, row)));
        for (int i = 0; i < 16; i++)
          worst = fmax(worst, fabs(o[i] - problem_value(&problem, problem.block, PROBLEM_o,
                                                        row * 16 + (size_t)i)));
      }
  assert_true(worst < 1e-5);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* Forward, then backward; the context dies last. */
static void run_both(const char *script, const Problem *problem, const rota_arguments *arguments,
                     char digest[ROTA_DIGEST_SIZE]) {
  rota_context *context = calls_context();
  rota_plan *forward = calls_prepare(context, script, ROTA_FORWARD, ROTA_DEVICE_CPU, problem);
  rota_plan *backward = calls_prepare(context, script, ROTA_BACKWARD, ROTA_DEVICE_CPU, problem);
  must(calls_run_host(forward, arguments));
  must(calls_run_host(backward, arguments));
  rota_plan_digest(backward, digest);
  rota_plan_destroy(forward);
  rota_plan_destroy(backward);
  rota_context_destroy(context);
}

/* d/dq of sum(o * d_o), against a difference quotient of the forward pass. */
static void test_backward_numbers(void **state) {
  (void)state;
  Problem problem = small(true);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  arguments.d_lse.data = NULL;
  char digest[ROTA_DIGEST_SIZE];
  run_both(with_sink, &problem, &arguments, digest);
  rota_context *context = calls_context();
  rota_plan *forward = calls_prepare(context, with_sink, ROTA_FORWARD, ROTA_DEVICE_CPU, &problem);
  float *inputs[] = {arguments.q.data, arguments.k.data, arguments.v.data,
                     (float *)(void *)(problem.block + problem.sink_offset)};
  const float *gradients[] = {arguments.d_q.data, arguments.d_k.data, arguments.d_v.data,
                              (float *)(void *)(problem.block + problem.d_sink_offset)};
  for (int input = 0; input < 4; input++) {
    int at = input == 3 ? 2 : 777;
    double sums[2], step = 0.01;
    float before = inputs[input][at];
    for (int side = 0; side < 2; side++) {
      inputs[input][at] = before + (float)(side ? step : -step);
      must(calls_run_host(forward, &arguments));
      sums[side] = 0;
      for (size_t i = 0; i < problem.count[PROBLEM_o]; i++)
        sums[side] += problem_value(&problem, problem.block, PROBLEM_o, i) *
                      problem_value(&problem, problem.block, PROBLEM_d_o, i);
    }
    inputs[input][at] = before;
    double slope = (sums[1] - sums[0]) / (2 * step);
    if (fabs(slope - (double)gradients[input][at]) > 1e-3)
      fail_msg("input %d: gradient %g, difference quotient %g", input, (double)gradients[input][at],
               slope);
  }
  rota_plan_destroy(forward);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* Case C12: an expanded dO (stride 0) gives the bits of the contiguous copy. */
static void test_expanded_gradient(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  arguments.d_lse.data = NULL;
  float *d_o = arguments.d_o.data;
  size_t count = problem.count[PROBLEM_d_o];
  for (size_t i = 0; i < count; i++)
    d_o[i] = d_o[i % 16]; /* one row of head 0, everywhere */
  char digests[2][ROTA_DIGEST_SIZE];
  run_both(causal, &problem, &arguments, digests[0]);
  unsigned char *copy = malloc(problem.bytes);
  assert_non_null(copy);
  memcpy(copy, problem.block, problem.bytes);
  arguments.d_o.stride_batch = arguments.d_o.stride_row = arguments.d_o.stride_head = 0;
  run_both(causal, &problem, &arguments, digests[1]);
  assert_string_equal(digests[0], digests[1]);
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_d_q));
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_d_k));
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_d_v));
  free(copy);
  problem_free(&problem);
}

/* One refusal: `change` spoils good arguments. */
static void refuse(const rota_plan *plan, const rota_arguments *good, size_t offset,
                   rota_tensor tensor, const char *words) {
  rota_arguments arguments = *good;
  memcpy((char *)&arguments + offset, &tensor, sizeof tensor);
  must_fail(calls_run_host(plan, &arguments), ROTA_INVALID_ARGUMENT, words);
}

static void test_refused_tensors(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_context *context = calls_context();
  rota_plan *plan = calls_prepare(context, causal, ROTA_BACKWARD, ROTA_DEVICE_CPU, &problem);
  rota_arguments good = problem_arguments(&problem, NULL);
#define REFUSE(field, change, words)                                                               \
  do {                                                                                             \
    rota_tensor tensor = good.field;                                                               \
    change;                                                                                        \
    refuse(plan, &good, offsetof(rota_arguments, field), tensor, words);                           \
  } while (0)
  REFUSE(q, tensor.data = NULL, "q.data is NULL|backward reads");
  REFUSE(k, tensor.data = NULL, "k.data is NULL");
  REFUSE(v, tensor.data = NULL, "v.data is NULL");
  REFUSE(o, tensor.data = NULL, "o.data is NULL");
  REFUSE(lse, tensor.data = NULL, "lse.data is NULL");
  REFUSE(d_o, tensor.data = NULL, "d_o.data is NULL");
  REFUSE(d_q, tensor.data = NULL, "d_q.data is NULL|writes");
  REFUSE(d_k, tensor.data = NULL, "d_k.data is NULL");
  REFUSE(d_v, tensor.data = NULL, "d_v.data is NULL");
  REFUSE(q, tensor.data = (char *)tensor.data + 4, "q.data|16 bytes|ROTA_LAYOUT_ANY");
  REFUSE(d_v, tensor.data = (char *)tensor.data + 8, "d_v.data|ROTA_LAYOUT_ANY");
  REFUSE(lse, tensor.data = (char *)tensor.data + 1, "lse.data|4 bytes");
  REFUSE(k, tensor.stride_row += 2, "k.stride_row is 34|ROTA_LAYOUT_ANY");
  REFUSE(v, tensor.stride_head = 17, "v.stride_head is 17|ROTA_LAYOUT_ANY");
  REFUSE(o, tensor.stride_batch = 1, "o.stride_batch is 1");
  REFUSE(d_q, tensor.stride_row = 0, "d_q|stride_row is 0|overwrite");
  REFUSE(d_k, tensor.stride_batch = 0, "d_k|stride_batch is 0");
  REFUSE(q, tensor.stride_row = INT64_MAX / 4 * 4, "q.stride_row|address space");
  REFUSE(mean_square, tensor = good.lse, "mean_square was given|bound is not \"spread\"");
#undef REFUSE
  rota_arguments arguments = good;
  float sink[4] = {0};
  arguments.sink = sink;
  must_fail(calls_run_host(plan, &arguments), ROTA_INVALID_ARGUMENT, "sink|sink_logit");
  arguments = good;
  arguments.tensor_count = 1;
  must_fail(calls_run_host(plan, &arguments), ROTA_INVALID_ARGUMENT, "tensor_count is 1");
  must(calls_run_host(plan, &good)); /* after all that, still well */
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* What the aligned class refuses, the other takes. */
static void test_any_layout(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, causal, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ANY);
  rota_plan *plan = calls_plan(kernel, &problem, NULL, 0);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  must(calls_run_host(plan, &arguments));
  unsigned char *copy = malloc(problem.bytes);
  assert_non_null(copy);
  memcpy(copy, problem.block, problem.bytes);
  /* K with rows of 33 elements, one element off. */
  float *loose = calloc((size_t)(2 * 53 * 33 + 1), sizeof *loose);
  assert_non_null(loose);
  for (int row = 0; row < 2 * 53; row++)
    memcpy(loose + 1 + row * 33, (float *)arguments.k.data + row * 32, 32 * sizeof *loose);
  arguments.k = (rota_tensor){loose + 1, 53 * 33, 33, 16};
  must(calls_run_host(plan, &arguments));
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_o));
  arguments.k.data = (char *)loose + 2;
  must_fail(calls_run_host(plan, &arguments), ROTA_INVALID_ARGUMENT, "k.data|4 bytes");
  free(loose);
  free(copy);
  rota_plan_destroy(plan);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  problem_free(&problem);
}

static void test_workspace(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_context *context = calls_context();
  rota_plan *plan = calls_prepare(context, causal, ROTA_BACKWARD, ROTA_DEVICE_CPU, &problem);
  rota_arguments arguments = problem_arguments(&problem, NULL);
  size_t bytes = rota_plan_workspace_size(plan);
  assert_true(bytes > 0);
  unsigned char *memory = aligned_alloc(256, (bytes + 512) / 256 * 256);
  assert_non_null(memory);
  must_fail(rota_run(plan, &arguments, NULL, bytes, NULL), ROTA_WORKSPACE, "workspace is NULL");
  must_fail(rota_run(plan, &arguments, memory, bytes - 1, NULL), ROTA_WORKSPACE,
            "workspace_size|rota_plan_workspace_size");
  must_fail(rota_run(plan, &arguments, memory + 16, bytes, NULL), ROTA_WORKSPACE, "256");
  must(rota_run(plan, &arguments, memory, bytes, NULL));
  free(memory);
  rota_plan_destroy(plan);
  rota_context_destroy(context);
  problem_free(&problem);
}

/* A tensor of the score: in the plan, or with each run; the same bits either way. */
static void test_named_tensors(void **state) {
  (void)state;
  Problem problem = small(false);
  rota_context *context = calls_context();
  rota_kernel *kernel =
      calls_kernel(context, with_slope, ROTA_FORWARD, ROTA_DEVICE_CPU, ROTA_LAYOUT_ALIGNED);
  float slopes[8] = {0.5f, 9, 0.25f, 9, 0.125f, 9, 0.0625f, 9};
  rota_named_tensor slope = {"slope", ROTA_FP32, 1, {4}, {2}, slopes};
  rota_arguments arguments = problem_arguments(&problem, NULL);
  rota_plan *held = calls_plan(kernel, &problem, &slope, 1);
  must(calls_run_host(held, &arguments));
  unsigned char *copy = malloc(problem.bytes);
  assert_non_null(copy);
  memcpy(copy, problem.block, problem.bytes);

  rota_named_tensor shape = slope;
  shape.data = NULL;
  rota_plan *open = calls_plan(kernel, &problem, &shape, 1);
  must_fail(calls_run_host(open, &arguments), ROTA_INVALID_ARGUMENT, "slope|missing");
  arguments.tensors = &slope;
  arguments.tensor_count = 1;
  must(calls_run_host(open, &arguments));
  assert_true(problem_same_bits(&problem, copy, problem.block, PROBLEM_o));
  must_fail(calls_run_host(held, &arguments), ROTA_INVALID_ARGUMENT, "slope|the plan holds");
  arguments.tensors = &shape;
  must_fail(calls_run_host(open, &arguments), ROTA_INVALID_ARGUMENT, "slope|NULL");
  rota_named_tensor wrong = slope;
  arguments.tensors = &wrong;
  wrong.size[0] = 3;
  must_fail(calls_run_host(open, &arguments), ROTA_INVALID_ARGUMENT, "slope|size 3|made for 4");
  wrong = slope;
  wrong.dtype = ROTA_INT32;
  must_fail(calls_run_host(open, &arguments), ROTA_INVALID_ARGUMENT, "slope|int32|fp32");
  rota_named_tensor both[2] = {slope, slope};
  both[1].name = "hill";
  arguments.tensors = both;
  arguments.tensor_count = 2;
  must_fail(calls_run_host(open, &arguments), ROTA_INVALID_ARGUMENT, "hill|no such tensor");
  free(copy);
  rota_plan_destroy(open);
  rota_plan_destroy(held);
  rota_kernel_destroy(kernel);
  rota_context_destroy(context);
  problem_free(&problem);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_version_and_names), cmocka_unit_test(test_missing_arguments),
      cmocka_unit_test(test_context_options),   cmocka_unit_test(test_specs),
      cmocka_unit_test(test_requests),          cmocka_unit_test(test_forward_numbers),
      cmocka_unit_test(test_backward_numbers),  cmocka_unit_test(test_expanded_gradient),
      cmocka_unit_test(test_refused_tensors),   cmocka_unit_test(test_any_layout),
      cmocka_unit_test(test_workspace),         cmocka_unit_test(test_named_tensors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
