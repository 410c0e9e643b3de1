/* Level 6. A schedule's functions in Lua, and what they answer (lua/pattern.lua). Answers are flat
 * lists of integers; whether they make sense is for schedule.c and plan_assign.c to find. */
#include "generator/records.h"
#include "generator/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Choice ---- */

/* Which schedule: its name, and the user's script if it is defined there. */
static rota_status name_schedule(const char *name, const char *algorithm, const SpecScript *own,
                                 Value *request) {
  ROTA_TRY(value_set_string(request, "schedule", name));
  ROTA_TRY(value_set_string(request, "algorithm", algorithm));
  if (!own)
    return ROTA_OK;
  Value *script = value_add(request, "script", 0);
  if (!script)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(value_set_string(script, "text", own->text));
  return value_set_string(script, "name", own->name);
}

static rota_status assignment_from_name(const char *name, Assignment *assignment) {
  static const char *const names[] = {
#define X(id, text, meaning) text,
      ASSIGNMENT_LIST(X) "call"
#undef X
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i], name) == 0) {
      *assignment = (Assignment)i;
      return ROTA_OK;
    }
  return status_fail(ROTA_INTERNAL, "lua/schedules.lua: there is no assignment '%s'", name);
}

static rota_status schedule_from_value(const Value *value, Schedule *schedule) {
  const char *name = value_string(value_field(value, "name"), "");
  if (strlen(name) >= sizeof schedule->name)
    return status_fail(ROTA_SCHEDULE, "schedule '%s': the name is too long", name);
  snprintf(schedule->name, sizeof schedule->name, "%s", name);
  schedule->portable = value_boolean(value_field(value, "portable"), false);
  schedule->batch_variant = value_boolean(value_field(value, "batch_variant"), false);
  int64_t together;
  if (value_integer(value_field(value, "together"), 0, INT32_MAX, &together))
    schedule->together = (int32_t)together;
  return assignment_from_name(value_string(value_field(value, "assignment"), ""),
                              &schedule->assignment);
}

/* ---- Lists ---- */

/* A list of integers as an array; NULL for no list. `exact` < 0: any length. */
static rota_status read_list(const Value *list, int64_t exact, int64_t **numbers, int64_t *count) {
  *numbers = NULL;
  *count = value_count(list);
  if (list->kind == KIND_NIL)
    return ROTA_OK;
  if (exact >= 0 && *count != exact)
    return status_fail(ROTA_INTERNAL, "lua/pattern.lua: a list of %lld is expected, it has %lld",
                       (long long)exact, (long long)*count);
  *numbers = memory_allocate((size_t)*count + 1, sizeof(int64_t));
  if (!*numbers)
    return ROTA_OUT_OF_MEMORY;
  for (int64_t i = 0; i < *count; i++)
    if (!value_integer(value_item(list, i + 1), INT64_MIN, INT64_MAX, &(*numbers)[i]))
      return status_fail(ROTA_INTERNAL, "lua/pattern.lua: an integer is expected");
  return ROTA_OK;
}

