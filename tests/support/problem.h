/* An attention problem for tests of the public interface: random tensors of one shape in one block
 * of memory, so that a copy of the block, on a GPU say, is a copy of the problem. */
#ifndef ROTA_TESTS_PROBLEM_H
#define ROTA_TESTS_PROBLEM_H

#include "rota/rota.h"

/* Name in rota_arguments, rows, heads, width; whether elements are of the dtype (else fp32). */
#define PROBLEM_TENSORS(X)                                                                         \
  X(q, n_q, heads, dim, true)                                                                      \
  X(k, n_k, kv_heads, dim, true)                                                                   \
  X(v, n_k, kv_heads, dim_v, true)                                                                 \
  X(o, n_q, heads, dim_v, true)                                                                    \
  X(lse, n_q, heads, one, false)                                                                   \
  X(d_o, n_q, heads, dim_v, true)                                                                  \
  X(d_q, n_q, heads, dim, true)                                                                    \
  X(d_k, n_k, kv_heads, dim, true)                                                                 \
  X(d_v, n_k, kv_heads, dim_v, true)                                                               \
  X(d_lse, n_q, heads, one, false)

typedef enum ProblemTensor {
#define X(name, rows, heads, dim, element) PROBLEM_##name,
  PROBLEM_TENSORS(X)
#undef X
      PROBLEM_TENSOR_COUNT
} ProblemTensor;

typedef struct Problem {
  rota_dtype dtype;
  int batch, n_q, n_k, heads, kv_heads, dim, dim_v;
  bool sink;
  /* filled by problem_create: */
  int one;
  size_t offset[PROBLEM_TENSOR_COUNT]; /* bytes from the block's start */
  size_t count[PROBLEM_TENSOR_COUNT];  /* elements */
  size_t sink_offset, d_sink_offset;
  size_t bytes;
  unsigned char *block; /* host, 256-byte aligned */
} Problem;

/* Lays the tensors out, allocates the block, and draws the inputs from `seed`; the outputs hold
 * NaN, so that what is left unwritten shows. Free with problem_free. */
void problem_create(Problem *problem, unsigned seed);
void problem_free(Problem *problem);
/* Dense arguments [batch, row, head, dim] into `base`, a copy of the block (NULL: the problem's
 * own). */
rota_arguments problem_arguments(const Problem *problem, void *base);
/* Element `i` of a tensor in a copy of the block on the host. */
double problem_value(const Problem *problem, const void *base, ProblemTensor tensor, size_t i);
/* Largest |a - b| over largest |b| (or 1 if b is all zeros); NaN or unequal infinities: infinite.
 */
double problem_difference(const Problem *problem, const void *a, const void *b,
                          ProblemTensor tensor);
/* True if a tensor has the same bits in two copies of the block. */
bool problem_same_bits(const Problem *problem, const void *a, const void *b, ProblemTensor tensor);
const char *problem_tensor_name(ProblemTensor tensor);

#endif
