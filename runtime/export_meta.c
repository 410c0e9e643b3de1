/* An exported kernel's description in JSON. */
#include "runtime/export_meta.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ---- */

/* The expression in Lua's syntax, which names the symbols; JSON null for none. */
static json_t *expression_to_json(const Expression *expression, const Symbols *symbols) {
  if (!expression)
    return json_null();
  Text text = {0};
  expression_print(expression, symbols, &text);
  json_t *string = text_status(&text) == ROTA_OK ? json_stringn(text.data, text.length) : NULL;
  text_free(&text);
  return string;
}

/* A failed element (NULL) makes json_array_append_new fail; the array is then dropped. */
static bool append(json_t **array, json_t *element) {
  if (json_array_append_new(*array, element) == 0)
    return true;
  json_decref(*array);
  *array = NULL;
  return false;
}

static json_t *parameters_to_json(const Symbols *symbols) {
  json_t *array = json_array();
  for (int i = 0; i < symbols->parameter_count; i++) {
    const Parameter *parameter = &symbols->parameters[i];
    json_t *element =
        json_pack("{s:s, s:i, s:b, s:i}", "name", parameter->name, "type", (int)parameter->type,
                  "constant", (int)parameter->constant, "bits", parameter->value.i);
    if (!append(&array, element))
      break;
  }
  return array;
}

static json_t *tensors_to_json(const Symbols *symbols) {
  json_t *array = json_array();
  for (int i = 0; i < symbols->tensor_count; i++) {
    const TensorSymbol *tensor = &symbols->tensors[i];
    json_t *element =
        json_pack("{s:s, s:i, s:i, s:b}", "name", tensor->name, "element", (int)tensor->element,
                  "rank", tensor->rank, "in_mask", (int)tensor->in_mask);
    if (!append(&array, element))
      break;
  }
  return array;
}

/* null, or text and name of the script that defines the schedule. */
static json_t *script_to_json(const SpecScript *script) {
  return script ? json_pack("[s, s]", script->text, script->name) : json_null();
}

static json_t *spec_to_json(const Spec *spec) {
  Scalar scale = {.f = spec->scale};
  return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:s, s:s, s:o, s:o, s:o, s:o, "
                   "s:o}",
                   "dtype", (int)spec->dtype, "head_dim", spec->head_dim, "head_dim_v",
                   spec->head_dim_v, "heads", spec->heads, "kv_heads", spec->kv_heads, "scale_bits",
                   scale.i, "sink_logit", (int)spec->sink_logit, "deterministic",
                   (int)spec->deterministic, "spread", (int)spec->spread, "backward",
                   backward_name(spec->backward), "schedule", spec->schedule, "mask",
                   expression_to_json(spec->mask, &spec->symbols), "score",
                   expression_to_json(spec->score, &spec->symbols), "parameters",
                   parameters_to_json(&spec->symbols), "tensors", tensors_to_json(&spec->symbols),
                   "script", script_to_json(spec->script));
}

static json_t *tiling_to_json(const Tiling *tiling) {
  json_t *fields = json_array(), *launches = json_array(), *maps = json_array();
  json_t *wgmma = json_array();
  for (int i = 0; i < tiling->wgmma_count && wgmma; i++)
    append(&wgmma, json_integer(tiling->wgmma[i]));
  for (int i = 0; i < tiling->map_count && maps; i++) {
    const TilingMap *map = &tiling->maps[i];
    append(&maps, json_pack("[i, i, i]", (int)map->tensor, map->rows, map->heads));
  }
  for (int i = 0; i < tiling->field_count && fields; i++)
    append(&fields, json_pack("[s, i]", tiling->fields[i].name, tiling->fields[i].value));
  for (int i = 0; i < tiling->launch_count && launches; i++) {
    const Launch *launch = &tiling->launches[i];
    append(&launches, json_pack("[s, i, i, i, b]", launch->entry, (int)launch->grid,
                                launch->threads, launch->shared_bytes, (int)launch->overlaps));
  }
  return json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "architecture",
                   tiling->architecture, "algorithm", tiling->algorithm, "template",
                   tiling->template_path, "tile_q", tiling->tile_q, "tile_kv", tiling->tile_kv,
                   "fields", fields, "launches", launches, "tensor_maps", maps, "wgmma", wgmma);
}

