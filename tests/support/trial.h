/* Random attention problems for tests, run through the public interface on any device and
 * checked against fp64.
 *
 *     Trial *trial = trial_create(&(TrialShape){.dtype = ROTA_BF16, .head_dim = 64, ...});
 *     trial_prepare(trial, context, gpu);       spec, kernels, plans, device memory
 *     trial_run(trial);                         forward and backward over poison
 *     TrialReport report = trial_check(trial);  errors, and what the dtype alone costs
 *
 * Each tensor lies in its own memory with a guard on both sides. Guards, gaps between rows and
 * outputs hold NaN before a run, so that reading or writing where one must not shows. What a
 * test cannot do without (memory, valid lengths) is asserted by abort, with a message. */
#ifndef ROTA_TESTS_TRIAL_H
#define ROTA_TESTS_TRIAL_H

#include "generator/digest.h"
#include "runtime/reference.h"
#include "tests/support/gpu.h"

/* role, field of rota_arguments, rows and heads of keys, has a head dim of: 0 none, 1 qk, 2 v;
 * written by */
#define TRIAL_TENSOR_LIST(X)                                                                       \
  X(Q, q, false, 1, NEITHER)                                                                       \
  X(K, k, true, 1, NEITHER)                                                                        \
  X(V, v, true, 2, NEITHER)                                                                        \
  X(O, o, false, 2, FORWARD)                                                                       \
  X(LSE, lse, false, 0, FORWARD)                                                                   \
  X(D_O, d_o, false, 2, NEITHER)                                                                   \
  X(D_Q, d_q, false, 1, BACKWARD)                                                                  \
  X(D_K, d_k, true, 1, BACKWARD)                                                                   \
  X(D_V, d_v, true, 2, BACKWARD)                                                                   \
  X(D_LSE, d_lse, false, 0, NEITHER)                                                               \
  X(MEAN_SQUARE, mean_square, false, 0, FORWARD)
typedef enum TrialRole {
#define X(role, field, keys, dim, writer) TRIAL_##role,
  TRIAL_TENSOR_LIST(X)
#undef X
      TRIAL_SINK, /* [heads] */
  TRIAL_D_SINK,
  TRIAL_ROLES
} TrialRole;

typedef struct TrialShape {
  rota_dtype dtype;
  int head_dim, head_dim_v; /* head_dim_v 0: head_dim */
  int heads, kv_heads;      /* 0: 1 and heads */
  int batch, n_q, n_k;      /* batch 0 is an empty batch */
  const int32_t *cu_q, *cu_k, *used_q, *used_k;
  const char *mask, *score;        /* in the vocabulary of lua/; NULL: none */
  const char *backward, *schedule; /* NULL: "auto" */
  const char *bound;               /* of "exact"; NULL: "norm" */
  float scale;                     /* 0: 1 / sqrt(head_dim) */
  bool sink, d_lse;
  bool forward_only;
  bool nondeterministic;
  rota_layout layout;       /* ANY: pitches and bases are odd */
  const char *architecture; /* NULL: the device's own */
  bool heads_outside;       /* BHSD instead of BSHD */
  uint64_t seed;
  size_t workspace_limit; /* of the plans; 0: the default */
  /* Tensors and values of mask and score; `late_tensors`: the plan learns the shapes, each run
   * gets the data. */
  const rota_named_tensor *tensors;
  int tensor_count;
  bool late_tensors;
  const rota_named_value *values;
  int value_count;
  /* An independent mask and score for the reference; NULL: the library's own evaluation of the
   * expressions. */
  ReferenceMask *reference_mask;
  ReferenceScore *reference_score;
} TrialShape;

typedef struct TrialBuffer {
  const char *name;
  rota_dtype dtype;
  bool keys, output;
  int batch, heads, dim;
  int64_t rows;          /* per batch entry, or all when packed */
  rota_tensor view;      /* of host memory; data NULL: the trial has no such tensor */
  unsigned char *memory; /* bytes, guards included */
  size_t bytes, base;    /* base: offset of view.data */
  void *device;          /* CUDA: copy of memory */
} TrialBuffer;

typedef struct Trial {
  TrialShape shape;
  Lengths *lengths;
  TrialBuffer buffers[TRIAL_ROLES];
  const Gpu *gpu; /* NULL: the CPU device */
  rota_spec *spec;
  rota_kernel *kernels[2]; /* by direction */
  rota_plan *plans[2];
  void *workspace;
  size_t workspace_bytes;
  rota_named_tensor *late; /* what each run passes */
  void *stream;            /* CUDA: of all runs; NULL by default */
} Trial;

/* Tensors with random content (about normal, standard deviation 1, rounded to the dtype). */
Trial *trial_create(const TrialShape *shape);
void trial_destroy(Trial *trial);

/* Element access; row counts within sequence b's slot. */
double trial_get(const Trial *trial, TrialRole role, int b, int64_t row, int head, int i);
void trial_set(Trial *trial, TrialRole role, int b, int64_t row, int head, int i, double value);
/* Gives an input other strides (elements) with the same content; a stride of 0 keeps the first
 * part's. Before prepare. */
void trial_restride(Trial *trial, TrialRole role, int64_t batch, int64_t row, int64_t head);

/* gpu NULL: on the CPU device. Failures are the library's, for tests of refusals. May be called
 * again. */
rota_status trial_prepare(Trial *trial, rota_context *context, const Gpu *gpu);
rota_status trial_run(Trial *trial);
/* Parts of trial_run: new poison in outputs and workspace, all inputs to the device; one
 * direction; results back. */
void trial_upload(Trial *trial);
rota_status trial_launch(Trial *trial, rota_direction direction);
void trial_download(Trial *trial);

/* Hash of the outputs' elements in logical order: the same for the same values at other strides. */
Digest trial_bits(const Trial *trial, TrialRole role);
/* One over all outputs. */
Digest trial_all_bits(const Trial *trial);
/* Do guards and gaps of all outputs still hold poison? Destroys the outputs' content. */
bool trial_margins_intact(Trial *trial);

void trial_reference(const Trial *trial, bool rounded, ReferenceResult *result);

/* Relative error ||x - x64|| / ||x64|| of each output; of the same computation with P, dS and
 * results rounded to the dtype; and the largest error of a row, in units of the tensor's root
 * mean square row. */
typedef struct TrialReport {
  double error[TRIAL_ROLES], yardstick[TRIAL_ROLES], worst_row[TRIAL_ROLES];
  double limit[TRIAL_ROLES]; /* of `error`: twice the yardstick, and fp32's own noise */
  bool good;
} TrialReport;
/* Both computations in fp64; the same for all algorithms of one shape. */
typedef struct TrialReferences {
  ReferenceResult exact, rounded;
} TrialReferences;
void trial_references_make(const Trial *trial, TrialReferences *references);
void trial_references_free(TrialReferences *references);
TrialReport trial_compare(const Trial *trial, const TrialReferences *references);
/* All of it at once. */
TrialReport trial_check(const Trial *trial);
/* One line, "o 1.2e-3/1.1e-3 ...": error / yardstick. */
void trial_print_report(const TrialReport *report);

#endif
