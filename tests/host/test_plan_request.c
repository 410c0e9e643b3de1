/* What a plan request may get wrong, and the message for it: lengths, parameter values, tensors. */
#include "tests/support/plan_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Lengths ---- */

static const int32_t cu_good[] = {0, 3, 3, 10}, cu_falling[] = {0, 5, 4, 10},
                     cu_negative[] = {-1, 3, 3, 10}, cu_long[] = {0, 70000000, 70000000, 70000000},
                     used_good[] = {3, 0, 5}, used_beyond[] = {3, 1, 7},
                     used_negative[] = {-1, 0, 0};

static const struct {
  rota_lengths lengths;
  const char *message;
} bad_lengths[] = {
    {{.batch = -1}, "batch -1 is negative"},
    {{.batch = 1, .n_q = -4}, "lengths n_q -4, n_k 0: must not be negative"},
    {{.batch = 1, .n_k = 67108865},
     "sequence 0 has 67108865 rows of k; the limit is 2^26 = 67108864"},
    {{.batch = 3, .cu_seqlens_q = cu_good}, "cu_seqlens_k is missing: packed sequences need both"},
    {{.batch = 3, .cu_seqlens_k = cu_good}, "cu_seqlens_q is missing: packed sequences need both"},
    {{.batch = 3, .cu_seqlens_q = cu_good, .cu_seqlens_k = cu_falling},
     "cu_seqlens_k[2] = 4 is below cu_seqlens_k[1] = 5; offsets ascend"},
    {{.batch = 3, .cu_seqlens_q = cu_negative, .cu_seqlens_k = cu_good},
     "cu_seqlens_q[0] is -1; offsets start at 0 or later"},
    {{.batch = 3, .cu_seqlens_q = cu_long, .cu_seqlens_k = cu_good},
     "sequence 0 has 70000000 rows of q; the limit is 2^26 = 67108864"},
    {{.batch = 3, .cu_seqlens_q = cu_good, .cu_seqlens_k = cu_good, .seqused_k = used_beyond},
     "seqused_k[1] = 1 is not in 0 .. 0, the rows of its sequence"},
    {{.batch = 3, .n_q = 5, .n_k = 5, .seqused_q = used_negative},
     "seqused_q[0] = -1 is not in 0 .. 5, the rows of its sequence"},
};

static void test_bad_lengths(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bad_lengths / sizeof *bad_lengths; i++) {
    Lengths *lengths;
    assert_int_equal(lengths_create(&bad_lengths[i].lengths, &lengths), ROTA_INVALID_ARGUMENT);
    assert_null(lengths);
    assert_string_equal(status_message(), bad_lengths[i].message);
  }
}

static void test_good_lengths(void **state) {
  (void)state;
  rota_lengths packed = {
      .batch = 3, .cu_seqlens_q = cu_good, .cu_seqlens_k = cu_good, .seqused_k = used_good};
  Lengths *lengths;
  assert_int_equal(lengths_create(&packed, &lengths), ROTA_OK);
  assert_true(lengths->packed);
  const int want[3][4] = {{3, 3, 3, 0}, {0, 0, 0, 3}, {7, 5, 7, 3}}; /* n_q n_k rows_k begin_k */
  for (int s = 0; s < 3; s++) {
    assert_int_equal(lengths->n_q[s], want[s][0]);
    assert_int_equal(lengths->rows_q[s], want[s][0]);
    assert_int_equal(lengths->n_k[s], want[s][1]);
    assert_int_equal(lengths->rows_k[s], want[s][2]);
    assert_int_equal(lengths->begin_k[s], want[s][3]);
  }
  lengths_destroy(lengths);
  rota_lengths dense = {.batch = 2, .n_q = 4, .n_k = 9};
  assert_int_equal(lengths_create(&dense, &lengths), ROTA_OK);
  assert_false(lengths->packed);
  assert_int_equal(lengths->rows_q[1], 4);
  assert_int_equal(lengths->n_k[1], 9);
  assert_int_equal(lengths->begin_q[1], 0);
  lengths_destroy(lengths);
}

/* ---- Values and tensors: a mask with `document`, a score with `bias`, parameters w, f and const_w
 * ---- */

