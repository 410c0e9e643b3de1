/* Eviction: see cache_evict.h. */
#include "runtime/cache_evict.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/cache_entry.h"

enum { SLACK = 8 }; /* one part in so many is freed beyond the need */

typedef struct Candidate {
  char *path;
  double used; /* seconds since 1970 */
  int64_t bytes;
} Candidate;

typedef struct Candidates {
  Candidate *items;
  size_t count, capacity;
  int64_t bytes;
} Candidates;

static bool collect(void *state, const char *path, const char *key) {
  (void)key;
  Candidates *all = state;
  Candidate candidate = {0};
  if (!cache_entry_stat(path, &candidate.used, &candidate.bytes))
    return true;
  if (all->count == all->capacity) {
    size_t capacity = all->capacity ? 2 * all->capacity : 64;
    Candidate *grown = memory_resize(all->items, capacity, sizeof *grown);
    if (!grown)
      return false;
    all->items = grown;
    all->capacity = capacity;
  }
  candidate.path = memory_copy_string(path);
  if (!candidate.path)
    return false;
  all->bytes += candidate.bytes;
  all->items[all->count++] = candidate;
  return true;
}

/* Longest unused first; equal times by path, so that the order never depends on the directory's. */
static int compare(const void *a, const void *b) {
  const Candidate *x = a, *y = b;
  if (x->used != y->used)
    return x->used < y->used ? -1 : 1;
  return strcmp(x->path, y->path);
}

int64_t cache_evict(const char *root, int64_t limit, const Log *log) {
  Candidates all = {0};
  cache_tree_walk(root, NULL, collect, &all);
  int64_t left = all.bytes;
  if (left > limit) {
    qsort(all.items, all.count, sizeof *all.items, compare);
    int64_t goal = limit - limit / SLACK;
    for (size_t i = 0; i < all.count && left > goal; i++) {
      const char *key = strrchr(all.items[i].path, '/') + 1;
      if (cache_tree_discard_unlocked(root, all.items[i].path, key) != 0)
        continue;
      left -= all.items[i].bytes;
      log_print(log, 2, "cache: evicted %s (%lld bytes)", key, (long long)all.items[i].bytes);
    }
  }
  for (size_t i = 0; i < all.count; i++)
    free(all.items[i].path);
  free(all.items);
  return left;
}
