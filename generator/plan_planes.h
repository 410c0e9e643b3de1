/* Level 5. The distinct mask planes of a batch, with their tile maps and verified patterns:
 * thirty-two equal sequences of sixteen heads need one map and one pattern. Two sequences share a
 * class if they have the same n_q and n_k and, where the mask uses b, are the same sequence; heads
 * share unless the mask uses h. So a plane never depends on the rest of the batch, unless the
 * schedule is batch-variant: then each sequence is a class. */
#ifndef ROTA_GENERATOR_PLAN_PLANES_H
#define ROTA_GENERATOR_PLAN_PLANES_H

#include "generator/lengths.h"
#include "generator/schedule.h"

typedef struct PlaneClass {
  int32_t n_q, n_k, b;
  int32_t sequence; /* the first one */
} PlaneClass;

typedef struct PlanesRequest {
  const Expression *mask, *score; /* each may be NULL */
  const Expression *rest;         /* conditions for tile_map_build_bounded, or NULL */
  const Symbols *symbols;
  const Bindings *bindings; /* with ranges prepared */
  const Lengths *lengths;
  int heads, kv_heads, tile_q, tile_kv;
  const Schedule *schedule; /* NULL: no patterns (forward) */
} PlanesRequest;

typedef struct Planes {
  int32_t class_count;
  PlaneClass *classes;
  int32_t *class_of;            /* [batch] */
  int map_heads, pattern_heads; /* 1, or heads and kv_heads where the mask uses h */
  TileMap **maps;               /* [class_count][map_heads] */
  Pattern **patterns;           /* [class_count][pattern_heads]; NULL without a schedule */
} Planes;

/* Also proves that no tensor index of mask and score leaves its tensor. */
rota_status planes_build(const PlanesRequest *request, Planes **planes);
void planes_destroy(Planes *planes);
/* The map of a sequence's query head, the pattern of its kv head. */
const TileMap *planes_map(const Planes *planes, int32_t sequence, int head);
const Pattern *planes_pattern(const Planes *planes, int32_t sequence, int kv_head);

#endif
