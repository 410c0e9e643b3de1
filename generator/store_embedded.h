/* Level 1. The table that cmake/embed.cmake generates; sorted by path, a null path at the end. */
#ifndef ROTA_GENERATOR_STORE_EMBEDDED_H
#define ROTA_GENERATOR_STORE_EMBEDDED_H

typedef struct StoreEmbedded {
  const char *path, *begin, *end; /* end: one past the NUL */
} StoreEmbedded;

extern const StoreEmbedded store_embedded[];

#endif
