/* Tensors in expressions: proofs that indices stay inside, and the ranges of their elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/expression_ast.h"
#include "tests/support/random_expression.h"

enum { LENGTH = 1000 };

/* ---- Bounds ---- */

static const struct {
  const char *text;      /* t, u: tensors; window = 16, n = 5 (int) */
  int64_t size[2];       /* of each dimension of t and u */
  const char *complaint; /* NULL: accepted */
} bounds_cases[] = {
    {"t[q] == t[k]", {1000}, NULL},
    {"t[q] == 1", {999}, "tensor 't', index 1: q may reach [0, 999], but the size is 999"},
    {"t[k + 1] == 1", {1000}, "(k + 1) may reach [1, 1000]"},
    {"t[q - k] == 1", {1000}, "(q - k) may reach [-999, 999]"},
    {"t[q, k] == 1", {1000, 1000}, NULL},
    {"t[q, k] == 1", {1000, 999}, "index 2: k may reach"},
    {"t[q // 64, k // 64] == 1", {16, 16}, NULL},
    {"t[q // 64, k // 64] == 1", {16, 15}, "index 2: (k // 64) may reach [0, 15]"},
    {"t[k % 7] == 1", {7}, NULL},
    {"t[k % 8] == 1", {7}, "may reach [0, 7]"},
    {"t[min(k, 4)] == 1", {5}, NULL},
    {"t[q - k + n_k] == 1", {2000}, NULL},
    {"t[n_k - 1 - k] == 1", {1000}, NULL},
    /* guards */
    {"k < 5 and t[k] == 1", {5}, NULL},
    {"k <= 5 and t[k] == 1", {5}, "k may reach [0, 999]"},
    {"k < n and t[k] == 1", {5}, NULL},
    {"5 > k and t[k] == 1", {5}, NULL},
    {"not (k >= 5) and t[k] == 1", {5}, NULL},
    {"k >= 5 or t[k] == 1", {5}, NULL},
    {"k > 5 or t[k] == 1", {5}, "size is 5"},
    {"t[k] == 1 and k < 5", {5}, "size is 5"}, /* a guard stands on the left */
    {"(q < 9 or k < 9) and t[k] == 1", {9}, "size is 9"},
    {"(q < 9 and k < 9) and t[q + k] == 1", {17}, NULL},
    {"k == 3 and t[k] == 1", {4}, NULL},
    {"k ~= 3 or t[k] == 1", {4}, NULL},
    {"select(k < 5, t[k], 0) == 1", {5}, NULL},
    {"select(k < 5, 0, t[k]) == 1", {5}, "size is 5"},
    {"select(k < 5, 0, t[k - 5]) == 1", {995}, NULL},
    {"q - k < window and q >= k and t[q - k] == 1", {16}, NULL},
    {"q - k < window and q >= k and t[q - k] == 1", {15}, "size is 15"},
    {"q - k < window and t[q - k] == 1", {16}, "size is 16"},
    {"q >= k and q - k < window and t[window - 1 - (q - k)] == 1", {16}, NULL},
    {"k < 10 and k % 2 == 0 and t[k // 2] == 1", {5}, NULL},
    {"k % 10 < 5 and t[k % 10] == 1", {5}, NULL},
    {"k // 100 == 2 and t[k - 200] == 1", {100}, NULL},
    {"k // 100 == 2 and t[k - 200] == 1", {99}, "size is 99"},
    {"q * k < 50 and q > 0 and t[k] == 1", {50}, NULL},
    {"t[k] >= 0 and t[k] < 4 and u[t[k]] == 1", {1000, 4}, NULL},
    {"t[k] >= -2 and t[k] < 4 and u[t[k] + 2] == 1", {1000, 6}, NULL},
    {"t[k] > -2 and t[k] < 4 and u[t[k] - 1] == 1", {1000, 6}, "size is 6"},
    {"u[t[k]] == 1", {1000, 4}, "t[k] may reach"},
    {"false and t[k] == 1", {1}, NULL},
    {"k < 2000 or t[k] == 1", {1}, NULL}, /* never reached */
    {"h < 1 and t[k + 1000 * h] == 1", {1000}, NULL},
};

