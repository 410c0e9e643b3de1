/* Level 2. Pieces of a picture that its two plots have in common. */
#ifndef ROTA_GENERATOR_PICTURE_PARTS_H
#define ROTA_GENERATOR_PICTURE_PARTS_H

#include "generator/text.h"

enum { LEGEND_STEP = 170 }; /* pixels between the entries of a legend */

typedef struct Frame {
  int x, y, width, height; /* pixels */
} Frame;

/* Text content: & < > are escaped, control characters dropped. A string of more than `most`
 * characters ends in "...". */
void escaped_append(Text *svg, const char *string, int most);
/* A rectangle as part of a path's d. */
void rectangle_append(Text *path, int64_t x, int64_t y, int64_t width, int64_t height);
/* <path class="..."> unless it is empty. */
void path_append(Text *svg, const char *class, const Text *path);
/* A nested <svg>, to be closed: from here a frame of width x height pixels at (x, y) shows columns
 * x rows units and clips. */
void view_begin(Text *svg, Frame frame, int64_t columns, int64_t rows);

typedef struct Axis {
  int x, y;      /* where it starts */
  int length;    /* pixels */
  int64_t units; /* that the length stands for */
  int64_t last;  /* no tick beyond this unit */
  int64_t per;   /* units that a tick counts as one */
  bool down;     /* else to the right, with ticks above */
} Axis;
/* A line with about five ticks at multiples of a power of two. */
void axis_append(Text *svg, Axis axis);

/* "[] name 12 (3 %)"; returns the x behind it. `all` is at least `count`. */
int legend_append(Text *svg, int x, int y, const char *class, const char *name, int64_t count,
                  int64_t all);

#endif
