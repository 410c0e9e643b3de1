/* Level 2. The files compiled into the library: lua/ and templates/, by their path from the root of
 * the repository
 * ("lua/masks.lua", "templates/lib/abi.h"). A directory may override single files while developing.
 */
#ifndef ROTA_GENERATOR_STORE_H
#define ROTA_GENERATOR_STORE_H

#include "generator/status.h"

typedef struct Store Store;

/* `override_dir`: NULL, or a directory laid out like the repository whose files win over the
 * embedded ones. */
rota_status store_create(const char *override_dir, Store **store);
void store_destroy(Store *store);
/* The file's text, NUL-terminated, valid while the store lives; NULL if there is none. `length` may
 * be NULL. */
const char *store_get(const Store *store, const char *path, size_t *length);
/* All paths in sorted order, NULL at the end: the embedded ones and those that an override
 * directory adds. */
const char *const *store_paths(const Store *store);

#endif
