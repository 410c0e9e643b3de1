/* The safetensors format: JSON by jansson, everything else by hand and checked. */
#include "runtime/safetensors.h"

#include "generator/text.h"
#include "runtime/files.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The format's own limit on its header. */
#define HEADER_LIMIT ((uint64_t)100 << 20)

/* All element types of the format; dtype -1: known, but none of Rota's. */
static const struct {
  const char *name;
  int size, dtype;
} types[] = {
    {"BF16", 2, ROTA_BF16}, {"F16", 2, ROTA_FP16}, {"F32", 4, ROTA_FP32}, {"I32", 4, ROTA_INT32},
    {"F64", 8, -1},         {"I64", 8, -1},        {"U64", 8, -1},        {"U32", 4, -1},
    {"I16", 2, -1},         {"U16", 2, -1},        {"I8", 1, -1},         {"U8", 1, -1},
    {"BOOL", 1, -1},        {"F8_E4M3", 1, -1},    {"F8_E5M2", 1, -1},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

static int find_type(const char *name) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (strcmp(types[i].name, name) == 0)
      return i;
  return -1;
}

/* Where a message belongs. */
typedef struct Place {
  const char *path, *name;
  size_t data_bytes;
} Place;

static rota_status parse_shape(const Place *place, const json_t *shape, SafetensorsEntry *entry,
                               size_t *elements) {
  *elements = 1;
  if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_RANK_MAX)
    return status_fail(ROTA_FILE, "%s: tensor '%s': \"shape\" is not an array of at most %d sizes",
                       place->path, place->name, SAFETENSORS_RANK_MAX);
  entry->rank = (int)json_array_size(shape);
  for (int i = 0; i < entry->rank; i++) {
    const json_t *size = json_array_get(shape, (size_t)i);
    json_int_t value = json_integer_value(size);
    if (!json_is_integer(size) || value < 0 ||
        __builtin_mul_overflow(*elements, (size_t)value, elements))
      return status_fail(ROTA_FILE,
                         "%s: tensor '%s': size %d of its shape is not a number of elements",
                         place->path, place->name, i + 1);
    entry->size[i] = value;
  }
  return ROTA_OK;
}

static rota_status parse_offsets(const Place *place, const json_t *offsets, const char *data,
                                 SafetensorsEntry *entry, size_t expected) {
  const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
    return status_fail(ROTA_FILE, "%s: tensor '%s': \"data_offsets\" is not [begin, end]",
                       place->path, place->name);
  json_int_t begin = json_integer_value(first), end = json_integer_value(last);
  if (begin < 0 || end < begin || (uint64_t)end > place->data_bytes)
    return status_fail(
        ROTA_FILE, "%s: tensor '%s': bytes %lld to %lld lie outside the file's %zu bytes of data",
        place->path, place->name, (long long)begin, (long long)end, place->data_bytes);
  entry->bytes = (size_t)(end - begin);
  if (entry->bytes != expected)
    return status_fail(ROTA_FILE, "%s: tensor '%s' has %zu bytes; its shape and dtype %s need %zu",
                       place->path, place->name, entry->bytes, entry->type, expected);
  entry->data = data + begin;
  return ROTA_OK;
}

static rota_status parse_entry(const Place *place, const json_t *value, const char *data,
                               SafetensorsEntry *entry) {
  const char *type = json_string_value(json_object_get(value, "dtype"));
  if (!type)
    return status_fail(ROTA_FILE, "%s: tensor '%s' has no \"dtype\"", place->path, place->name);
  int index = find_type(type);
  if (index < 0)
    return status_fail(ROTA_FILE, "%s: tensor '%s': dtype '%.32s' is not one of the format's",
                       place->path, place->name, type);
  entry->name = place->name;
  snprintf(entry->type, sizeof entry->type, "%s", types[index].name);
  entry->supported = types[index].dtype >= 0;
  entry->dtype = entry->supported ? (rota_dtype)types[index].dtype : ROTA_BF16;
  size_t elements, expected, size = (size_t)types[index].size;
  ROTA_TRY(parse_shape(place, json_object_get(value, "shape"), entry, &elements));
  if (__builtin_mul_overflow(elements, size, &expected))
    return status_fail(ROTA_FILE, "%s: tensor '%s': its shape is larger than memory", place->path,
                       place->name);
  ROTA_TRY(parse_offsets(place, json_object_get(value, "data_offsets"), data, entry, expected));
  if (entry->supported && entry->bytes > 0 &&
      (size_t)((const char *)entry->data - data) % size != 0)
    return status_fail(
        ROTA_FILE, "%s: tensor '%s' begins at an odd offset: write the file with aligned tensors",
        place->path, place->name);
  return ROTA_OK;
}

