/* Tuning files, in JSON:
 *   {"format": "rota tuning 1", "entries": [{"spec", "shape", "device",       the key
 *     "forward": {"tiling", "milliseconds", "measured", "candidates": [...]},
 *     "backward", "schedule", "tiling", "milliseconds", "measured", "candidates": [...]}]}
 * A pass that was not tuned is absent; a tiling that is absent is the preferred one. */
#include "command/tuning.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device.h"

static const char format[] = "rota tuning 1";

/* ---- Keys ---- */

static void append_expression(Text *text, const char *name, const Expression *expression,
                              const Symbols *symbols, const char *none) {
  text_format(text, "; %s ", name);
  if (expression)
    expression_print(expression, symbols, text);
  else
    text_append(text, none);
}

/* What is computed, without lengths and values. */
static rota_status describe_spec(const Spec *spec, char **description) {
  Text text = {0};
  text_format(&text, "%s head_dim %d/%d group %d sink %d", dtype_name(spec->dtype), spec->head_dim,
              spec->head_dim_v, spec_group(spec), spec->sink_logit);
  append_expression(&text, "mask", spec->mask, &spec->symbols, "full");
  append_expression(&text, "score", spec->score, &spec->symbols, "s");
  ROTA_TRY(text_status(&text));
  *description = text_release(&text);
  return ROTA_OK;
}

/* 1, 2, 4, ...; 0 stays 0. */
static int64_t class_of(int64_t count) {
  int64_t class = count > 0 ? 1 : 0;
  while (class < count)
    class *= 2;
  return class;
}

static rota_status name_device(const Options *options, Model *model, TuningKey *key) {
  Device *device = NULL;
  if (options->device == ROTA_DEVICE_CPU) {
    snprintf(key->device, sizeof key->device, "cpu");
    return ROTA_OK;
  }
  if (!options->architecture && device_open(options->ordinal, &device) == ROTA_OK) {
    snprintf(key->device, sizeof key->device, "%s", device->name);
    key->device_present = true;
    device_release(device);
    return ROTA_OK;
  }
  status_clear();
  Target target;
  ROTA_TRY(model_target(options, model, &target));
  snprintf(key->device, sizeof key->device, "%s", target.name);
  return ROTA_OK;
}

rota_status tuning_key_create(const Options *options, Model *model, TuningKey *key) {
  *key = (TuningKey){0};
  ROTA_TRY(name_device(options, model, key));
  ROTA_TRY(describe_spec(&model->spec, &key->spec));
  Inputs inputs;
  rota_status status = inputs_open(options, &model->spec, &inputs);
  if (status == ROTA_OK) {
    int32_t kv_heads = inputs.kv_heads ? inputs.kv_heads : model->spec.kv_heads;
    int64_t pairs = (int64_t)inputs.lengths.batch * kv_heads;
    key->n_q = inputs.lengths.n_q;
    key->n_k = inputs.lengths.n_k;
    snprintf(key->shape, sizeof key->shape, "%lldx%lldx%lld",
             (long long)class_of(inputs.lengths.n_q), (long long)class_of(inputs.lengths.n_k),
             (long long)class_of(pairs));
  }
  inputs_close(&inputs);
  return status;
}

void tuning_key_free(TuningKey *key) {
  free(key->spec);
  *key = (TuningKey){0};
}

/* ---- Files ---- */

static rota_status damaged(const char *path, const char *what) {
  return status_fail(ROTA_FILE, "%s: not a tuning file (%s); `rota tune` writes them", path, what);
}

static rota_status read_file(const char *path, json_t **root) {
  json_error_t error;
  *root = json_load_file(path, 0, &error);
  if (!*root)
    return damaged(path, error.text);
  const char *found = json_string_value(json_object_get(*root, "format"));
  if (found && !strcmp(found, format) && json_is_array(json_object_get(*root, "entries")))
    return ROTA_OK;
  json_decref(*root);
  *root = NULL;
  return damaged(path, "its format is another");
}

