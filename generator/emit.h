/* Level 4. The generated headers and main.cu, one function each; generator/program.c puts them
 * together with the templates.
 *
 * Nothing here depends on lengths, on the number of heads (only on heads / kv_heads) or on the
 * values of parameters that a plan may change: another window is no other program. */
#ifndef ROTA_GENERATOR_EMIT_H
#define ROTA_GENERATOR_EMIT_H

#include "generator/spec.h"
#include "generator/tiling.h"

void emit_spec(const Spec *spec, rota_layout layout, Text *out);           /* spec.cuh */
void emit_tiling(const Tiling *tiling, Text *out);                         /* tiling.cuh */
void emit_mask(const Spec *spec, Text *out);                               /* mask.cuh */
void emit_score(const Spec *spec, Text *out);                              /* score.cuh */
void emit_instructions(const Spec *spec, const Tiling *tiling, Text *out); /* instructions.cuh */
void emit_main(const Spec *spec, rota_layout layout, const Tiling *tiling, Text *out); /* main.cu */

#endif
