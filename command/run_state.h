/* One `rota run`: tensors, kernels and plans, and what came of running them. */
#ifndef ROTA_COMMAND_RUN_STATE_H
#define ROTA_COMMAND_RUN_STATE_H

#include "command/buffers.h"
#include "command/inputs.h"
#include "command/model.h"
#include "generator/script_tuning.h"

/* Tensors of a run: name, rows (q or k), heads (q: query heads, kv, none), dim (qk, v, one),
 * element (element: the spec's dtype, fp32), role (input, output), pass. All [batch, row, head,
 * dim], contiguous. */
#define RUN_TENSORS(X)                                                                             \
  X(q, Q, QUERY, QK, false, INPUT, FORWARD)                                                        \
  X(k, K, KV, QK, false, INPUT, FORWARD)                                                           \
  X(v, K, KV, V, false, INPUT, FORWARD)                                                            \
  X(o, Q, QUERY, V, false, OUTPUT, FORWARD)                                                        \
  X(lse, Q, QUERY, ONE, true, OUTPUT, FORWARD)                                                     \
  X(mean_square, Q, QUERY, ONE, true, OUTPUT, FORWARD)                                             \
  X(d_o, Q, QUERY, V, false, INPUT, BACKWARD)                                                      \
  X(d_q, Q, QUERY, QK, false, OUTPUT, BACKWARD)                                                    \
  X(d_k, K, KV, QK, false, OUTPUT, BACKWARD)                                                       \
  X(d_v, K, KV, V, false, OUTPUT, BACKWARD)                                                        \
  X(sink, NONE, QUERY, ONE, true, INPUT, FORWARD)                                                  \
  X(d_sink, NONE, QUERY, ONE, true, OUTPUT, BACKWARD)

typedef enum RunTensorIndex {
#define X(name, rows, heads, dim, fp32, role, pass) RUN_##name,
  RUN_TENSORS(X)
#undef X
      RUN_TENSOR_COUNT
} RunTensorIndex;

typedef struct RunTensor {
  const char *name;
  int64_t rows, heads, dim; /* rows of one sequence */
  size_t count, bytes;
  bool fp32, output, backward;
  void *host;    /* inputs: the data; outputs: the first run's result */
  void *address; /* where the kernel runs */
} RunTensor;

typedef struct RunState {
  const Options *options;
  Model model;
  Inputs inputs;
  rota_context *context;
  rota_spec *spec;
  rota_kernel *kernels[2];
  rota_plan *plans[2];
  rota_device_kind device;
  Buffers buffers;
  bool buffers_opened;
  RunTensor tensors[RUN_TENSOR_COUNT];
  void *workspaces[2];
  rota_arguments arguments;
  int passes;         /* 1: forward, 2: backward too */
  int repeats, equal; /* runs, and how many gave the first one's bits */
  double seconds[2];  /* median time of a pass */
} RunState;

rota_status run_open(const Options *options, RunState *run);
void run_close(RunState *run);

/* A pass by another tiling, algorithm or schedule, on the same tensors; the caller destroys both,
 * also on failure. */
rota_status run_prepare(RunState *run, const Candidate *candidate, rota_kernel **kernel,
                        rota_plan **plan);
/* Seconds of one of `count` passes one after another; backward: needs o and lse of run_repeat. */
rota_status run_time(RunState *run, const rota_plan *plan, void *workspace, int count,
                     double *seconds);
/* The layout class of the run's tensors: rows of some head dims are not aligned. */
rota_layout run_layout(const Options *options, const Spec *spec);

/* Runs all repetitions; outputs of the first stay in tensors[].host. */
rota_status run_repeat(RunState *run);

/* ||x - reference|| / ||reference|| of an output, against dense attention in fp64; < 0: not
 * computed. */
typedef struct RunErrors {
  double error[RUN_TENSOR_COUNT];
} RunErrors;
rota_status run_check(const RunState *run, RunErrors *errors);

#endif
