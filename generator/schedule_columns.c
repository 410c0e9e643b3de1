/* Level 4. Tile maps by columns: what a chain may visit. Maps are stored by rows; rows are gone
 * through in order, so a column's tiles come out ascending. */
#include "generator/schedule.h"

#include <stdlib.h>

/* begin[head * chains + chain] from the numbers of tiles; returns the total. */
static int64_t count_tiles(const TileMap *map, int64_t before, int64_t *begin) {
  int64_t runs = map->row_begin[map->q_tiles];
  for (int64_t i = 0; i < runs; i++) { /* first differences of counts, then summed twice */
    begin[map->runs[i].begin]++;
    begin[map->runs[i].end]--;
  }
  int64_t tiles = 0, total = before;
  for (int32_t chain = 0; chain < map->kv_tiles; chain++) {
    tiles += begin[chain];
    begin[chain] = total;
    total += tiles;
  }
  begin[map->kv_tiles] = 0; /* of the next head */
  return total;
}

/* Appends the tiles of each row to their columns; `next` is where each column continues. */
static void fill_tiles(const TileMap *map, int64_t *next, uint32_t *tiles) {
  for (int32_t row = 0; row < map->q_tiles; row++)
    for (int64_t i = map->row_begin[row]; i < map->row_begin[row + 1]; i++) {
      const TileRun *run = &map->runs[i];
      uint32_t tile = (uint32_t)row | (run->kind == TILE_PARTIAL ? COLUMN_PARTIAL : 0);
      for (int32_t chain = run->begin; chain < run->end; chain++)
        tiles[next[chain]++] = tile;
    }
}

rota_status columns_build(const TileMap *const *maps, int group, Columns *columns) {
  *columns = (Columns){0};
  size_t chains = (size_t)maps[0]->kv_tiles, count = chains * (size_t)group;
  columns->begin = memory_allocate(count + 1, sizeof(int64_t));
  int64_t *next = memory_allocate(chains + 1, sizeof(int64_t));
  if (columns->begin && next) {
    int64_t total = 0;
    for (int g = 0; g < group; g++)
      total = count_tiles(maps[g], total, columns->begin + chains * (size_t)g);
    columns->begin[count] = total;
    columns->tiles = memory_allocate((size_t)total + 1, sizeof(uint32_t));
    for (int g = 0; columns->tiles && g < group; g++) {
      for (size_t chain = 0; chain < chains; chain++)
        next[chain] = columns->begin[chains * (size_t)g + chain];
      fill_tiles(maps[g], next, columns->tiles);
    }
  }
  free(next);
  if (columns->tiles)
    return ROTA_OK;
  columns_free(columns);
  return ROTA_OUT_OF_MEMORY;
}

void columns_free(Columns *columns) {
  free(columns->begin);
  free(columns->tiles);
  *columns = (Columns){0};
}