static json_t *target_to_json(const Target *target) {
  return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:I}", "name", target->name, "sm", target->sm,
                   "shared_per_block", target->shared_per_block, "shared_per_sm",
                   target->shared_per_sm, "registers_per_sm", target->registers_per_sm,
                   "multiprocessors", target->multiprocessors, "l2_bytes",
                   (json_int_t)target->l2_bytes);
}

rota_status export_meta_write(const rota_kernel *kernel, char **text) {
  json_t *root = json_pack(
      "{s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o}", "direction", (int)kernel->direction, "layout",
      (int)kernel->layout, "device", (int)kernel->device, "program", kernel->program.hex, "code",
      kernel->code.hex, "spec", spec_to_json(&kernel->spec), "tiling",
      tiling_to_json(&kernel->tiling), "target", target_to_json(&kernel->target));
  *text = root ? json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
  json_decref(root);
  if (*text)
    return ROTA_OK;
  return status_fail(ROTA_OUT_OF_MEMORY, "out of memory while describing a kernel");
}

/* ---- Reading: the file passed its checksum, but is checked as if it had not ---- */

static rota_status damaged(const char *part, const char *reason) {
  return status_fail(ROTA_FILE, "the kernel's %s is damaged: %s", part, reason);
}

/* Copies a name into an array that holds it with its NUL. */
#define COPY_NAME(to, from)                                                                        \
  do {                                                                                             \
    if (strlen(from) >= sizeof(to))                                                                \
      return damaged("description", "a name is too long");                                         \
    memcpy(to, from, strlen(from) + 1);                                                            \
  } while (0)

static rota_status symbols_from_json(json_t *parameters, json_t *tensors, Symbols *symbols) {
  size_t index;
  json_t *element;
  if (json_array_size(parameters) > PARAMETERS_MAX || json_array_size(tensors) > TENSORS_MAX)
    return damaged("spec", "too many symbols");
  json_array_foreach(parameters, index, element) {
    Parameter *parameter = &symbols->parameters[symbols->parameter_count++];
    const char *name;
    int type, constant;
    if (json_unpack(element, "{s:s, s:i, s:b, s:i}", "name", &name, "type", &type, "constant",
                    &constant, "bits", &parameter->value.i) != 0 ||
        (type != VALUE_INT && type != VALUE_FLOAT))
      return damaged("spec", "a parameter");
    COPY_NAME(parameter->name, name);
    parameter->type = (ValueType)type;
    parameter->constant = constant;
  }
  json_array_foreach(tensors, index, element) {
    TensorSymbol *tensor = &symbols->tensors[symbols->tensor_count++];
    const char *name;
    int type, in_mask;
    if (json_unpack(element, "{s:s, s:i, s:i, s:b}", "name", &name, "element", &type, "rank",
                    &tensor->rank, "in_mask", &in_mask) != 0 ||
        (type != ROTA_INT32 && type != ROTA_FP32) || tensor->rank < 0 ||
        tensor->rank > TENSOR_RANK_MAX)
      return damaged("spec", "a tensor");
    COPY_NAME(tensor->name, name);
    tensor->element = (rota_dtype)type;
    tensor->in_mask = in_mask;
  }
  return ROTA_OK;
}

