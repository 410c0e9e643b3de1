/* Level 4. The tiles that a sparse algorithm touches, as runs along both axes: of a tile map, which
 * has them by query tile, and turned over, by kv tile. Partial and full tiles count alike, for both
 * are loaded whole. */
#ifndef ROTA_GENERATOR_IO_PLANE_H
#define ROTA_GENERATOR_IO_PLANE_H

#include "generator/tile_map.h"

/* Positions [begin, end) along the other axis. */
typedef struct IoRun {
  int32_t begin, end;
} IoRun;

/* Runs of each line (row or column of tiles), ascending, disjoint and not adjacent. */
typedef struct IoLines {
  int32_t count;
  int64_t *first; /* count + 1 offsets into runs */
  IoRun *runs;
} IoLines;

typedef struct IoPlane {
  int32_t n, tile_q, tile_kv;
  IoLines rows, columns; /* of query tiles: runs of keys; of kv tiles: runs of queries */
  int64_t pairs;         /* (query, key) pairs in touched tiles */
} IoPlane;

/* n queries against n keys; mask NULL: full. The work is in proportion to the runs.
 * Zero-initialised it can be freed. */
rota_status io_plane_build(const Expression *mask, const Bindings *bindings, int32_t n,
                           int32_t tile_q, int32_t tile_kv, IoPlane *plane);
void io_plane_free(IoPlane *plane);

#endif
