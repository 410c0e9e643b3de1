/* Level 14. The public interface: kernels. See rota.h; here only arguments are checked. */
#include <string.h>

#include "runtime/kernel.h"

/* What both questions need; a NULL request means all defaults. */
static rota_status check_call(const char *call, const rota_context *context, const rota_spec *spec,
                              const rota_kernel_request *request) {
  if (context && spec && request)
    return ROTA_OK;
  return status_fail(ROTA_INVALID_ARGUMENT, "%s: %s is NULL", call,
                     !context ? "context"
                     : !spec  ? "spec"
                              : "request");
}

rota_status rota_supports(rota_context *context, const rota_spec *spec,
                          const rota_kernel_request *request) {
  ROTA_TRY(check_call("rota_supports", context, spec, request));
  KernelChoice choice;
  ROTA_TRY(kernel_choose(context, &spec->spec, request, &choice));
  kernel_choice_free(&choice);
  return ROTA_OK;
}

rota_status rota_kernel_prepare(rota_context *context, const rota_spec *spec,
                                const rota_kernel_request *request, rota_kernel **kernel) {
  if (!kernel)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_kernel_prepare: kernel is NULL");
  *kernel = NULL;
  ROTA_TRY(check_call("rota_kernel_prepare", context, spec, request));
  return kernel_prepare(context, &spec->spec, request, kernel);
}

void rota_kernel_destroy(rota_kernel *kernel) {
  kernel_release(kernel);
}

const char *rota_kernel_source(const rota_kernel *kernel) {
  return kernel ? kernel->source : "";
}

void rota_kernel_get_info(const rota_kernel *kernel, rota_kernel_info *info) {
  if (!info)
    return;
  if (kernel) {
    kernel_info(kernel, info);
    return;
  }
  *info = (rota_kernel_info){.architecture = "", .algorithm = "", .compile_log = ""};
}

rota_status rota_kernel_export(const rota_kernel *kernel, const char *path) {
  if (!kernel || !path)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_kernel_export: %s is NULL",
                       kernel ? "path" : "kernel");
  return kernel_export(kernel, path);
}

rota_status rota_kernel_import(rota_context *context, const char *path, int32_t device_ordinal,
                               rota_kernel **kernel) {
  if (kernel)
    *kernel = NULL;
  if (!context || !path || !kernel)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_kernel_import: %s is NULL",
                       !context ? "context"
                       : !path  ? "path"
                                : "kernel");
  return kernel_import(context, path, device_ordinal, kernel);
}
