/* Level 3. Which tiles of the (query, key) plane are empty, partial or full: one sequence, one
 * mask, one head.
 *
 * Stored as runs along the kv axis for each query tile: a causal map of 2048 x 1024 tiles has 4,000
 * runs, not a million tiles. FULL also needs every column below n_k: tiles that reach past n_k are
 * PARTIAL. Rows past n_q do not count. */
#ifndef ROTA_GENERATOR_TILE_MAP_H
#define ROTA_GENERATOR_TILE_MAP_H

#include "generator/expression.h"

/* BOUNDED: partial, but `rest` of tile_map_build_bounded holds throughout. */
typedef enum TileKind { TILE_EMPTY, TILE_PARTIAL, TILE_BOUNDED, TILE_FULL } TileKind;

/* kv tiles [begin, end) of one query tile; never EMPTY; ascending, disjoint, neighbours of one kind
 * merged. */
typedef struct TileRun {
  int32_t begin, end;
  TileKind kind;
} TileRun;

typedef struct TileMapRequest {
  int32_t n_q, n_k, tile_q, tile_kv;
  int32_t b, h; /* position in batch and query head, for masks that use them */
} TileMapRequest;

typedef struct TileMap {
  TileMapRequest request;
  int32_t q_tiles, kv_tiles;
  int64_t *row_begin; /* q_tiles + 1 offsets into runs */
  TileRun *runs;
  int64_t full_tiles, partial_tiles;
} TileMap;

/* Tiles that cover n positions; the last may reach past them. tile > 0. */
static inline int32_t tiles_covering(int32_t n, int32_t tile) {
  return (int32_t)(((int64_t)n + tile - 1) / tile);
}

/* Subdivides the plane by interval evaluation; below tile size it searches on for one allowed and
 * one forbidden position, within a bounded budget, so that shipped masks come out exact. mask NULL:
 * full. Work grows with the mask's boundary. */
rota_status tile_map_build(const Expression *mask, const Bindings *bindings,
                           const TileMapRequest *request, TileMap **map);
/* The same; `rest`: some of the mask's conditions. */
rota_status tile_map_build_bounded(const Expression *mask, const Expression *rest,
                                   const Bindings *bindings, const TileMapRequest *request,
                                   TileMap **map);
void tile_map_destroy(TileMap *map);
TileKind tile_map_kind(const TileMap *map, int32_t q_tile, int32_t kv_tile);
bool tile_map_equal(const TileMap *a, const TileMap *b); /* same tiles, whatever b and h */

#endif
