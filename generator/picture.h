/* Level 6. Drawings of a plan, as SVG: the tile map of one query head with the order in which its
 * tiles are visited and, beside it, the Gantt chart of the whole batch. */
#ifndef ROTA_GENERATOR_PICTURE_H
#define ROTA_GENERATOR_PICTURE_H

#include "generator/picture_gantt.h"
#include "generator/schedule.h"
#include "generator/text.h"

typedef struct Picture {
  const char *title;      /* one line; NULL: none */
  const TileMap *map;     /* of the query head that is drawn */
  const Pattern *pattern; /* of its kv head; NULL: the tile map alone */
  int group_head;         /* the drawn head's place in its group: whose visits are shown */
  const Gantt *gantt;     /* NULL: no chart */
} Picture;

/* Appends one <svg> element. Runs of tiles become one shape per kind, so that the size follows the
 * mask's boundary; maps with very many runs are drawn in coarser cells. The pattern must have been
 * verified. */
rota_status picture_draw(const Picture *picture, Text *svg);

#endif
