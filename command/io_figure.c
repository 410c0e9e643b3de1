/* The figure of `rota io`: see io_figure.h. */
#include "command/io_figure.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "generator/chart.h"

static const struct {
  const char *style, *name;
} curves[IO_ALGORITHMS] = {{"naive", "naive"}, {"large", "large_cache"}, {"small", "small_cache"}};

/* One M or one mask: a point on each curve. An algorithm that M is too small for has none. */
static rota_status add_points(const IoProblem *problem, double x, const IoBounds *bounds,
                              double naive, ChartPanel *panel) {
  for (int i = 0; i < IO_ALGORITHMS; i++) {
    IoAlgorithm algorithm = (IoAlgorithm)i;
    IoCount count;
    double transfers = naive; /* the same everywhere: counted once */
    if (problem->m < io_attention_minimum(problem, algorithm)) {
      transfers = NAN; /* no point */
    } else if (algorithm != IO_NAIVE) {
      ROTA_TRY(io_attention_run(problem, algorithm, NULL, &count));
      transfers = (double)io_transfers(&count);
    }
    chart_add(panel, curves[i].name, curves[i].style, x, transfers);
  }
  chart_add(panel, "lower bound", "bound", x, bounds->lower_bound);
  chart_add(panel, "inputs, outputs once", "once", x, (double)bounds->compulsory);
  return ROTA_OK;
}

/* The naive program neither uses M nor skips what is masked. */
static rota_status naive_transfers(const IoProblem *problem, double *transfers) {
  IoCount count;
  IoProblem any = *problem;
  any.m = io_attention_minimum(problem, IO_NAIVE);
  ROTA_TRY(io_attention_run(&any, IO_NAIVE, NULL, &count));
  *transfers = (double)io_transfers(&count);
  return ROTA_OK;
}

/* From an eighth of a row to where all inputs would fit, with the crossing in the middle if there
 * is room on both sides: some points per doubling. */
static rota_status over_memory(const IoProblem *problem, ChartPanel *panel) {
  enum { SPAN = 1024 };
  int per_doubling = problem->mask ? 2 : 4; /* a mask takes longer */
  IoBounds bounds;
  double naive, crossing;
  ROTA_TRY(naive_transfers(problem, &naive));
  ROTA_TRY(io_attention_bounds(problem, &bounds));
  crossing = bounds.crossing_m > 1 ? bounds.crossing_m : 1;
  double first = fmax(16, crossing / SPAN);
  double last = fmin(crossing * SPAN, 16.0 * (double)problem->n * (double)problem->d);
  snprintf(panel->mark, sizeof panel->mark, "%s = %.0f", problem->mask ? "Z\u00b2/Z_QK" : "d\u00b2",
           bounds.crossing_m);
  panel->title = "over M, elements of fast memory";
  panel->x_label = "M (elements)";
  panel->y_label = "elements moved";
  panel->marked_x = bounds.crossing_m;
  double large = bounds.large * (double)problem->m, small = bounds.small * sqrt((double)problem->m);
  int steps = (int)(log2(last / first) * per_doubling);
  for (int i = 0; i <= steps && i < CHART_POINTS_MAX; i++) {
    IoProblem at = *problem;
    at.m = llround(first * exp2((double)i / per_doubling));
    bounds.lower_bound = fmin(large / (double)at.m, small / sqrt((double)at.m));
    ROTA_TRY(add_points(&at, (double)at.m, &bounds, naive, panel));
  }
  return ROTA_OK;
}

