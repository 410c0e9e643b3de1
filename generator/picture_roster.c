/* Level 5. The roster: who adds when. Every chain is one line, in start order; blue while its
 * worker computes or adds, pale while a finished partial waits for its turn. The model gives each
 * chain a worker, so a line with gaps shows what the order costs and nothing else. */
#include "generator/picture_roster.h"

#include <stdlib.h>

enum {
  LINES_MAX = 512,       /* chains drawn; of more, every n-th */
  TIME_STEPS = 512,      /* waits shorter than 1/TIME_STEPS of the span are not drawn */
  NUMBERED_VISITS = 300, /* up to here visits carry their query tile */
};

/* Ticks at which visits end. */
typedef struct Timing {
  int64_t *end;  /* [visits] */
  int64_t *turn; /* [group][q_tiles]: when the last addition so far ended */
  RosterFigures figures;
} Timing;

static int64_t turn_index(const Pattern *pattern, const PatternVisit *visit) {
  return (int64_t)visit->group_head * pattern->q_tiles + visit->q_tile;
}

static rota_status timing_compute(const Pattern *pattern, Timing *timing) {
  size_t visits = (size_t)pattern->chain_begin[pattern->chains];
  timing->end = memory_allocate(visits + 1, sizeof(int64_t));
  timing->turn =
      memory_allocate((size_t)pattern->group * (size_t)pattern->q_tiles + 1, sizeof(int64_t));
  if (!timing->end || !timing->turn)
    return ROTA_OUT_OF_MEMORY;
  /* In start order every predecessor has been timed already: verified patterns wait for earlier
   * chains only. */
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    int64_t now = 0;
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
      int64_t *turn = &timing->turn[turn_index(pattern, &pattern->visits[v])];
      int64_t ready = now + VISIT_TICKS, end = *turn + 1 > ready ? *turn + 1 : ready;
      timing->figures.busy += VISIT_TICKS;
      timing->figures.waiting += end - ready;
      timing->end[v] = *turn = now = end;
    }
    if (now > timing->figures.span)
      timing->figures.span = now;
  }
  return ROTA_OK;
}

static void timing_free(Timing *timing) {
  free(timing->end);
  free(timing->turn);
}

rota_status roster_figures(const Pattern *pattern, RosterFigures *figures) {
  Timing timing = {0};
  rota_status status = timing_compute(pattern, &timing);
  *figures = timing.figures;
  timing_free(&timing);
  return status;
}

/* One chain: stretches of work, and the waits between them that are long enough to see. A wait
 * stands before the adding tick. */
static void draw_line(const Pattern *pattern, const Timing *timing, int32_t chain, int32_t line,
                      Text *busy, Text *wait) {
  int64_t begin = 0, now = 0; /* of the stretch */
  for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
    int64_t end = timing->end[v], waited = end - now - VISIT_TICKS;
    if (waited > 0 && waited * TIME_STEPS >= timing->figures.span) {
      int64_t stop = now + VISIT_TICKS - 1; /* computed, not yet added */
      rectangle_append(busy, begin, line, stop - begin, 1);
      rectangle_append(wait, stop, line, waited, 1);
      begin = end - 1;
    }
    now = end;
  }
  if (now > begin)
    rectangle_append(busy, begin, line, now - begin, 1);
}

/* Small rosters: lines between visits, and in each the number of its query tile. */
static void number_visits(const Pattern *pattern, const Timing *timing, int x, int y, int height,
                          Text *svg) {
  text_append(svg, "<g class=\"number\">\n");
  for (int32_t i = 0; i < pattern->chains; i++) {
    int32_t chain = pattern->start_order[i];
    for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
      int64_t end = timing->end[v], middle = 2 * end - VISIT_TICKS;
      int text_x = x + (int)(middle * ROSTER_WIDTH / (2 * timing->figures.span));
      int text_y = y + (2 * i + 1) * height / (2 * pattern->chains);
      int line_x = x + (int)(end * ROSTER_WIDTH / timing->figures.span);
      text_format(svg, "<text x=\"%d\" y=\"%d\">%d</text>", text_x, text_y + 4,
                  pattern->visits[v].q_tile);
      text_format(svg, "<path class=\"grid\" d=\"M%d %dv%d\"/>\n", line_x,
                  y + i * height / pattern->chains, height / pattern->chains);
    }
  }
  text_append(svg, "</g>\n");
}

static void roster_words(const Pattern *pattern, const Timing *timing, int32_t step, int x, int y,
                         int height, Text *svg) {
  int64_t visits = pattern->chain_begin[pattern->chains];
  const RosterFigures *figures = &timing->figures;
  text_format(svg, "<text class=\"figures\" x=\"%d\" y=\"56\">%d chains, %lld visits; ", x,
              pattern->chains, (long long)visits);
  text_format(svg, "length %lld visits", (long long)(figures->span / VISIT_TICKS));
  if (step > 1)
    text_format(svg, "; one chain in %d drawn", step);
  text_append(svg, "</text>\n");
  axis_append(svg, (Axis){x, y, ROSTER_WIDTH, figures->span, figures->span, VISIT_TICKS, false});
  text_format(svg,
              "<text class=\"label\" x=\"%d\" y=\"%d\">time in visits; the last 1/%d of each adds "
              "to dQ</text>\n",
              x + ROSTER_WIDTH / 2, y - 26, VISIT_TICKS);
  text_format(svg,
              "<text class=\"label\" transform=\"translate(%d %d) rotate(-90)\">chains, in start "
              "order</text>\n",
              x - 12, y + height / 2);
  int64_t all = figures->busy + figures->waiting;
  int next = legend_append(svg, x, y + height + 24, "busy", "busy", figures->busy, all);
  legend_append(svg, next, y + height + 24, "wait", "waiting", figures->waiting, all);
}

rota_status roster_draw(const Pattern *pattern, int x, int y, int height, Text *svg) {
  Timing timing = {0};
  Text busy = {0}, wait = {0};
  rota_status status = timing_compute(pattern, &timing);
  int64_t span = timing.figures.span;
  int32_t step = 1 + (pattern->chains - 1) / LINES_MAX;
  if (status == ROTA_OK && span > 0) {
    int32_t lines = 0;
    for (int32_t i = 0; i < pattern->chains; i += step)
      draw_line(pattern, &timing, pattern->start_order[i], lines++, &busy, &wait);
    status = text_status(&busy);
    if (status == ROTA_OK)
      status = text_status(&wait);
    view_begin(svg, (Frame){x, y, ROSTER_WIDTH, height}, span, lines);
    text_append(svg, "<rect class=\"empty\" width=\"100%\" height=\"100%\"/>\n");
    path_append(svg, "busy", &busy);
    path_append(svg, "wait", &wait);
    text_append(svg, "</svg>\n");
    if (pattern->chain_begin[pattern->chains] <= NUMBERED_VISITS)
      number_visits(pattern, &timing, x, y, height, svg);
  }
  if (status == ROTA_OK)
    roster_words(pattern, &timing, step, x, y, height, svg);
  text_free(&busy);
  text_free(&wait);
  timing_free(&timing);
  return status;
}
