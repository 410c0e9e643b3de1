/* Charts: axes in whole decades, points where they belong, no locale. */
#include "generator/chart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *draw(const Chart *chart) {
  Text svg = {0};
  assert_int_equal(chart_draw(chart, &svg), ROTA_OK);
  return text_release(&svg);
}

static void test_points(void **state) {
  (void)state;
  Chart *chart = calloc(1, sizeof(Chart));
  chart->title = "a < b";
  chart->panel_count = 2; /* the second has no points and is left out */
  ChartPanel *panel = &chart->panels[0];
  panel->title = panel->x_label = panel->y_label = "axis";
  panel->marked_x = 100;
  strcpy(panel->mark, "mark & more");
  chart_add(panel, "one", "small", 10, 1000);
  chart_add(panel, "one", "small", 100, 10000);
  chart_add(panel, "one", "small", 1000, 100000);
  chart_add(panel, "one", "small", 0, 5); /* no logarithm */
  chart_add(panel, "one", "small", 5, -1);
  chart_add(panel, "none", "large", 1, 0); /* an entry of the legend without points */
  assert_int_equal(panel->series_count, 2);
  assert_int_equal(panel->series[0].count, 3);
  char *svg = draw(chart);
  /* The panel spans 520 x 400 pixels from (80, 74): corners and the middle. */
  assert_non_null(strstr(svg, "<path class=\"line small\" d=\"M80 474L340 274L600 74\"/>"));
  assert_non_null(strstr(svg, "<path class=\"mark\" d=\"M340 74L340 474\"/>"));
  assert_non_null(strstr(svg, "a &lt; b"));
  assert_non_null(strstr(svg, "mark &amp; more"));
  assert_non_null(strstr(svg, ">none</text>"));
  assert_null(strstr(svg, "class=\"line large\" d=\"M80")); /* only in the legend */
  free(svg);
  free(chart);
}

static void test_limits(void **state) {
  (void)state;
  Chart *chart = calloc(1, sizeof(Chart));
  chart->title = "";
  chart->panel_count = 1;
  ChartPanel *panel = &chart->panels[0];
  panel->title = panel->x_label = panel->y_label = "";
  for (int i = 0; i < CHART_POINTS_MAX + 10; i++)
    chart_add(panel, "one", "small", 1 + i, 7);
  assert_int_equal(panel->series[0].count, CHART_POINTS_MAX);
  static const char *const styles[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
  for (int i = 0; i < 9; i++)
    chart_add(panel, "more", styles[i], 1, 1);
  assert_int_equal(panel->series_count, CHART_SERIES_MAX);
  free(draw(chart));
  free(chart);
}

static void test_memory_failure(void **state) {
  (void)state;
  Chart *chart = calloc(1, sizeof(Chart));
  chart->title = "t";
  Text svg = {0};
  memory_fail_at(1);
  assert_int_equal(chart_draw(chart, &svg), ROTA_OUT_OF_MEMORY);
  memory_fail_at(0);
  text_free(&svg);
  free(chart);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_points),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_memory_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