static int32_t ids[64];
static const rota_named_tensor document = {"document", ROTA_INT32, 1, {64}, {1}, ids};
static const rota_named_tensor bias_tensor = {"bias", ROTA_FP32, 2, {4, 64}, {64, 1}, NULL};

static void request_case(PlanCase *at) {
  plan_case_create(at, "ordered", "k <= q + w and document[q] == document[k]", "s * f + bias[h, q]",
                   4, 2);
  at->request.lengths = (rota_lengths){.batch = 1, .n_q = 64, .n_k = 64};
}

static void expect(PlanCase *at, const char *message) {
  Plan *plan;
  rota_status status = plan_case_build(at, &plan);
  if (status != ROTA_INVALID_ARGUMENT || strcmp(status_message(), message) != 0)
    fail_msg("wanted '%s', got status %d, '%s'", message, (int)status, status_message());
  assert_null(plan);
}

static void test_bad_values(void **state) {
  (void)state;
  static const struct {
    rota_named_value values[2];
    const char *message;
  } bad[] = {
      {{{"width", 3}}, "the spec has no parameter 'width'"},
      {{{NULL, 3}}, "values[0] has no name"},
      {{{"w", 3}, {"w", 3}}, "parameter 'w' is given twice"},
      {{{"w", 2.5}}, "parameter 'w' is an int, but its value is not integral"},
      {{{"w", 1073741825.0}}, "parameter 'w': the value is outside -2^30 .. 2^30"},
      {{{"w", -1e300}}, "parameter 'w': the value is outside -2^30 .. 2^30"},
      {{{"w", NAN}}, "parameter 'w': the value is outside -2^30 .. 2^30"},
      {{{"f", 1e39}}, "parameter 'f': the value is not a finite float"},
      {{{"f", NAN}}, "parameter 'f': the value is not a finite float"},
      {{{"const_w", 7}},
       "parameter 'const_w' is constant: its value is part of the program; declare "
       "it without const to set it per plan"},
  };
  PlanCase at;
  request_case(&at);
  const rota_named_tensor tensors[] = {document, bias_tensor};
  at.request.tensors = tensors;
  at.request.tensor_count = 2;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    at.request.values = bad[i].values;
    at.request.value_count = i == 2 ? 2 : 1;
    expect(&at, bad[i].message);
  }
  at.request.values = NULL;
  expect(&at, "value_count is 1, but values is missing");
  plan_case_free(&at);
}

static void test_bad_tensors(void **state) {
  (void)state;
  static const struct {
    rota_named_tensor tensor; /* beside the other, good one */
    const char *message;
  } bad[] = {
      {{"documents", ROTA_INT32, 1, {64}, {1}, ids}, "the spec has no tensor 'documents'"},
      {{NULL, ROTA_INT32, 1, {64}, {1}, ids}, "tensors[1] has no name"},
      {{"document", ROTA_FP32, 1, {64}, {1}, ids},
       "tensor 'document' is fp32, but the spec declares int32"},
      {{"document", ROTA_INT32, 2, {64, 1}, {1, 1}, ids},
       "tensor 'document' has rank 2, but the spec indexes it with 1"},
      {{"document", ROTA_INT32, 0, {0}, {0}, ids}, "tensor 'document': rank 0 is not in 1 .. 4"},
      {{"document", ROTA_INT32, 5, {1, 1, 1, 1}, {0}, ids},
       "tensor 'document': rank 5 is not in 1 .. 4"},
      {{"document", ROTA_INT32, 1, {-1}, {1}, ids},
       "tensor 'document': size[0] = -1 is not in 0 .. 2^31-1"},
      {{"document", ROTA_INT32, 1, {64}, {INT64_MAX}, ids},
       "tensor 'document': stride[0] = 9223372036854775807 is beyond 2^40"},
      {{"document", ROTA_INT32, 1, {64}, {1}, NULL},
       "tensor 'document' belongs to the mask: planning needs its data, in host memory"},
      {{"bias", ROTA_FP32, 2, {4, 64}, {64, 1}, NULL}, "tensor 'bias' is given twice"},
  };
  PlanCase at;
  request_case(&at);
  at.request.tensor_count = 2;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    rota_named_tensor tensors[2] = {bias_tensor, bad[i].tensor};
    at.request.tensors = tensors;
    expect(&at, bad[i].message);
  }
  at.request.tensor_count = 1;
  at.request.tensors = &document;
  expect(&at,
         "tensor 'bias' of the score is missing: the plan needs its shape (data may follow with "
         "each run)");
  at.request.tensors = &bias_tensor;
  expect(&at, "tensor 'document' of the mask is missing: the plan needs its shape and data");
  at.request.tensors = NULL;
  expect(&at, "tensor_count is 1, but tensors is missing");
  plan_case_free(&at);
}

