/* Level 2. Arithmetic of the expression language on values and on ranges: the one definition that
 * type check, intervals and evaluation share; templates/lib/expression.cuh is its twin in CUDA. */
#include <math.h>

#include "generator/expression_ast.h"

/* ---- Values ---- */

int64_t integer_floor_divide(int64_t a, int64_t b) {
  if (b == 0)
    return 0;
  if (b == -1)
    return (int64_t)(0 - (uint64_t)a); /* the minimum has no negative: wraps instead of trapping */
  int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t integer_modulo(int64_t a, int64_t b) {
  if (b == 0 || b == -1)
    return 0;
  int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

float float_divide(float a, float b) {
  return b == 0 ? 0 : a / b;
}

float float_modulo(float a, float b) {
  if (b == 0)
    return 0;
  float rest = fmodf(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

float float_integer_power(float base, int64_t exponent) {
  float result = exponent == 0 ? 1 : base;
  for (int64_t i = 1; i < exponent; i++)
    result *= base;
  return result;
}

int32_t float_to_integer(float a) {
  if (isnan(a))
    return 0;
  if (a >= 2147483648.0f)
    return INT32_MAX;
  return a <= -2147483648.0f ? INT32_MIN : (int32_t)a;
}

float float_unary(Operation operation, float a) {
  switch (operation) {
  case OP_NEGATE:
    return -a;
  case OP_ABS:
    return fabsf(a);
  case OP_FLOOR:
    return floorf(a);
  case OP_CEIL:
    return ceilf(a);
  case OP_SQRT:
    return sqrtf(a);
  case OP_EXP:
    return expf(a);
  case OP_LOG:
    return logf(a);
  case OP_TANH:
    return tanhf(a);
  case OP_SIGMOID:
    return 1 / (1 + expf(-a));
  case OP_SIN:
    return sinf(a);
  case OP_COS:
    return cosf(a);
  case OP_ERF:
    return erff(a);
  default:
    return a;
  }
}

float float_binary(Operation operation, float a, float b) {
  switch (operation) {
  case OP_ADD:
    return a + b;
  case OP_SUBTRACT:
    return a - b;
  case OP_MULTIPLY:
    return a * b;
  case OP_DIVIDE:
    return float_divide(a, b);
  case OP_FLOOR_DIVIDE:
    return floorf(float_divide(a, b));
  case OP_MODULO:
    return float_modulo(a, b);
  case OP_POWER:
    return powf(a, b);
  case OP_MIN:
    return a < b ? a : b;
  case OP_MAX:
    return a > b ? a : b;
  default:
    return a;
  }
}

/* ---- Integer ranges ---- */

static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

bool integer_range_unary(Operation operation, IntegerRange a, IntegerRange *result) {
  if (operation == OP_ABS && a.low >= 0) {
    *result = a;
    return true;
  }
  if (a.low == INT64_MIN)
    return false;
  if (operation == OP_ABS && a.high > 0)
    *result = (IntegerRange){0, larger(-a.low, a.high)};
  else
    *result = (IntegerRange){-a.high, -a.low};
  return true;
}

static bool range_multiply(IntegerRange a, IntegerRange b, IntegerRange *result) {
  int64_t corner[4];
  if (__builtin_mul_overflow(a.low, b.low, &corner[0]) ||
      __builtin_mul_overflow(a.low, b.high, &corner[1]) ||
      __builtin_mul_overflow(a.high, b.low, &corner[2]) ||
      __builtin_mul_overflow(a.high, b.high, &corner[3]))
    return false;
  result->low = smaller(smaller(corner[0], corner[1]), smaller(corner[2], corner[3]));
  result->high = larger(larger(corner[0], corner[1]), larger(corner[2], corner[3]));
  return true;
}

/* Widens `result` by the quotients for divisors of one sign: there `//` is monotone in both. */
static void widen_by_quotients(IntegerRange a, int64_t b_low, int64_t b_high, bool *empty,
                               IntegerRange *result) {
  for (int corner = 0; corner < 4; corner++) {
    int64_t quotient =
        integer_floor_divide(corner & 1 ? a.high : a.low, corner & 2 ? b_high : b_low);
    result->low = *empty ? quotient : smaller(result->low, quotient);
    result->high = *empty ? quotient : larger(result->high, quotient);
    *empty = false;
  }
}

static bool range_floor_divide(IntegerRange a, IntegerRange b, IntegerRange *result) {
  if (a.low == INT64_MIN && b.low <= -1 && b.high >= -1)
    return false;
  bool empty = true;
  if (b.low <= 0 && b.high >= 0) {
    *result = (IntegerRange){0, 0};
    empty = false;
  }
  if (b.high >= 1)
    widen_by_quotients(a, larger(b.low, 1), b.high, &empty, result);
  if (b.low <= -1)
    widen_by_quotients(a, b.low, smaller(b.high, -1), &empty, result);
  return true;
}

static void range_modulo(IntegerRange a, IntegerRange b, IntegerRange *result) {
  if (b.low == b.high && b.low != 0 && b.low != -1 &&
      integer_floor_divide(a.low, b.low) == integer_floor_divide(a.high, b.low)) {
    /* One quotient for all: the remainder grows with the dividend. */
    *result = (IntegerRange){integer_modulo(a.low, b.low), integer_modulo(a.high, b.low)};
    return;
  }
  if (a.low >= 0 && a.high < b.low) {
    *result = a;
    return;
  }
  result->low = b.low < 0 ? b.low + 1 : 0;
  result->high = b.high > 0 ? b.high - 1 : 0;
  if (a.low >= 0 && b.low >= 0)
    result->high = smaller(result->high, a.high);
}

bool integer_range_binary(Operation operation, IntegerRange a, IntegerRange b,
                          IntegerRange *result) {
  switch (operation) {
  case OP_ADD:
    return !__builtin_add_overflow(a.low, b.low, &result->low) &&
           !__builtin_add_overflow(a.high, b.high, &result->high);
  case OP_SUBTRACT:
    return !__builtin_sub_overflow(a.low, b.high, &result->low) &&
           !__builtin_sub_overflow(a.high, b.low, &result->high);
  case OP_MULTIPLY:
    return range_multiply(a, b, result);
  case OP_FLOOR_DIVIDE:
    return range_floor_divide(a, b, result);
  case OP_MODULO:
    range_modulo(a, b, result);
    return true;
  case OP_MIN:
    *result = (IntegerRange){smaller(a.low, b.low), smaller(a.high, b.high)};
    return true;
  case OP_MAX:
    *result = (IntegerRange){larger(a.low, b.low), larger(a.high, b.high)};
    return true;
  default:
    return false;
  }
}

/* ---- Float ranges: round-to-nearest is monotone, so rounded corners bound rounded results ---- */

FloatRange float_range_all(void) {
  return (FloatRange){-INFINITY, INFINITY, true};
}

FloatRange float_range_hull(FloatRange a, FloatRange b) {
  return (FloatRange){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high,
                      a.nan || b.nan};
}

static bool unbounded(FloatRange a) {
  return isinf(a.low) || isinf(a.high);
}

static FloatRange range_abs(FloatRange a) {
  if (a.low >= 0)
    return a;
  if (a.high <= 0)
    return (FloatRange){-a.high, -a.low, a.nan};
  return (FloatRange){0, -a.low > a.high ? -a.low : a.high, a.nan};
}

FloatRange float_range_unary(Operation operation, FloatRange a, int64_t exponent) {
  switch (operation) {
  case OP_NEGATE:
    return (FloatRange){-a.high, -a.low, a.nan};
  case OP_ABS:
    return range_abs(a);
  case OP_FLOOR:
    return (FloatRange){floorf(a.low), floorf(a.high), a.nan};
  case OP_CEIL:
    return (FloatRange){ceilf(a.low), ceilf(a.high), a.nan};
  case OP_SQRT:
    return (FloatRange){a.low > 0 ? sqrtf(a.low) : 0, a.high > 0 ? sqrtf(a.high) : 0,
                        a.nan || a.low < 0};
  case OP_INTEGER_POWER:
    if (exponent == 0)
      return (FloatRange){1, 1, false};
    if (exponent % 2 == 0)
      a = range_abs(a);
    return (FloatRange){float_integer_power(a.low, exponent), float_integer_power(a.high, exponent),
                        a.nan};
  case OP_TANH:
  case OP_SIN:
  case OP_COS:
  case OP_ERF:
    return (FloatRange){-1, 1, true}; /* the sine of infinity is NaN */
  case OP_SIGMOID:
    return (FloatRange){0, 1, a.nan};
  default: /* other functions of scores: nobody classifies by them */
    return float_range_all();
  }
}

/* Hull of the operation at the four corners, for operations monotone in each operand. */
static FloatRange range_of_corners(Operation operation, FloatRange a, FloatRange b) {
  FloatRange result = {INFINITY, -INFINITY, a.nan || b.nan};
  for (int corner = 0; corner < 4; corner++) {
    float value = float_binary(operation, corner & 1 ? a.high : a.low, corner & 2 ? b.high : b.low);
    result.low = value < result.low ? value : result.low;
    result.high = value > result.high ? value : result.high;
  }
  return result;
}

FloatRange float_range_square(FloatRange a) {
  FloatRange product = float_range_binary(OP_MULTIPLY, a, a);
  if (product.low < 0)
    product.low = 0;
  return product;
}

FloatRange float_range_binary(Operation operation, FloatRange a, FloatRange b) {
  FloatRange result;
  switch (operation) {
  case OP_MIN: /* a NaN on the left lets the right through, one on the right stays */
    result = (FloatRange){a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high, b.nan};
    if (a.nan && b.high > result.high)
      result.high = b.high;
    return result;
  case OP_MAX:
    result = (FloatRange){a.low > b.low ? a.low : b.low, a.high > b.high ? a.high : b.high, b.nan};
    if (a.nan && b.low < result.low)
      result.low = b.low;
    return result;
  default:
    break;
  }
  /* Infinite corners could hide a NaN (inf - inf, 0 * inf). */
  if (unbounded(a) || unbounded(b) || operation == OP_POWER)
    return float_range_all();
  bool zero = b.low <= 0 && b.high >= 0;
  if ((operation == OP_DIVIDE || operation == OP_FLOOR_DIVIDE) && zero) {
    if (b.low < 0 || b.high > 0)
      return (FloatRange){-INFINITY, INFINITY, a.nan || b.nan};
    return (FloatRange){0, 0, b.nan};
  }
  if (operation == OP_MODULO)
    return (FloatRange){b.low < 0 ? b.low : 0, b.high > 0 ? b.high : 0, a.nan || b.nan};
  return range_of_corners(operation, a, b);
}
