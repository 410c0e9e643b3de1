/* Level 3. Line charts: see chart.h.
 *
 * A panel's ranges are whole decades around its points. Coordinates are written as tenths of a
 * pixel in integers, for printf's %f would follow the locale. */
#include "generator/chart.h"

#include <math.h>
#include <string.h>

#include "generator/picture_parts.h"

enum {
  PANEL_WIDTH = 520,
  PANEL_HEIGHT = 400,
  MARGIN_LEFT = 80,
  MARGIN_TOP = 74,
  MARGIN_BOTTOM = 106, /* axis labels and two rows of legend */
  GAP = 100,           /* between panels: the right one's axis labels */
  LEGEND_LINE = 52,    /* an entry's line and gaps */
  TITLE_MAX = 110,
};

/* Decades [low, high] of both axes, and where the panel stands. */
typedef struct Scale {
  int x_low, x_high, y_low, y_high;
  int left, top;
} Scale;

void chart_add(ChartPanel *panel, const char *name, const char *style, double x, double y) {
  int i = 0;
  while (i < panel->series_count && strcmp(panel->series[i].style, style) != 0)
    i++;
  if (i == CHART_SERIES_MAX)
    return;
  ChartSeries *series = &panel->series[i];
  if (i == panel->series_count) {
    panel->series_count++;
    *series = (ChartSeries){.name = name, .style = style};
  }
  if (series->count == CHART_POINTS_MAX || !(x > 0 && y > 0) || isinf(x) || isinf(y))
    return;
  series->x[series->count] = x;
  series->y[series->count++] = y;
}

/* ---- Scales ---- */

static void widen(double value, bool *first, int *low, int *high) {
  int floor_of = (int)floor(log10(value) + 1e-9), ceil_of = (int)ceil(log10(value) - 1e-9);
  if (*first || floor_of < *low)
    *low = floor_of;
  if (*first || ceil_of > *high)
    *high = ceil_of;
  if (*high == *low)
    *high += 1;
  *first = false;
}

/* False if there is no point. */
static bool find_scale(const ChartPanel *panel, Scale *scale) {
  bool first_x = true, first_y = true;
  for (int i = 0; i < panel->series_count; i++)
    for (int j = 0; j < panel->series[i].count; j++) {
      widen(panel->series[i].x[j], &first_x, &scale->x_low, &scale->x_high);
      widen(panel->series[i].y[j], &first_y, &scale->y_low, &scale->y_high);
    }
  return !first_x;
}

/* Tenths of a pixel. */
static long long x_of(const Scale *scale, double x) {
  double part = (log10(x) - scale->x_low) / (scale->x_high - scale->x_low);
  return 10LL * scale->left + llround(part * 10 * PANEL_WIDTH);
}

static long long y_of(const Scale *scale, double y) {
  double part = (log10(y) - scale->y_low) / (scale->y_high - scale->y_low);
  return 10LL * (scale->top + PANEL_HEIGHT) - llround(part * 10 * PANEL_HEIGHT);
}

static void append_tenths(Text *svg, long long tenths) {
  if (tenths < 0) {
    text_append(svg, "-");
    tenths = -tenths;
  }
  text_format(svg, tenths % 10 ? "%lld.%lld" : "%lld", tenths / 10, tenths % 10);
}

/* ---- Parts of a panel ---- */

static void append_line(Text *svg, const char *class, long long x1, long long y1, long long x2,
                        long long y2) {
  text_format(svg, "<path class=\"%s\" d=\"M", class);
  append_tenths(svg, x1);
  text_append(svg, " ");
  append_tenths(svg, y1);
  text_append(svg, "L");
  append_tenths(svg, x2);
  text_append(svg, " ");
  append_tenths(svg, y2);
  text_append(svg, "\"/>\n");
}

/* "10" with a raised exponent. */
static void append_power(Text *svg, long long x, long long y, const char *anchor, int exponent) {
  text_format(svg, "<text x=\"%lld\" y=\"%lld\" text-anchor=\"%s\">10<tspan dy=\"-5\" ", x, y,
              anchor);
  text_format(svg, "font-size=\"9\">%d</tspan></text>\n", exponent);
}

static void append_axes(const Scale *scale, const ChartPanel *panel, Text *svg) {
  int bottom = scale->top + PANEL_HEIGHT, right = scale->left + PANEL_WIDTH;
  int y_step = scale->y_high - scale->y_low > 9 ? 2 : 1;
  for (int i = scale->x_low; i <= scale->x_high; i++) {
    long long x = x_of(scale, pow(10, i));
    append_line(svg, "grid", x, 10LL * scale->top, x, 10LL * bottom);
    append_power(svg, x / 10, bottom + 20, "middle", i);
  }
  for (int i = scale->y_low; i <= scale->y_high; i += y_step) {
    long long y = y_of(scale, pow(10, i));
    append_line(svg, "grid", 10LL * scale->left, y, 10LL * right, y);
    append_power(svg, scale->left - 8, y / 10 + 4, "end", i);
  }
  text_format(svg, "<rect class=\"axis\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
              scale->left, scale->top, PANEL_WIDTH, PANEL_HEIGHT);
  text_format(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", scale->left + PANEL_WIDTH / 2,
              bottom + 42);
  escaped_append(svg, panel->x_label, TITLE_MAX);
  text_append(svg, "</text>\n");
  int x = scale->left - 54, y = scale->top + PANEL_HEIGHT / 2;
  text_format(svg, "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\">", x,
              y);
  escaped_append(svg, panel->y_label, TITLE_MAX);
  text_append(svg, "</text>\n");
  text_format(svg, "<text x=\"%d\" y=\"%d\">", scale->left, scale->top - 26);
  escaped_append(svg, panel->title, TITLE_MAX);
  text_append(svg, "</text>\n");
}

