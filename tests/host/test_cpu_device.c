/* The CPU device: number formats, agreement with fp64, independence of threads, the order of
 * additions to dQ. */
#include "tests/support/trial.h"

#include "runtime/cpu_numbers.h"
#include "runtime/safetensors.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static rota_context *context;

/* The formats' definitions, in arithmetic: sign, exponent and mantissa bits. */
static double decode(unsigned bits, int exponent_bits, int mantissa_bits) {
  int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  double fraction = ldexp((double)(bits & ((1u << mantissa_bits) - 1)), -mantissa_bits);
  double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0.0 ? sign * INFINITY : NAN;
  if (exponent == 0)
    return sign * ldexp(fraction, 1 - bias);
  return sign * ldexp(1.0 + fraction, exponent - bias);
}

static uint16_t encode(rota_dtype dtype, float value) {
  return dtype == ROTA_BF16 ? number_to_bf16(value) : number_to_fp16(value);
}

/* All 65,536 values of a format, and between each and its upward neighbour: the half (to even)
 * and both sides of it. */
static void check_format(rota_dtype dtype, int exponent_bits, int mantissa_bits) {
  unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  for (unsigned bits = 0; bits < 65536; bits++) {
    uint16_t stored = (uint16_t)bits;
    float value;
    numbers_load(dtype, &stored, 1, &value);
    double expected = decode(bits, exponent_bits, mantissa_bits);
    if (isnan(expected)) {
      assert_true(isnan(value));
      numbers_load(dtype, &(uint16_t){encode(dtype, value)}, 1, &value);
      assert_true(isnan(value));
      continue;
    }
    assert_true((double)value == expected && signbit(value) == signbit((float)expected));
    assert_int_equal(encode(dtype, value), bits);
    if ((bits & 0x7fff) >= infinity)
      continue;
    double next = decode(bits + 1, exponent_bits, mantissa_bits);
    if (isinf(next)) /* where the next step up would be, were there no infinity */
      next = copysign(2.0 * fabs(expected) - fabs(decode(bits - 1, exponent_bits, mantissa_bits)),
                      expected);
    float half = (float)((expected + next) / 2.0);
    if ((double)half != (expected + next) / 2.0)
      continue; /* below fp32's own subnormals */
    float away = copysignf(INFINITY, half);
    assert_int_equal(encode(dtype, half), bits + (bits & 1));
    assert_int_equal(encode(dtype, nextafterf(half, away)), bits + 1);
    assert_int_equal(encode(dtype, nextafterf(half, 0.0f)), bits);
  }
}

static void test_number_formats(void **state) {
  (void)state;
  check_format(ROTA_FP16, 5, 10);
  check_format(ROTA_BF16, 8, 7);
}

static Trial *prepared(const TrialShape *shape) {
  Trial *trial = trial_create(shape);
  if (trial_prepare(trial, context, NULL) != ROTA_OK)
    fail_msg("%s", rota_error_message());
  return trial;
}

static void run(Trial *trial) {
  if (trial_run(trial) != ROTA_OK)
    fail_msg("%s", rota_error_message());
}

static const int32_t packed_q[] = {0, 70, 70, 199}, packed_k[] = {0, 90, 131, 260};
static const int32_t used_q[] = {70, 0, 100}, used_k[] = {33, 41, 0};

