/* Entries of the cubin cache: see cache_entry.h. */
#define _GNU_SOURCE /* O_DIRECTORY, utimensat */
#include "runtime/cache_entry.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files.h"

#define CUBIN_FILE  "kernel.cubin"
#define SOURCE_FILE "source.cu"
#define META_FILE   "meta.json"

enum {
  FORMAT = 1,           /* of meta.json; another one is a miss, not damage */
  FILE_LIMIT = 1 << 28, /* bytes; larger files are no entry of ours */
};

void cache_entry_free(CacheEntry *entry) {
  free(entry->label);
  free(entry->cubin);
  *entry = (CacheEntry){0};
}

/* ---- meta.json ------------------------------------------------------------------------------ */

/* Digest of all of meta.json but its checksum, in the one canonical spelling. */
static bool meta_checksum(json_t *meta, Digest *checksum) {
  json_t *bare = json_copy(meta);
  if (!bare)
    return false;
  json_object_del(bare, "checksum");
  char *text = json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS);
  json_decref(bare);
  if (!text)
    return false;
  *checksum = digest_of(text, strlen(text));
  free(text);
  return true;
}

static json_t *meta_create(const CacheEntry *entry, const char *source) {
  Digest source_content = digest_of(source, strlen(source));
  json_t *meta =
      json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i}", "format", FORMAT,
                "key", entry->key.hex, "program", entry->program.hex, "content", entry->content.hex,
                "source", source_content.hex, "architecture", entry->architecture, "label",
                entry->label ? entry->label : "", "size", (json_int_t)entry->size, "nvrtc_version",
                entry->nvrtc_version, "registers", entry->registers, "spill_bytes",
                entry->spill_bytes, "shared_bytes", entry->shared_bytes);
  Digest checksum;
  if (meta && meta_checksum(meta, &checksum) &&
      json_object_set_new(meta, "checksum", json_string(checksum.hex)) == 0)
    return meta;
  json_decref(meta);
  return NULL;
}

static bool copy_digest(Digest *to, const char *from) {
  if (strlen(from) != sizeof to->hex - 1)
    return false;
  memcpy(to->hex, from, sizeof to->hex);
  return true;
}

static bool copy_word(char *to, size_t size, const char *from) {
  size_t length = strlen(from);
  if (length >= size)
    return false;
  memcpy(to, from, length + 1);
  return true;
}

