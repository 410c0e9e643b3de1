/* Level 2. The forward pass on the CPU: O and LSE. */
#ifndef ROTA_RUNTIME_CPU_FORWARD_H
#define ROTA_RUNTIME_CPU_FORWARD_H

#include "runtime/cpu_tile.h"

void cpu_forward(const CpuRun *run);

#endif