static const TrialShape shapes[] = {
    {.dtype = ROTA_BF16,
     .head_dim = 64,
     .heads = 8,
     .kv_heads = 2,
     .batch = 2,
     .n_q = 113,
     .n_k = 113,
     .mask = "causal",
     .backward = "ordered"},
    {.dtype = ROTA_FP16,
     .head_dim = 40,
     .heads = 2,
     .batch = 2,
     .n_q = 257,
     .n_k = 130,
     .mask = "window(100, 3)",
     .score = "softcap(10)",
     .backward = "two_pass",
     .layout = ROTA_LAYOUT_ANY,
     .sink = true,
     .d_lse = true},
    {.dtype = ROTA_FP32,
     .head_dim = 33,
     .head_dim_v = 7,
     .heads = 3,
     .batch = 1,
     .n_q = 65,
     .n_k = 130,
     .backward = "two_pass",
     .layout = ROTA_LAYOUT_ANY,
     .sink = true,
     .d_lse = true,
     .heads_outside = true},
    {.dtype = ROTA_BF16,
     .head_dim = 192,
     .head_dim_v = 128,
     .heads = 2,
     .batch = 1,
     .n_q = 100,
     .n_k = 300,
     .mask = "causal",
     .backward = "atomic",
     .nondeterministic = true,
     .d_lse = true},
    {.dtype = ROTA_FP16,
     .head_dim = 80,
     .heads = 4,
     .kv_heads = 1,
     .batch = 3,
     .cu_q = packed_q,
     .cu_k = packed_k,
     .used_q = used_q,
     .used_k = used_k,
     .mask = "causal",
     .backward = "ordered",
     .heads_outside = true},
    {.dtype = ROTA_BF16,
     .head_dim = 24,
     .heads = 4,
     .kv_heads = 2,
     .batch = 2,
     .n_q = 150,
     .n_k = 150,
     .mask = "where \"k <= q and (h + b) % 2 == (k // 64) % 2\"",
     .backward = "ordered",
     .sink = true},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void test_agrees_with_fp64(void **state) {
  (void)state;
  for (int i = 0; i < SHAPES; i++) {
    Trial *trial = prepared(&shapes[i]);
    run(trial);
    TrialReport report = trial_check(trial);
    printf("%d:", i);
    trial_print_report(&report);
    assert_true(report.good);
    assert_true(trial_margins_intact(trial));
    trial_destroy(trial);
  }
}

static void test_threads_do_not_change_bits(void **state) {
  (void)state;
  int before = omp_get_max_threads();
  for (int i = 0; i < SHAPES; i++) {
    Trial *trial = prepared(&shapes[i]);
    Digest first = {{0}};
    for (int threads = 1; threads <= 7; threads += 2) {
      omp_set_num_threads(threads);
      run(trial);
      Digest digest = trial_all_bits(trial);
      if (threads == 1)
        first = digest;
      assert_string_equal(digest.hex, first.hex);
    }
    trial_destroy(trial);
  }
  omp_set_num_threads(before);
}

enum { TILES = 5, DIM = 64 };

/* K of one key per kv tile and dim: where large ones cancel, a small one that came before is lost,
 * one that comes after is not. */
static float key_of(int tile, int i) {
  static const float sizes[] = {1.0f, 0x1p30f, -0x1p30f};
  for (int t = 0; t < tile; t++)
    i /= 3; /* the dims count in base 3: nearly all combinations */
  return sizes[i % 3];
}

/* dQ with Q = 0, V = 0 and dLSE = 1: every P is p = 1 / n and every dS too, so tile t's partial
 * is p times its one key, exactly, and only the order of the fp32 sum decides the result. */
static int count_equal(const Trial *trial, float p, bool ascending) {
  int equal = 0;
  for (int i = 0; i < DIM; i++) {
    float sum = 0.0f;
    for (int t = 0; t < TILES; t++)
      sum += p * key_of(ascending ? t : TILES - 1 - t, i);
    equal += (double)number_round(ROTA_BF16, sum) == trial_get(trial, TRIAL_D_Q, 0, 3, 0, i);
  }
  return equal;
}

static void fill_keys(Trial *trial, int n, int tile_kv) {
  for (int k = 0; k < n; k++)
    for (int i = 0; i < DIM; i++) {
      trial_set(trial, TRIAL_K, 0, k, 0, i,
                k % tile_kv == 7 ? (double)key_of(k / tile_kv, i) : 0.0);
      trial_set(trial, TRIAL_V, 0, k, 0, i, 0.0);
    }
  for (int q = 0; q < 8; q++) {
    trial_set(trial, TRIAL_D_LSE, 0, q, 0, 0, 1.0);
    for (int i = 0; i < DIM; i++)
      trial_set(trial, TRIAL_Q, 0, q, 0, i, 0.0);
  }
}

static void test_partials_are_added_by_rank(void **state) {
  (void)state;
  const char *schedules[] = {"ascending", "shortest_first"};
  for (int i = 0; i < 2; i++) {
    TrialShape shape = {.dtype = ROTA_BF16,
                        .head_dim = DIM,
                        .batch = 1,
                        .n_q = 8,
                        .n_k = 1,
                        .scale = 1.0f,
                        .backward = "ordered",
                        .schedule = schedules[i],
                        .d_lse = true};
    Trial *trial = prepared(&shape);
    rota_plan_info info;
    rota_plan_get_info(trial->plans[ROTA_BACKWARD], &info);
    trial_destroy(trial);
    shape.n_k = TILES * info.tile_kv;
    trial = prepared(&shape);
    fill_keys(trial, shape.n_k, info.tile_kv);
    run(trial);
    float p = expf(-(float)trial_get(trial, TRIAL_LSE, 0, 3, 0, 0));
    assert_true(fabsf(p * (float)shape.n_k - 1.0f) < 1e-5f);
    assert_int_equal(count_equal(trial, p, i == 0), DIM);
    assert_true(count_equal(trial, p, i != 0) < DIM);
    trial_destroy(trial);
  }
}

/* A row without an allowed key takes no part, whatever its Q and dO hold. */
static void test_empty_rows_do_not_leak(void **state) {
  (void)state;
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 16,
                      .heads = 2,
                      .batch = 1,
                      .n_q = 70,
                      .n_k = 70,
                      .mask = "where \"q ~= 5 and k <= q\"",
                      .backward = "ordered"};
  Digest bits[2];
  for (int i = 0; i < 2; i++) {
    Trial *trial = prepared(&shape);
    for (int j = 0; j < 16; j++) {
      trial_set(trial, TRIAL_D_O, 0, 5, 1, j, i ? (double)NAN : 0.0);
      trial_set(trial, TRIAL_Q, 0, 5, 1, j, i ? (double)INFINITY : 0.0);
    }
    run(trial);
    bits[i] = trial_all_bits(trial);
    assert_true(trial_get(trial, TRIAL_D_Q, 0, 5, 1, 3) == 0.0);
    trial_destroy(trial);
  }
  assert_string_equal(bits[0].hex, bits[1].hex);
}