/* The text names every parameter as the symbols do. */
static rota_status expression_from_json(json_t *text, ExpressionKind kind, Symbols *symbols,
                                        Expression **expression) {
  if (json_is_null(text))
    return ROTA_OK;
  if (!json_is_string(text))
    return damaged("spec", "an expression is no string");
  ScopeEntry scope[PARAMETERS_MAX];
  for (int i = 0; i < symbols->parameter_count; i++) {
    memcpy(scope[i].name, symbols->parameters[i].name, SYMBOL_NAME_MAX);
    scope[i].index = i;
  }
  SourcePlace place = {kind == EXPRESSION_MASK ? "exported mask" : "exported score", 1};
  return expression_parse(json_string_value(text), place, kind, symbols, scope,
                          symbols->parameter_count, expression);
}

static rota_status spec_from_json(json_t *json, Spec *spec) {
  int dtype, sink, deterministic, spread;
  const char *backward, *schedule;
  json_t *mask, *score, *parameters, *tensors, *script;
  Scalar scale;
  json_error_t error;
  if (json_unpack_ex(json, &error, 0,
                     "{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:s, s:s, s:o, s:o, s:o, s:o, "
                     "s:o}",
                     "dtype", &dtype, "head_dim", &spec->head_dim, "head_dim_v", &spec->head_dim_v,
                     "heads", &spec->heads, "kv_heads", &spec->kv_heads, "scale_bits", &scale.i,
                     "sink_logit", &sink, "deterministic", &deterministic, "spread", &spread,
                     "backward", &backward, "schedule", &schedule, "mask", &mask, "score", &score,
                     "parameters", &parameters, "tensors", &tensors, "script", &script) != 0)
    return damaged("spec", error.text);
  spec->dtype = (rota_dtype)dtype;
  spec->scale = scale.f;
  spec->sink_logit = sink;
  spec->deterministic = deterministic;
  spec->spread = spread;
  COPY_NAME(spec->schedule, schedule);
  if (!backward_from_name(backward, &spec->backward))
    return damaged("spec", "its backward");
  const char *text, *name;
  if (json_is_array(script) && json_unpack(script, "[s, s]", &text, &name) == 0)
    ROTA_TRY(spec_script_create(text, name, &spec->script));
  ROTA_TRY(symbols_from_json(parameters, tensors, &spec->symbols));
  ROTA_TRY(expression_from_json(mask, EXPRESSION_MASK, &spec->symbols, &spec->mask));
  ROTA_TRY(expression_from_json(score, EXPRESSION_SCORE, &spec->symbols, &spec->score));
  return spec_finish(spec);
}

static rota_status launches_from_json(json_t *launches, Tiling *tiling) {
  size_t index;
  json_t *element;
  if (json_array_size(launches) > LAUNCHES_MAX)
    return damaged("tiling", "too many launches");
  json_array_foreach(launches, index, element) {
    Launch *launch = &tiling->launches[tiling->launch_count++];
    const char *entry;
    int grid, overlaps;
    if (json_unpack(element, "[s, i, i, i, b]", &entry, &grid, &launch->threads,
                    &launch->shared_bytes, &overlaps) != 0 ||
        grid < GRID_ROW_ITEMS || grid >= GRID_COUNT || launch->threads < 1 ||
        launch->shared_bytes < 0)
      return damaged("tiling", "a launch");
    COPY_NAME(launch->entry, entry);
    launch->grid = (Grid)grid;
    launch->overlaps = overlaps != 0;
  }
  return ROTA_OK;
}

static rota_status maps_from_json(json_t *maps, Tiling *tiling) {
  size_t index;
  json_t *element;
  if (json_array_size(maps) > TILING_MAPS_MAX)
    return damaged("tiling", "too many tensor maps");
  json_array_foreach(maps, index, element) {
    TilingMap *map = &tiling->maps[tiling->map_count++];
    int tensor;
    if (json_unpack(element, "[i, i, i]", &tensor, &map->rows, &map->heads) != 0 || tensor < 0 ||
        tensor >= MAPPED_COUNT || map->rows < 1 || map->heads < 0)
      return damaged("tiling", "a tensor map");
    map->tensor = (Mapped)tensor;
  }
  return ROTA_OK;
}

