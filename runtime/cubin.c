/* Compiled programs in memory: see cubin.h. */
#include "runtime/cubin.h"

#include <stdlib.h>
#include <string.h>

rota_status cubin_create(const void *data, size_t bytes, int nvrtc_version, Cubin **result) {
  *result = NULL;
  Cubin *cubin = memory_allocate(1, sizeof *cubin);
  if (!cubin)
    return ROTA_OUT_OF_MEMORY;
  cubin->data = memory_allocate(bytes, 1);
  cubin->log = memory_copy_string("");
  if (!cubin->data || !cubin->log) {
    cubin_destroy(cubin);
    return ROTA_OUT_OF_MEMORY;
  }
  if (bytes)
    memcpy(cubin->data, data, bytes);
  cubin->bytes = bytes;
  cubin->content = digest_of(data, bytes);
  cubin->nvrtc_version = nvrtc_version;
  cubin->hit = true;
  *result = cubin;
  return ROTA_OK;
}

rota_status cubin_copy(const Cubin *from, Cubin **result) {
  ROTA_TRY(cubin_create(from->data, from->bytes, from->nvrtc_version, result));
  Cubin *cubin = *result;
  cubin->key = from->key;
  cubin->registers = from->registers;
  cubin->spill_bytes = from->spill_bytes;
  cubin->shared_bytes = from->shared_bytes;
  return ROTA_OK;
}

void cubin_destroy(Cubin *cubin) {
  if (!cubin)
    return;
  free(cubin->data);
  free(cubin->log);
  free(cubin);
}

/* Raises `*worst` to the number that stands before `words` in a line. */
static void read_number(const char *line, size_t length, const char *words, int *worst) {
  size_t count = strlen(words);
  for (size_t at = 1; at + count <= length; at++) {
    if (memcmp(line + at, words, count) != 0)
      continue;
    size_t begin = at;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9')
      begin--;
    if (begin == at)
      continue;
    long value = strtol(line + begin, NULL, 10);
    if (value > *worst && value < 1 << 30)
      *worst = (int)value;
  }
}

/* A line is "ptxas info    : Used 14 registers, used 1 barriers, 256 bytes smem", or
 * "    48 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads"; spills live in the stack
 * frame. */
void cubin_read_log(Cubin *cubin, const char *log) {
  cubin->registers = cubin->spill_bytes = cubin->shared_bytes = 0;
  while (*log) {
    size_t length = strcspn(log, "\n");
    read_number(log, length, " registers", &cubin->registers);
    read_number(log, length, " bytes stack frame", &cubin->spill_bytes);
    read_number(log, length, " bytes spill stores", &cubin->spill_bytes);
    read_number(log, length, " bytes smem", &cubin->shared_bytes);
    log += length;
    log += *log == '\n';
  }
}

const char *cubin_log_serialised(const char *log) {
  return strstr(log, "wgmma.mma_async instructions are serialized");
}
