/* Level 11. The arguments of a run: checked against the plan, and turned into what kernels take
 * (templates/lib/abi.h). */
#ifndef ROTA_RUNTIME_ARGUMENTS_H
#define ROTA_RUNTIME_ARGUMENTS_H

#include "runtime/prepared.h"

/* How far a tensor reaches in each strided dimension; rows of the longest slot, or of all that are
 * packed. */
typedef struct Extents {
  int64_t batch, rows, heads;
} Extents;
/* Of the tensors with a query's rows and heads, or with a key's. */
Extents arguments_extents(const rota_plan *plan, bool keys);

/* Required pointers, alignment and strides of the kernel's layout class, sinks, tensors of the
 * score by name. Says which tensor and what to do. Reads no tensor. */
rota_status arguments_check(const rota_plan *plan, const rota_arguments *arguments);
/* Bytes and alignment of the workspace; WORKSPACE. */
rota_status arguments_check_workspace(const rota_plan *plan, const void *workspace, size_t bytes);
/* The argument block of every launch of one run on CUDA; the arguments passed the checks. */
void arguments_fill(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                    RotaArguments *block);

#endif