static rota_status wgmma_from_json(json_t *list, Tiling *tiling) {
  size_t index;
  json_t *n;
  if (json_array_size(list) > TILING_WGMMA_MAX)
    return damaged("tiling", "too many shapes");
  json_array_foreach(list, index, n) tiling->wgmma[tiling->wgmma_count++] =
      (int)json_integer_value(n);
  return ROTA_OK;
}

static rota_status tiling_from_json(json_t *json, Tiling *tiling) {
  const char *architecture, *algorithm, *template_path;
  json_t *fields, *launches, *maps, *wgmma, *element;
  json_error_t error;
  size_t index;
  if (json_unpack_ex(json, &error, 0, "{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}",
                     "architecture", &architecture, "algorithm", &algorithm, "template",
                     &template_path, "tile_q", &tiling->tile_q, "tile_kv", &tiling->tile_kv,
                     "fields", &fields, "launches", &launches, "tensor_maps", &maps, "wgmma",
                     &wgmma) != 0)
    return damaged("tiling", error.text);
  COPY_NAME(tiling->architecture, architecture);
  COPY_NAME(tiling->algorithm, algorithm);
  COPY_NAME(tiling->template_path, template_path);
  if (json_array_size(fields) > TILING_FIELDS_MAX || tiling->tile_q < 1 || tiling->tile_kv < 1)
    return damaged("tiling", "its fields");
  json_array_foreach(fields, index, element) {
    TilingField *field = &tiling->fields[tiling->field_count++];
    const char *name;
    if (json_unpack(element, "[s, i]", &name, &field->value) != 0)
      return damaged("tiling", "a field");
    COPY_NAME(field->name, name);
  }
  ROTA_TRY(maps_from_json(maps, tiling));
  ROTA_TRY(wgmma_from_json(wgmma, tiling));
  return launches_from_json(launches, tiling);
}

static rota_status target_from_json(json_t *json, Target *target) {
  const char *name;
  json_int_t l2;
  json_error_t error;
  if (json_unpack_ex(json, &error, 0, "{s:s, s:i, s:i, s:i, s:i, s:i, s:I}", "name", &name, "sm",
                     &target->sm, "shared_per_block", &target->shared_per_block, "shared_per_sm",
                     &target->shared_per_sm, "registers_per_sm", &target->registers_per_sm,
                     "multiprocessors", &target->multiprocessors, "l2_bytes", &l2) != 0)
    return damaged("target", error.text);
  COPY_NAME(target->name, name);
  target->l2_bytes = l2;
  return ROTA_OK;
}

static rota_status kernel_from_json(json_t *root, rota_kernel *kernel) {
  int direction, layout, device;
  const char *program, *code;
  json_t *spec, *tiling, *target;
  json_error_t error;
  if (json_unpack_ex(root, &error, 0, "{s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o}", "direction",
                     &direction, "layout", &layout, "device", &device, "program", &program, "code",
                     &code, "spec", &spec, "tiling", &tiling, "target", &target) != 0)
    return damaged("description", error.text);
  if (direction < ROTA_FORWARD || direction > ROTA_BACKWARD || layout < ROTA_LAYOUT_ALIGNED ||
      layout > ROTA_LAYOUT_ANY || (device != ROTA_DEVICE_CUDA && device != ROTA_DEVICE_CPU))
    return damaged("description", "a value is out of its range");
  kernel->direction = (rota_direction)direction;
  kernel->layout = (rota_layout)layout;
  kernel->device = (rota_device_kind)device;
  COPY_NAME(kernel->program.hex, program);
  COPY_NAME(kernel->code.hex, code);
  ROTA_TRY(target_from_json(target, &kernel->target));
  ROTA_TRY(tiling_from_json(tiling, &kernel->tiling));
  return spec_from_json(spec, &kernel->spec);
}

rota_status export_meta_read(const char *text, size_t length, rota_kernel *kernel) {
  json_error_t error;
  json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  if (!root)
    return damaged("description", error.text);
  rota_status status = kernel_from_json(root, kernel);
  json_decref(root);
  return status;
}