static bool field_is(const json_t *entry, const char *name, const char *text) {
  const char *value = json_string_value(json_object_get(entry, name));
  return value && !strcmp(value, text);
}

static bool entry_has_key(const json_t *entry, const TuningKey *key) {
  return field_is(entry, "spec", key->spec) && field_is(entry, "shape", key->shape) &&
         field_is(entry, "device", key->device);
}

/* Index of the key's entry, or the number of entries. */
static size_t find_entry(const json_t *entries, const TuningKey *key) {
  size_t i = 0;
  while (i < json_array_size(entries) && !entry_has_key(json_array_get(entries, i), key))
    i++;
  return i;
}

/* A name of an entry; `otherwise` if it is absent. False if it is none, empty or too long. */
static bool read_name(const json_t *entry, const char *field, const char *otherwise, char *to,
                      size_t size) {
  const json_t *value = json_object_get(entry, field);
  const char *text = value ? json_string_value(value) : otherwise;
  if (!text || !text[0] || strlen(text) >= size)
    return false;
  snprintf(to, size, "%s", text);
  return true;
}

static rota_status read_forward(const char *path, const json_t *pass, TuningChoice *choice) {
  choice->found[ROTA_FORWARD] = true;
  choice->measured[ROTA_FORWARD] = json_is_true(json_object_get(pass, "measured"));
  if (json_is_object(pass) &&
      read_name(pass, "tiling", "auto", choice->tiling[ROTA_FORWARD], TILING_CHOICE_MAX))
    return ROTA_OK;
  return damaged(path, "an entry's forward tiling is not a name");
}

static rota_status read_backward(const char *path, const json_t *entry, TuningChoice *choice) {
  const char *backward = json_string_value(json_object_get(entry, "backward"));
  choice->found[ROTA_BACKWARD] = true;
  choice->measured[ROTA_BACKWARD] = json_is_true(json_object_get(entry, "measured"));
  if (backward && backward_from_name(backward, &choice->backward) &&
      read_name(entry, "schedule", NULL, choice->schedule, sizeof choice->schedule) &&
      read_name(entry, "tiling", "auto", choice->tiling[ROTA_BACKWARD], TILING_CHOICE_MAX))
    return ROTA_OK;
  return damaged(path, "an entry's backward, schedule or tiling is not a name");
}

rota_status tuning_find(const char *path, const TuningKey *key, TuningChoice *choice) {
  *choice = (TuningChoice){.backward = BACKWARD_AUTO};
  json_t *root;
  ROTA_TRY(read_file(path, &root));
  const json_t *entries = json_object_get(root, "entries");
  const json_t *entry = json_array_get(entries, find_entry(entries, key));
  const json_t *forward = json_object_get(entry, "forward");
  rota_status status = ROTA_OK;
  if (forward)
    status = read_forward(path, forward, choice);
  if (status == ROTA_OK && entry && (json_object_get(entry, "backward") || !forward))
    status = read_backward(path, entry, choice);
  json_decref(root);
  return status;
}

/* Writes beside the file and renames. */
static rota_status write_file(const char *path, const json_t *root) {
  Text beside = {0};
  text_format(&beside, "%s.new", path);
  ROTA_TRY(text_status(&beside));
  rota_status status = ROTA_OK;
  if (json_dump_file(root, beside.data, JSON_INDENT(1)) != 0 || rename(beside.data, path) != 0) {
    status = status_fail(ROTA_FILE, "%s: cannot be written: %s", path, strerror(errno));
    remove(beside.data);
  }
  text_free(&beside);
  return status;
}

/* Sets a new reference; false if memory ran out. */
static bool set(json_t *object, const char *name, json_t *value) {
  return json_object_set_new(object, name, value) == 0;
}