static int compare_data(const void *a, const void *b) {
  const SafetensorsEntry *const *x = a, *const *y = b;
  const char *p = (*x)->data, *q = (*y)->data;
  if (p != q)
    return p < q ? -1 : 1;
  return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes; /* empty ones first */
}

/* The tensors must tile the data: no byte twice (two names for one tensor could hide a change),
 * none unused. */
static rota_status check_cover(const Place *place, const Safetensors *file, const char *data) {
  const SafetensorsEntry **sorted = memory_allocate((size_t)file->count + 1, sizeof(*sorted));
  if (!sorted)
    return ROTA_OUT_OF_MEMORY;
  for (int i = 0; i < file->count; i++)
    sorted[i] = &file->entries[i];
  qsort(sorted, (size_t)file->count, sizeof(*sorted), compare_data);
  rota_status status = ROTA_OK;
  const char *at = data;
  for (int i = 0; i < file->count && status == ROTA_OK; i++) {
    const char *begin = sorted[i]->data;
    if (begin != at)
      status = status_fail(
          ROTA_FILE,
          "%s: tensor '%s' begins at byte %lld of the data, but the ones before it end at %lld",
          place->path, sorted[i]->name, (long long)(begin - data), (long long)(at - data));
    at = begin + sorted[i]->bytes;
  }
  if (status == ROTA_OK && (size_t)(at - data) != place->data_bytes)
    status = status_fail(ROTA_FILE, "%s: %zu bytes at the end belong to no tensor", place->path,
                         place->data_bytes - (size_t)(at - data));
  free(sorted);
  return status;
}

static rota_status parse_notes(const Place *place, json_t *notes, Safetensors *file) {
  const char *key;
  json_t *value;
  if (!json_is_object(notes))
    return status_fail(ROTA_FILE, "%s: \"__metadata__\" is not an object", place->path);
  file->notes = memory_allocate(json_object_size(notes) + 1, sizeof *file->notes);
  if (!file->notes)
    return ROTA_OUT_OF_MEMORY;
  json_object_foreach(notes, key, value) {
    if (!json_is_string(value))
      return status_fail(ROTA_FILE, "%s: \"__metadata__\": the value of '%.64s' is not a string",
                         place->path, key);
    file->notes[file->note_count++] = (SafetensorsNote){key, json_string_value(value)};
  }
  return ROTA_OK;
}

static rota_status parse_entries(const char *path, json_t *header, const char *data,
                                 size_t data_bytes, Safetensors *file) {
  const char *name;
  json_t *value;
  Place place = {.path = path, .data_bytes = data_bytes};
  file->entries = memory_allocate(json_object_size(header) + 1, sizeof *file->entries);
  if (!file->entries)
    return ROTA_OUT_OF_MEMORY;
  json_object_foreach(header, name, value) {
    place.name = name;
    if (strcmp(name, "__metadata__") == 0) {
      ROTA_TRY(parse_notes(&place, value, file));
      continue;
    }
    ROTA_TRY(parse_entry(&place, value, data, &file->entries[file->count]));
    file->count++;
  }
  return check_cover(&place, file, data);
}

/* Takes the header off the front, so that what is left in `bytes` is the data, aligned as malloc
 * aligns. */