/* Too short for its indices: refused with the tensor's name, whichever expression reads it. */
static void test_bounds_are_proven(void **state) {
  (void)state;
  PlanCase at;
  Plan *plan;
  request_case(&at);
  for (int which = 0; which < 2; which++) {
    rota_named_tensor tensors[2] = {document, bias_tensor};
    tensors[which].size[which] = 63; /* document[63], bias[., 63] */
    at.request.tensors = tensors;
    at.request.tensor_count = 2;
    assert_int_equal(plan_case_build(&at, &plan), ROTA_INVALID_ARGUMENT);
    assert_non_null(strstr(status_message(), which ? "bias" : "document"));
  }
  rota_named_tensor tensors[2] = {document, bias_tensor};
  tensors[1].size[0] = 3; /* of four heads */
  at.request.tensors = tensors;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_INVALID_ARGUMENT);
  at.request.lengths.n_q = 0; /* no position reads it */
  assert_int_equal(plan_case_build(&at, &plan), ROTA_OK);
  plan_destroy(plan);
  plan_case_free(&at);
  /* The mask is one for all sequences, the score reads an entry of each. */
  plan_case_create(&at, "forward", "k <= q", "s + bias[b, q]", 1, 1);
  at.request = (rota_plan_request){
      .lengths = {.batch = 4, .n_q = 64, .n_k = 64}, .tensors = &bias_tensor, .tensor_count = 1};
  assert_int_equal(plan_case_build(&at, &plan), ROTA_OK);
  plan_destroy(plan);
  at.request.lengths.batch = 5;
  assert_int_equal(plan_case_build(&at, &plan), ROTA_INVALID_ARGUMENT);
  assert_non_null(strstr(status_message(), "bias"));
  plan_case_free(&at);
}

/* Strided and reversed data become row-major copies that outlive the caller's. */
static void test_tensors_are_copied(void **state) {
  (void)state;
  PlanCase at;
  plan_case_create(&at, "forward", "grid[q // 16, k // 16] ~= 0 and k <= q + w", NULL, 1, 1);
  int32_t *data = calloc(100, sizeof(int32_t));
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 3; j++)
      data[90 - 20 * i + 3 * j] = 10 * i + j;
  rota_named_tensor grid = {"grid", ROTA_INT32, 2, {4, 3}, {-20, 3}, data + 90};
  rota_named_value value = {"w", 48};
  at.request = (rota_plan_request){.lengths = {.batch = 1, .n_q = 64, .n_k = 48},
                                   .tensors = &grid,
                                   .tensor_count = 1,
                                   .values = &value,
                                   .value_count = 1};
  Plan *plan = plan_case_good(&at);
  free(data);
  assert_int_equal(plan->tensors[0].count, 12);
  assert_ptr_equal(plan->bindings.tensors[0].data, plan_section(plan, plan->tensors[0]));
  assert_int_equal(plan->bindings.tensors[0].stride[0], 3);
  assert_int_equal(plan->bindings.tensors[0].stride[1], 1);
  const int32_t *copy = plan_section(plan, plan->tensors[0]);
  for (int i = 0; i < 12; i++)
    assert_int_equal(copy[i], 10 * (i / 3) + i % 3);
  assert_int_equal(plan->bindings.parameters[0].i, 48);
  assert_int_equal(plan->partial_tiles, 2); /* only grid[0, 0] is 0: in the first of two kv tiles */
  plan_destroy(plan);
  plan_case_free(&at);
}

int main(void) {
  for (int i = 0; i < 64; i++)
    ids[i] = i / 20;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_lengths),       cmocka_unit_test(test_good_lengths),
      cmocka_unit_test(test_bad_values),        cmocka_unit_test(test_bad_tensors),
      cmocka_unit_test(test_bounds_are_proven), cmocka_unit_test(test_tensors_are_copied),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
