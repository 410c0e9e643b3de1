/* Level 6. Rates from lua/rates.lua, in its units: see script_rates.h. */
#include "generator/script_rates.h"

static rota_status read_rates(const Value *value, Rates *rates) {
  const struct {
    const char *name;
    double *to;
  } fields[] = {{"tensor", &rates->tensor},
                {"fp32", &rates->fp32},
                {"dram", &rates->dram},
                {"l2", &rates->l2},
                {"shared", &rates->shared}};
  const double tera = 1e12;
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    double number;
    if (!value_number(value_field(value, fields[i].name), &number) || !(number > 0))
      return status_fail(ROTA_INTERNAL, "lua/rates.lua: %s must be positive", fields[i].name);
    *fields[i].to = number * tera;
  }
  return ROTA_OK;
}

rota_status script_rates(Script *script, const Target *target, Rates *rates) {
  Value request = {0}, result = {0};
  rota_status status = value_set_integer(&request, "sm", target->sm);
  if (status == ROTA_OK)
    status = script_call(script, "rates", &request, ROTA_INTERNAL, &result);
  if (status == ROTA_OK)
    status = read_rates(&result, rates);
  value_free(&request);
  value_free(&result);
  return status;
}
