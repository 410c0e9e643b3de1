/* Level 4. From lua/model.lua's table to a Spec: names of parameters across leaves, expressions,
 * plain fields. */
#include "generator/spec_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 4096 }; /* lua/value.lua stops earlier */

static SourcePlace place_of(const Value *node) {
  int64_t line = 1;
  value_integer(value_field(node, "line"), 1, INT32_MAX, &line);
  return (SourcePlace){value_string(value_field(node, "file"), "?"), (int)line};
}

/* A failure at a place of the script. */
#define FAIL_AT(place, status, ...)                                                                \
  status_prefix(status_fail(status, __VA_ARGS__), "%s:%d: ", (place).file, (place).line)

static bool is_taken(const Symbols *symbols, const char *name) {
  for (int i = 0; i < symbols->parameter_count; i++) {
    if (strcmp(symbols->parameters[i].name, name) == 0)
      return true;
  }
  return false;
}

/* name, or the first free one of name_2, name_3, ... False if it does not fit. */
static bool unique_name(const Symbols *symbols, const char *name, char unique[SYMBOL_NAME_MAX]) {
  int length = snprintf(unique, SYMBOL_NAME_MAX, "%s", name);
  for (int i = 2; length < SYMBOL_NAME_MAX; i++) {
    if (!is_taken(symbols, unique))
      return true;
    length = snprintf(unique, SYMBOL_NAME_MAX, "%s_%d", name, i);
  }
  return false;
}

/* An integer of Lua's is an int parameter, a float is a float: 30.0 may later become 30.5, 30 may
 * not. */
static rota_status set_value(const Value *value, SourcePlace place, Parameter *parameter) {
  int64_t integer;
  double number;
  if (value->kind == KIND_INTEGER) {
    if (!value_integer(value, -LIMIT_PARAMETER, LIMIT_PARAMETER, &integer))
      return FAIL_AT(place, ROTA_SCRIPT, "parameter '%s': integers go from -2^30 to 2^30",
                     parameter->name);
    parameter->type = VALUE_INT;
    parameter->value.i = (int32_t)integer;
    return ROTA_OK;
  }
  if (!value_number(value, &number))
    return FAIL_AT(place, ROTA_SCRIPT, "parameter '%s': it must be a number", parameter->name);
  if (!isfinite((float)number))
    return FAIL_AT(place, ROTA_SCRIPT, "parameter '%s': it must be finite as a 32-bit float",
                   parameter->name);
  parameter->type = VALUE_FLOAT;
  parameter->value.f = (float)number;
  return ROTA_OK;
}

