/* Level 1. One entry of the cubin cache: a directory of three files.
 *
 *     kernel.cubin   what the GPU loads
 *     source.cu      the program as one file, for people
 *     meta.json      what kernel.cubin is, with digests of both files and, as "checksum", of itself
 *
 * Reading trusts nothing: every byte that matters is compared to a digest, and the key to the one
 * asked for. */
#ifndef ROTA_RUNTIME_CACHE_ENTRY_H
#define ROTA_RUNTIME_CACHE_ENTRY_H

#include "generator/digest.h"
#include "generator/text.h"

typedef struct CacheEntry {
  Digest key;     /* of all that decides the cubin */
  Digest program; /* the same without the compiler's identity */
  Digest content; /* of the cubin's bytes */
  char architecture[32];
  int nvrtc_version; /* of the compiler: 13000 for 13.0 */
  char *label;       /* what the kernel is, in one line; may be NULL when writing */
  int registers, spill_bytes, shared_bytes; /* worst entry point of the program */
  unsigned char *cubin;
  size_t size; /* bytes of cubin */
} CacheEntry;

typedef enum CacheState {
  CACHE_HIT,
  CACHE_MISS,    /* no such entry, or not for us to read */
  CACHE_DAMAGED, /* something is there that is not this entry */
} CacheState;

/* Reads the entry in `directory`. `key` NULL: whichever it is. `with_source`: source.cu is checked
 * as well. On a hit `entry` is to be freed; else `reason` (may be NULL) says what was found, and
 * errno ENOMEM counts as a miss. */
CacheState cache_entry_read(const char *directory, const Digest *key, bool with_source,
                            CacheEntry *entry, Text *reason);
/* Writes the three files into an open, empty directory. 0 or errno. */
int cache_entry_write(int directory, const CacheEntry *entry, const char *source);
/* Marks the entry in `directory` as used now; errors are of no matter. */
void cache_entry_touch(const char *directory);
/* When it was last used (seconds since 1970) and how many bytes its files have; false if there is
 * none. */
bool cache_entry_stat(const char *directory, double *used, int64_t *bytes);
void cache_entry_free(CacheEntry *entry);

#endif
