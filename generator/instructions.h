/* Level 2. Tensor-core instructions: one inline-PTX wrapper for each shape that a program uses,
 * written from a table, so that no template carries a catalogue of shapes. */
#ifndef ROTA_GENERATOR_INSTRUCTIONS_H
#define ROTA_GENERATOR_INSTRUCTIONS_H

#include <stdbool.h>

#include "generator/text.h"

/* Products of warpgroups: those of each N; or whole sums over so many k steps of 16, and then each
 * N serves these alone. */
typedef struct Products {
  const int *n;
  int count; /* 0: none, the kernels multiply warp by warp */
  int along_n, along_steps;
  int across_n, across_steps;
  int terms_n;  /* of that n also one of bf16, whatever the dtype; 0: none */
  bool by_warp; /* also those of a warp */
} Products;

/* Appends the body of instructions.cuh for operands of `dtype`; nothing for FP32, which has no such
 * instruction in the portable kernels. */
void instructions_emit(rota_dtype dtype, const Products *products, Text *out);

#endif
