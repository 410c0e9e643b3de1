/* Level 2. The files compiled into the library, merged with those of an override directory.
 *
 * Everything is read when the store is created: afterwards it is immutable and may be shared by
 * threads. */
#include "generator/store.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "generator/store_embedded.h"
#include "generator/text.h"

enum { FOLDER_DEPTH_MAX = 6 }; /* a symbolic link to a parent must not lead into a loop */

typedef struct StoreFile {
  char *path; /* owned */
  const char *text;
  size_t length;
  char *owned; /* the text of an override, NULL for an embedded file */
} StoreFile;

struct Store {
  StoreFile *files; /* sorted by path */
  size_t count, capacity;
  const char **paths; /* count + 1 */
};

static int compare_files(const void *a, const void *b) {
  return strcmp(((const StoreFile *)a)->path, ((const StoreFile *)b)->path);
}

static StoreFile *find(const Store *store, const char *path) {
  for (size_t i = 0; i < store->count; i++) {
    if (strcmp(store->files[i].path, path) == 0)
      return &store->files[i];
  }
  return NULL;
}

/* Adds a file or replaces the one of that path. Takes `owned` over, also on failure. */
static rota_status put(Store *store, const char *path, const char *text, size_t length,
                       char *owned) {
  StoreFile *file = find(store, path);
  if (file) {
    free(file->owned);
  } else {
    if (store->count == store->capacity) {
      size_t capacity = store->capacity ? store->capacity * 2 : 32;
      StoreFile *files = memory_resize(store->files, capacity, sizeof *files);
      if (!files)
        goto failed;
      store->files = files;
      store->capacity = capacity;
    }
    char *copy = memory_copy_string(path);
    if (!copy)
      goto failed;
    file = &store->files[store->count++];
    file->path = copy;
  }
  file->text = text;
  file->length = length;
  file->owned = owned;
  return ROTA_OK;
failed:
  free(owned);
  return ROTA_OUT_OF_MEMORY;
}

static bool ends_with(const char *string, const char *ending) {
  size_t length = strlen(string), tail = strlen(ending);
  return length >= tail && strcmp(string + length - tail, ending) == 0;
}

/* Editors' backups and the like stay out. */
static bool is_store_file(const char *path) {
  return ends_with(path, ".lua") || ends_with(path, ".cuh") || ends_with(path, ".h");
}

/* Reads `root`/`path`: a folder with all below it, or one file. */
static rota_status read_tree(Store *store, const char *root, const char *path, int depth) {
  char full[4096];
  if ((size_t)snprintf(full, sizeof full, "%s/%s", root, path) >= sizeof full)
    return status_fail(ROTA_FILE, "%s/%s: the path is too long", root, path);
  struct stat about;
  if (stat(full, &about) != 0)
    return ROTA_OK; /* overriding nothing is fine */
  if (S_ISREG(about.st_mode)) {
    if (!is_store_file(path))
      return ROTA_OK;
    char *text;
    size_t length;
    ROTA_TRY(text_read_file(full, &text, &length));
    return put(store, path, text, length, text);
  }
  if (!S_ISDIR(about.st_mode) || depth == 0)
    return ROTA_OK;
  DIR *folder = opendir(full);
  if (!folder)
    return status_fail(ROTA_FILE, "%s: cannot be opened: %s", full, strerror(errno));
  rota_status status = ROTA_OK;
  const struct dirent *entry;
  while (status == ROTA_OK && (entry = readdir(folder))) {
    if (entry->d_name[0] == '.')
      continue;
    char child[1024];
    if ((size_t)snprintf(child, sizeof child, "%s/%s", path, entry->d_name) >= sizeof child)
      continue;
    status = read_tree(store, root, child, depth - 1);
  }
  closedir(folder);
  return status;
}

static rota_status fill(Store *store, const char *override_dir) {
  for (const StoreEmbedded *file = store_embedded; file->path; file++)
    ROTA_TRY(put(store, file->path, file->begin, (size_t)(file->end - file->begin) - 1, NULL));
  if (override_dir) {
    struct stat about;
    if (stat(override_dir, &about) != 0 || !S_ISDIR(about.st_mode)) {
      return status_fail(
          ROTA_FILE, "override directory %s: no such directory; it should hold lua/ or templates/",
          override_dir);
    }
    ROTA_TRY(read_tree(store, override_dir, "lua", FOLDER_DEPTH_MAX));
    ROTA_TRY(read_tree(store, override_dir, "templates", FOLDER_DEPTH_MAX));
  }
  if (store->count)
    qsort(store->files, store->count, sizeof *store->files, compare_files);
  store->paths = memory_allocate(store->count + 1, sizeof *store->paths);
  if (!store->paths)
    return ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < store->count; i++)
    store->paths[i] = store->files[i].path;
  return ROTA_OK;
}

rota_status store_create(const char *override_dir, Store **store) {
  *store = NULL;
  Store *made = memory_allocate(1, sizeof *made);
  if (!made)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = fill(made, override_dir);
  if (status != ROTA_OK) {
    store_destroy(made);
    return status;
  }
  *store = made;
  return ROTA_OK;
}

void store_destroy(Store *store) {
  if (!store)
    return;
  for (size_t i = 0; i < store->count; i++) {
    free(store->files[i].path);
    free(store->files[i].owned);
  }
  free(store->files);
  free(store->paths);
  free(store);
}

const char *store_get(const Store *store, const char *path, size_t *length) {
  /* The paths are sorted as soon as the store is complete. */
  StoreFile key = {.path = (char *)(uintptr_t)path};
  const StoreFile *file =
      store->count ? bsearch(&key, store->files, store->count, sizeof key, compare_files) : NULL;
  if (!file)
    return NULL;
  if (length)
    *length = file->length;
  return file->text;
}

const char *const *store_paths(const Store *store) {
  return store->paths;
}