static void append_series(const Scale *scale, const ChartSeries *series, Text *svg) {
  if (series->count == 0)
    return;
  text_format(svg, "<path class=\"line %s\" d=\"M", series->style);
  for (int i = 0; i < series->count; i++) {
    text_append(svg, i ? "L" : "");
    append_tenths(svg, x_of(scale, series->x[i]));
    text_append(svg, " ");
    append_tenths(svg, y_of(scale, series->y[i]));
  }
  text_append(svg, "\"/>\n");
}

/* A vertical line with its label above the panel, turned inwards at the edges. */
static void append_mark(const Scale *scale, const ChartPanel *panel, Text *svg) {
  if (!(panel->marked_x > 0))
    return;
  double at = log10(panel->marked_x);
  if (at < scale->x_low || at > scale->x_high)
    return;
  long long x = x_of(scale, panel->marked_x);
  append_line(svg, "mark", x, 10LL * scale->top, x, 10LL * (scale->top + PANEL_HEIGHT));
  bool left = at - scale->x_low < 0.25 * (scale->x_high - scale->x_low);
  bool right = scale->x_high - at < 0.25 * (scale->x_high - scale->x_low);
  text_format(svg, "<text class=\"note\" x=\"%lld\" y=\"%d\" text-anchor=\"%s\">", x / 10,
              scale->top - 7,
              left    ? "start"
              : right ? "end"
                      : "middle");
  escaped_append(svg, panel->mark, TITLE_MAX);
  text_append(svg, "</text>\n");
}

/* In rows as wide as the chart. */
static void append_legend(const ChartPanel *panel, int y, int width, Text *svg) {
  int x = MARGIN_LEFT;
  for (int i = 0; i < panel->series_count; i++) {
    const ChartSeries *series = &panel->series[i];
    int needed = LEGEND_LINE + 7 * (int)strlen(series->name); /* a character is about 7 pixels */
    if (x > MARGIN_LEFT && x + needed > width) {
      x = MARGIN_LEFT;
      y += 20;
    }
    text_format(svg, "<path class=\"line %s\" d=\"M%d %dh26\"/>", series->style, x, y - 4);
    text_format(svg, "<text x=\"%d\" y=\"%d\">", x + 32, y);
    escaped_append(svg, series->name, TITLE_MAX);
    text_append(svg, "</text>\n");
    x += needed;
  }
}

/* The bound is drawn broken, so that a curve on it stays visible. */
static const char style[] =
    "<style>text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600}"
    ".note{fill:#9a3412}.grid{stroke:#e5e5e5;fill:none}.axis{stroke:#888;fill:none}"
    ".mark{stroke:#c2410c;stroke-dasharray:2 3;fill:none}.line{fill:none;stroke-width:2;"
    "stroke-linejoin:round}.naive{stroke:#999}.large{stroke:#2563eb}.small{stroke:#ea8a0c}"
    ".bound{stroke:#111;stroke-dasharray:7 4}.once{stroke:#111;stroke-width:1;"
    "stroke-dasharray:1 3}</style>\n";

rota_status chart_draw(const Chart *chart, Text *svg) {
  Scale scales[CHART_PANELS_MAX] = {{0}};
  const ChartPanel *panels[CHART_PANELS_MAX];
  int count = 0;
  for (int i = 0; i < chart->panel_count; i++)
    if (find_scale(&chart->panels[i], &scales[count]))
      panels[count++] = &chart->panels[i];
  int width = 2 * MARGIN_LEFT + PANEL_WIDTH + (count > 1 ? PANEL_WIDTH + GAP : 0) - 40;
  int height = MARGIN_TOP + PANEL_HEIGHT + MARGIN_BOTTOM;
  text_format(svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
              "viewBox=\"0 0 %d %d\">\n",
              width, height, width, height);
  text_append(svg, style);
  text_format(svg, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, height);
  text_format(svg, "<text class=\"title\" x=\"%d\" y=\"26\">", MARGIN_LEFT);
  escaped_append(svg, chart->title, TITLE_MAX);
  text_append(svg, "</text>\n");
  for (int i = 0; i < count; i++) {
    scales[i].left = MARGIN_LEFT + i * (PANEL_WIDTH + GAP);
    scales[i].top = MARGIN_TOP;
    append_axes(&scales[i], panels[i], svg);
    append_mark(&scales[i], panels[i], svg);
    for (int j = 0; j < panels[i]->series_count; j++)
      append_series(&scales[i], &panels[i]->series[j], svg);
  }
  if (count > 0)
    append_legend(panels[0], height - 34, width, svg);
  text_append(svg, "</svg>\n");
  return text_status(svg);
}
