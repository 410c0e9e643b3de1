/* Level 5. The roster of a schedule: who adds to dQ when, as figures and as a plot. */
#ifndef ROTA_GENERATOR_PICTURE_ROSTER_H
#define ROTA_GENERATOR_PICTURE_ROSTER_H

#include "generator/picture_parts.h"
#include "generator/schedule.h"

/* How the roster plays out if every chain has a worker: a visit takes VISIT_TICKS, of which adding
 * to dQ takes the last; an addition waits for the one before it. Ticks in all, and ticks spent
 * waiting. Zeros for an empty pattern. */
enum { VISIT_TICKS = 4 };
typedef struct RosterFigures {
  int64_t span, busy, waiting;
} RosterFigures;
rota_status roster_figures(const Pattern *pattern, RosterFigures *figures);

enum { ROSTER_WIDTH = 520, ROSTER_HEIGHT_MIN = 120 }; /* pixels */

/* One line per chain in start order, time to the right; axes, figures and legend. */
rota_status roster_draw(const Pattern *pattern, int x, int y, int height, Text *svg);

#endif
