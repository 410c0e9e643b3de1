/* Level 11. The arguments of a run: checked against the plan, and turned into what kernels take
 * (templates/lib/abi.h). */
#ifndef ROTA_RUNTIME_ARGUMENTS_H
#define ROTA_RUNTIME_ARGUMENTS_H

#include "runtime/prepared.h"

/* Required pointers, alignment and strides of the kernel's layout class, sinks, tensors of the
 * score by name. Says which tensor and what to do. Reads no tensor. */
rota_status arguments_check(const rota_plan *plan, const rota_arguments *arguments);
/* Bytes and alignment of the workspace; WORKSPACE. */
rota_status arguments_check_workspace(const rota_plan *plan, const void *workspace, size_t bytes);
/* The argument block of every launch of one run on CUDA; the arguments passed the checks. */
void arguments_fill(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                    RotaArguments *block);

#endif
