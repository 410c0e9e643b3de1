/* Level 5. The Gantt chart.
 *
 *   lane  +-------------------+      + compute, in the colour of the query tile
 *         |  visit  |  visit  | stall
 *         +----[reduction]----+      + reductions: dark, a strip below where they run beside the
 *                                      computing (staging buffers), the full lane where they do not
 *
 * What is not covered by a visit or a reduction shows the lane's ground: a stall, until the worker
 * has done its last item. Time is drawn in columns; shorter things share them. */
#include "generator/picture_gantt.h"

#include <stdlib.h>

enum {
  COLUMNS = 2 * GANTT_WIDTH,
  LANES_MAX = 256,        /* of more workers, every n-th is drawn */
  LANE_MIN = 4,           /* pixels */
  LANE_MAX = 34,          /* pixels */
  HEIGHT = 600,           /* pixels, for about LANE_MIN and more */
  UNITS = 20,             /* of height in a lane: */
  COMPUTE = 19,           /* units without, */
  COMPUTE_SHARED = 13,    /* or with a strip of reductions below */
  LETTER_WIDTH = 8,       /* pixels of a digit in a visit */
  VISITS_NUMBERED = 1200, /* with more, numbers would not fit anyhow */
  ITEMS_PARTED = 1500,    /* with more, chains are not parted by lines */
};

/* Colours from the first to the last query tile: even steps of hue at even lightness. */
static const char *const shades[SHADES] = {
    "#3b4cc0", "#4a6cd4", "#4f8be0", "#4fa9de", "#45c0cb", "#3fcfae", "#55d689", "#7fd765",
    "#a9d24e", "#cfc645", "#e8b444", "#f29c45", "#f08048", "#e2624c", "#c8434f", "#a62750"};

void gantt_style(Text *svg) {
  for (int i = 0; i < SHADES; i++)
    text_format(svg, ".s%d{fill:%s}", i, shades[i]);
  text_append(svg, ".add{fill:#353a42}.start{fill:#b4b9c2}.stall{fill:#f6cfc6}.part{stroke:#fff;"
                   "stroke-width:1.2}"
                   ".tile text{font-size:11px;fill:#14161a;text-anchor:middle}");
}

typedef struct Chart {
  const Gantt *gantt;
  int64_t span; /* ticks, at least 1 */
  int32_t step; /* workers per lane drawn */
  int lanes, lane_height;
  bool strip; /* reductions have a strip of their own */
  Text visits[SHADES], adds, starts, stalls;
} Chart;

static void chart_layout(const Gantt *gantt, Chart *chart) {
  int64_t span = gantt->figures->makespan;
  int32_t workers = gantt->problem->workers;
  *chart = (Chart){.gantt = gantt, .span = span > 0 ? span : 1};
  chart->step = 1 + (workers - 1) / LANES_MAX;
  chart->lanes = (workers + chart->step - 1) / chart->step;
  int height = HEIGHT / chart->lanes;
  chart->lane_height = height > LANE_MAX ? LANE_MAX : height < LANE_MIN ? LANE_MIN : height;
}

int gantt_height(const Gantt *gantt) {
  Chart chart;
  chart_layout(gantt, &chart);
  return chart.lanes * chart.lane_height;
}

static int64_t column(const Chart *chart, int64_t tick) {
  return tick * COLUMNS / chart->span;
}

/* ---- Lanes ---- */

/* A stretch of one class that is still growing: visits of one colour that follow one another. */
typedef struct Stretch {
  int64_t begin, end; /* columns; empty at first */
} Stretch;

static void flush(Text *path, Stretch *stretch, int64_t y, int height) {
  if (stretch->end > stretch->begin)
    rectangle_append(path, stretch->begin, y, stretch->end - stretch->begin, height);
  *stretch = (Stretch){0};
}

static void extend(Text *path, Stretch *stretch, int64_t begin, int64_t end, int64_t y,
                   int height) {
  if (begin > stretch->end) /* a gap */
    flush(path, stretch, y, height);
  if (stretch->end == 0)
    stretch->begin = begin;
  if (end > stretch->end)
    stretch->end = end;
}

/* What a lane has open, and how far it has come. */
typedef struct Pen {
  int shade; /* of the open stretch of visits */
  Stretch visits, adds;
  int64_t done; /* column after the last thing */
} Pen;

