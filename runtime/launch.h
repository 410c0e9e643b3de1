/* Level 13. Running a plan: the one place that launches. */
#ifndef ROTA_RUNTIME_LAUNCH_H
#define ROTA_RUNTIME_LAUNCH_H

#include "runtime/arguments.h"

/* Checks, then runs on the plan's device. On CUDA nothing is allocated and nothing waited for. */
rota_status launch_plan(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                        size_t workspace_bytes, void *stream);

#endif