/* Values beyond 32 bits are as wrong as any other that is out of range: cut to the nearest. */
static int32_t cut(int64_t value) {
  return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static rota_status read_narrow(const Value *list, int64_t exact, int32_t **numbers) {
  int64_t *wide, count;
  *numbers = NULL;
  rota_status status = read_list(list, exact, &wide, &count);
  if (status == ROTA_OK && wide) {
    *numbers = memory_allocate((size_t)count + 1, sizeof(int32_t));
    status = *numbers ? ROTA_OK : ROTA_OUT_OF_MEMORY;
    for (int64_t i = 0; *numbers && i < count; i++)
      (*numbers)[i] = cut(wide[i]);
  }
  free(wide);
  return status;
}

/* ---- Patterns ---- */

/* First place in a column whose tile is not below `tile`. */
static int64_t place_in(const Columns *columns, int64_t column, int64_t tile) {
  int64_t low = columns->begin[column], high = columns->begin[column + 1];
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if ((int64_t)(columns->tiles[middle] & ~COLUMN_PARTIAL) < tile)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Tiles of a chain in all heads, the first and the last. */
static int answer_column(const PatternView *view, int64_t chain, int64_t out[5]) {
  out[0] = 0;
  out[1] = view->q_tiles;
  out[2] = -1;
  for (int64_t head = 0; head < view->group; head++) {
    int64_t column = head * view->chains + chain;
    int64_t begin = view->columns->begin[column], end = view->columns->begin[column + 1];
    if (begin == end)
      continue;
    int64_t first = view->columns->tiles[begin] & ~COLUMN_PARTIAL;
    int64_t last = view->columns->tiles[end - 1] & ~COLUMN_PARTIAL;
    out[0] += end - begin;
    out[1] = first < out[1] ? first : out[1];
    out[2] = last > out[2] ? last : out[2];
  }
  return 3;
}

/* Neighbouring tiles from `tile` on: the first and the last; nothing where there are none. */
static int answer_run(const PatternView *view, int64_t column, int64_t tile, int64_t out[5]) {
  const Columns *columns = view->columns;
  int64_t place = place_in(columns, column, tile), end = columns->begin[column + 1];
  if (place == end)
    return 0;
  out[0] = out[1] = columns->tiles[place] & ~COLUMN_PARTIAL;
  while (++place < end && (int64_t)(columns->tiles[place] & ~COLUMN_PARTIAL) == out[1] + 1)
    out[1]++;
  return 2;
}

static int answer_kind(const PatternView *view, int64_t column, int64_t tile, int64_t out[5]) {
  const Columns *columns = view->columns;
  int64_t place = place_in(columns, column, tile);
  out[0] = 0;
  if (place < columns->begin[column + 1] &&
      (int64_t)(columns->tiles[place] & ~COLUMN_PARTIAL) == tile)
    out[0] = columns->tiles[place] & COLUMN_PARTIAL ? 1 : 2;
  return 1;
}

static int answer_pattern(void *asked, const char *what, const int64_t in[3], int64_t out[5]) {
  const PatternView *view = asked;
  int64_t chain = in[0], head = in[1];
  if (chain < 0 || chain >= view->chains || head < 0 || head >= view->group)
    return -1;
  if (strcmp(what, "column") == 0)
    return answer_column(view, chain, out);
  if (strcmp(what, "run") == 0)
    return answer_run(view, head * view->chains + chain, in[2], out);
  if (strcmp(what, "kind") == 0)
    return answer_kind(view, head * view->chains + chain, in[2], out);
  return -1;
}

static rota_status batch_to_value(const Lengths *batch, Value *list) {
  *list = (Value){.kind = KIND_TABLE};
  for (int32_t s = 0; s < batch->batch; s++) {
    Value *entry = value_add(list, NULL, s + 1);
    if (!entry)
      return ROTA_OUT_OF_MEMORY;
    ROTA_TRY(value_set_integer(entry, "n_q", batch->n_q[s]));
    ROTA_TRY(value_set_integer(entry, "n_k", batch->n_k[s]));
  }
  return ROTA_OK;
}

static rota_status view_to_value(const Schedule *schedule, const PatternView *view,
                                 Value *request) {
  const TileMapRequest *map = &view->maps[0]->request;
  ROTA_TRY(name_schedule(schedule->name, schedule->algorithm, schedule->script, request));
  ROTA_TRY(value_set_integer(request, "chains", view->chains));
  ROTA_TRY(value_set_integer(request, "q_tiles", view->q_tiles));
  ROTA_TRY(value_set_integer(request, "group", view->group));
  ROTA_TRY(value_set_integer(request, "gang", view->gang));
  ROTA_TRY(value_set_integer(request, "n_q", map->n_q));
  ROTA_TRY(value_set_integer(request, "n_k", map->n_k));
  ROTA_TRY(value_set_integer(request, "tile_q", map->tile_q));
  ROTA_TRY(value_set_integer(request, "tile_kv", map->tile_kv));
  Value *costs = value_add(request, "costs", 0);
  if (!costs)
    return ROTA_OUT_OF_MEMORY;
#define X(field, letter, meaning)                                                                  \
  ROTA_TRY(value_set_number(costs, #field, costs_units(view->costs->field)));
  COSTS_LIST(X)
#undef X
  if (!view->batch)
    return ROTA_OK;
  ROTA_TRY(value_set_integer(request, "sequence", view->sequence + 1));
  Value *list = value_add(request, "batch", 0);
  return list ? batch_to_value(view->batch, list) : ROTA_OUT_OF_MEMORY;
}

/* Seven integers a run: chain, first and last head, from, to, step, time. */
static rota_status read_runs(const Value *list, PatternAnswer *answer) {
  enum { PER_RUN = 7 };
  int64_t *numbers, count;
  rota_status status = read_list(list, -1, &numbers, &count);
  for (int64_t i = 0; i + PER_RUN <= count && status == ROTA_OK; i += PER_RUN) {
    const int64_t *run = numbers + i;
    status = answer_add(answer, (VisitRun){cut(run[0]), cut(run[1]), cut(run[2]), cut(run[3]),
                                           cut(run[4]), cut(run[5]), run[6]});
  }
  free(numbers);
  return status;
}

static rota_status answer_from_value(const Value *value, const PatternView *view,
                                     PatternAnswer *answer) {
  int64_t number, count;
  if (value_integer(value_field(value, "optimize"), 0, INT32_MAX, &number))
    return pattern_optimize(view, (int32_t)number, answer);
  const char *ranks = value_string(value_field(value, "ranks"), "");
  answer->ranks = strcmp(ranks, "time") == 0    ? RANKS_BY_TIME
                  : strcmp(ranks, "start") == 0 ? RANKS_BY_START
                  : strcmp(ranks, "given") == 0 ? RANKS_BY_TIME_GIVEN
                                                : RANKS_BY_PRIORITY;
  if (value_integer(value_field(value, "gang"), 1, INT32_MAX, &number))
    answer->gang = (int32_t)number;
  if (value_integer(value_field(value, "together"), 1, INT32_MAX, &number))
    answer->together = (int32_t)number;
  if (value_integer(value_field(value, "abreast"), 1, INT32_MAX, &number))
    answer->abreast = (int32_t)number;
  int64_t chains = view->chains;
  ROTA_TRY(read_narrow(value_field(value, "start"), chains, &answer->start));
  ROTA_TRY(read_narrow(value_field(value, "lanes"), chains, &answer->lane));
  ROTA_TRY(read_narrow(value_field(value, "tiers"), chains, &answer->tier));
  ROTA_TRY(read_list(value_field(value, "priority"), chains, &answer->priority, &count));
  return read_runs(value_field(value, "visits"), answer);
}

static rota_status call_pattern(const Schedule *schedule, const PatternView *view,
                                PatternAnswer *answer) {
  Value request = {0}, result = {0};
  rota_status status = view_to_value(schedule, view, &request);
  if (status == ROTA_OK)
    status = script_call_asking(schedule->owner, "pattern", &request, ROTA_SCHEDULE, answer_pattern,
                                (void *)view, &result);
  if (status == ROTA_OK)
    status = answer_from_value(&result, view, answer);
  value_free(&request);
  value_free(&result);
  return status;
}

/* ---- Assignments ---- */

static int answer_item(void *asked, const char *what, const int64_t in[3], int64_t out[5]) {
  const BatchView *view = asked;
  if (strcmp(what, "item") != 0 || in[0] < 0 || in[0] >= view->item_count)
    return -1;
  const BatchItem *item = &view->items[in[0]];
  out[0] = item->sequence;
  out[1] = item->kv_head;
  out[2] = item->kv_tile;
  out[3] = item->visits;
  out[4] = item->lane;
  return 5;
}

static rota_status queues_from_value(const Schedule *schedule, const Value *value,
                                     BatchAnswer *answer, int64_t item_count) {
  int64_t *items = NULL, *ends = NULL, count = 0, queues = 0;
  rota_status status = read_list(value_field(value, "items"), -1, &items, &count);
  if (status == ROTA_OK)
    status = read_list(value_field(value, "ends"), -1, &ends, &queues);
  if (status == ROTA_OK && (count > item_count || queues > answer->queue_capacity))
    status =
        status_fail(ROTA_SCHEDULE,
                    "schedule '%s': %lld items in %lld queues are assigned; there are %lld "
                    "items",
                    schedule->name, (long long)count, (long long)queues, (long long)item_count);
  if (status == ROTA_OK) {
    answer->count = count;
    answer->queues = (int32_t)queues;
    if (items)
      memcpy(answer->items, items, (size_t)count * sizeof(int64_t));
    if (ends)
      memcpy(answer->queue_end, ends, (size_t)queues * sizeof(int64_t));
  }
  free(items);
  free(ends);
  return status;
}

static rota_status call_assign(const Schedule *schedule, const BatchView *view,
                               BatchAnswer *answer) {
  Value request = {0}, result = {0};
  rota_status status =
      name_schedule(schedule->name, schedule->algorithm, schedule->script, &request);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "items", view->item_count);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "workers", view->workers);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "sequences", view->sequences);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "kv_heads", view->kv_heads);
  if (status == ROTA_OK)
    status = script_call_asking(schedule->owner, "assign", &request, ROTA_SCHEDULE, answer_item,
                                (void *)view, &result);
  if (status == ROTA_OK)
    status = queues_from_value(schedule, &result, answer, view->item_count);
  value_free(&request);
  value_free(&result);
  return status;
}

