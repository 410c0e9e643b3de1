/* Level 3. The lengths of a batch: checked, copied, and one shape for dense and packed sequences.
 */
#ifndef ROTA_GENERATOR_LENGTHS_H
#define ROTA_GENERATOR_LENGTHS_H

#include "generator/expression.h"

/* Copied and checked lengths; arrays have `batch` entries. */
typedef struct Lengths {
  int32_t batch;
  bool packed;
  int32_t *n_q, *n_k;         /* rows in use */
  int32_t *rows_q, *rows_k;   /* rows of the slot: outputs beyond n are zeros */
  int64_t *begin_q, *begin_k; /* first row of the slot; 0 unless packed */
} Lengths;

/* INVALID_ARGUMENT: negative or descending values, used beyond the slot, over LIMIT_LENGTH, only
 * one cu_seqlens given. */
rota_status lengths_create(const rota_lengths *request, Lengths **lengths);
/* Arrays for `batch` sequences, all 0. */
rota_status lengths_allocate(int32_t batch, Lengths **lengths);
void lengths_destroy(Lengths *lengths);

#endif
