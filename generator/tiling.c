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
  BOX_ROWS_MAX = 256,   /* of the copy engine */
};

static const char *const grid_names[] = {
#define X(name, text, meaning) text,
    GRID_LIST(X)
#undef X
};

static const char *const mapped_names[] = {
#define X(name, keys, values) #name,
    MAPPED_LIST(X)
#undef X
};

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

const char *mapped_name(Mapped tensor) {
  return (unsigned)tensor < MAPPED_COUNT ? mapped_names[tensor] : "unknown";
}

const char *tiling_code(const Tiling *tiling, const Target *target) {
  return tiling->code[0] ? tiling->code : target->name;
}

int tiling_get(const Tiling *tiling, const char *name, int otherwise) {
  for (int i = 0; i < tiling->field_count; i++) {
    if (strcmp(tiling->fields[i].name, name) == 0)
      return tiling->fields[i].value;
  }
  return otherwise;
}

int tiling_packed(const Tiling *tiling) {
  return tiling_get(tiling, "packed", 1);
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
  const Value *overlaps = value_field(value, "overlaps");
  if (overlaps->kind != KIND_NIL && overlaps->kind != KIND_BOOLEAN)
    return wrong(tiling, "a launch's overlaps must be true or false");
  launch->overlaps = value_boolean(overlaps, false);
  return ROTA_OK;
}

/* Row items are dealt to workers when a forward pass is planned. */
static rota_status check_row_workers(const Tiling *tiling) {
  if (strcmp(tiling->algorithm, "forward") != 0)
    return wrong(tiling, "grid row_workers is for the forward pass");
  if (tiling_get(tiling, "workers", 0) < 1)
    return wrong(tiling, "grid row_workers needs the field workers: how many");
  return ROTA_OK;
}

/* Rows that a forward pass cuts into pieces (plan_pieces.h) must be joined. */
static rota_status check_joins(const Tiling *tiling) {
  bool joins = false;
  for (int i = 0; i < tiling->launch_count; i++)
    joins |= tiling->launches[i].grid == GRID_JOINS;
  if (joins != (tiling_get(tiling, "pieces", 0) > 1))
    return wrong(tiling, "a launch with grid joins goes with the field pieces, more than 1");
  if (joins && tiling_get(tiling, "join_rows", 0) < 1)
    return wrong(tiling, "grid joins needs the field join_rows: rows of a block");
  return ROTA_OK;
}

static rota_status read_launches(const Value *launches, Tiling *tiling) {
  int count = value_count(launches);
  if (count < 1 || count > LAUNCHES_MAX)
    return wrong(tiling, "launches must be 1 to 6 entries");
  for (int i = 0; i < count; i++) {
    ROTA_TRY(read_launch(value_item(launches, i + 1), tiling, &tiling->launches[i]));
    if (tiling->launches[i].grid == GRID_ROW_WORKERS)
      ROTA_TRY(check_row_workers(tiling));
  }
  tiling->launch_count = count;
  return check_joins(tiling);
}

/* Ascending, so that each is there once. */
static rota_status read_wgmma(const Value *list, Tiling *tiling) {
  int count = value_count(list);
  if (list->kind != KIND_NIL &&
      (list->kind != KIND_TABLE || count != list->as.table.count || count > TILING_WGMMA_MAX))
    return wrong(tiling, "wgmma must be a list of at most 8 values of N");
  for (int i = 0; i < count; i++) {
    int64_t n;
    if (!value_integer(value_item(list, i + 1), 8, 256, &n) || n % 8)
      return wrong(tiling, "wgmma: N is a multiple of 8, from 8 to 256");
    if (i > 0 && n <= tiling->wgmma[i - 1])
      return wrong(tiling, "wgmma: values of N must ascend");
    tiling->wgmma[i] = (int)n;
  }
  tiling->wgmma_count = count;
  return ROTA_OK;
}

static rota_status read_map(const Value *value, const Tiling *tiling, TilingMap *map) {
  char name[TILING_NAME_MAX];
  int64_t rows, heads = 0;
  if (!copy_name(value, "tensor", name, sizeof name))
    return wrong(tiling, "an entry of tensor_maps needs a tensor such as \"q\"");
  int found = 0;
  while (found < MAPPED_COUNT && strcmp(mapped_names[found], name) != 0)
    found++;
  if (found == MAPPED_COUNT)
    return wrong(tiling, "a tensor of tensor_maps is none of tiling.h's MAPPED_LIST");
  map->tensor = (Mapped)found;
  const Value *several = value_field(value, "heads");
  if (several->kind != KIND_NIL && !value_integer(several, 1, BOX_ROWS_MAX, &heads))
    return wrong(tiling, "heads of an entry of tensor_maps must be from 1 to 256");
  if (!value_integer(value_field(value, "rows"), 1, BOX_ROWS_MAX, &rows) ||
      (heads == 0 && rows % 8))
    return wrong(tiling, "rows of an entry of tensor_maps must be a multiple of 8, up to 256");
  map->rows = (int)rows;
  map->heads = (int)heads;
  return ROTA_OK;
}

static rota_status read_maps(const Value *list, Tiling *tiling) {
  int count = value_count(list);
  if (list->kind != KIND_NIL &&
      (list->kind != KIND_TABLE || count != list->as.table.count || count > TILING_MAPS_MAX))
    return wrong(tiling, "tensor_maps must be a list of at most 8 entries");
  for (int i = 0; i < count; i++) {
    ROTA_TRY(read_map(value_item(list, i + 1), tiling, &tiling->maps[i]));
    for (int j = 0; j < i; j++)
      if (tiling->maps[j].tensor == tiling->maps[i].tensor)
        return wrong(tiling, "tensor_maps has a tensor twice");
  }
  tiling->map_count = count;
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
  const Value *code = value_field(value, "code");
  if (code->kind != KIND_NIL && !copy_name(value, "code", tiling->code, sizeof tiling->code))
    return wrong(tiling, "code must be an architecture such as \"sm_90a\"");
  const char *passed_over = value_string(value_field(value, "passed_over"), "");
  snprintf(tiling->passed_over, sizeof tiling->passed_over, "%s", passed_over);
  ROTA_TRY(read_wgmma(value_field(value, "wgmma"), tiling));
  ROTA_TRY(read_maps(value_field(value, "tensor_maps"), tiling));
  return read_launches(value_field(value, "launches"), tiling);
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
  target->tensor_maps = value_boolean(value_field(value, "tensor_maps"), false);
  return ROTA_OK;
}

rota_status target_to_value(const Target *target, Value *record) {
  ROTA_TRY(value_set_string(record, "name", target->name));
  ROTA_TRY(value_set_integer(record, "sm", target->sm));
  ROTA_TRY(value_set_integer(record, "shared_per_block", target->shared_per_block));
  ROTA_TRY(value_set_integer(record, "shared_per_sm", target->shared_per_sm));
  ROTA_TRY(value_set_integer(record, "registers_per_sm", target->registers_per_sm));
  ROTA_TRY(value_set_integer(record, "multiprocessors", target->multiprocessors));
  ROTA_TRY(value_set_boolean(record, "tensor_maps", target->tensor_maps));
  return value_set_integer(record, "l2_bytes", target->l2_bytes);
}
