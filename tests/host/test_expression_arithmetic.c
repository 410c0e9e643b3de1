/* Range arithmetic against values drawn from the ranges: no result outside, no overflow unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>

#include "generator/expression_ast.h"
#include "tests/support/random_expression.h"

enum { RANGES = 20000, DRAWS = 12 };

/* Ends of ranges cluster where things go wrong. */
static int64_t draw_integer(uint64_t *state) {
  static const int64_t edges[] = {0, 1, INT32_MAX, (int64_t)1 << 32, (int64_t)1 << 62, INT64_MAX};
  int64_t edge = edges[random_below(state, 6)];
  int64_t value = random_below(state, 3) ? random_below(state, 20) - 10 : edge;
  value = random_below(state, 4) == 0 ? -value : value;
  int64_t shift = random_below(state, 3);
  return value > INT64_MAX - 3 || value < INT64_MIN + 3 ? value - (value > 0 ? shift : -shift)
                                                        : value + shift;
}

static IntegerRange draw_integer_range(uint64_t *state) {
  int64_t a = draw_integer(state), b = random_below(state, 3) == 0 ? a : draw_integer(state);
  if (random_below(state, 50) == 0)
    a = INT64_MIN;
  return (IntegerRange){a < b ? a : b, a < b ? b : a};
}

static int64_t draw_within(IntegerRange range, uint64_t *state) {
  int choice = random_below(state, 4);
  if (choice < 2)
    return choice ? range.low : range.high;
  uint64_t width = (uint64_t)range.high - (uint64_t)range.low;
  uint64_t step = width == UINT64_MAX ? random_next(state) : random_next(state) % (width + 1);
  return (int64_t)((uint64_t)range.low + step);
}

/* The value in 128 bits, by the definition: floor(a / b), and what is left. */
static __int128 value_of(Operation operation, __int128 a, __int128 b) {
  switch (operation) {
  case OP_ADD:
    return a + b;
  case OP_SUBTRACT:
    return a - b;
  case OP_MULTIPLY:
    return a * b;
  case OP_MIN:
    return a < b ? a : b;
  case OP_MAX:
    return a > b ? a : b;
  case OP_NEGATE:
    return -a;
  case OP_ABS:
    return a < 0 ? -a : a;
  default:
    break;
  }
  if (b == 0)
    return 0;
  __int128 quotient = a / b;
  if (quotient * b != a && (a < 0) != (b < 0))
    quotient--;
  return operation == OP_FLOOR_DIVIDE ? quotient : a - quotient * b;
}

static void test_integer_ranges(void **state) {
  (void)state;
  static const Operation operations[] = {OP_ADD,          OP_SUBTRACT, OP_MULTIPLY,
                                         OP_FLOOR_DIVIDE, OP_MODULO,   OP_MIN,
                                         OP_MAX,          OP_NEGATE,   OP_ABS};
  uint64_t random = 1;
  int refused = 0, tight = 0, accepted = 0;
  for (int i = 0; i < RANGES; i++) {
    Operation operation = operations[i % 9];
    IntegerRange a = draw_integer_range(&random), b = draw_integer_range(&random), result;
    bool good = i % 9 >= 7 ? integer_range_unary(operation, a, &result)
                           : integer_range_binary(operation, a, b, &result);
    refused += !good;
    accepted += good;
    bool low = false, high = false;
    for (int j = 0; good && j < DRAWS * 4; j++) {
      int64_t x = draw_within(a, &random), y = draw_within(b, &random);
      __int128 value = value_of(operation, x, y);
      assert_true(value >= result.low && value <= result.high);
      low |= value == result.low;
      high |= value == result.high;
      if (operation == OP_FLOOR_DIVIDE)
        assert_true(integer_floor_divide(x, y) == value);
      if (operation == OP_MODULO)
        assert_true(integer_modulo(x, y) == value);
    }
    tight += good && low && high;
  }
  /* Overflow is claimed now and then, not always; bounds are mostly reached. */
  assert_true(refused > RANGES / 50 && refused < RANGES / 2);
  assert_true(tight * 10 > accepted * 7);
}

static float draw_float(uint64_t *state) {
  static const float edges[] = {0, 1e-45f, 1.17549435e-38f, 3.4028235e38f, INFINITY, 1e20f};
  float value = random_below(state, 3) ? (float)(random_below(state, 200) - 100) / 8
                                       : edges[random_below(state, 6)];
  return random_below(state, 4) == 0 ? -value : value;
}

static FloatRange draw_float_range(uint64_t *state) {
  float a = draw_float(state), b = random_below(state, 3) == 0 ? a : draw_float(state);
  return (FloatRange){a < b ? a : b, a < b ? b : a, random_below(state, 4) == 0};
}

static float draw_float_within(FloatRange range, uint64_t *state) {
  int choice = random_below(state, 5);
  if (choice == 4 && range.nan)
    return NAN;
  if (choice < 2)
    return choice ? range.low : range.high;
  float value = draw_float(state);
  return value >= range.low && value <= range.high ? value : range.low;
}

static void test_float_ranges(void **state) {
  (void)state;
  static const Operation operations[] = {
      OP_ADD, OP_SUBTRACT, OP_MULTIPLY, OP_DIVIDE, OP_FLOOR_DIVIDE, OP_MODULO, OP_MIN,
      OP_MAX, OP_NEGATE,   OP_ABS,      OP_FLOOR,  OP_CEIL,         OP_SQRT,   OP_INTEGER_POWER};
  uint64_t random = 2;
  for (int i = 0; i < RANGES * 2; i++) {
    Operation operation = operations[i % 14];
    FloatRange a = draw_float_range(&random), b = draw_float_range(&random);
    int exponent = random_below(&random, 5);
    FloatRange result = i % 14 >= 8 ? float_range_unary(operation, a, exponent)
                                    : float_range_binary(operation, a, b);
    assert_true(result.low <= result.high);
    for (int j = 0; j < DRAWS; j++) {
      float x = draw_float_within(a, &random), y = draw_float_within(b, &random);
      float value = operation == OP_INTEGER_POWER ? float_integer_power(x, exponent)
                    : i % 14 >= 8                 ? float_unary(operation, x)
                                                  : float_binary(operation, x, y);
      bool within = isnan(value) ? result.nan : value >= result.low && value <= result.high;
      if (!within)
        fail_msg("'%s' of %a and %a is %a, outside [%a, %a]", operation_text(operation), (double)x,
                 (double)y, (double)value, (double)result.low, (double)result.high);
    }
  }
}

static void test_conversions(void **state) {
  (void)state;
  assert_int_equal(float_to_integer(2147483520.0f), 2147483520);
  assert_int_equal(float_to_integer(2147483648.0f), INT32_MAX);
  assert_int_equal(float_to_integer(-2147483648.0f), INT32_MIN);
  assert_int_equal(float_to_integer(-INFINITY), INT32_MIN);
  assert_int_equal(float_to_integer(NAN), 0);
  assert_int_equal(float_to_integer(-0.9f), 0);
  assert_int_equal(integer_floor_divide(INT64_MIN, -1), INT64_MIN); /* wraps, does not trap */
  assert_int_equal(integer_modulo(INT64_MIN, -1), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_integer_ranges),
      cmocka_unit_test(test_float_ranges),
      cmocka_unit_test(test_conversions),
  };
  return cmocka_run_group_tests_name("expression arithmetic", tests, NULL, NULL);
}
