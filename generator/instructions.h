/* Level 2. Tensor-core instructions: one inline-PTX wrapper for each shape that a program uses,
 * written from a table, so that no template carries a catalogue of shapes. */
#ifndef ROTA_GENERATOR_INSTRUCTIONS_H
#define ROTA_GENERATOR_INSTRUCTIONS_H

#include "generator/text.h"

/* Appends the body of instructions.cuh for operands of `dtype`; nothing for FP32, which has no such
 * instruction in the portable kernels. restarts: a sum may begin anew when a product is issued. */
void instructions_emit(rota_dtype dtype, const int *wgmma_n, int wgmma_count, bool restarts,
                       Text *out);

#endif
