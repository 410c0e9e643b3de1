/* Level 5. The algorithms as programs for the machine, and the steps that they share. Called
 * through io_attention.h. A program's refusals stay in the machine; its own return value is about
 * the host alone. */
#ifndef ROTA_GENERATOR_IO_PROGRAMS_H
#define ROTA_GENERATOR_IO_PROGRAMS_H

#include "generator/io_arithmetic.h"
#include "generator/io_attention.h"

typedef struct IoJob {
  const IoProblem *problem;
  IoMachine *machine;
  IoMatrix *tensors[IO_TENSORS]; /* NULL: unused. K is A2 in the paper's form */
  bool naive;                    /* tiles of one element */
} IoJob;

rota_status io_tiled_run(IoJob *job);
rota_status io_large_cache_run(IoJob *job);
int64_t io_large_cache_minimum(const IoProblem *problem);

/* ---- Shared steps ---- */

/* A factor of a product, cut into vectors by the inner index k: rows of `matrix` if `by_rows`, else
 * its columns. */
typedef struct IoFactor {
  const IoMatrix *matrix;
  bool by_rows;
} IoFactor;
/* Where an operand's vectors begin and how long they are: the tile's rows or columns. */
typedef struct IoRange {
  int64_t at, size;
} IoRange;

/* tile += sum over k in [begin, end) of a's vector times b's vector transposed. Needs rows.size +
 * columns.size elements besides the tile. */
void io_accumulate(const IoJob *job, IoBlock tile, IoFactor a, IoRange rows, IoFactor b,
                   IoRange columns, int64_t begin, int64_t end);
/* out = factor * sum over all k < depth, by tiles that fill fast memory. */
void io_multiply(const IoJob *job, IoFactor a, IoFactor b, int64_t depth, double factor,
                 IoMatrix *out);
/* Columns of a tile of `rows` rows, so that it and a vector along each side fit, at most `most`. */
int64_t io_tile_columns(int64_t m, int64_t rows, int64_t most);
/* The paper's form: Q = A1 X and V = A3 Y. */
void io_project(const IoJob *job);
/* The paper's form, backward: dX = scale * A1^T dQ. */
void io_project_gradient(const IoJob *job);
/* delta = row sums of dO * O. */
void io_row_delta(const IoJob *job);
/* Scores of a block in place; q and k: its first position. */
void io_score(const IoJob *job, IoBlock block, int64_t q, int64_t k);

#endif
