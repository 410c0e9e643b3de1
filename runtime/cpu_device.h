/* Level 3. The CPU device: executes a plan without a GPU, tile by tile, with the plan's order of
 * reduction.
 *
 * Multithreaded (OpenMP: OMP_NUM_THREADS); the bits of the result do not depend on the number of
 * threads. Sums are fp32; P and dS stay in fp32. Scratch tiles, a few MB per thread, come from
 * the heap. */
#ifndef ROTA_RUNTIME_CPU_DEVICE_H
#define ROTA_RUNTIME_CPU_DEVICE_H

#include "generator/plan.h"

/* Runs forward or backward, as the plan says; returns when done. All pointers are host memory;
 * `workspace` has plan->workspace.bytes bytes of any content. Thread-safe for separate outputs
 * and workspaces. */
rota_status cpu_device_run(const Plan *plan, const Spec *spec, const rota_arguments *arguments,
                           void *workspace);

#endif
