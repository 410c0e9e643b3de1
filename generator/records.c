/* Level 5. Requests to the policy in lua/. */
#include "generator/records.h"

rota_status tiling_request_to_value(const Spec *spec, rota_direction direction, rota_layout layout,
                                    const Target *target, Value *request) {
  Value *record = value_add(request, "spec", 0);
  if (!record)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(spec_to_value(spec, record));
  record = value_add(request, "target", 0);
  if (!record)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(target_to_value(target, record));
  const char *name = direction == ROTA_FORWARD ? "forward" : "backward";
  ROTA_TRY(value_set_string(request, "direction", name));
  ROTA_TRY(value_set_string(request, "tiling", spec->tiling[direction]));
  return value_set_boolean(request, "aligned", layout == ROTA_LAYOUT_ALIGNED);
}