/* Fills `entry` but for the cubin. */
static CacheState meta_parse(json_t *meta, CacheEntry *entry, Digest *source, const char **what) {
  int format = 0;
  *what = META_FILE " is no entry's description";
  if (json_unpack(meta, "{s:i}", "format", &format) != 0)
    return CACHE_DAMAGED;
  if (format != FORMAT)
    return CACHE_MISS;
  const char *key, *program, *content, *source_content, *architecture, *label, *checksum;
  json_int_t size;
  if (json_unpack(meta, "{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i}", "key", &key,
                  "program", &program, "content", &content, "source", &source_content,
                  "architecture", &architecture, "label", &label, "checksum", &checksum, "size",
                  &size, "nvrtc_version", &entry->nvrtc_version, "registers", &entry->registers,
                  "spill_bytes", &entry->spill_bytes, "shared_bytes", &entry->shared_bytes) != 0)
    return CACHE_DAMAGED;
  Digest expected;
  if (!meta_checksum(meta, &expected))
    return CACHE_MISS; /* out of memory */
  *what = META_FILE " does not match its checksum";
  if (strcmp(expected.hex, checksum) != 0 || !copy_digest(&entry->key, key) ||
      !copy_digest(&entry->program, program) || !copy_digest(&entry->content, content) ||
      !copy_digest(source, source_content) ||
      !copy_word(entry->architecture, sizeof entry->architecture, architecture) || size < 0)
    return CACHE_DAMAGED;
  entry->size = (size_t)size;
  entry->label = memory_copy_string(label);
  return entry->label ? CACHE_HIT : CACHE_MISS;
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* Memory, descriptors and permissions running out say nothing about the entry. */
static CacheState state_of_error(int error) {
  bool ours = error == ENOMEM || error == EMFILE || error == ENFILE || error == EACCES ||
              error == EPERM || error == EINTR;
  return ours ? CACHE_MISS : CACHE_DAMAGED;
}

static CacheState read_meta(int directory, CacheEntry *entry, Digest *source, Text *reason) {
  unsigned char *bytes;
  size_t size;
  int error = files_read(directory, META_FILE, FILE_LIMIT, &bytes, &size);
  if (error) {
    text_format(reason, "%s: %s", META_FILE, strerror(error));
    return state_of_error(error);
  }
  json_error_t where;
  json_t *meta = json_loadb((const char *)bytes, size, JSON_REJECT_DUPLICATES, &where);
  free(bytes);
  if (!meta) {
    text_format(reason, "%s of %zu bytes: %s", META_FILE, size, where.text);
    return json_error_code(&where) == json_error_out_of_memory ? CACHE_MISS : CACHE_DAMAGED;
  }
  const char *what;
  CacheState state = meta_parse(meta, entry, source, &what);
  json_decref(meta);
  if (state == CACHE_DAMAGED)
    text_append(reason, what);
  return state;
}

/* Reads a file and compares it to the digest. */
static CacheState read_checked(int directory, const char *name, const Digest *content,
                               unsigned char **bytes, size_t *size, Text *reason) {
  int error = files_read(directory, name, FILE_LIMIT, bytes, size);
  if (error) {
    text_format(reason, "%s: %s", name, strerror(error));
    return state_of_error(error);
  }
  if (!strcmp(digest_of(*bytes, *size).hex, content->hex))
    return CACHE_HIT;
  text_format(reason, "%s of %zu bytes does not match its checksum", name, *size);
  return CACHE_DAMAGED;
}

static CacheState read_open_entry(int directory, const Digest *key, bool with_source,
                                  CacheEntry *entry, Text *reason) {
  Digest source_content;
  CacheState state = read_meta(directory, entry, &source_content, reason);
  if (state != CACHE_HIT)
    return state;
  if (key && strcmp(entry->key.hex, key->hex) != 0) {
    text_format(reason, "it is another kernel's, %s", entry->key.hex);
    return CACHE_DAMAGED;
  }
  size_t expected = entry->size;
  state = read_checked(directory, CUBIN_FILE, &entry->content, &entry->cubin, &entry->size, reason);
  if (state != CACHE_HIT || !with_source)
    return state;
  unsigned char *source;
  size_t size;
  state = read_checked(directory, SOURCE_FILE, &source_content, &source, &size, reason);
  free(source);
  return state == CACHE_HIT && entry->size != expected ? CACHE_DAMAGED : state;
}

CacheState cache_entry_read(const char *path, const Digest *key, bool with_source,
                            CacheEntry *entry, Text *reason) {
  *entry = (CacheEntry){0};
  Text ignored = {0};
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) {
    int error = errno;
    if (error == ENOENT)
      return CACHE_MISS;
    /* ENOTDIR is damage if the entry itself is a file, a miss if the cache lies below one. */
    struct stat info;
    if (error == ENOTDIR && lstat(path, &info) != 0)
      return CACHE_MISS;
    if (reason)
      text_append(reason, strerror(error));
    return state_of_error(error);
  }
  CacheState state =
      read_open_entry(directory, key, with_source, entry, reason ? reason : &ignored);
  close(directory);
  text_free(&ignored);
  if (state != CACHE_HIT)
    cache_entry_free(entry);
  return state;
}

/* ---- Writing and use ------------------------------------------------------------------------ */

int cache_entry_write(int directory, const CacheEntry *entry, const char *source) {
  json_t *meta = meta_create(entry, source);
  char *text = meta ? json_dumps(meta, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
  json_decref(meta);
  if (!text)
    return ENOMEM;
  int error = files_write(directory, CUBIN_FILE, entry->cubin, entry->size);
  if (!error)
    error = files_write(directory, SOURCE_FILE, source, strlen(source));
  if (!error)
    error = files_write(directory, META_FILE, text, strlen(text));
  free(text);
  return error;
}

/* The mtime of meta.json is the time of last use: access times are often switched off. */
void cache_entry_touch(const char *directory) {
  char *path = files_path("%s/" META_FILE, directory);
  if (path)
    utimensat(AT_FDCWD, path, NULL, 0);
  free(path);
}

bool cache_entry_stat(const char *path, double *used, int64_t *bytes) {
  static const char *const names[] = {META_FILE, CUBIN_FILE, SOURCE_FILE};
  *used = 0;
  *bytes = 0;
  struct stat info;
  if (lstat(path, &info) != 0)
    return false;
  if (!S_ISDIR(info.st_mode))
    return true; /* debris in an entry's place: the oldest of all */
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < 3 && directory >= 0; i++) {
    if (fstatat(directory, names[i], &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    *bytes += info.st_size;
    if (i == 0)
      *used = (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec;
  }
  if (directory >= 0)
    close(directory);
  return true;
}