static void draw_item(Chart *chart, int64_t item, int64_t top, Pen *pen) {
  const DagProblem *problem = chart->gantt->problem;
  const DagTrace *trace = chart->gantt->trace;
  int32_t plane_index = problem->plane_of[problem->items[item].instance];
  const DagPlane *plane = &problem->planes[plane_index];
  int32_t q_tiles = chart->gantt->q_tiles[plane_index];
  const DagVisit *visits = plane->visits + plane->chain_begin[problem->items[item].chain];
  int height = chart->strip ? COMPUTE_SHARED : COMPUTE;
  int64_t first = trace->spans[trace->item_begin[item]].begin;
  int64_t start = column(chart, first - chart->gantt->start);
  if (column(chart, first) > start)
    rectangle_append(&chart->starts, start, top, column(chart, first) - start, COMPUTE);
  for (int64_t i = trace->item_begin[item]; i < trace->item_begin[item + 1]; i++) {
    const DagSpan *span = &trace->spans[i];
    int shade = shade_of(visits[i - trace->item_begin[item]].tile % q_tiles, q_tiles);
    int64_t begin = column(chart, span->begin), end = column(chart, span->computed);
    if (shade != pen->shade)
      flush(&chart->visits[pen->shade], &pen->visits, top, height);
    pen->shade = shade;
    extend(&chart->visits[shade], &pen->visits, begin, end, top, height);
    int64_t turn = column(chart, span->turn), added = column(chart, span->end);
    int64_t strip_top = chart->strip ? top + COMPUTE_SHARED : top;
    int strip = chart->strip ? COMPUTE - COMPUTE_SHARED : COMPUTE;
    extend(&chart->adds, &pen->adds, turn, added, strip_top, strip);
    if (added > pen->done)
      pen->done = added;
  }
}

/* Items are in the order of their queues; a worker's are found by its number. */
static void draw_lanes(Chart *chart, const int64_t *next_item, const int64_t *first_item) {
  for (int lane = 0; lane < chart->lanes; lane++) {
    int64_t top = (int64_t)lane * UNITS;
    Pen pen = {0};
    for (int64_t item = first_item[lane * chart->step]; item >= 0; item = next_item[item])
      draw_item(chart, item, top, &pen);
    int height = chart->strip ? COMPUTE_SHARED : COMPUTE;
    flush(&chart->visits[pen.shade], &pen.visits, top, height);
    flush(&chart->adds, &pen.adds, chart->strip ? top + COMPUTE_SHARED : top,
          chart->strip ? COMPUTE - COMPUTE_SHARED : COMPUTE);
    if (pen.done > 0)
      rectangle_append(&chart->stalls, 0, top, pen.done, COMPUTE);
  }
}

/* ---- Numbers and parting lines, in pixels ---- */

static void number_item(const Chart *chart, int64_t item, int x, int y, Text *svg) {
  const DagProblem *problem = chart->gantt->problem;
  const DagTrace *trace = chart->gantt->trace;
  int32_t plane_index = problem->plane_of[problem->items[item].instance];
  const DagPlane *plane = &problem->planes[plane_index];
  const DagVisit *visits = plane->visits + plane->chain_begin[problem->items[item].chain];
  for (int64_t i = trace->item_begin[item]; i < trace->item_begin[item + 1]; i++) {
    const DagSpan *span = &trace->spans[i];
    int32_t tile = visits[i - trace->item_begin[item]].tile % chart->gantt->q_tiles[plane_index];
    int begin = (int)(column(chart, span->begin) / 2),
        end = (int)(column(chart, span->computed) / 2);
    int digits = tile < 10 ? 1 : tile < 100 ? 2 : 3;
    if (end - begin >= LETTER_WIDTH * digits)
      text_format(svg, "<text x=\"%d\" y=\"%d\">%d</text>\n", x + (begin + end) / 2, y, tile);
  }
}

static void draw_details(const Chart *chart, int x, int y, Text *svg) {
  const DagTrace *trace = chart->gantt->trace;
  int64_t items = chart->gantt->problem->queue_begin[chart->gantt->problem->queues];
  bool numbers = trace->item_begin[items] <= VISITS_NUMBERED && chart->lane_height >= 14;
  if (items > ITEMS_PARTED || chart->step > 1)
    return;
  text_append(svg, "<path class=\"part\" d=\"");
  for (int64_t item = 0; item < items; item++) {
    if (trace->item_begin[item] == trace->item_begin[item + 1])
      continue;
    int64_t first = trace->spans[trace->item_begin[item]].begin - chart->gantt->start;
    int64_t begin = column(chart, first) / 2;
    if (begin > 0)
      text_format(svg, "M%d %dv%d", x + (int)begin, y + trace->worker[item] * chart->lane_height,
                  chart->lane_height);
  }
  text_append(svg, "\"/>\n<g class=\"tile\">\n");
  for (int64_t item = 0; numbers && item < items; item++) {
    int middle = chart->lane_height * (chart->strip ? COMPUTE_SHARED : COMPUTE) / (2 * UNITS);
    number_item(chart, item, x, y + trace->worker[item] * chart->lane_height + middle + 4, svg);
  }
  text_append(svg, "</g>\n");
}

/* ---- Words ---- */

/* A number of ticks in units with two decimals, without the locale's help. */
static void append_units(Text *svg, int64_t ticks) {
  int64_t hundredths = (ticks * 100 + COSTS_TICKS / 2) / COSTS_TICKS;
  text_format(svg, "%lld", (long long)(hundredths / 100));
  if (hundredths % 100 != 0)
    text_format(svg, ".%02lld", (long long)(hundredths % 100));
}