/* Adds the leaf's parameters to the spec's symbols; scope maps the leaf's names to them. */
static rota_status declare(const Value *leaf, SourcePlace place, Symbols *symbols,
                           ScopeEntry scope[PARAMETERS_MAX], int *scope_count) {
  const Value *list = value_field(leaf, "parameters");
  int count = value_count(list);
  for (int i = 0; i < count; i++) {
    const Value *item = value_item(list, i + 1);
    const char *name = value_string(value_field(item, "name"), "");
    if (!expression_name_valid(name))
      return FAIL_AT(place, ROTA_SCRIPT, "parameter '%s': the name is reserved", name);
    if (symbols->parameter_count == PARAMETERS_MAX)
      return FAIL_AT(place, ROTA_SCRIPT,
                     "parameter '%s': mask and score have more than %d parameters; write some as "
                     "numbers into the text",
                     name, PARAMETERS_MAX);
    Parameter *parameter = &symbols->parameters[symbols->parameter_count];
    *parameter = (Parameter){.constant = value_boolean(value_field(item, "constant"), false)};
    if (!unique_name(symbols, name, parameter->name))
      return FAIL_AT(place, ROTA_SCRIPT, "parameter '%s': the name is too long", name);
    ROTA_TRY(set_value(value_field(item, "value"), place, parameter));
    ScopeEntry *entry = &scope[(*scope_count)++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->index = symbols->parameter_count++;
  }
  return ROTA_OK;
}

static rota_status build_leaf(const Value *leaf, ExpressionKind kind, Symbols *symbols,
                              Expression **expression) {
  SourcePlace place = place_of(leaf);
  ScopeEntry scope[PARAMETERS_MAX];
  int scope_count = 0;
  ROTA_TRY(declare(leaf, place, symbols, scope, &scope_count));
  const char *text = value_string(value_field(leaf, "text"), "");
  return expression_parse(text, place, kind, symbols, scope, scope_count, expression);
}

/* An earlier node's expression, NULL if the reference is bad. */
static Expression *operand(const Value *node, const char *side, Expression *const *built,
                           int count) {
  int64_t index;
  if (!value_integer(value_field(node, side), 1, count, &index))
    return NULL;
  return built[index - 1];
}

static rota_status build_node(const Value *node, ExpressionKind kind, Symbols *symbols,
                              Expression **built, int count) {
  const char *op = value_string(value_field(node, "op"), "");
  if (strcmp(op, "leaf") == 0)
    return build_leaf(node, kind, symbols, &built[count]);
  Expression *left = operand(node, "left", built, count);
  Expression *right = operand(node, "right", built, count);
  bool binary = strcmp(op, "not") != 0;
  if (!left || (binary && !right))
    return status_fail(ROTA_INTERNAL, "lua/value.lua: node %d (%s) lacks an operand", count + 1,
                       op);
  if (strcmp(op, "and") == 0) {
    built[count] = expression_and(left, right);
  } else if (strcmp(op, "or") == 0) {
    built[count] = expression_or(left, right);
  } else if (strcmp(op, "not") == 0) {
    built[count] = expression_not(left);
  } else if (strcmp(op, "then") == 0) { /* first left, then right */
    built[count] = expression_substitute_score(right, left);
  } else {
    return status_fail(ROTA_INTERNAL, "lua/value.lua: unknown node %s", op);
  }
  if (built[count])
    return ROTA_OK;
  /* The combining functions leave a message; it tells memory from size. */
  bool memory = strncmp(status_message(), "out of memory", strlen("out of memory")) == 0;
  return memory ? ROTA_OUT_OF_MEMORY : ROTA_SCRIPT;
}

/* A list of nodes; no list is no expression. */
static rota_status build_list(const Value *list, ExpressionKind kind, Symbols *symbols,
                              Expression **expression) {
  int count = value_count(list);
  if (count == 0)
    return ROTA_OK;
  if (count > NODES_MAX)
    return status_fail(ROTA_SCRIPT, "a mask or score of too many parts");
  Expression **built = memory_allocate((size_t)count, sizeof(Expression *));
  if (!built)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = ROTA_OK;
  for (int i = 0; i < count && status == ROTA_OK; i++)
    status = build_node(value_item(list, i + 1), kind, symbols, built, i);
  if (status == ROTA_OK)
    *expression = expression_retain(built[count - 1]);
  for (int i = 0; i < count; i++)
    expression_release(built[i]);
  free(built);
  return status;
}

static rota_status read_integer(const Value *model, const char *field, int *to) {
  const Value *value = value_field(model, field);
  int64_t integer;
  if (value->kind == KIND_NIL)
    return ROTA_OK;
  if (!value_integer(value, INT32_MIN, INT32_MAX, &integer))
    return status_fail(ROTA_INVALID_ARGUMENT, "%s: it must be a 32-bit integer", field);
  *to = (int)integer;
  return ROTA_OK;
}

static rota_status read_tilings(const Value *model, Spec *spec) {
  static const char *const directions[] = {"forward", "backward"};
  for (int i = 0; i < 2; i++) {
    const Value *given = value_field(value_field(model, "tiling"), directions[i]);
    const char *name = value_string(given, "auto");
    if (strlen(name) >= TILING_CHOICE_MAX)
      return status_fail(ROTA_INVALID_ARGUMENT, "tiling.%s \"%s\": the name is too long",
                         directions[i], name);
    snprintf(spec->tiling[i], TILING_CHOICE_MAX, "%s", name);
  }
  return ROTA_OK;
}

static rota_status read_fields(const Value *model, Spec *spec) {
  ROTA_TRY(read_integer(model, "head_dim", &spec->head_dim));
  ROTA_TRY(read_integer(model, "head_dim_v", &spec->head_dim_v));
  ROTA_TRY(read_integer(model, "heads", &spec->heads));
  ROTA_TRY(read_integer(model, "kv_heads", &spec->kv_heads));
  const char *dtype = value_string(value_field(model, "dtype"), "bf16");
  if (!dtype_from_name(dtype, &spec->dtype))
    return status_fail(ROTA_UNSUPPORTED, "dtype \"%s\": kernels serve bf16, fp16 and fp32", dtype);
  double scale = 0;
  value_number(value_field(model, "scale"), &scale);
  spec->scale = (float)scale;
  spec->sink_logit = value_boolean(value_field(model, "sink_logit"), false);
  spec->deterministic = value_boolean(value_field(model, "deterministic"), true);
  const char *backward = value_string(value_field(model, "backward"), "auto");
  if (!backward_from_name(backward, &spec->backward))
    return status_fail(ROTA_UNSUPPORTED,
                       "backward \"%s\": the algorithms are auto, ordered, exact, two_pass, "
                       "materialised and atomic",
                       backward);
  const char *bound = value_string(value_field(model, "bound"), bound_name(false));
  spec->spread = strcmp(bound, bound_name(true)) == 0;
  if (strcmp(bound, bound_name(spec->spread)) != 0)
    return status_fail(ROTA_UNSUPPORTED, "bound \"%s\": the bounds are norm and spread", bound);
  const char *schedule = value_string(value_field(model, "schedule"), "auto");
  if (strlen(schedule) >= sizeof spec->schedule)
    return status_fail(ROTA_INVALID_ARGUMENT, "schedule \"%s\": the name is too long", schedule);
  snprintf(spec->schedule, sizeof spec->schedule, "%s", schedule);
  ROTA_TRY(read_tilings(model, spec));
  const Value *script = value_field(model, "script");
  if (script->kind != KIND_TABLE)
    return ROTA_OK;
  return spec_script_create(value_string(value_field(script, "text"), ""),
                            value_string(value_field(script, "name"), "?"), &spec->script);
}

/* Fields and their combinations: their messages get the place of the model. */
static rota_status fill(const Value *model, Spec *spec) {
  ROTA_TRY(build_list(value_field(model, "mask"), EXPRESSION_MASK, &spec->symbols, &spec->mask));
  ROTA_TRY(build_list(value_field(model, "score"), EXPRESSION_SCORE, &spec->symbols, &spec->score));
  rota_status status = read_fields(model, spec);
  if (status == ROTA_OK)
    status = spec_finish(spec);
  if (status == ROTA_OK || status == ROTA_SCRIPT)
    return status;
  if (value_field(model, "file")->kind == KIND_NIL)
    return status;
  SourcePlace place = place_of(model);
  return status_prefix(status, "%s:%d: ", place.file, place.line);
}

rota_status spec_from_value(const Value *model, Spec *spec) {
  *spec = (Spec){.heads = 1, .deterministic = true};
  rota_status status = fill(model, spec);
  if (status != ROTA_OK)
    spec_free(spec);
  return status;
}

/* Whether kernels may test columns against two bounds instead of evaluating the mask. */
static bool mask_is_interval(const Spec *spec) {
  Expression *first = NULL, *end = NULL;
  bool interval = !spec->mask || expression_columns(spec->mask, &first, &end);
  expression_release(first);
  expression_release(end);
  return interval;
}

/* Whether the heads of a group may be allowed other keys than one another. */
static bool mask_by_head(const Spec *spec) {
  return spec->mask && expression_use(spec->mask).h;
}

static bool score_is_capped(const Spec *spec) {
  Expression *size = NULL, *inner = NULL;
  bool capped = spec->score && expression_cap(spec->score, &size, &inner);
  expression_release(size);
  expression_release(inner);
  return capped;
}

rota_status spec_to_value(const Spec *spec, Value *record) {
  ROTA_TRY(value_set_string(record, "dtype", dtype_name(spec->dtype)));
  ROTA_TRY(value_set_integer(record, "head_dim", spec->head_dim));
  ROTA_TRY(value_set_integer(record, "head_dim_v", spec->head_dim_v));
  ROTA_TRY(value_set_integer(record, "heads", spec->heads));
  ROTA_TRY(value_set_integer(record, "kv_heads", spec->kv_heads));
  ROTA_TRY(value_set_integer(record, "group", spec_group(spec)));
  ROTA_TRY(value_set_boolean(record, "sink_logit", spec->sink_logit));
  ROTA_TRY(value_set_boolean(record, "has_mask", spec->mask != NULL));
  ROTA_TRY(value_set_boolean(record, "mask_is_interval", mask_is_interval(spec)));
  ROTA_TRY(value_set_boolean(record, "mask_by_head", mask_by_head(spec)));
  ROTA_TRY(value_set_boolean(record, "has_score", spec->score != NULL));
  ROTA_TRY(value_set_boolean(record, "score_is_capped", score_is_capped(spec)));
  ROTA_TRY(value_set_boolean(record, "deterministic", spec->deterministic));
  ROTA_TRY(value_set_string(record, "bound", bound_name(spec->spread)));
  ROTA_TRY(value_set_string(record, "schedule", spec->schedule));
  return value_set_string(record, "backward", backward_name(spec->backward));
}

rota_status fields_to_value(const rota_spec_fields *fields, Value *record) {
  if (fields->dtype != ROTA_BF16 && fields->dtype != ROTA_FP16 && fields->dtype != ROTA_FP32)
    return status_fail(ROTA_UNSUPPORTED, "dtype %s: kernels serve bf16, fp16 and fp32",
                       dtype_name(fields->dtype));
  ROTA_TRY(value_set_string(record, "dtype", dtype_name(fields->dtype)));
  ROTA_TRY(value_set_integer(record, "head_dim", fields->head_dim));
  ROTA_TRY(value_set_integer(record, "head_dim_v", fields->head_dim_v));
  ROTA_TRY(value_set_integer(record, "heads", fields->heads ? fields->heads : 1));
  ROTA_TRY(value_set_integer(record, "kv_heads", fields->kv_heads));
  ROTA_TRY(value_set_string(record, "mask", fields->mask));
  ROTA_TRY(value_set_string(record, "score", fields->score));
  if (fields->scale != 0)
    ROTA_TRY(value_set_number(record, "scale", (double)fields->scale));
  ROTA_TRY(value_set_boolean(record, "sink_logit", fields->sink_logit));
  ROTA_TRY(value_set_boolean(record, "deterministic", !fields->allow_nondeterministic));
  ROTA_TRY(value_set_string(record, "backward", fields->backward));
  ROTA_TRY(value_set_string(record, "bound", fields->bound));
  ROTA_TRY(value_set_string(record, "schedule", fields->schedule));
  Value *tiling = value_add(record, "tiling", 0);
  if (!tiling)
    return ROTA_OUT_OF_MEMORY;
  ROTA_TRY(value_set_string(tiling, "forward", fields->forward_tiling));
  return value_set_string(tiling, "backward", fields->backward_tiling);
}
