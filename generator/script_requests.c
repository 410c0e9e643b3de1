/* Level 6. What C asks of lua/main.lua: specs, targets, tilings. */
#include "generator/records.h"
#include "generator/script.h"

/* A spec from a function of lua/main.lua that returns a model. */
static rota_status make_spec(Script *script, const char *function, const Value *argument,
                             Spec *spec) {
  Value model = {0};
  rota_status status = script_call(script, function, argument, ROTA_SCRIPT, &model);
  *spec = (Spec){0};
  if (status == ROTA_OK)
    status = spec_from_value(&model, spec);
  value_free(&model);
  return status;
}

rota_status script_spec(Script *script, const char *text, const char *chunk_name, Spec *spec) {
  Value argument = {0};
  rota_status status = value_set_string(&argument, "text", text);
  if (status == ROTA_OK)
    status = value_set_string(&argument, "name", chunk_name);
  if (status == ROTA_OK)
    status = make_spec(script, "script", &argument, spec);
  value_free(&argument);
  return status;
}

rota_status script_spec_from_fields(Script *script, const rota_spec_fields *fields, Spec *spec) {
  Value argument = {0};
  rota_status status = fields_to_value(fields, &argument);
  if (status == ROTA_OK)
    status = make_spec(script, "fields", &argument, spec);
  value_free(&argument);
  return status;
}

rota_status script_target(Script *script, const char *name, Target *target) {
  Value argument = {0}, result = {0};
  rota_status status = value_set_string(&argument, "name", name);
  if (status == ROTA_OK)
    status = script_call(script, "target", &argument, ROTA_INTERNAL, &result);
  if (status == ROTA_OK)
    status = target_from_value(&result, target);
  value_free(&argument);
  value_free(&result);
  return status;
}

rota_status script_tiling(Script *script, const Spec *spec, rota_direction direction,
                          rota_layout layout, const Target *target, Tiling *tiling) {
  Value request = {0}, result = {0};
  rota_status status = tiling_request_to_value(spec, direction, layout, target, &request);
  if (status == ROTA_OK)
    status = script_call(script, "tiling", &request, ROTA_INTERNAL, &result);
  if (status == ROTA_OK)
    status = tiling_from_value(&result, tiling);
  value_free(&request);
  value_free(&result);
  return status;
}