static void append_words(const Chart *chart, int x, int y, Text *svg) {
  const Gantt *gantt = chart->gantt;
  long long stall = (long long)(1000 * dag_stall_share(gantt->figures) + 0.5);
  long long ratio = (long long)(1000 * dag_bound_ratio(gantt->figures) + 0.5);
  text_format(svg, "<text class=\"figures\" x=\"%d\" y=\"56\">%s on %d workers: ", x,
              gantt->schedule, gantt->problem->workers);
  append_units(svg, gantt->figures->makespan);
  text_format(svg, "%s%s, %lld.%03lld of the bound; idle %lld.%lld %%", *gantt->unit ? " " : "",
              gantt->unit, ratio / 1000, ratio % 1000, stall / 10, stall % 10);
  if (chart->step > 1)
    text_format(svg, "; one worker in %d drawn", chart->step);
  text_append(svg, "</text>\n");
  axis_append(svg, (Axis){x, y, GANTT_WIDTH, chart->span, chart->span, COSTS_TICKS, false});
  text_format(svg, "<text class=\"label\" x=\"%d\" y=\"%d\">time%s%s</text>\n", x + GANTT_WIDTH / 2,
              y - 26, *gantt->unit ? ", " : "", gantt->unit);
  text_format(svg,
              "<text class=\"label\" transform=\"translate(%d %d) rotate(-90)\">workers</text>\n",
              x - 10, y + chart->lanes * chart->lane_height / 2);
}

static void append_legend(int x, int y, Text *svg) {
  text_format(svg, "<text x=\"%d\" y=\"%d\">query tile: first</text>\n", x, y);
  int at = x + 100;
  for (int i = 0; i < SHADES; i++, at += 12)
    text_format(svg, "<rect class=\"s%d\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>", i, at,
                y - 10);
  text_format(svg, "<text x=\"%d\" y=\"%d\">last</text>\n", at + 6, y);
  static const struct {
    const char *class, *name;
  } entries[] = {
      {"start", "chain starts"}, {"add", "adding to dQ"}, {"stall", "stalled"}, {"empty", "done"}};
  at += 48;
  for (int i = 0; i < 4; i++, at += 118) {
    text_format(svg, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>",
                entries[i].class, at, y - 10);
    text_format(svg, "<text x=\"%d\" y=\"%d\">%s</text>\n", at + 18, y, entries[i].name);
  }
}

/* ---- Lists of each worker's items ---- */

/* Links a worker's items in order; in queue order they are in order of time too. */
static bool link_items(const Gantt *gantt, int64_t **next, int64_t **first) {
  int64_t items = gantt->problem->queue_begin[gantt->problem->queues];
  int32_t workers = gantt->problem->workers;
  *next = memory_allocate((size_t)items + 1, sizeof(int64_t));
  *first = memory_allocate((size_t)workers + 1, sizeof(int64_t));
  if (!*next || !*first)
    return false;
  for (int32_t w = 0; w < workers; w++)
    (*first)[w] = -1;
  for (int64_t item = items - 1; item >= 0; item--) {
    if (gantt->trace->item_begin[item] == gantt->trace->item_begin[item + 1])
      (*next)[item] = -1;
    else {
      int32_t worker = gantt->trace->worker[item];
      (*next)[item] = (*first)[worker];
      (*first)[worker] = item;
    }
  }
  return true;
}

/* Reductions run beside the computing if one begins after its worker has gone on. */
static bool has_strip(const Gantt *gantt) {
  const DagTrace *trace = gantt->trace;
  int64_t items = gantt->problem->queue_begin[gantt->problem->queues];
  for (int64_t item = 0; item < items; item++)
    for (int64_t i = trace->item_begin[item] + 1; i < trace->item_begin[item + 1]; i++)
      if (trace->spans[i].begin < trace->spans[i - 1].end)
        return true;
  return false;
}

void gantt_draw(const Gantt *gantt, int x, int y, Text *svg) {
  Chart chart;
  chart_layout(gantt, &chart);
  chart.strip = has_strip(gantt);
  int64_t *next = NULL, *first = NULL;
  if (link_items(gantt, &next, &first))
    draw_lanes(&chart, next, first);
  else
    svg->failed = true;
  free(next);
  free(first);
  int height = chart.lanes * chart.lane_height;
  view_begin(svg, (Frame){x, y, GANTT_WIDTH, height}, COLUMNS, (int64_t)chart.lanes * UNITS);
  text_append(svg, "<rect class=\"empty\" width=\"100%\" height=\"100%\"/>\n");
  path_append(svg, "stall", &chart.stalls);
  path_append(svg, "start", &chart.starts);
  for (int i = 0; i < SHADES; i++) {
    char class[8] = {'s', (char)(i < 10 ? '0' + i : '1'), (char)(i < 10 ? 0 : '0' + i - 10), 0};
    path_append(svg, class, &chart.visits[i]);
    svg->failed = svg->failed || chart.visits[i].failed;
    text_free(&chart.visits[i]);
  }
  path_append(svg, "add", &chart.adds);
  text_append(svg, "</svg>\n");
  svg->failed = svg->failed || chart.stalls.failed || chart.starts.failed || chart.adds.failed;
  text_free(&chart.stalls);
  text_free(&chart.starts);
  text_free(&chart.adds);
  draw_details(&chart, x, y, svg);
  append_words(&chart, x, y, svg);
  append_legend(x, y + height + 24, svg);
}
