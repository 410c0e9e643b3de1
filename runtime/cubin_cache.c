/* The cubin cache on disk: see cubin_cache.h. */
#define _GNU_SOURCE /* get_current_dir_name */
#include "runtime/cubin_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cache_evict.h"
#include "runtime/cache_tree.h"
#include "runtime/environment.h"
#include "runtime/files.h"

enum {
  STALE_SECONDS = 60,      /* age at which debris of dead processes is removed */
  STORES_BETWEEN_SUMS = 64 /* other processes store too: the sum is taken anew so often */
};

struct CubinCache {
  char *root; /* NULL: no disk cache */
  int64_t max_bytes;
  Log *log;
  pthread_mutex_t mutex; /* guards what follows; never held while files are touched */
  int64_t bytes;         /* of all entries, as last summed up plus our own stores */
  int stores;            /* since then; negative: never summed up */
};

/* ---- Creation ------------------------------------------------------------------------------- */

/* The configured or default directory; NULL with OK: none, which is warned of unless it was asked
 * for. */
static rota_status choose_root(const char *directory, Log *log, char **root) {
  *root = NULL;
  const char *chosen = directory ? directory : environment_get(ENVIRONMENT_CACHE_DIR);
  const char *parent = environment_get(ENVIRONMENT_XDG_CACHE_HOME);
  const char *home = environment_get(ENVIRONMENT_HOME);
  if (chosen) {
    if (!*chosen)
      return ROTA_OK;
    *root = memory_copy_string(chosen);
  } else if (parent && *parent == '/') { /* the standard says to ignore a relative one */
    *root = files_path("%s/rota", parent);
  } else if (home) {
    *root = files_path("%s/.cache/rota", home);
  } else {
    log_warn_once(log, LOG_NO_CACHE_DIRECTORY,
                  "neither ROTA_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set: "
                  "kernels are compiled anew in each process");
    return ROTA_OK;
  }
  return *root ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* The process may change its directory later. */
static rota_status make_absolute(char **root) {
  if (!*root || **root == '/')
    return ROTA_OK;
  char *current = get_current_dir_name();
  char *absolute = current ? files_path("%s/%s", current, *root) : NULL;
  free(current);
  if (!absolute)
    return ROTA_OK; /* no current directory: relative it stays */
  free(*root);
  *root = absolute;
  return ROTA_OK;
}

rota_status cubin_cache_create(const char *directory, int64_t max_bytes, Log *log,
                               CubinCache **result) {
  *result = NULL;
  CubinCache *cache = memory_allocate(1, sizeof *cache);
  if (!cache)
    return ROTA_OUT_OF_MEMORY;
  rota_status status = choose_root(directory, log, &cache->root);
  if (status == ROTA_OK)
    status = make_absolute(&cache->root);
  if (status != ROTA_OK) {
    free(cache);
    return status;
  }
  cache->max_bytes = max_bytes > 0 ? max_bytes : CUBIN_CACHE_DEFAULT_BYTES;
  cache->log = log;
  cache->stores = -1;
  pthread_mutex_init(&cache->mutex, NULL);
  log_print(log, 4, "cache: %s", cache->root ? cache->root : "none");
  *result = cache;
  return ROTA_OK;
}

void cubin_cache_destroy(CubinCache *cache) {
  if (!cache)
    return;
  pthread_mutex_destroy(&cache->mutex);
  free(cache->root);
  free(cache);
}

const char *cubin_cache_directory(const CubinCache *cache) {
  return cache->root;
}

int64_t cubin_cache_max_bytes(const CubinCache *cache) {
  return cache->max_bytes;
}

/* ---- Lookup --------------------------------------------------------------------------------- */

static void warn_not_writable(CubinCache *cache, int error) {
  log_warn_once(
      cache->log, LOG_CACHE_NOT_WRITABLE,
      "the kernel cache %s cannot be written (%s): kernels that are not in it are compiled "
      "anew in each process. Set ROTA_CACHE_DIR to a writable directory",
      cache->root, strerror(error));
}

static bool find(CubinCache *cache, const Digest *program, const Digest *key, bool locked,
                 CacheEntry *entry) {
  char *path = cache->root ? cache_tree_entry(cache->root, program, key) : NULL;
  if (!path)
    return false;
  Text reason = {0};
  CacheState state = cache_entry_read(path, key, false, entry, &reason);
  if (state == CACHE_HIT) {
    cache_entry_touch(path);
    log_print(cache->log, 2, "cache: %s found in %s", key->hex, cache->root);
  } else if (state == CACHE_DAMAGED && locked) {
    log_warn(cache->log, "damaged entry in the kernel cache, compiled anew: %s: %s", path,
             reason.data ? reason.data : "unreadable");
    int error = cache_tree_discard(cache->root, path);
    if (error)
      warn_not_writable(cache, error);
  }
  text_free(&reason);
  free(path);
  return state == CACHE_HIT;
}

bool cubin_cache_find(CubinCache *cache, const Digest *program, const Digest *key,
                      CacheEntry *entry) {
  return find(cache, program, key, false, entry);
}

bool cubin_cache_find_locked(CubinCache *cache, const Digest *program, const Digest *key,
                             CacheEntry *entry) {
  return find(cache, program, key, true, entry);
}

/* The smallest key among the sound entries of one program. */
typedef struct ProgramSearch {
  const Digest *program;
  CacheEntry best;
  bool found;
} ProgramSearch;

static bool visit_program(void *state, const char *path, const char *key) {
  ProgramSearch *search = state;
  CacheEntry entry;
  if (search->found && strcmp(key, search->best.key.hex) > 0)
    return true;
  if (cache_entry_read(path, NULL, false, &entry, NULL) != CACHE_HIT)
    return true;
  if (strcmp(entry.key.hex, key) != 0 || strcmp(entry.program.hex, search->program->hex) != 0) {
    cache_entry_free(&entry);
    return true;
  }
  if (search->found)
    cache_entry_free(&search->best);
  search->best = entry;
  search->found = true;
  return true;
}

bool cubin_cache_find_program(CubinCache *cache, const Digest *program, CacheEntry *entry) {
  if (!cache->root)
    return false;
  ProgramSearch search = {.program = program};
  cache_tree_walk(cache->root, program, visit_program, &search);
  *entry = search.best;
  if (search.found)
    log_print(cache->log, 2,
              "cache: %s found in %s (compiled by NVRTC %d.%d, which is not needed to run it)",
              entry->key.hex, cache->root, entry->nvrtc_version / 1000,
              entry->nvrtc_version % 1000 / 10);
  return search.found;
}

/* ---- Storing -------------------------------------------------------------------------------- */

CacheLockState cubin_cache_lock(CubinCache *cache, const Digest *key, double seconds,
                                CacheLock *lock) {
  *lock = (CacheLock){-1, NULL};
  char *path = cache->root ? cache_tree_lock(cache->root, key->hex) : NULL;
  if (!path)
    return CACHE_LOCK_UNAVAILABLE;
  int error = files_make_parents(path);
  CacheLockState state = CACHE_LOCK_UNAVAILABLE;
  if (!error)
    state = cache_lock_acquire(path, seconds, lock, &error);
  if (state == CACHE_LOCK_UNAVAILABLE)
    warn_not_writable(cache, error);
  if (state == CACHE_LOCK_TIMEOUT)
    log_warn_once(cache->log, LOG_CACHE_LOCK_TIMEOUT,
                  "another process has held %s for %.1f s: compiling without storing. If no such "
                  "process is at work, remove the file",
                  path, seconds);
  free(path);
  return state;
}

/* Keeps the sum of all entries' bytes, and evicts where it passes the limit. */
static void account(CubinCache *cache, int64_t bytes) {
  pthread_mutex_lock(&cache->mutex);
  cache->bytes += bytes;
  bool sum_up = cache->stores < 0 || ++cache->stores >= STORES_BETWEEN_SUMS ||
                cache->bytes > cache->max_bytes;
  bool first = cache->stores < 0;
  if (sum_up)
    cache->stores = 0; /* other threads need not walk as well */
  pthread_mutex_unlock(&cache->mutex);
  if (!sum_up)
    return;
  if (first)
    cache_tree_clean(cache->root, STALE_SECONDS);
  int64_t left = cache_evict(cache->root, cache->max_bytes, cache->log);
  pthread_mutex_lock(&cache->mutex);
  cache->bytes = left;
  pthread_mutex_unlock(&cache->mutex);
}

void cubin_cache_store(CubinCache *cache, const CacheEntry *entry, const char *source) {
  if (!cache->root)
    return;
  int64_t bytes = (int64_t)(entry->size + strlen(source));
  if (bytes > cache->max_bytes) {
    log_print(cache->log, 2, "cache: %s has %lld bytes, more than the whole cache may hold",
              entry->key.hex, (long long)bytes);
    return;
  }
  CacheDraft draft;
  char *path = cache_tree_entry(cache->root, &entry->program, &entry->key);
  int error = path ? cache_tree_begin(cache->root, &draft) : ENOMEM;
  if (!error) {
    error = cache_entry_write(draft.directory, entry, source);
    if (error)
      cache_tree_abandon(&draft);
    else
      error = cache_tree_commit(cache->root, &draft, path);
  }
  if (error) {
    warn_not_writable(cache, error);
  } else {
    log_print(cache->log, 3, "cache: %s stored in %s", entry->key.hex, cache->root);
    account(cache, bytes);
  }
  free(path);
}

/* ---- For `rota cache` ----------------------------------------------------------------------- */

typedef struct Listing {
  CubinCacheList *list;
  double now;
  rota_status status;
} Listing;

static bool list_entry(void *state, const char *path, const char *key) {
  Listing *listing = state;
  CubinCacheList *list = listing->list;
  CubinCacheItem item = {0};
  double used;
  if (!cache_entry_stat(path, &used, &item.bytes))
    return true;
  CubinCacheItem *grown = memory_resize(list->items, list->count + 1, sizeof *grown);
  if (!grown) {
    listing->status = ROTA_OUT_OF_MEMORY;
    return false;
  }
  list->items = grown;
  item.age = used > 0 && listing->now > used ? listing->now - used : 0;
  memcpy(item.key.hex, key, sizeof item.key.hex);
  CacheEntry entry;
  Text reason = {0};
  CacheState found = cache_entry_read(path, &item.key, true, &entry, &reason);
  item.damaged = found != CACHE_HIT;
  if (found == CACHE_HIT) {
    memcpy(item.architecture, entry.architecture, sizeof item.architecture);
    item.nvrtc_version = entry.nvrtc_version;
    item.label = entry.label;
    entry.label = NULL;
    cache_entry_free(&entry);
  } else {
    item.label = memory_copy_string("");
    if (reason.length == 0)
      text_append(&reason, "cannot be read, or is of another version");
  }
  item.reason = text_release(&reason);
  list->bytes += item.bytes;
  list->damaged += item.damaged;
  list->items[list->count++] = item;
  if (!item.reason || !item.label)
    listing->status = status_fail(ROTA_OUT_OF_MEMORY, "out of memory listing the cache");
  return listing->status == ROTA_OK;
}

static int compare_age(const void *a, const void *b) {
  const CubinCacheItem *x = a, *y = b;
  if (x->age != y->age)
    return x->age < y->age ? -1 : 1;
  return strcmp(x->key.hex, y->key.hex);
}

rota_status cubin_cache_list(CubinCache *cache, CubinCacheList *list) {
  *list = (CubinCacheList){0};
  if (!cache->root)
    return ROTA_OK;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  Listing listing = {list, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, ROTA_OK};
  cache_tree_walk(cache->root, NULL, list_entry, &listing);
  if (listing.status != ROTA_OK)
    cubin_cache_list_free(list);
  else if (list->count)
    qsort(list->items, list->count, sizeof *list->items, compare_age);
  return listing.status;
}

void cubin_cache_list_free(CubinCacheList *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->items[i].label);
    free(list->items[i].reason);
  }
  free(list->items);
  *list = (CubinCacheList){0};
}

typedef struct Clearing {
  const char *root;
  size_t removed;
  int64_t bytes;
  int error;
} Clearing;

static bool clear_entry(void *state, const char *path, const char *key) {
  Clearing *clearing = state;
  double used;
  int64_t bytes = 0;
  cache_entry_stat(path, &used, &bytes);
  int error = cache_tree_discard_unlocked(clearing->root, path, key);
  if (error == 0) {
    clearing->removed++;
    clearing->bytes += bytes;
  } else if (error != EWOULDBLOCK) {
    clearing->error = error;
  }
  return true;
}

rota_status cubin_cache_clear(CubinCache *cache, size_t *removed, int64_t *bytes) {
  Clearing clearing = {.root = cache->root};
  if (cache->root) {
    cache_tree_walk(cache->root, NULL, clear_entry, &clearing);
    cache_tree_clean(cache->root, STALE_SECONDS);
  }
  *removed = clearing.removed;
  *bytes = clearing.bytes;
  if (clearing.error)
    return status_fail(ROTA_FILE, "%s: some entries could not be removed: %s", cache->root,
                       strerror(clearing.error));
  return ROTA_OK;
}
