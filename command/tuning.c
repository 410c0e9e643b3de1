/* Tuning files, in JSON:
 *   {"format": "rota tuning 1", "entries": [{"spec", "shape", "device",       the key
 *     "backward", "schedule", "milliseconds", "measured", "candidates": [...]}]} */
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

rota_status tuning_find(const char *path, const TuningKey *key, TuningChoice *choice, bool *found) {
  *choice = (TuningChoice){0};
  *found = false;
  json_t *root;
  ROTA_TRY(read_file(path, &root));
  const json_t *entries = json_object_get(root, "entries");
  size_t at = find_entry(entries, key);
  rota_status status = ROTA_OK;
  if (at < json_array_size(entries)) {
    const json_t *entry = json_array_get(entries, at);
    const char *backward = json_string_value(json_object_get(entry, "backward"));
    const char *schedule = json_string_value(json_object_get(entry, "schedule"));
    *found = backward && backward_from_name(backward, &choice->backward) && schedule &&
             strlen(schedule) < sizeof choice->schedule;
    if (*found)
      snprintf(choice->schedule, sizeof choice->schedule, "%s", schedule);
    else
      status = damaged(path, "an entry's backward or schedule is not a name");
    choice->milliseconds = json_number_value(json_object_get(entry, "milliseconds"));
    choice->measured = json_is_true(json_object_get(entry, "measured"));
  }
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

rota_status tuning_record(const char *path, const TuningKey *key, const TuningChoice *choice,
                          json_t *candidates) {
  json_t *root = NULL;
  FILE *file = fopen(path, "r");
  if (file) {
    fclose(file);
    ROTA_TRY(read_file(path, &root));
  } else {
    root = json_pack("{s:s s:[]}", "format", format, "entries");
  }
  json_t *entry = json_pack(
      "{s:s s:s s:s s:s s:s s:f s:b s:O}", "spec", key->spec, "shape", key->shape, "device",
      key->device, "backward", backward_name(choice->backward), "schedule", choice->schedule,
      "milliseconds", choice->milliseconds, "measured", choice->measured, "candidates", candidates);
  json_t *entries = json_object_get(root, "entries");
  rota_status status = ROTA_OK;
  size_t at = find_entry(entries, key);
  int failed = at < json_array_size(entries) ? json_array_set_new(entries, at, entry)
                                             : json_array_append_new(entries, entry);
  if (!root || !entry || failed)
    status = status_fail(ROTA_OUT_OF_MEMORY, "the entry of a tuning file");
  else
    status = write_file(path, root);
  json_decref(root);
  return status;
}

rota_status tuning_adopt(const Options *options, Model *model) {
  TuningKey key;
  TuningChoice choice;
  bool found = false;
  rota_status status = tuning_key_create(options, model, &key);
  if (status == ROTA_OK)
    status = tuning_find(options->tuning, &key, &choice, &found);
  if (status == ROTA_OK && found) {
    fprintf(stderr, "tuning: backward %s, schedule %s, by %s\n", backward_name(choice.backward),
            choice.schedule, choice.measured ? "measurement" : "the model");
    model->spec.backward = choice.backward;
    memcpy(model->spec.schedule, choice.schedule, sizeof choice.schedule);
  } else if (status == ROTA_OK) {
    fprintf(stderr, "tuning: %s has no entry for shape %s on %s; the model's own choice stands\n",
            options->tuning, key.shape, key.device);
  }
  tuning_key_free(&key);
  return status;
}
