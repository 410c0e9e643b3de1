/* Level 1. Files of tensors in the safetensors format, read and written.
 *
 *     8 bytes   header length n, little-endian
 *     n bytes   JSON: {"name": {"dtype": "BF16", "shape": [1, 231, 12, 32],
 *                      "data_offsets": [begin, end]}, ..., "__metadata__": {"key": "text"}}
 *     rest      the tensors, row-major, at their offsets, without gaps and without overlap
 *
 * A file is not to be trusted: every number in it is checked against the file's size before it
 * is used. */
#ifndef ROTA_RUNTIME_SAFETENSORS_H
#define ROTA_RUNTIME_SAFETENSORS_H

#include "generator/status.h"

enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_TYPE_MAX = 12 };

typedef struct SafetensorsEntry {
  const char *name;
  char type[SAFETENSORS_TYPE_MAX]; /* as the file spells it: "BF16"; not needed for writing */
  bool supported;                  /* dtype is one of Rota's */
  rota_dtype dtype;
  int rank;
  int64_t size[SAFETENSORS_RANK_MAX];
  const void *data; /* aligned to the element's size when supported */
  size_t bytes;
} SafetensorsEntry;

typedef struct SafetensorsNote {
  const char *key, *text;
} SafetensorsNote;

typedef struct Safetensors {
  SafetensorsEntry *entries; /* in the file's order of names */
  int count;
  SafetensorsNote *notes; /* the metadata */
  int note_count;
  void *owned[2]; /* the data, and the parsed header that names point into */
} Safetensors;

/* FILE (with the path and the entry at fault) or OUT_OF_MEMORY. */
rota_status safetensors_read(const char *path, Safetensors **file);
/* The same from memory, which it takes over in any case (allocated with memory_allocate or
 * malloc). */
rota_status safetensors_parse(char *bytes, size_t length, const char *path, Safetensors **file);
void safetensors_destroy(Safetensors *file); /* NULL is fine */
/* NULL if there is none. */
const SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name);

/* Writes the entries' dtype, size and data. A file that could not be written whole is removed
 * again. */
rota_status safetensors_write(const char *path, const SafetensorsEntry *entries, int count,
                              const SafetensorsNote *notes, int note_count);

#endif