static void check_bounds_case(size_t i) {
  Symbols symbols = {
      .parameters = {{"window", VALUE_INT, false, {.i = 16}}, {"n", VALUE_INT, false, {.i = 5}}},
      .parameter_count = 2};
  Expression *mask;
  if (expression_parse(bounds_cases[i].text, (SourcePlace){0}, EXPRESSION_MASK, &symbols, NULL, 0,
                       &mask) != ROTA_OK)
    fail_msg("%s", status_message());
  Bindings bindings = {.parameters = {{.i = 16}, {.i = 5}}};
  static int32_t data[LENGTH * 2];
  for (int j = 0; j < LENGTH * 2; j++)
    data[j] = j % 9 - 2;
  const int64_t *size = bounds_cases[i].size;
  bool two = symbols.tensor_count == 2;
  bindings.tensors[0] = (TensorBinding){.data = data, .size = {size[0], size[1]}};
  bindings.tensors[0].stride[0] = 1;
  bindings.tensors[1] = (TensorBinding){.data = data, .size = {two ? size[1] : 0}, .stride = {1}};
  Box box = {0, LENGTH - 1, 0, LENGTH - 1, 0, 1, 0, LENGTH, LENGTH};
  assert_int_equal(expression_prepare_ranges(&symbols, &bindings), ROTA_OK);
  rota_status status = expression_check_bounds(mask, &symbols, &bindings, &box);
  const char *complaint = bounds_cases[i].complaint;
  if ((status != ROTA_OK) != (complaint != NULL) ||
      (complaint && !strstr(status_message(), complaint)))
    fail_msg("%s: %s", bounds_cases[i].text, status ? status_message() : "accepted");
  if (complaint)
    assert_int_equal(status, ROTA_INVALID_ARGUMENT);
  box.k_max = -1; /* no positions: nothing to complain of */
  assert_int_equal(expression_check_bounds(mask, &symbols, &bindings, &box), ROTA_OK);
  expression_release_ranges(&bindings);
  expression_release(mask);
}

static void test_bounds(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bounds_cases / sizeof bounds_cases[0]; i++)
    check_bounds_case(i);
}

/* Random masks: what is accepted never reads outside, position by position. */
static void test_bounds_random(void **state) {
  (void)state;
  static RandomExpression drawn;
  static World world;
  int accepted = 0, refused = 0, needlessly = 0;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    world_create(&world, seed);
    random_expression(&drawn, seed + 5000, EXPRESSION_MASK, false, 4 + (int)(seed % 3));
    Expression *mask;
    if (expression_parse(drawn.text, (SourcePlace){0}, EXPRESSION_MASK, &world.symbols, NULL, 0,
                         &mask) == ROTA_OK) {
      Box box = {0, 11, 0, 11, 0, 1, 1, 12, 12};
      bool fine = expression_check_bounds(mask, &world.symbols, &world.bindings, &box) == ROTA_OK;
      int outside = 0;
      WorldPosition at = {.b = 1, .n_q = 12, .n_k = 12};
      for (at.q = 0; at.q <= 11; at.q++)
        for (at.k = 0; at.k <= 11; at.k++)
          for (at.h = 0; at.h <= 1; at.h++)
            outside += random_expression_outside(&drawn, &world, &at);
      if (fine && outside)
        fail_msg("%s was accepted", drawn.text);
      accepted += fine;
      refused += !fine;
      needlessly += !fine && !outside;
      expression_release(mask);
    }
    world_free(&world);
  }
  print_message("%d accepted, %d refused, %d of them needlessly\n", accepted, refused, needlessly);
  assert_true(accepted > 1000 && refused > 100 && needlessly * 5 < refused);
}

/* ---- Ranges ---- */

typedef struct Sample {
  Symbols symbols;
  Bindings bindings;
  union {
    int32_t i[8192];
    float f[8192];
  } data;
} Sample;
static Sample sample;

/* A tensor of the given shape; `reversed` lays it out with negative strides. */
static void create_sample(int rank, const int64_t *size, bool real, bool reversed, bool nans,
                          uint64_t *state) {
  memset(&sample, 0, sizeof sample);
  sample.symbols.tensor_count = 1;
  sample.symbols.tensors[0] = (TensorSymbol){"t", real ? ROTA_FP32 : ROTA_INT32, rank, true};
  TensorBinding *tensor = &sample.bindings.tensors[0];
  int64_t count = 1;
  for (int d = rank - 1; d >= 0; d--) {
    tensor->size[d] = size[d];
    tensor->stride[d] = reversed ? -count : count;
    count *= size[d];
  }
  assert_in_range(count, 1, 8192);
  for (int64_t i = 0; i < count; i++) {
    int value = random_below(state, 1000000) - 500000;
    if (real)
      sample.data.f[i] = nans && value % 5 == 0 ? NAN : (float)value / 8;
    else
      sample.data.i[i] = value;
  }
  tensor->data = reversed ? (const void *)(sample.data.i + count - 1) : sample.data.i;
  assert_int_equal(expression_prepare_ranges(&sample.symbols, &sample.bindings), ROTA_OK);
}

typedef struct Extremes {
  double low, high;
  bool nan;
} Extremes;

static Extremes search(const int64_t *low, const int64_t *high, bool real) {
  const TensorBinding *t = &sample.bindings.tensors[0];
  Extremes found = {INFINITY, -INFINITY, false};
  int64_t at[4];
  for (at[0] = low[0]; at[0] <= high[0]; at[0]++)
    for (at[1] = low[1]; at[1] <= high[1]; at[1]++)
      for (at[2] = low[2]; at[2] <= high[2]; at[2]++)
        for (at[3] = low[3]; at[3] <= high[3]; at[3]++) {
          int64_t offset = at[0] * t->stride[0] + at[1] * t->stride[1] + at[2] * t->stride[2] +
                           at[3] * t->stride[3];
          double value = real ? (double)((const float *)t->data)[offset]
                              : (double)((const int32_t *)t->data)[offset];
          found.nan |= isnan(value);
          found.low = value < found.low ? value : found.low;
          found.high = value > found.high ? value : found.high;
        }
  return found;
}

