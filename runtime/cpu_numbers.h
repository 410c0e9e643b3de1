/* Level 0. Number formats of tensors on the host: bf16 and fp16 to fp32 and back, round to
 * nearest even.
 *
 * In software, so that no result depends on what the host's processor offers. NaN stays NaN;
 * values beyond the format's range become infinities; fp16 subnormals are kept. */
#ifndef ROTA_RUNTIME_CPU_NUMBERS_H
#define ROTA_RUNTIME_CPU_NUMBERS_H

#include "generator/status.h"

float number_from_bf16(uint16_t bits);
uint16_t number_to_bf16(float value);
float number_from_fp16(uint16_t bits);
uint16_t number_to_fp16(float value);

/* `count` neighbours of a floating dtype at any address, element by element. */
void numbers_load(rota_dtype dtype, const void *from, int64_t count, float *to);
void numbers_store(rota_dtype dtype, const float *from, int64_t count, void *to);

/* The value after a trip through `dtype`. */
float number_round(rota_dtype dtype, float value);

#endif
