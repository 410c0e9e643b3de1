/* Level 2. Tilings and targets as an architecture file in lua/ decided them, checked field by
 * field: such a file may come from an override directory, and its mistakes are to be told, not
 * launched. */
#include "generator/tiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TILE_MAX = 1024,      /* rows or columns of a tile */
  THREADS_MAX = 1024,   /* of a block: CUDA's limit */
  SHARED_MAX = 1 << 20, /* bytes: more than any GPU has */
};

static const char *const grid_names[] = {
#define X(name, text, meaning) text,
    GRID_LIST(X)
#undef X
};
enum { GRID_COUNT = sizeof grid_names / sizeof grid_names[0] };

int tiling_shared_bytes(const Tiling *tiling) {
  int most = 0;
  for (int i = 0; i < tiling->launch_count; i++)
    if (tiling->launches[i].shared_bytes > most)
      most = tiling->launches[i].shared_bytes;
  return most;
}

const char *grid_name(Grid grid) {
  return (unsigned)grid < GRID_COUNT ? grid_names[grid] : "unknown";
}

int tiling_get(const Tiling *tiling, const char *name, int otherwise) {
  for (int i = 0; i < tiling->field_count; i++) {
    if (strcmp(tiling->fields[i].name, name) == 0)
      return tiling->fields[i].value;
  }
  return otherwise;
}

static rota_status wrong(const Tiling *tiling, const char *what) {
  return status_fail(ROTA_INTERNAL, "lua/architectures/%s.lua, algorithm %s: %s",
                     tiling->architecture, tiling->algorithm, what);
}

/* Copies a string field into a fixed array; false if it is missing or too long. */
static bool copy_name(const Value *table, const char *field, char *to, size_t size) {
  const char *string = value_string(value_field(table, field), NULL);
  if (!string || strlen(string) >= size)
    return false;
  memcpy(to, string, strlen(string) + 1);
  return true;
}

/* Lower case with underscores: it becomes part of an identifier in the generated source. */
static bool is_field_name(const char *name) {
  if (strlen(name) >= TILING_NAME_MAX || name[0] < 'a' || name[0] > 'z')
    return false;
  return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

static rota_status read_launch(const Value *value, const Tiling *tiling, Launch *launch) {
  char grid[TILING_NAME_MAX];
  if (!copy_name(value, "entry", launch->entry, sizeof launch->entry) ||
      !is_field_name(launch->entry))
    return wrong(tiling, "a launch needs an entry such as \"rota_forward\"");
  if (!copy_name(value, "grid", grid, sizeof grid))
    return wrong(tiling, "a launch needs a grid");
  int found = 0;
  while (found < GRID_COUNT && strcmp(grid_names[found], grid) != 0)
    found++;
  if (found == GRID_COUNT)
    return wrong(tiling, "a launch's grid is none of tiling.h's GRID_LIST");
  launch->grid = (Grid)found;
  int64_t threads, bytes;
  if (!value_integer(value_field(value, "threads"), 32, THREADS_MAX, &threads) || threads % 32)
    return wrong(tiling, "a launch's threads must be a multiple of 32, up to 1024");
  if (!value_integer(value_field(value, "shared_bytes"), 0, SHARED_MAX, &bytes))
    return wrong(tiling, "a launch's shared_bytes must be a byte count");
  launch->threads = (int)threads;
  launch->shared_bytes = (int)bytes;
  return ROTA_OK;
}

static rota_status read_fields(const Value *value, Tiling *tiling) {
  /* The value's fields are sorted by name, so the tiling's are too. */
  for (int i = 0; i < value->as.table.count; i++) {
    const ValueEntry *entry = &value->as.table.entries[i];
    int64_t number;
    if (!entry->name || entry->value.kind != KIND_INTEGER)
      continue;
    if (!value_integer(&entry->value, INT32_MIN, INT32_MAX, &number) || !is_field_name(entry->name))
      return wrong(tiling, "integer fields are 32-bit and named in lower case");
    if (tiling->field_count == TILING_FIELDS_MAX)
      return wrong(tiling, "too many fields");
    TilingField *field = &tiling->fields[tiling->field_count++];
    memcpy(field->name, entry->name, strlen(entry->name) + 1);
    field->value = (int)number;
  }
  tiling->tile_q = tiling_get(tiling, "tile_q", 0);
  tiling->tile_kv = tiling_get(tiling, "tile_kv", 0);
  if (tiling->tile_q < 1 || tiling->tile_q > TILE_MAX || tiling->tile_kv < 1 ||
      tiling->tile_kv > TILE_MAX)
    return wrong(tiling, "tile_q and tile_kv must be from 1 to 1024");
  return ROTA_OK;
}

rota_status tiling_from_value(const Value *value, Tiling *tiling) {
  *tiling = (Tiling){.architecture = "?", .algorithm = "?"};
  if (value->kind != KIND_TABLE)
    return wrong(tiling, "a tiling must be a table");
  if (!copy_name(value, "architecture", tiling->architecture, sizeof tiling->architecture))
    return wrong(tiling, "architecture is missing");
  if (!copy_name(value, "algorithm", tiling->algorithm, sizeof tiling->algorithm))
    return wrong(tiling, "algorithm is missing");
  if (!copy_name(value, "template", tiling->template_path, sizeof tiling->template_path))
    return wrong(tiling, "template is missing or too long");
  ROTA_TRY(read_fields(value, tiling));
  const Value *launches = value_field(value, "launches");
  int count = value_count(launches);
  if (count < 1 || count > LAUNCHES_MAX)
    return wrong(tiling, "launches must be 1 to 6 entries");
  for (int i = 0; i < count; i++)
    ROTA_TRY(read_launch(value_item(launches, i + 1), tiling, &tiling->launches[i]));
  tiling->launch_count = count;
  return ROTA_OK;
}

rota_status target_from_value(const Value *value, Target *target) {
  *target = (Target){0};
  if (!copy_name(value, "name", target->name, sizeof target->name))
    return status_fail(ROTA_INTERNAL, "lua/architectures: a target without a name");
  const struct {
    const char *name;
    int *to;
  } fields[] = {
      {"sm", &target->sm},
      {"shared_per_block", &target->shared_per_block},
      {"shared_per_sm", &target->shared_per_sm},
      {"registers_per_sm", &target->registers_per_sm},
      {"multiprocessors", &target->multiprocessors},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    int64_t number;
    if (!value_integer(value_field(value, fields[i].name), 1, INT32_MAX, &number))
      return status_fail(ROTA_INTERNAL, "lua/architectures: target %s lacks %s", target->name,
                         fields[i].name);
    *fields[i].to = (int)number;
  }
  if (!value_integer(value_field(value, "l2_bytes"), 1, INT64_MAX, &target->l2_bytes))
    return status_fail(ROTA_INTERNAL, "lua/architectures: target %s lacks l2_bytes", target->name);
  return ROTA_OK;
}

rota_status target_to_value(const Target *target, Value *record) {
  ROTA_TRY(value_set_string(record, "name", target->name));
  ROTA_TRY(value_set_integer(record, "sm", target->sm));
  ROTA_TRY(value_set_integer(record, "shared_per_block", target->shared_per_block));
  ROTA_TRY(value_set_integer(record, "shared_per_sm", target->shared_per_sm));
  ROTA_TRY(value_set_integer(record, "registers_per_sm", target->registers_per_sm));
  ROTA_TRY(value_set_integer(record, "multiprocessors", target->multiprocessors));
  return value_set_integer(record, "l2_bytes", target->l2_bytes);
}