/* Sound always; exact for a range of one dimension, and for small or aligned blocks. */
static void check_query(int rank, const int64_t *size, bool real, uint64_t *state) {
  int64_t low[4] = {0}, high[4] = {0};
  int varying = 0;
  for (int d = 0; d < rank; d++) {
    low[d] = random_below(state, (int)size[d]);
    high[d] = low[d];
    if (random_below(state, 3) > 0)
      high[d] += random_below(state, (int)(size[d] - low[d]));
    varying += high[d] > low[d];
  }
  Interval result;
  if (!tensor_ranges_query(sample.bindings.ranges[0], low, high, &result)) {
    assert_true(rank > 2); /* too many slices */
    return;
  }
  Extremes truth = search(low, high, real);
  double got_low = real ? (double)result.real.low : (double)result.range.low;
  double got_high = real ? (double)result.real.high : (double)result.range.high;
  assert_true(!truth.nan || result.real.nan);
  bool only_nans = truth.low > truth.high;
  assert_true(only_nans || (got_low <= truth.low && got_high >= truth.high));
  if (varying <= 1 && !only_nans) {
    assert_true(got_low == truth.low);
    assert_true(got_high == truth.high);
  }
}

static void test_ranges(void **state) {
  (void)state;
  static const struct {
    int rank;
    int64_t size[4];
  } shapes[] = {{1, {1}},
                {1, {4}},
                {1, {5}},
                {1, {1000}},
                {1, {8191}},
                {2, {1, 64}},
                {2, {64, 1}},
                {2, {70, 90}},
                {2, {17, 33}},
                {3, {3, 20, 30}},
                {4, {2, 3, 16, 20}},
                {3, {40, 3, 5}}};
  uint64_t random = 1;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    for (int variant = 0; variant < 6; variant++) {
      bool real = variant >= 3, nans = variant == 5;
      create_sample(shapes[i].rank, shapes[i].size, real, variant % 3 == 1, nans, &random);
      for (int query = 0; query < 200; query++)
        check_query(shapes[i].rank, shapes[i].size, real, &random);
      expression_release_ranges(&sample.bindings);
    }
  }
}

/* Aligned tiles over a block list are seen exactly; a whole large plane in bounded work. */
static void test_ranges_of_tiles(void **state) {
  (void)state;
  const int64_t size[] = {64, 128};
  uint64_t random = 3;
  create_sample(2, size, false, false, false, &random);
  for (int64_t row = 0; row < 64; row += 4)
    for (int64_t column = 0; column < 128; column += 16) {
      int64_t low[4] = {row, column}, high[4] = {row + 3, column + 15};
      Interval result;
      assert_true(tensor_ranges_query(sample.bindings.ranges[0], low, high, &result));
      Extremes truth = search(low, high, false);
      assert_true((double)result.range.low == truth.low);
      assert_true((double)result.range.high == truth.high);
    }
  expression_release_ranges(&sample.bindings);
}

/* Tensors that have no elements, no data, or more than could be walked. */
static void test_odd_tensors(void **state) {
  (void)state;
  Symbols symbols = {0};
  Expression *mask;
  assert_int_equal(expression_parse("t[q] == 0 and q <= k", (SourcePlace){0}, EXPRESSION_MASK,
                                    &symbols, NULL, 0, &mask),
                   ROTA_OK);
  static const int32_t seven = 7;
  const struct {
    const void *data;
    int64_t size, stride;
    Ternary answer;                         /* on q 0 .. 3, k 4 .. 7 */
  } cases[] = {{NULL, 10, 1, TERNARY_TRUE}, /* reads 0 */
               {&seven, 0, 1, TERNARY_TRUE},
               {&seven, 10, 0, TERNARY_FALSE},
               {&seven, (int64_t)1 << 60, 0, TERNARY_UNKNOWN}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    Bindings bindings = {0};
    bindings.tensors[0] = (TensorBinding){
        .data = cases[i].data, .size = {cases[i].size}, .stride = {cases[i].stride}};
    Box box = {.q_max = 3, .k_min = 4, .k_max = 7, .n_q = 8, .n_k = 8};
    assert_int_equal(expression_prepare_ranges(&symbols, &bindings), ROTA_OK);
    assert_int_equal(expression_interval(mask, &bindings, &box), cases[i].answer);
    expression_release_ranges(&bindings);
  }
  expression_release(mask);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bounds),      cmocka_unit_test(test_bounds_random),
      cmocka_unit_test(test_ranges),      cmocka_unit_test(test_ranges_of_tiles),
      cmocka_unit_test(test_odd_tensors),
  };
  return cmocka_run_group_tests_name("expression bounds", tests, NULL, NULL);
}
