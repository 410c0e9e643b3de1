/* Level 4. The cubin cache on disk: shared by processes, bounded in size, and never a reason to
 * fail.
 *
 * A cache that cannot be read is empty; one that cannot be written stays as it is, with one warning
 * per context; damage is noticed, warned of and repaired. The layout is in cache_tree.h and
 * cache_entry.h. */
#ifndef ROTA_RUNTIME_CUBIN_CACHE_H
#define ROTA_RUNTIME_CUBIN_CACHE_H

#include "runtime/cache_entry.h"
#include "runtime/cache_lock.h"
#include "runtime/log.h"

#define CUBIN_CACHE_DEFAULT_BYTES ((int64_t)1 << 30)

/* May be used by several threads at once. */
typedef struct CubinCache CubinCache;

/* `directory`: NULL: ROTA_CACHE_DIR, else $XDG_CACHE_HOME/rota, else ~/.cache/rota; "": no disk
 * cache. `max_bytes` 0: 1 GiB. Creates nothing on disk. The log must outlive the result.
 * OUT_OF_MEMORY alone can fail. */
rota_status cubin_cache_create(const char *directory, int64_t max_bytes, Log *log,
                               CubinCache **cache);
void cubin_cache_destroy(CubinCache *cache);
/* Absolute path; NULL: no disk cache. */
const char *cubin_cache_directory(const CubinCache *cache);
int64_t cubin_cache_max_bytes(const CubinCache *cache);

/* Looks an entry up, without a lock: what looks damaged may just be on its way out, and is reported
 * as a miss. On true the entry is the caller's to free. */
bool cubin_cache_find(CubinCache *cache, const Digest *program, const Digest *key,
                      CacheEntry *entry);
/* The same by the key's lock holder: damage is warned of and removed. */
bool cubin_cache_find_locked(CubinCache *cache, const Digest *program, const Digest *key,
                             CacheEntry *entry);
/* Any compiler's entry for the program, for machines without one. Of several the smallest key, so
 * that the choice is stable. */
bool cubin_cache_find_program(CubinCache *cache, const Digest *program, CacheEntry *entry);

/* Waits for the key's lock; UNAVAILABLE, with one warning, where the cache cannot be written (or
 * there is none). */
CacheLockState cubin_cache_lock(CubinCache *cache, const Digest *key, double seconds,
                                CacheLock *lock);
/* Stores an entry with its source. Best effort: a failure leaves nothing behind but one warning. */
void cubin_cache_store(CubinCache *cache, const CacheEntry *entry, const char *source);

/* ---- For `rota cache` ----------------------------------------------------------------------- */

typedef struct CubinCacheItem {
  Digest key;
  char architecture[32];
  int nvrtc_version; /* that compiled it: 13000 for 13.0; 0 if damaged */
  char *label;       /* what the kernel is; "" if damaged */
  int64_t bytes;
  double age; /* seconds since it was last used */
  bool damaged;
  char *reason; /* what is wrong with it; "" unless damaged */
} CubinCacheItem;

typedef struct CubinCacheList {
  CubinCacheItem *items; /* the last used first */
  size_t count, damaged;
  int64_t bytes;
} CubinCacheList;

/* Reads and checks every entry: cubins, descriptions and sources. Repairs nothing: the next use
 * does. */
rota_status cubin_cache_list(CubinCache *cache, CubinCacheList *list);
void cubin_cache_list_free(CubinCacheList *list);
/* Removes all entries, and what dead processes left. Entries being compiled stay. FILE if some
 * could not be removed. */
rota_status cubin_cache_clear(CubinCache *cache, size_t *removed, int64_t *bytes);

#endif
