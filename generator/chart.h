/* Level 3. Line charts with logarithmic axes, as SVG: one or two panels side by side and one legend
 * below them. */
#ifndef ROTA_GENERATOR_CHART_H
#define ROTA_GENERATOR_CHART_H

#include "generator/text.h"

enum { CHART_SERIES_MAX = 8, CHART_POINTS_MAX = 128, CHART_PANELS_MAX = 2 };

/* Points with x and y above 0, x ascending. */
typedef struct ChartSeries {
  const char *name;
  const char *style; /* a class of the style sheet: "naive", "large", "small", "bound", "once" */
  double x[CHART_POINTS_MAX], y[CHART_POINTS_MAX];
  int count;
} ChartSeries;

typedef struct ChartPanel {
  const char *title, *x_label, *y_label;
  ChartSeries series[CHART_SERIES_MAX]; /* the same names and styles in every panel */
  int series_count;
  double marked_x; /* a vertical line; 0: none */
  char mark[96];   /* its label */
} ChartPanel;

typedef struct Chart {
  const char *title;
  ChartPanel panels[CHART_PANELS_MAX];
  int panel_count;
} Chart;

/* Adds a point to the series of that style, which it makes at need; beyond the limits, and where x
 * or y is not positive and finite, no point. */
void chart_add(ChartPanel *panel, const char *name, const char *style, double x, double y);

/* Appends one <svg> element. Panels without points are left out. */
rota_status chart_draw(const Chart *chart, Text *svg);

#endif
