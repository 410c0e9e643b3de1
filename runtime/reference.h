/* Level 1. Dense attention in fp64, forward and backward: what results are checked against.
 *
 * Shares nothing with the kernels or the CPU device but the conversion of numbers: no tiles, no
 * tables, no online softmax; O and LSE are its own in the backward pass too. Threaded; one
 * (sequence, kv head) at a time, so that memory grows with a sequence's rows, not with their
 * square. */
#ifndef ROTA_RUNTIME_REFERENCE_H
#define ROTA_RUNTIME_REFERENCE_H

#include "generator/plan.h"

/* out[i]: may row attend key k_begin + i? */
typedef void ReferenceMask(const void *context, const RowPosition *row, int32_t k_begin,
                           int32_t count, bool *out);
/* s[i] becomes the score, slope[i] its derivative by s (slope may be NULL). */
typedef void ReferenceScore(const void *context, const RowPosition *row, int32_t k_begin,
                            int32_t count, double *s, double *slope);

typedef struct ReferenceProblem {
  rota_direction direction; /* BACKWARD computes O and LSE too */
  rota_dtype dtype;
  int head_dim, head_dim_v, heads, kv_heads;
  double scale;
  const Lengths *lengths;
  /* Host memory; q, k, v, sink, d_o, d_lse are read, nothing is written. */
  const rota_arguments *arguments;
  ReferenceMask *mask;   /* NULL: all allowed */
  ReferenceScore *score; /* NULL: the scaled score itself */
  const void *context;   /* of mask and score */
  /* Round P, dS and results to the dtype, as a computation in that precision does: its error is
   * the yardstick for the kernels' error. */
  bool rounded;
} ReferenceProblem;

/* Contiguous [row][head][dim], the sequences' slots one behind the other; gradients NULL for
 * FORWARD. mean_square: sum of P |V|^2. */
typedef struct ReferenceResult {
  int64_t rows_q, rows_k;
  double *o, *lse, *mean_square, *d_q, *d_k, *d_v, *d_sink;
} ReferenceResult;

rota_status reference_run(const ReferenceProblem *problem, ReferenceResult *result);
void reference_free(ReferenceResult *result);

/* A problem's mask and score from a spec's expressions (fp32 for scores). `expressions` must
 * outlive the problem. */
typedef struct ReferenceExpressions {
  const Spec *spec;
  const Bindings *bindings;
} ReferenceExpressions;
void reference_use_expressions(ReferenceProblem *problem, const ReferenceExpressions *expressions);

/* ||got - want|| / ||want|| over `count` elements (0 / 0 is 0; infinities that agree count as
 * equal; a NaN or an infinity that does not agree makes the error infinite). */
typedef struct ReferenceError {
  double difference, norm; /* sums of squares */
} ReferenceError;
void reference_error_add(ReferenceError *error, double got, double want);
double reference_error(const ReferenceError *error);

#endif
