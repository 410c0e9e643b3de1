/* Level 2. Costs from text and from Lua's tables. */
#include "generator/costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Largest time in units: a million visits of it still fit 63 bits of ticks. */
#define UNITS_MAX 1e9

static int64_t ticks(double units) {
  return (int64_t)llround(units * COSTS_TICKS);
}

Costs costs_paper(double visit, double reduce) {
  return (Costs){.visit = ticks(visit), .partial = ticks(visit), .reduce = ticks(reduce)};
}

rota_status costs_check(const Costs *costs) {
#define X(name, letter, meaning)                                                                   \
  if (costs->name < 0 || costs->name > ticks(UNITS_MAX))                                           \
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: %s is not within 0 .. 1e9", #name);
  COSTS_LIST(X)
#undef X
  if (costs->visit < 1 || costs->partial < 1)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "costs: visit and partial must be at least 1/%d: time has to pass",
                       COSTS_TICKS);
  if (costs->staging < 0 || costs->staging > COSTS_STAGING_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: staging %d is not within 0 .. %d",
                       costs->staging, COSTS_STAGING_MAX);
  if (costs->l2 < 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: l2 %d is negative", costs->l2);
  return ROTA_OK;
}

/* ---- Text ---- */

/* Decimal digits with at most one point; strtod would read the locale's comma. */
static bool parse_number(const char *text, size_t length, double *number) {
  double value = 0, scale = 1;
  bool digits = false, point = false;
  for (size_t i = 0; i < length; i++) {
    if (text[i] == '.' && !point) {
      point = true;
    } else if (text[i] >= '0' && text[i] <= '9') {
      digits = true;
      value = 10 * value + (text[i] - '0');
      scale *= point ? 10 : 1;
    } else {
      return false;
    }
  }
  *number = value / scale;
  return digits && *number <= UNITS_MAX;
}

static bool named(const char *text, size_t length, const char *name) {
  return strlen(name) == length && !memcmp(text, name, length);
}

/* One "name=number" of `length` characters. */
static rota_status parse_pair(const char *text, size_t length, Costs *costs, bool *partial_given) {
  const char *equals = memchr(text, '=', length);
  size_t name = equals ? (size_t)(equals - text) : 0;
  double number;
  if (!equals || !parse_number(equals + 1, length - name - 1, &number))
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "costs: '%.*s' is not NAME=NUMBER with a number of 0 .. 1e9", (int)length,
                       text);
#define X(field, letter, meaning)                                                                  \
  if (named(text, name, #field) || named(text, name, letter)) {                                    \
    costs->field = ticks(number);                                                                  \
    *partial_given = *partial_given || !strcmp(#field, "partial");                                 \
    return ROTA_OK;                                                                                \
  }
  COSTS_LIST(X)
#undef X
  if (named(text, name, "staging") && number == floor(number) && number <= COSTS_STAGING_MAX) {
    costs->staging = (int32_t)number;
    return ROTA_OK;
  }
  if (named(text, name, "l2") && number == floor(number) && number <= INT32_MAX) {
    costs->l2 = (int32_t)number;
    return ROTA_OK;
  }
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "costs: '%.*s': known are c (visit), partial, r (reduce), h (handoff), s "
                     "(start), m (miss), l2 (tiles), and staging of 0 .. %d",
                     (int)length, text, COSTS_STAGING_MAX);
}

rota_status costs_parse(const char *text, Costs *costs) {
  *costs = costs_paper(1, 0);
  bool partial_given = false;
  while (*text) {
    size_t length = strcspn(text, ",");
    ROTA_TRY(parse_pair(text, length, costs, &partial_given));
    text += length;
    text += *text == ',';
  }
  if (!partial_given)
    costs->partial = costs->visit;
  return costs_check(costs);
}

/* ---- Lua ---- */

static rota_status time_from_value(const Value *value, const char *name, int64_t *time) {
  double number;
  if (!value_number(value_field(value, name), &number) || !(number >= 0 && number <= UNITS_MAX))
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: %s is not a number of 0 .. 1e9", name);
  *time = ticks(number);
  return ROTA_OK;
}

rota_status costs_from_value(const Value *value, Costs *costs) {
  *costs = (Costs){0};
#define X(name, letter, meaning) ROTA_TRY(time_from_value(value, #name, &costs->name));
  COSTS_LIST(X)
#undef X
  int64_t staging;
  if (!value_integer(value_field(value, "staging"), 0, COSTS_STAGING_MAX, &staging))
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: staging is not an integer of 0 .. %d",
                       COSTS_STAGING_MAX);
  costs->staging = (int32_t)staging;
  int64_t l2;
  if (!value_integer(value_field(value, "l2"), 0, INT32_MAX, &l2))
    return status_fail(ROTA_INVALID_ARGUMENT, "costs: l2 is not an integer of at least 0");
  costs->l2 = (int32_t)l2;
  snprintf(costs->unit, sizeof costs->unit, "%s", value_string(value_field(value, "unit"), ""));
  return costs_check(costs);
}
