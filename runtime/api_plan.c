/* Level 14. The public interface: plans and runs. See rota.h; here only arguments are checked. */
#include <string.h>

#include "runtime/launch.h"

rota_status rota_plan_create(const rota_kernel *kernel, const rota_plan_request *request,
                             rota_plan **plan) {
  if (plan)
    *plan = NULL;
  if (!kernel || !request || !plan)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_plan_create: %s is NULL",
                       !kernel    ? "kernel"
                       : !request ? "request"
                                  : "plan");
  /* The kernel is immutable but for its reference count. */
  return prepared_create((rota_kernel *)kernel, request, plan);
}

void rota_plan_destroy(rota_plan *plan) {
  prepared_destroy(plan);
}

size_t rota_plan_workspace_size(const rota_plan *plan) {
  return plan ? (size_t)plan->plan->workspace.bytes : 0;
}

void rota_plan_get_info(const rota_plan *plan, rota_plan_info *info) {
  if (!info)
    return;
  *info = (rota_plan_info){0};
  if (!plan)
    return;
  const Plan *tables = plan->plan;
  *info = (rota_plan_info){.full_tiles = tables->full_tiles,
                           .partial_tiles = tables->partial_tiles,
                           .empty_tiles = tables->empty_tiles,
                           .tile_q = tables->tiling.tile_q,
                           .tile_kv = tables->tiling.tile_kv,
                           .table_bytes = (int64_t)tables->image_bytes,
                           .plan_seconds = plan->seconds};
}

void rota_plan_digest(const rota_plan *plan, char digest[ROTA_DIGEST_SIZE]) {
  if (!digest)
    return;
  digest[0] = '\0';
  if (plan)
    memcpy(digest, plan->digest.hex, ROTA_DIGEST_SIZE);
}

rota_status rota_plan_save(const rota_plan *plan, const char *path) {
  if (!plan || !path)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_plan_save: %s is NULL", plan ? "path" : "plan");
  return plan_save(plan->plan, &plan->kernel->program, path);
}

rota_status rota_plan_load(const rota_kernel *kernel, const char *path, rota_plan **plan) {
  if (plan)
    *plan = NULL;
  if (!kernel || !path || !plan)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_plan_load: %s is NULL",
                       !kernel ? "kernel"
                       : !path ? "path"
                               : "plan");
  return prepared_load((rota_kernel *)kernel, path, plan);
}

rota_status rota_run(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                     size_t workspace_size, void *stream) {
  if (!plan || !arguments)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_run: %s is NULL", plan ? "arguments" : "plan");
  return launch_plan(plan, arguments, workspace, workspace_size, stream);
}
