/* Level 1. A small tree of plain values: how Lua's tables travel between the policy in lua/ and C,
 * so that only script.c knows Lua. Lists and records are both tables; entries are sorted by key. */
#ifndef ROTA_GENERATOR_VALUE_H
#define ROTA_GENERATOR_VALUE_H

#include "generator/status.h"

enum { VALUE_DEPTH_MAX = 16 };

typedef enum ValueKind {
  KIND_NIL,
  KIND_BOOLEAN,
  KIND_INTEGER,
  KIND_NUMBER, /* not integral in Lua's eyes: 1.0 is one, 1 is not */
  KIND_STRING,
  KIND_TABLE
} ValueKind;

typedef struct ValueEntry ValueEntry;

typedef struct Value {
  ValueKind kind;
  union {
    bool boolean;
    int64_t integer;
    double number;
    char *string; /* owned */
    struct {
      ValueEntry *entries; /* owned */
      int count;
    } table;
  } as;
} Value;

/* Items have numbers from 1 (name NULL), fields have names. Items come first, ascending; then
 * fields by name. */
struct ValueEntry {
  char *name; /* owned */
  int64_t number;
  Value value;
};

/* Builders. `value_set_*` add a field to a table (a nil Value becomes an empty table). */
rota_status value_set_boolean(Value *table, const char *name, bool boolean);
rota_status value_set_integer(Value *table, const char *name, int64_t integer);
rota_status value_set_number(Value *table, const char *name, double number);
rota_status value_set_string(Value *table, const char *name,
                             const char *string); /* NULL: nothing */
/* Adds an entry with a nil value to be filled in; name NULL: item `number`. NULL on out-of-memory.
 */
Value *value_add(Value *table, const char *name, int64_t number);
rota_status value_copy_string(Value *value, const char *bytes, size_t length);
/* Sorts entries as described above, below `value` too. */
void value_sort(Value *value);
/* Frees what it holds and leaves nil. */
void value_free(Value *value);

/* Readers. Absent things read as a nil value, never NULL. */
const Value *value_field(const Value *table, const char *name);
const Value *value_item(const Value *table, int64_t number);
int value_count(const Value *table); /* items 1 .. n without a gap */
/* The string, or `otherwise` if it is none. */
const char *value_string(const Value *value, const char *otherwise);
/* False unless an integer within [low, high]; integral numbers count. */
bool value_integer(const Value *value, int64_t low, int64_t high, int64_t *integer);
bool value_number(const Value *value, double *number);
bool value_boolean(const Value *value, bool otherwise);

#endif
