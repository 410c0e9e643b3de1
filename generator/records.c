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
  ROTA_TRY(value_set_string(request, "mask", mask_shape(spec)));
  return value_set_boolean(request, "aligned", layout == ROTA_LAYOUT_ALIGNED);
}

const char *mask_shape(const Spec *spec) {
  Expression *first, *end;
  if (!spec->mask)
    return "full";
  if (!expression_columns(spec->mask, &first, &end))
    return "other";
  ExpressionUse low = expression_use(first), high = expression_use(end);
  bool from_first = !low.q && !low.n_q && !low.n_k && !low.b && !low.h;
  for (int i = 0; i < PARAMETERS_MAX; i++)
    from_first &= !low.parameter[i];
  for (int i = 0; i < TENSORS_MAX; i++)
    from_first &= !low.tensor[i];
  expression_release(first);
  expression_release(end);
  return from_first && high.q ? "prefix" : "interval";
}
