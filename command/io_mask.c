/* A mask from a string: see io_mask.h. */
#include "command/io_mask.h"

#include "generator/plan_values.h"
#include "runtime/environment.h"

rota_status io_mask_replace(IoMask *mask, const char *text) {
  spec_free(&mask->spec);
  mask->spec = (Spec){.mask = NULL};
  mask->text = text;
  /* Only the mask matters; the other fields are what any spec needs. */
  rota_spec_fields fields = {.dtype = ROTA_BF16, .head_dim = 64, .heads = 1, .mask = text};
  ROTA_TRY(script_spec_from_fields(mask->script, &fields, &mask->spec));
  if (mask->spec.symbols.tensor_count > 0)
    return status_fail(ROTA_UNSUPPORTED,
                       "mask '%s' reads the tensor '%s': I/O is counted for masks without tensors",
                       text, mask->spec.symbols.tensors[0].name);
  rota_plan_request request = {.heads = 1};
  return plan_bind_values(&mask->spec.symbols, &request, &mask->bindings);
}

rota_status io_mask_open(const char *text, IoMask *mask) {
  *mask = (IoMask){.text = NULL};
  if (!text)
    return ROTA_OK;
  ROTA_TRY(store_create(environment_get(ENVIRONMENT_OVERRIDE_DIR), &mask->store));
  ROTA_TRY(script_create(mask->store, &mask->script));
  return io_mask_replace(mask, text);
}

void io_mask_close(IoMask *mask) {
  spec_free(&mask->spec);
  script_destroy(mask->script);
  store_destroy(mask->store);
}