rota_status script_schedule(Script *script, const Spec *spec, const Tiling *tiling,
                            const Target *device, Schedule *schedule) {
  *schedule = (Schedule){.owner = script, .pattern = call_pattern, .assign = call_assign};
  schedule->script = spec->script;
  snprintf(schedule->algorithm, sizeof schedule->algorithm, "%s", tiling->algorithm);
  schedule->workers = device->multiprocessors * tiling_get(tiling, "blocks_per_sm", 1);
  if (schedule->workers < 1)
    schedule->workers = 1;
  schedule->persistent = tiling_get(tiling, "persistent", 0) != 0;
  ROTA_TRY(script_costs(script, spec, tiling, NULL, NULL, &schedule->costs));
  Value request = {0}, result = {0};
  rota_status status = name_schedule(spec->schedule, tiling->algorithm, spec->script, &request);
  if (status == ROTA_OK)
    status = value_set_string(&request, "architecture", tiling->architecture);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "tile_q", tiling->tile_q);
  if (status == ROTA_OK)
    status = value_set_integer(&request, "tile_kv", tiling->tile_kv);
  if (status == ROTA_OK)
    status = value_set_string(&request, "mask", mask_shape(spec));
  if (status == ROTA_OK)
    status = script_call(script, "schedule", &request, ROTA_SCHEDULE, &result);
  if (status == ROTA_OK)
    status = schedule_from_value(&result, schedule);
  value_free(&request);
  value_free(&result);
  return status;
}
