/* Level 1. The value tree: built by script.c from Lua tables, or by C as an argument for Lua. */
#include "generator/value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const Value nothing; /* nil */

Value *value_add(Value *table, const char *name, int64_t number) {
  if (table->kind == KIND_NIL)
    *table = (Value){.kind = KIND_TABLE};
  int count = table->as.table.count;
  /* Grow at powers of two: the capacity need not be stored. */
  if ((count & (count - 1)) == 0) {
    size_t capacity = count ? (size_t)count * 2 : 1;
    ValueEntry *entries = memory_resize(table->as.table.entries, capacity, sizeof *entries);
    if (!entries)
      return NULL;
    table->as.table.entries = entries;
  }
  char *copy = NULL;
  if (name && !(copy = memory_copy_string(name)))
    return NULL;
  ValueEntry *entry = &table->as.table.entries[count];
  *entry = (ValueEntry){.name = copy, .number = number};
  table->as.table.count = count + 1;
  return &entry->value;
}

rota_status value_copy_string(Value *value, const char *bytes, size_t length) {
  char *copy = memory_allocate(length + 1, 1);
  if (!copy)
    return ROTA_OUT_OF_MEMORY;
  memcpy(copy, bytes, length);
  *value = (Value){.kind = KIND_STRING, .as.string = copy};
  return ROTA_OK;
}

static rota_status set(Value *table, const char *name, Value content) {
  Value *value = value_add(table, name, 0);
  if (!value)
    return ROTA_OUT_OF_MEMORY;
  *value = content;
  return ROTA_OK;
}

rota_status value_set_boolean(Value *table, const char *name, bool boolean) {
  return set(table, name, (Value){.kind = KIND_BOOLEAN, .as.boolean = boolean});
}

rota_status value_set_integer(Value *table, const char *name, int64_t integer) {
  return set(table, name, (Value){.kind = KIND_INTEGER, .as.integer = integer});
}

rota_status value_set_number(Value *table, const char *name, double number) {
  return set(table, name, (Value){.kind = KIND_NUMBER, .as.number = number});
}

rota_status value_set_string(Value *table, const char *name, const char *string) {
  if (!string)
    return ROTA_OK;
  Value *value = value_add(table, name, 0);
  return value ? value_copy_string(value, string, strlen(string)) : ROTA_OUT_OF_MEMORY;
}

static int compare_entries(const void *a, const void *b) {
  const ValueEntry *x = a, *y = b;
  if (x->name && y->name)
    return strcmp(x->name, y->name);
  if (x->name || y->name)
    return x->name ? 1 : -1;
  return x->number < y->number ? -1 : x->number > y->number;
}

void value_sort(Value *value) {
  if (value->kind != KIND_TABLE || value->as.table.count == 0)
    return;
  ValueEntry *entries = value->as.table.entries;
  qsort(entries, (size_t)value->as.table.count, sizeof *entries, compare_entries);
  for (int i = 0; i < value->as.table.count; i++)
    value_sort(&entries[i].value);
}

void value_free(Value *value) {
  if (value->kind == KIND_STRING)
    free(value->as.string);
  if (value->kind == KIND_TABLE) {
    for (int i = 0; i < value->as.table.count; i++) {
      free(value->as.table.entries[i].name);
      value_free(&value->as.table.entries[i].value);
    }
    free(value->as.table.entries);
  }
  *value = (Value){0};
}

const Value *value_field(const Value *table, const char *name) {
  if (table->kind != KIND_TABLE)
    return &nothing;
  for (int i = 0; i < table->as.table.count; i++) {
    const ValueEntry *entry = &table->as.table.entries[i];
    if (entry->name && strcmp(entry->name, name) == 0)
      return &entry->value;
  }
  return &nothing;
}

const Value *value_item(const Value *table, int64_t number) {
  if (table->kind != KIND_TABLE)
    return &nothing;
  /* Sorted lists without a gap are the rule. */
  if (number >= 1 && number <= table->as.table.count) {
    const ValueEntry *entry = &table->as.table.entries[number - 1];
    if (!entry->name && entry->number == number)
      return &entry->value;
  }
  for (int i = 0; i < table->as.table.count; i++) {
    const ValueEntry *entry = &table->as.table.entries[i];
    if (!entry->name && entry->number == number)
      return &entry->value;
  }
  return &nothing;
}

int value_count(const Value *table) {
  int count = 0;
  while (value_item(table, count + 1)->kind != KIND_NIL)
    count++;
  return count;
}

const char *value_string(const Value *value, const char *otherwise) {
  return value->kind == KIND_STRING ? value->as.string : otherwise;
}

bool value_integer(const Value *value, int64_t low, int64_t high, int64_t *integer) {
  int64_t result;
  if (value->kind == KIND_INTEGER) {
    result = value->as.integer;
  } else if (value->kind == KIND_NUMBER && fabs(value->as.number) < 0x1p53 &&
             floor(value->as.number) == value->as.number) {
    result = (int64_t)value->as.number;
  } else {
    return false;
  }
  if (result < low || result > high)
    return false;
  *integer = result;
  return true;
}

bool value_number(const Value *value, double *number) {
  if (value->kind == KIND_INTEGER)
    *number = (double)value->as.integer;
  if (value->kind == KIND_NUMBER)
    *number = value->as.number;
  return value->kind == KIND_INTEGER || value->kind == KIND_NUMBER;
}

bool value_boolean(const Value *value, bool otherwise) {
  return value->kind == KIND_BOOLEAN ? value->as.boolean : otherwise;
}
