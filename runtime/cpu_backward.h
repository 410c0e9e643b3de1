/* Level 2. The backward pass on the CPU: dQ, dK, dV and dSink, for every algorithm of a plan. */
#ifndef ROTA_RUNTIME_CPU_BACKWARD_H
#define ROTA_RUNTIME_CPU_BACKWARD_H

#include "runtime/cpu_tile.h"

/* OUT_OF_MEMORY, or INTERNAL where the plan's ranks are not complete. */
rota_status cpu_backward(const CpuRun *run);

#endif
