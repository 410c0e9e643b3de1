// What the text of emitted masks and scores calls. The twin of generator/expression_arithmetic.c:
// integers, and floats in masks, give the same bits on host and device; functions that stand in
// scores alone may differ in the last places.
//
// Everywhere: division by zero yields 0; min(a, b) is a if a < b, else b; max likewise.
#ifndef ROTA_LIB_EXPRESSION_CUH
#define ROTA_LIB_EXPRESSION_CUH

#include "templates/lib/types.cuh"

namespace rota {

// ---- Constants that no literal can write ----

__device__ __forceinline__ float rota_infinity() {
  return __int_as_float(0x7f800000);
}
__device__ __forceinline__ float rota_nan() {
  return __int_as_float(0x7fffffff);
}

// ---- Integers: // and % floor, the remainder takes the divisor's sign ----

template <typename Integer>
__device__ __forceinline__ Integer integer_floor_divide(Integer a, Integer b) {
  if (b == 0)
    return 0;
  Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
template <typename Integer>
__device__ __forceinline__ Integer integer_modulo(Integer a, Integer b) {
  if (b == 0 || b == -1) // the smallest integer divided by -1 has no quotient
    return 0;
  Integer rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

__device__ __forceinline__ int rota_floor_divide(int a, int b) {
  return integer_floor_divide(a, b);
}
__device__ __forceinline__ long long rota_floor_divide(long long a, long long b) {
  return integer_floor_divide(a, b);
}
__device__ __forceinline__ int rota_modulo(int a, int b) {
  return integer_modulo(a, b);
}
__device__ __forceinline__ long long rota_modulo(long long a, long long b) {
  return integer_modulo(a, b);
}
__device__ __forceinline__ int rota_min(int a, int b) {
  return a < b ? a : b;
}
__device__ __forceinline__ long long rota_min(long long a, long long b) {
  return a < b ? a : b;
}
__device__ __forceinline__ int rota_max(int a, int b) {
  return a > b ? a : b;
}
__device__ __forceinline__ long long rota_max(long long a, long long b) {
  return a > b ? a : b;
}

// A tensor's index, or the nearest within its size, which is below 2^31.
template <class Integer>
__device__ __forceinline__ unsigned rota_within(Integer i, long long size) {
  return (unsigned)rota_min(rota_max(i, Integer(0)), Integer(rota_max((int)size - 1, 0)));
}
__device__ __forceinline__ int rota_abs(int a) {
  return a < 0 ? -a : a;
}
__device__ __forceinline__ long long rota_abs(long long a) {
  return a < 0 ? -a : a;
}

// A score that is still to be scaled, for what needs no scaling of its own.
struct ScaledScore {
  float s, scale;
  __device__ __forceinline__ operator float() const { return s * scale; }
};

// ---- Floats, rounded to nearest whatever the compiler's options ----

__device__ __forceinline__ float rota_divide_exactly(float a, float b) {
  return b == 0.0f ? 0.0f : __fdiv_rn(a, b);
}
__device__ __forceinline__ float rota_floor_divide(float a, float b) {
  return floorf(rota_divide_exactly(a, b));
}
__device__ __forceinline__ float rota_modulo(float a, float b) {
  if (b == 0.0f)
    return 0.0f;
  float rest = fmodf(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? __fadd_rn(rest, b) : rest;
}
__device__ __forceinline__ float rota_min(float a, float b) {
  return a < b ? a : b;
}
__device__ __forceinline__ float rota_max(float a, float b) {
  return a > b ? a : b;
}
__device__ __forceinline__ float rota_abs(float a) {
  return fabsf(a);
}
// Toward zero, saturating; NaN gives 0.
__device__ __forceinline__ int rota_to_int(float a) {
  return __float2int_rz(a);
}
// base^exponent as (..(base * base) * base ..), in this order.
template <int exponent> __device__ __forceinline__ float rota_power(float base) {
  float result = exponent == 0 ? 1.0f : base;
#pragma unroll
  for (int i = 1; i < exponent; i++)
    result = __fmul_rn(result, base);
  return result;
}

// ---- Functions of scores: a few units in the last place, short, and without a branch ----
//
// Kernels evaluate scores for a hundred elements of a thread in straight code: a branch in one of
// them would part it into pieces that wait for each other.

// By less than the smallest normal number: 0, or NaN of what is not finite.
__device__ __forceinline__ float rota_divide(float a, float b) {
  return a * reciprocal_or_zero(b);
}
__device__ __forceinline__ float rota_exp(float a) {
  return expf(a);
}
__device__ __forceinline__ float rota_log(float a) {
  return logf(a);
}
__device__ __forceinline__ float rota_sigmoid(float a) {
  return reciprocal_fast(1.0f + exp2_fast(-kLog2E * a));
}
// 1 - 2 / (e^2a + 1) loses its digits near 0: there an odd polynomial, which is within 1.5e-7 up to
// 0.6 (Taylor's terms: up to 0.32).
__device__ __forceinline__ float rota_tanh(float a) {
  float square = a * a;
  float series = 0.015612614f;
  series = series * square - 0.052211796f;
  series = series * square + 0.13313116f;
  series = series * square - 0.33332598f;
  series = series * square * a + a;
  return tanh_beyond(series, a, square);
}

} // namespace rota

#endif