static rota_status split_header(char *bytes, size_t length, const char *path, json_t **header,
                                size_t *data_bytes) {
  uint64_t header_bytes = 0;
  if (length < 8)
    return status_fail(ROTA_FILE, "%s: %zu bytes are too few for a safetensors file", path, length);
  for (int i = 7; i >= 0; i--)
    header_bytes = header_bytes << 8 | (unsigned char)bytes[i];
  if (header_bytes > HEADER_LIMIT || header_bytes > length - 8)
    return status_fail(
        ROTA_FILE,
        "%s: no safetensors file, or cut off: its header is said to have %llu bytes, %zu follow",
        path, (unsigned long long)header_bytes, length - 8);
  json_error_t error;
  *header = json_loadb(bytes + 8, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
  if (!*header)
    return status_fail(ROTA_FILE, "%s: header, column %d: %s", path, error.column, error.text);
  if (!json_is_object(*header))
    return status_fail(ROTA_FILE, "%s: the header is not a JSON object", path);
  *data_bytes = length - 8 - (size_t)header_bytes;
  memmove(bytes, bytes + 8 + header_bytes, *data_bytes);
  return ROTA_OK;
}

rota_status safetensors_parse(char *bytes, size_t length, const char *path, Safetensors **result) {
  *result = NULL;
  Safetensors *file = memory_allocate(1, sizeof *file);
  if (!file) {
    free(bytes);
    return ROTA_OUT_OF_MEMORY;
  }
  json_t *header = NULL;
  size_t data_bytes = 0;
  rota_status status = split_header(bytes, length, path, &header, &data_bytes);
  file->owned[0] = bytes;
  file->owned[1] = header;
  if (status == ROTA_OK)
    status = parse_entries(path, header, bytes, data_bytes, file);
  if (status == ROTA_OK)
    *result = file;
  else
    safetensors_destroy(file);
  return status;
}

rota_status safetensors_read(const char *path, Safetensors **file) {
  char *bytes;
  size_t length;
  *file = NULL;
  ROTA_TRY(text_read_file(path, &bytes, &length));
  return safetensors_parse(bytes, length, path, file);
}

void safetensors_destroy(Safetensors *file) {
  if (!file)
    return;
  json_decref(file->owned[1]);
  free(file->owned[0]);
  free(file->entries);
  free(file->notes);
  free(file);
}

const SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name) {
  for (int i = 0; i < file->count; i++)
    if (strcmp(file->entries[i].name, name) == 0)
      return &file->entries[i];
  return NULL;
}

static const char *type_of(rota_dtype dtype) {
  for (int i = 0; i < TYPE_COUNT; i++)
    if (types[i].dtype == (int)dtype)
      return types[i].name;
  return "?";
}

static json_t *header_entry(const SafetensorsEntry *entry, size_t begin) {
  json_t *shape = json_array();
  for (int i = 0; i < entry->rank; i++)
    json_array_append_new(shape, json_integer(entry->size[i]));
  /* o steals the shape, also where packing fails. */
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_of(entry->dtype), "shape", shape,
                   "data_offsets", (json_int_t)begin, (json_int_t)begin + (json_int_t)entry->bytes);
}

/* The header's text, NULL when memory ran out. */
static char *make_header(const SafetensorsEntry *entries, int count, const SafetensorsNote *notes,
                         int note_count) {
  json_t *header = json_object();
  bool complete = header != NULL;
  size_t at = 0;
  if (note_count > 0) {
    json_t *object = json_object();
    for (int i = 0; i < note_count; i++)
      complete &= json_object_set_new(object, notes[i].key, json_string(notes[i].text)) == 0;
    complete &= json_object_set_new(header, "__metadata__", object) == 0;
  }
  for (int i = 0; i < count; i++) {
    complete &= json_object_set_new(header, entries[i].name, header_entry(&entries[i], at)) == 0;
    at += entries[i].bytes;
  }
  char *text = complete ? json_dumps(header, JSON_COMPACT) : NULL;
  json_decref(header);
  return text;
}

rota_status safetensors_write(const char *path, const SafetensorsEntry *entries, int count,
                              const SafetensorsNote *notes, int note_count) {
  char *header = make_header(entries, count, notes, note_count);
  if (!header)
    return status_fail(ROTA_INVALID_ARGUMENT, "%s: a name or note is not UTF-8, or memory ran out",
                       path);
  Text out = {0};
  size_t length = strlen(header), padded = (length + 7) / 8 * 8; /* data begin at a multiple of 8 */
  char prefix[8];
  for (int i = 0; i < 8; i++)
    prefix[i] = (char)((uint64_t)padded >> (8 * i) & 0xff);
  text_append_bytes(&out, prefix, sizeof prefix);
  text_append_bytes(&out, header, length);
  text_append_bytes(&out, "       ", padded - length);
  for (int i = 0; i < count; i++)
    text_append_bytes(&out, entries[i].data, entries[i].bytes);
  free(header);
  rota_status status = text_status(&out);
  int error = status == ROTA_OK ? files_write(AT_FDCWD, path, out.data, out.length) : 0;
  if (error)
    status = status_fail(ROTA_FILE, "%s: cannot be written: %s", path, strerror(error));
  text_free(&out);
  return status;
}
