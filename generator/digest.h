/* Level 1. 128-bit content hash (XXH3), as 32 hex digits. */
#ifndef ROTA_GENERATOR_DIGEST_H
#define ROTA_GENERATOR_DIGEST_H

#include "generator/status.h"

typedef struct Digest {
  char hex[ROTA_DIGEST_SIZE];
} Digest;

Digest digest_of(const void *bytes, size_t count);

/* Several pieces, each framed by its length, so that ("ab","c") and ("a","bc") differ. */
typedef struct DigestStream DigestStream;
/* NULL on out-of-memory, which the others take: the digest then is "". */
DigestStream *digest_begin(void);
void digest_add(DigestStream *stream, const void *bytes, size_t count);
void digest_add_string(DigestStream *stream, const char *string);
Digest digest_end(DigestStream *stream); /* frees the stream */

#endif
