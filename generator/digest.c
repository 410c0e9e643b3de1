/* Level 1. XXH3 with 128 bits, written most significant digit first. */
#include "generator/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct DigestStream {
  XXH3_state_t *state;
};

static Digest to_hex(XXH128_hash_t hash) {
  Digest digest;
  snprintf(digest.hex, sizeof digest.hex, "%016llx%016llx", (unsigned long long)hash.high64,
           (unsigned long long)hash.low64);
  return digest;
}

Digest digest_of(const void *bytes, size_t count) {
  return to_hex(XXH3_128bits(bytes, count));
}

DigestStream *digest_begin(void) {
  DigestStream *stream = memory_allocate(1, sizeof *stream);
  if (!stream)
    return NULL;
  stream->state = XXH3_createState();
  if (!stream->state || XXH3_128bits_reset(stream->state) != XXH_OK) {
    XXH3_freeState(stream->state);
    free(stream);
    status_fail(ROTA_OUT_OF_MEMORY, "out of memory for a digest");
    return NULL;
  }
  return stream;
}

void digest_add(DigestStream *stream, const void *bytes, size_t count) {
  if (!stream)
    return;
  uint64_t length = count; /* the frame; the same width on every machine */
  XXH3_128bits_update(stream->state, &length, sizeof length);
  if (count)
    XXH3_128bits_update(stream->state, bytes, count);
}

void digest_add_string(DigestStream *stream, const char *string) {
  digest_add(stream, string, strlen(string));
}

Digest digest_end(DigestStream *stream) {
  if (!stream)
    return (Digest){""};
  Digest digest = to_hex(XXH3_128bits_digest(stream->state));
  XXH3_freeState(stream->state);
  free(stream);
  return digest;
}
