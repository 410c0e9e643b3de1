/* Level 2. The cache directory as a whole: where things lie in it, and how they come and go.
 *
 *     DIR/ab/KEY/       an entry; "ab" are the first digits of its program digest, so that without
 * a compiler (and hence without its part of the key) the entries of one program are found in one
 * place DIR/tmp/XXXXXX/   an entry being built, or one being removed; its builder holds a flock on
 * it DIR/lock/KEY      held while KEY is compiled
 *
 * Entries appear and vanish by rename within the file system: no reader ever sees half of one. */
#ifndef ROTA_RUNTIME_CACHE_TREE_H
#define ROTA_RUNTIME_CACHE_TREE_H

#include "generator/digest.h"
#include "runtime/cache_lock.h"

/* Paths, NULL where memory ran out. */
char *cache_tree_entry(const char *root, const Digest *program, const Digest *key);
char *cache_tree_lock(const char *root, const char *key);

/* Calls `visit` with the path and key of every entry, or of those that share a shard with
 * `program`; stops when it returns false. */
void cache_tree_walk(const char *root, const Digest *program,
                     bool (*visit)(void *state, const char *path, const char *key), void *state);

/* An entry under construction. */
typedef struct CacheDraft {
  char *path;
  int directory; /* open, with a flock that says its builder lives */
} CacheDraft;

/* Make the root and what the draft needs; 0 or errno. */
int cache_tree_begin(const char *root, CacheDraft *draft);
/* Gives the draft its place, in which whatever is there already is replaced. 0 or errno; the draft
 * is gone either way. */
int cache_tree_commit(const char *root, CacheDraft *draft, const char *entry);
void cache_tree_abandon(CacheDraft *draft);

/* Takes an entry (or what lies in its place) out of the tree and removes it. 0 or errno. */
int cache_tree_discard(const char *root, const char *entry);
/* The same unless someone holds the key's lock: EWOULDBLOCK. */
int cache_tree_discard_unlocked(const char *root, const char *entry, const char *key);
/* Removes what dead processes left in tmp/ and lock/: unlocked and untouched for `seconds`. */
void cache_tree_clean(const char *root, double seconds);

#endif
