/* Level 3. The cache's size limit: the least recently used entries go first. */
#ifndef ROTA_RUNTIME_CACHE_EVICT_H
#define ROTA_RUNTIME_CACHE_EVICT_H

#include "runtime/cache_tree.h"
#include "runtime/log.h"

/* Adds up the entries below `root` and, if they are more than `limit` bytes, removes the least
 * recently used until an eighth of the limit is free, so that the next stores need no such walk.
 * Entries whose key is locked stay. Returns the bytes left. */
int64_t cache_evict(const char *root, int64_t limit, const Log *log);

#endif
