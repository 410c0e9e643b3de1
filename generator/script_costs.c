/* Level 6. Costs of the DAG model from lua/costs.lua. */
#include "generator/script.h"

#include "generator/spec_value.h"

static rota_status request_to_value(const Spec *spec, const Tiling *tiling, const char *device,
                                    const char *name, Value *request) {
  Value *record = value_add(request, "spec", 0);
  if (!record)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(spec_to_value(spec, record));
  record = value_add(request, "tiling", 0);
  if (!record)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(value_set_string(record, "architecture", tiling->architecture));
  ROTA_TRY(value_set_string(record, "algorithm", tiling->algorithm));
  ROTA_TRY(value_set_integer(record, "tile_q", tiling->tile_q));
  ROTA_TRY(value_set_integer(record, "tile_kv", tiling->tile_kv));
  ROTA_TRY(value_set_string(request, "device", device));
  return value_set_string(request, "name", name);
}

rota_status script_costs(Script *script, const Spec *spec, const Tiling *tiling, const char *device,
                         const char *name, Costs *costs) {
  Value request = {0}, result = {0};
  rota_status status = request_to_value(spec, tiling, device, name, &request);
  if (status == ROTA_OK)
    status = script_call(script, "costs", &request, device ? ROTA_FILE : ROTA_INTERNAL, &result);
  if (status == ROTA_OK)
    status = costs_from_value(&result, costs);
  value_free(&request);
  value_free(&result);
  return status;
}
