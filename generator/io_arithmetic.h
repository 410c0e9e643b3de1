/* Level 3. The arithmetic of attention on blocks in fast memory: operations for io_compute. Each
 * says its operands in order and the type of its context (none: NULL). Vectors may lie along either
 * axis. Doubles, for these programs are checked, not timed. */
#ifndef ROTA_GENERATOR_IO_ARITHMETIC_H
#define ROTA_GENERATOR_IO_ARITHMETIC_H

#include "generator/expression.h"
#include "generator/io_machine.h"

/* C (r x c), a (r elements), b (c): C += a b^T. */
IoOperation io_add_outer;
/* C (r x c), A (r x k), B (c x k): C += A B^T. */
IoOperation io_add_rows_by_rows;
/* C (r x c), A (r x k), B (k x c): C += A B. */
IoOperation io_add_product;
/* a (1), x, y: a += x . y */
IoOperation io_add_dot;
/* X; context `const double *`: X *= factor. */
IoOperation io_scale;

/* What turns products into scores: scale * s where the mask allows, else -inf. Positions of the
 * block's first element. */
typedef struct IoScores {
  const Expression *mask; /* NULL: full */
  const Bindings *bindings;
  double scale;
  int64_t n, q, k;
} IoScores;
/* S (rows: queries, columns: keys), context IoScores; in place. */
IoOperation io_mask_scores;

/* m, l: m = -inf. */
IoOperation io_begin_statistics;
/* S, m, l: row maxima and sums of exp(s - m), brought up to date by the scores S. */
IoOperation io_add_statistics;
/* m, l: l becomes m + log l, the row's log-sum-exp; -inf without an allowed key. */
IoOperation io_end_statistics;
/* S, lse: S becomes exp(s - lse), 0 where s = -inf. */
IoOperation io_probabilities;
/* P, delta, dP: delta += row sums of P * dP. */
IoOperation io_add_delta;
/* dP, P, delta: dP becomes dS = P * (dP - delta), with one delta for each row. */
IoOperation io_gradients;
/* dP (a tile), P (one column), delta; context `const int64_t *`: which column of the tile becomes
 * dS. */
IoOperation io_gradient_column;

/* ---- One key against a block of queries, softmax on the fly ---- */

/* O, m, l, s, v: O and the statistics take up one key with scores s and value v; O is a sum of
 * exp(s - m) v. */
IoOperation io_add_value;
/* O, m, l: O /= l; rows without an allowed key are 0. */
IoOperation io_end_values;
/* delta, m, l, s, dp: delta is a sum of exp(s - m) dp. */
IoOperation io_add_online_delta;
/* delta, m, l: delta /= l. */
IoOperation io_end_online_delta;

#endif
