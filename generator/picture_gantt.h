/* Level 5. The Gantt chart of a simulated schedule: a lane per worker, time to the right. */
#ifndef ROTA_GENERATOR_PICTURE_GANTT_H
#define ROTA_GENERATOR_PICTURE_GANTT_H

#include "generator/dag.h"
#include "generator/picture_parts.h"

enum { GANTT_WIDTH = 780, SHADES = 16 }; /* pixels; colours that query tiles share */

typedef struct Gantt {
  const DagProblem *problem;
  const DagFigures *figures;
  const DagTrace *trace;
  const int32_t *q_tiles; /* [planes]: a DagVisit's tile modulo these is its query tile */
  int64_t start;          /* ticks of a chain's start, before its first visit */
  const char *unit;       /* of the costs' times, "" for none */
  const char *schedule;
} Gantt;

/* Pixels that the lanes need. */
int gantt_height(const Gantt *gantt);
/* Lanes, axes, figures above and legend below a plot whose corner is (x, y). Visits have the colour
 * of their query tile, class "s0" .. "s15" from the first to the last. */
void gantt_draw(const Gantt *gantt, int x, int y, Text *svg);
/* The colours of the classes, for a style sheet. */
void gantt_style(Text *svg);
/* Which colour a query tile has. */
static inline int shade_of(int32_t q_tile, int32_t q_tiles) {
  return q_tiles > 0 ? (int)((int64_t)q_tile * SHADES / q_tiles) : 0;
}

#endif
