/* Level 6. Costs of the DAG model from lua/costs.lua, candidates for tuning from lua/tuning.lua. */
#include "generator/script_tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/records.h"

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
  int blocks = tiling_get(tiling, "blocks_per_sm", 1);
  ROTA_TRY(value_set_integer(record, "blocks_per_sm", blocks > 0 ? blocks : 1));
  ROTA_TRY(value_set_string(request, "mask", mask_shape(spec)));
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

rota_status script_cost_file(Script *script, const Spec *spec, const Tiling *tiling,
                             const Costs *costs, const char *device, const char *date,
                             char **text) {
  Value request = {0}, result = {0};
  *text = NULL;
  rota_status status = request_to_value(spec, tiling, device, NULL, &request);
  Value *record = status == ROTA_OK ? value_add(&request, "costs", 0) : NULL;
  if (status == ROTA_OK && !record)
    status = ROTA_OUT_OF_MEMORY;
#define X(field, letter, meaning)                                                                  \
  if (status == ROTA_OK)                                                                           \
    status = value_set_number(record, #field, costs_units(costs->field));
  COSTS_LIST(X)
#undef X
  if (status == ROTA_OK)
    status = value_set_integer(record, "staging", costs->staging);
  if (status == ROTA_OK)
    status = value_set_string(&request, "date", date);
  if (status == ROTA_OK)
    status = script_call(script, "cost_file", &request, ROTA_INTERNAL, &result);
  if (status == ROTA_OK) {
    *text = memory_copy_string(value_string(value_field(&result, "text"), ""));
    status = *text ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  }
  value_free(&request);
  value_free(&result);
  return status;
}

/* ---- Candidates ---- */

static rota_status read_candidate(const Value *entry, int number, Candidate *candidate) {
  const char *schedule = value_string(value_field(entry, "schedule"), "");
  const char *tiling = value_string(value_field(entry, "tiling"), "");
  const char *direction = value_string(value_field(entry, "direction"), "");
  int64_t rank;
  if (!backward_from_name(value_string(value_field(entry, "backward"), ""), &candidate->backward) ||
      strlen(schedule) >= sizeof candidate->schedule ||
      strlen(tiling) >= sizeof candidate->tiling ||
      !value_integer(value_field(entry, "rank"), 1, INT32_MAX, &rank))
    return status_fail(ROTA_INTERNAL, "lua/tuning.lua: candidate %d is not one", number);
  candidate->direction = strcmp(direction, "forward") == 0 ? ROTA_FORWARD : ROTA_BACKWARD;
  candidate->rank = (int)rank;
  snprintf(candidate->schedule, sizeof candidate->schedule, "%s", schedule);
  snprintf(candidate->tiling, sizeof candidate->tiling, "%s", tiling);
  return ROTA_OK;
}

static rota_status read_candidates(const Value *list, Candidate **candidates, int *count) {
  *count = value_count(list);
  *candidates = memory_allocate((size_t)*count + 1, sizeof(Candidate));
  if (!*candidates)
    return ROTA_OUT_OF_MEMORY;
  for (int i = 0; i < *count; i++)
    ROTA_TRY(read_candidate(value_item(list, i + 1), i + 1, &(*candidates)[i]));
  return ROTA_OK;
}

static rota_status candidates_request(const CandidateRequest *request, Value *value) {
  /* Of both directions; the one in the request counts for nothing. */
  ROTA_TRY(tiling_request_to_value(request->spec, ROTA_FORWARD, request->layout, request->target,
                                   value));
  ROTA_TRY(value_set_integer(value, "n_q", request->n_q));
  return value_set_integer(value, "n_k", request->n_k);
}

rota_status script_candidates(Script *script, const CandidateRequest *request,
                              Candidate **candidates, int *count) {
  Value value = {0}, result = {0};
  *candidates = NULL;
  *count = 0;
  rota_status status = candidates_request(request, &value);
  if (status == ROTA_OK)
    status = script_call(script, "candidates", &value, ROTA_INTERNAL, &result);
  if (status == ROTA_OK)
    status = read_candidates(&result, candidates, count);
  if (status != ROTA_OK) {
    free(*candidates);
    *candidates = NULL;
  }
  value_free(&value);
  value_free(&result);
  return status;
}