/* What was found for one direction. */
static bool set_choice(json_t *to, const TuningRecord *record, rota_direction direction) {
  return set(to, "tiling", json_string(record->best[direction]->tiling)) &&
         set(to, "milliseconds", json_real(record->milliseconds[direction])) &&
         set(to, "measured", json_boolean(record->measured)) &&
         set(to, "candidates", json_incref(record->candidates[direction]));
}

/* An entry of the key, with what `before` has (NULL: nothing) for a direction that was not tuned.
 */
static json_t *make_entry(const TuningKey *key, const TuningRecord *record, json_t *before) {
  json_t *entry = before ? json_copy(before) : json_object();
  bool made = entry && set(entry, "spec", json_string(key->spec)) &&
              set(entry, "shape", json_string(key->shape)) &&
              set(entry, "device", json_string(key->device));
  if (made && record->best[ROTA_FORWARD]) {
    json_t *forward = json_object();
    made = forward && set_choice(forward, record, ROTA_FORWARD);
    made = set(entry, "forward", forward) && made;
  }
  const Candidate *backward = record->best[ROTA_BACKWARD];
  if (made && backward)
    made = set_choice(entry, record, ROTA_BACKWARD) &&
           set(entry, "backward", json_string(backward_name(backward->backward))) &&
           set(entry, "schedule", json_string(backward->schedule));
  if (made)
    return entry;
  json_decref(entry);
  return NULL;
}

rota_status tuning_record(const char *path, const TuningKey *key, const TuningRecord *record) {
  json_t *root = NULL;
  FILE *file = fopen(path, "r");
  if (file) {
    fclose(file);
    ROTA_TRY(read_file(path, &root));
  } else {
    root = json_pack("{s:s s:[]}", "format", format, "entries");
  }
  json_t *entries = json_object_get(root, "entries");
  size_t at = find_entry(entries, key);
  json_t *before = json_array_get(entries, at);
  json_t *entry = make_entry(key, record, before);
  int failed =
      before ? json_array_set_new(entries, at, entry) : json_array_append_new(entries, entry);
  rota_status status = root && entry && !failed
                           ? write_file(path, root)
                           : status_fail(ROTA_OUT_OF_MEMORY, "the entry of a tuning file");
  json_decref(root);
  return status;
}

static const char *source(bool measured) {
  return measured ? "measurement" : "the model";
}

/* Puts the choice into a spec; refused where it breaks what the spec asks for. */
static rota_status adopt(const TuningChoice *choice, Spec *spec) {
  for (int direction = 0; direction < 2; direction++)
    if (choice->found[direction])
      memcpy(spec->tiling[direction], choice->tiling[direction], TILING_CHOICE_MAX);
  if (choice->found[ROTA_FORWARD])
    fprintf(stderr, "tuning: forward tiling %s, by %s\n", choice->tiling[ROTA_FORWARD],
            source(choice->measured[ROTA_FORWARD]));
  if (!choice->found[ROTA_BACKWARD])
    return ROTA_OK;
  fprintf(stderr, "tuning: backward %s, schedule %s, tiling %s, by %s\n",
          backward_name(choice->backward), choice->schedule, choice->tiling[ROTA_BACKWARD],
          source(choice->measured[ROTA_BACKWARD]));
  spec->backward = choice->backward;
  memcpy(spec->schedule, choice->schedule, sizeof choice->schedule);
  return spec_finish(spec);
}

rota_status tuning_adopt(const Options *options, Model *model) {
  TuningKey key;
  TuningChoice choice;
  rota_status status = tuning_key_create(options, model, &key);
  if (status == ROTA_OK)
    status = tuning_find(options->tuning, &key, &choice);
  if (status == ROTA_OK && (choice.found[ROTA_FORWARD] || choice.found[ROTA_BACKWARD]))
    status = adopt(&choice, &model->spec);
  else if (status == ROTA_OK)
    fprintf(stderr, "tuning: %s has no entry for shape %s on %s; the model's own choice stands\n",
            options->tuning, key.shape, key.device);
  tuning_key_free(&key);
  return status;
}