static void copy_in(Trial *trial, TrialRole role, const SafetensorsEntry *entry) {
  assert_non_null(entry);
  const uint16_t *bits = entry->data;
  for (int row = 0; row < trial->shape.n_q; row++)
    for (int i = 0; i < 12 * 32; i++)
      trial_set(trial, role, 0, row, i / 32, i % 32,
                (double)number_from_bf16(bits[row * 12 * 32 + i]));
}

/* Queries, keys and values of a real transformer: larger scores and less even than random ones. */
static void test_real_activations(void **state) {
  (void)state;
  char path[4096];
  const char *source = getenv("ROTA_TEST_SOURCE");
  snprintf(path, sizeof path, "%s/tests/data/minilm_qkv.safetensors", source ? source : ".");
  Safetensors *file;
  if (safetensors_read(path, &file) != ROTA_OK)
    fail_msg("%s", status_message());
  const SafetensorsEntry *ids = safetensors_find(file, "document");
  assert_non_null(ids);
  int tokens = (int)ids->size[1];
  rota_named_tensor document = {"document", ROTA_INT32, 2, {1, tokens}, {tokens, 1}, ids->data};
  TrialShape shape = {.dtype = ROTA_BF16,
                      .head_dim = 32,
                      .heads = 12,
                      .batch = 1,
                      .n_q = tokens,
                      .n_k = tokens,
                      .mask = "document",
                      .tensors = &document,
                      .tensor_count = 1,
                      .backward = "ordered"};
  Trial *trial = prepared(&shape);
  copy_in(trial, TRIAL_Q, safetensors_find(file, "q"));
  copy_in(trial, TRIAL_K, safetensors_find(file, "k"));
  copy_in(trial, TRIAL_V, safetensors_find(file, "v"));
  run(trial);
  TrialReport report = trial_check(trial);
  printf("MiniLM:");
  trial_print_report(&report);
  assert_true(report.good);
  trial_destroy(trial);
  safetensors_destroy(file);
}

static void test_memory_may_run_out(void **state) {
  (void)state;
  Trial *trial = prepared(&shapes[0]);
  trial_upload(trial);
  for (int direction = 0; direction < 2; direction++)
    for (long n = 1; n <= (direction ? 3 : 1); n++) {
      memory_fail_at(n);
      assert_int_equal(trial_launch(trial, (rota_direction)direction), ROTA_OUT_OF_MEMORY);
      memory_fail_at(0);
    }
  run(trial); /* and works again */
  trial_destroy(trial);
}

static int start(void **state) {
  (void)state;
  rota_context_options options = {.cache_dir = "", .debug = -1};
  return (int)rota_context_create(&options, &context);
}

static int stop(void **state) {
  (void)state;
  rota_context_destroy(context);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_number_formats),
      cmocka_unit_test(test_agrees_with_fp64),
      cmocka_unit_test(test_threads_do_not_change_bits),
      cmocka_unit_test(test_partials_are_added_by_rank),
      cmocka_unit_test(test_empty_rows_do_not_leak),
      cmocka_unit_test(test_real_activations),
      cmocka_unit_test(test_memory_may_run_out),
  };
  return cmocka_run_group_tests(tests, start, stop);
}
