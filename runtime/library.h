/* Level 0. Shared libraries found at run time (the CUDA driver, NVRTC): Rota links against neither,
 * so it builds, loads and runs without them. */
#ifndef ROTA_RUNTIME_LIBRARY_H
#define ROTA_RUNTIME_LIBRARY_H

#include "generator/text.h"

typedef struct Library Library;

/* Opens the first of `names` (file names or paths, NULL at the end) that loads. NULL if none does;
 * `tried` (may be NULL) then has a line "    NAME: reason" for each, which belongs into the
 * caller's message. Symbols stay local. */
Library *library_open(const char *const *names, Text *tried);
/* Address of a symbol, NULL if the library has none of that name. */
void *library_symbol(const Library *library, const char *name);
/* The file that was loaded, as the dynamic linker resolved it. */
const char *library_path(const Library *library);
void library_close(Library *library); /* NULL is fine */

#endif