/* The mask, narrowed by windows of growing width until they leave it whole. */
static rota_status over_pairs(const IoProblem *problem, IoMask *mask, ChartPanel *panel) {
  double naive;
  ROTA_TRY(naive_transfers(problem, &naive));
  panel->title = "over Z_QK: the mask within |q - k| <= 1, 2, 4, ...";
  panel->x_label = "Z_QK (allowed pairs)";
  panel->y_label = "elements moved";
  panel->marked_x = pow((double)problem->n * (double)problem->d, 2) / (double)problem->m;
  snprintf(panel->mark, sizeof panel->mark, "Z\u00b2/M = %.3g", panel->marked_x);
  const char *whole = mask->text;
  Text text = {0};
  rota_status status = ROTA_OK;
  int64_t before = 0;
  for (int64_t width = 1; status == ROTA_OK && width < 2 * problem->n; width *= 2) {
    text.length = 0;
    text_format(&text, "(%s) & window(%lld, %lld)", whole, (long long)width, (long long)width);
    status = text_status(&text);
    if (status == ROTA_OK)
      status = io_mask_replace(mask, text.data);
    IoProblem at = *problem;
    at.mask = mask->spec.mask;
    IoBounds bounds = {0};
    if (status == ROTA_OK)
      status = io_attention_bounds(&at, &bounds);
    if (status == ROTA_OK && bounds.pairs > before)
      status = add_points(&at, (double)bounds.pairs, &bounds, naive, panel);
    before = bounds.pairs > before ? bounds.pairs : before;
  }
  text_free(&text);
  return status;
}

static rota_status write_svg(const char *path, const Text *svg) {
  FILE *file = fopen(path, "w");
  bool written = file && fwrite(svg->data, 1, svg->length, file) == svg->length;
  if (file && fclose(file) != 0)
    written = false;
  return written ? ROTA_OK
                 : status_fail(ROTA_FILE, "%s: cannot be written: %s", path, strerror(errno));
}

/* Feeds the drawing to rsvg-convert, without a shell. */
static rota_status write_png(const char *path, const Text *svg) {
  FILE *drawing = tmpfile();
  if (!drawing || fwrite(svg->data, 1, svg->length, drawing) != svg->length ||
      fflush(drawing) != 0 || fseek(drawing, 0, SEEK_SET) != 0) {
    if (drawing)
      fclose(drawing);
    return status_fail(ROTA_FILE, "--png: no temporary file: %s", strerror(errno));
  }
  enum { NOT_FOUND = 127 };
  pid_t child = fork();
  if (child == 0) {
    dup2(fileno(drawing), STDIN_FILENO);
    execlp("rsvg-convert", "rsvg-convert", "--zoom=2", "--format=png", "--output", path,
           (char *)NULL);
    _exit(NOT_FOUND);
  }
  int result = -1;
  while (child > 0 && waitpid(child, &result, 0) < 0 && errno == EINTR)
    continue;
  fclose(drawing);
  if (child > 0 && WIFEXITED(result) && WEXITSTATUS(result) == 0)
    return ROTA_OK;
  if (child > 0 && WIFEXITED(result) && WEXITSTATUS(result) == NOT_FOUND)
    return status_fail(
        ROTA_UNSUPPORTED,
        "--png needs the program rsvg-convert (package librsvg2-bin); --svg does not");
  return status_fail(ROTA_FILE, "%s: rsvg-convert could not write it", path);
}

rota_status io_figure_write(const IoProblem *problem, IoMask *mask, const char *svg,
                            const char *png) {
  Chart *chart = memory_allocate(1, sizeof(Chart));
  if (!chart)
    return ROTA_OUT_OF_MEMORY;
  Text title = {0}, drawing = {0};
  text_format(&title, "Attention %s, %s form, n = %lld, d = %lld",
              problem->direction == ROTA_FORWARD ? "forward" : "backward",
              problem->form == IO_PAPER ? "paper's" : "kernel's", (long long)problem->n,
              (long long)problem->d);
  if (mask->text)
    text_format(&title, ", %s; right: M = %lld", mask->text, (long long)problem->m);
  rota_status status = text_status(&title);
  chart->title = title.data;
  chart->panel_count = mask->text ? 2 : 1;
  if (status == ROTA_OK)
    status = over_memory(problem, &chart->panels[0]);
  if (status == ROTA_OK && mask->text)
    status = over_pairs(problem, mask, &chart->panels[1]);
  if (status == ROTA_OK)
    status = chart_draw(chart, &drawing);
  if (status == ROTA_OK && svg)
    status = write_svg(svg, &drawing);
  if (status == ROTA_OK && png)
    status = write_png(png, &drawing);
  text_free(&drawing);
  text_free(&title);
  free(chart);
  return status;
}
