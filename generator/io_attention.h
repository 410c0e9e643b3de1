/* Level 5. Attention on the two-level memory machine: what is computed, the algorithms, and the
 * bounds that they are measured against.
 *
 * Two forms, after arXiv 2410.09397:
 *   kernel  forward: Q, K, V (n x d) -> O, LSE; backward: Q, K, V, dO and the forward pass's O and
 *           LSE -> dQ, dK, dV
 *   paper   forward: A1, A2, A3 (n x d), X, Y (d x d) -> O with Q = A1 X, K = A2, V = A3 Y;
 *           backward: those and dO -> dX (nothing is left from the forward pass)
 *
 * Three algorithms:
 *   naive        every intermediate is written to slow memory, every product is a triple loop with
 *                one accumulator; a mask saves nothing
 *   large_cache  FlashAttention: blocks of whole rows, scores recomputed, no n x n matrix
 *   small_cache  n x n matrices in slow memory, every product in square tiles of about sqrt(M)
 * The latter two skip the tiles that a mask leaves empty. */
#ifndef ROTA_GENERATOR_IO_ATTENTION_H
#define ROTA_GENERATOR_IO_ATTENTION_H

#include "generator/io_machine.h"
#include "generator/io_plane.h"

typedef enum IoForm { IO_KERNEL, IO_PAPER } IoForm;

#define IO_ALGORITHM_LIST(X)                                                                       \
  X(NAIVE, "naive")                                                                                \
  X(LARGE_CACHE, "large_cache")                                                                    \
  X(SMALL_CACHE, "small_cache")
typedef enum IoAlgorithm {
#define X(name, text) IO_##name,
  IO_ALGORITHM_LIST(X)
#undef X
      IO_ALGORITHMS
} IoAlgorithm;
const char *io_algorithm_name(IoAlgorithm algorithm);

/* Matrices: name, rows, columns (in n, d), then what they are in kernel forward, kernel backward,
 * paper forward, paper backward: input, output, temporary, unused. */
#define IO_TENSOR_LIST(X)                                                                          \
  X(A1, n, d, "..ii")                                                                              \
  X(A2, n, d, "..ii")                                                                              \
  X(A3, n, d, "..ii")                                                                              \
  X(X, d, d, "..ii")                                                                               \
  X(Y, d, d, "..ii")                                                                               \
  X(Q, n, d, "iitt")                                                                               \
  X(K, n, d, "ii..")                                                                               \
  X(V, n, d, "iitt")                                                                               \
  X(O, n, d, "oio.")                                                                               \
  X(LSE, n, 1, "oitt")                                                                             \
  X(D_O, n, d, ".i.i")                                                                             \
  X(DELTA, n, 1, ".t.t")                                                                           \
  X(D_Q, n, d, ".o.t")                                                                             \
  X(D_K, n, d, ".o..")                                                                             \
  X(D_V, n, d, ".o..")                                                                             \
  X(D_X, d, d, "...o")
typedef enum IoTensor {
#define X(name, rows, columns, roles) IO_##name,
  IO_TENSOR_LIST(X)
#undef X
      IO_TENSORS
} IoTensor;

enum { IO_LENGTH_MAX = 1 << 22, IO_HEAD_DIM_MAX = 1 << 12 };

typedef struct IoProblem {
  int64_t n, d; /* up to IO_LENGTH_MAX, IO_HEAD_DIM_MAX */
  int64_t m;    /* elements of fast memory */
  IoForm form;
  rota_direction direction;
  const Expression *mask; /* NULL: full */
  const Bindings *bindings;
  double scale;
} IoProblem;

/* Row-major data of inputs (read) and outputs (written), by IoTensor. */
typedef struct IoValues {
  double *of[IO_TENSORS];
} IoValues;

/* Runs the algorithm on the machine. `values` NULL: counts without arithmetic, which gives the same
 * count. INVALID_ARGUMENT says which M the algorithm needs. */
rota_status io_attention_run(const IoProblem *problem, IoAlgorithm algorithm, IoValues *values,
                             IoCount *count);
/* The least M with which the algorithm runs. */
int64_t io_attention_minimum(const IoProblem *problem, IoAlgorithm algorithm);
/* Elements of a tensor if it is an input (`role` 'i') or output ('o') of the problem, else 0. */
int64_t io_tensor_elements(const IoProblem *problem, IoTensor tensor, char role);

/* The theorem's expressions with constant 1. Z = n d elements of an input, Z_QK allowed pairs:
 *
 *     lower_bound = min(large, small),  large = Z^2 / M + n d^3 / M,
 *                                       small = Z sqrt(Z_QK) / sqrt(M) + n d^2 / sqrt(M)
 *
 * with the terms in d^3 and d^2 only in the paper's form. Dense, Z_QK = n^2. What is proved with
 * which constant: docs/io.md. */
typedef struct IoBounds {
  int64_t pairs; /* Z_QK */
  double large, small, lower_bound;
  double crossing_m;  /* where large = small: d^2 in the dense kernel form; Z^2 / Z_QK */
  int64_t compulsory; /* inputs read and outputs written once */
} IoBounds;
rota_status io_attention_bounds(const IoProblem *problem, IoBounds *bounds);

#endif
