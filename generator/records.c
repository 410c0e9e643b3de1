/* Level 5. Requests to the policy in lua/, and its answer about schedules. */
#include "generator/records.h"

#include <stdio.h>
#include <string.h>

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
  return value_set_boolean(request, "aligned", layout == ROTA_LAYOUT_ALIGNED);
}

rota_status rule_from_value(const Value *value, ScheduleRule *rule) {
  const char *name = value_string(value_field(value, "name"), "");
  const char *chains = value_string(value_field(value, "chains"), "");
  const char *visits = value_string(value_field(value, "visits"), "");
  bool chains_down = strcmp(chains, "descending") == 0;
  bool visits_down = strcmp(visits, "descending") == 0;
  if ((!chains_down && strcmp(chains, "ascending") != 0) ||
      (!visits_down && strcmp(visits, "ascending") != 0) || strlen(name) >= sizeof rule->name)
    return status_fail(ROTA_SCHEDULE,
                       "lua/schedules.lua: schedule '%s': chains and visits are \"ascending\" or "
                       "\"descending\"",
                       name);
  *rule = (ScheduleRule){.chains = chains_down ? CHAINS_DESCENDING : CHAINS_ASCENDING,
                         .visits = visits_down ? VISITS_DESCENDING : VISITS_ASCENDING};
  snprintf(rule->name, sizeof rule->name, "%s", name);
  return ROTA_OK;
}
