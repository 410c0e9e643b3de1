/* Conversions between fp32 and the 16-bit formats. */
#include "runtime/cpu_numbers.h"

#include <string.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float number_from_bf16(uint16_t bits) {
  return float_of((uint32_t)bits << 16);
}

uint16_t number_to_bf16(float value) {
  uint32_t bits = bits_of(value);
  /* A NaN whose payload sits in the low half would turn into infinity: keep it quiet and not
   * zero. */
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)((bits >> 16) | 0x40u);
  uint32_t tie = (bits >> 16) & 1u; /* to even */
  return (uint16_t)((bits + 0x7fffu + tie) >> 16);
}

/* fp16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
float number_from_fp16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  /* Placed into fp32's fields the exponent is short by 112; the product mends it, and makes
   * subnormals normal on the way: exact, since a power of two. */
  return float_of(bits_of(float_of(magnitude << 13) * 0x1p112f) | sign);
}

uint16_t number_to_fp16(float value) {
  uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u)
    return (uint16_t)(sign | 0x7e00u);
  if (bits >= 0x477ff000u)
    return (uint16_t)(sign | 0x7c00u); /* rounds to 2^16 or more */
  if (bits < 0x38800000u) {
    /* Subnormal: adding 1/2 leaves the multiple of 2^-24 in the low mantissa bits, rounded to
     * even. */
    float shifted = float_of(bits) + 0.5f;
    return (uint16_t)(sign | (bits_of(shifted) - bits_of(0.5f)));
  }
  uint32_t tie = (bits >> 13) & 1u;
  return (uint16_t)(sign | ((bits - 0x38000000u + 0xfffu + tie) >> 13));
}

void numbers_load(rota_dtype dtype, const void *from, int64_t count, float *to) {
  if (dtype == ROTA_FP32) {
    memcpy(to, from, (size_t)count * sizeof *to);
    return;
  }
  const char *bytes = from;
  for (int64_t i = 0; i < count; i++) {
    uint16_t bits; /* memcpy: callers may hand in any address */
    memcpy(&bits, bytes + 2 * i, sizeof bits);
    to[i] = dtype == ROTA_BF16 ? number_from_bf16(bits) : number_from_fp16(bits);
  }
}

void numbers_store(rota_dtype dtype, const float *from, int64_t count, void *to) {
  if (dtype == ROTA_FP32) {
    memcpy(to, from, (size_t)count * sizeof *from);
    return;
  }
  char *bytes = to;
  for (int64_t i = 0; i < count; i++) {
    uint16_t bits = dtype == ROTA_BF16 ? number_to_bf16(from[i]) : number_to_fp16(from[i]);
    memcpy(bytes + 2 * i, &bits, sizeof bits);
  }
}

float number_round(rota_dtype dtype, float value) {
  if (dtype == ROTA_BF16)
    return number_from_bf16(number_to_bf16(value));
  if (dtype == ROTA_FP16)
    return number_from_fp16(number_to_fp16(value));
  return value;
}
