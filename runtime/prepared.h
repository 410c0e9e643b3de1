/* Level 10. A plan together with its kernel, and its tables on the device: the rota_plan of the
 * public interface. */
#ifndef ROTA_RUNTIME_PREPARED_H
#define ROTA_RUNTIME_PREPARED_H

#include "generator/plan.h"
#include "runtime/kernel.h"

struct rota_plan {
  rota_kernel *kernel;     /* retained */
  Plan *plan;              /* owned */
  CUdeviceptr image;       /* CUDA: copy of plan->image in the kernel's device, owned; else 0 */
  CUdeviceptr works_image; /* likewise of plan->works.image */
  Digest digest;           /* of all that decides the bits */
  double seconds;          /* spent making it */
  /* Extents that the checks of a run need. */
  int64_t rows_q, rows_k;       /* sums over the slots */
  int32_t longest_q, longest_k; /* rows of the largest slot */
  int64_t span_q, span_k;       /* packed: one past the last row of the packed tensors */
  int32_t tiles;                /* query tiles of all sequences */
  bool one_each;                /* queue i is chain item i: kernels need not look */
};

rota_status prepared_create(rota_kernel *kernel, const rota_plan_request *request,
                            rota_plan **plan);
rota_status prepared_load(rota_kernel *kernel, const char *path, rota_plan **plan);
void prepared_destroy(rota_plan *plan); /* NULL is fine */

#endif
