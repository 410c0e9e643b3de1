/* rota io: elements that attention's algorithms move between a fast memory of M elements and a slow
 * one, counted by running them on the two-level machine. Needs no GPU. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "command/commands.h"
#include "command/io_figure.h"
#include "command/model.h"

typedef struct IoOptions {
  IoProblem problem;
  const char *mask, *svg, *png;
  bool json;
} IoOptions;

enum { KEY_N = 256, KEY_D, KEY_M, KEY_PNG };

static const struct argp_option table[] = {
    {"n", KEY_N, "N", 0, "Rows: queries and keys", 1},
    {"d", KEY_D, "D", 0, "Head dim", 1},
    {"m", KEY_M, "M", 0, "Elements of fast memory", 1},
    {"form", 'f', "FORM", 0,
     "kernel (Q, K, V, dO; default) or paper (A1, A2, A3, X, Y; gradient of X)", 2},
    {"direction", 'd', "DIRECTION", 0, "forward or backward (default)", 2},
    {"mask", 'm', "MASK", 0, "A mask in a model's vocabulary: 'causal & window(512, 0)'", 2},
    {"svg", 'g', "FILE", 0, "Draw transfers over M, and for a mask over Z_QK", 3},
    {"png", KEY_PNG, "FILE", 0, "The same through rsvg-convert", 3},
    {"json", 'j', 0, 0, "Print JSON", 4},
    {0},
};

static int64_t parse_size(struct argp_state *state, const char *name, const char *text) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || value < 1)
    argp_error(state, "--%s: '%s' is not an integer of at least 1", name, text);
  return value;
}

static bool parse_word(struct argp_state *state, const char *name, const char *text, const char *no,
                       const char *yes) {
  if (strcmp(text, no) != 0 && strcmp(text, yes) != 0)
    argp_error(state, "--%s: '%s' is neither %s nor %s", name, text, no, yes);
  return !strcmp(text, yes);
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  IoOptions *options = state->input;
  IoProblem *problem = &options->problem;
  switch (key) {
  case KEY_N:
    problem->n = parse_size(state, "n", text);
    return 0;
  case KEY_D:
    problem->d = parse_size(state, "d", text);
    return 0;
  case KEY_M:
    problem->m = parse_size(state, "m", text);
    return 0;
  case KEY_PNG:
    options->png = text;
    return 0;
  case 'f':
    problem->form = parse_word(state, "form", text, "kernel", "paper") ? IO_PAPER : IO_KERNEL;
    return 0;
  case 'd':
    problem->direction =
        parse_word(state, "direction", text, "forward", "backward") ? ROTA_BACKWARD : ROTA_FORWARD;
    return 0;
  case 'm':
    options->mask = text;
    return 0;
  case 'g':
    options->svg = text;
    return 0;
  case 'j':
    options->json = true;
    return 0;
  case ARGP_KEY_END:
    if (problem->n == 0 || problem->d == 0 || problem->m == 0)
      argp_error(state, "--n, --d and --m are needed");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* One algorithm; `transfers` -1 where M is too small for it. */
typedef struct Row {
  const char *name;
  int64_t transfers, needs;
  double ratio;
  IoCount count;
} Row;

static rota_status count_row(const IoProblem *problem, IoAlgorithm algorithm,
                             const IoBounds *bounds, Row *row) {
  *row = (Row){.name = io_algorithm_name(algorithm),
               .transfers = -1,
               .needs = io_attention_minimum(problem, algorithm)};
  if (problem->m < row->needs)
    return ROTA_OK;
  ROTA_TRY(io_attention_run(problem, algorithm, NULL, &row->count));
  row->transfers = io_transfers(&row->count);
  row->ratio = bounds->lower_bound > 0 ? (double)row->transfers / bounds->lower_bound : 0;
  return ROTA_OK;
}

static json_t *describe_row(const Row *row) {
  if (row->transfers < 0)
    return json_pack("{s:s s:n s:n s:I}", "name", row->name, "transfers", "ratio", "needs_m",
                     (json_int_t)row->needs);
  return json_pack("{s:s s:I s:f s:I s:I s:I s:I}", "name", row->name, "transfers",
                   (json_int_t)row->transfers, "ratio", row->ratio, "loads",
                   (json_int_t)row->count.loads, "stores", (json_int_t)row->count.stores, "peak_m",
                   (json_int_t)row->count.peak, "needs_m", (json_int_t)row->needs);
}

static json_t *describe(const IoOptions *options, const IoBounds *bounds, const Row *rows) {
  const IoProblem *problem = &options->problem;
  json_t *algorithms = json_array();
  for (int i = 0; i < IO_ALGORITHMS; i++)
    json_array_append_new(algorithms, describe_row(&rows[i]));
  return json_pack(
      "{s:I s:I s:I s:s s:s s:s s:I s:f s:f s:I s:o}", "n", (json_int_t)problem->n, "d",
      (json_int_t)problem->d, "m", (json_int_t)problem->m, "form",
      problem->form == IO_PAPER ? "paper" : "kernel", "direction",
      direction_name(problem->direction), "mask", options->mask ? options->mask : "full",
      "allowed_pairs", (json_int_t)bounds->pairs, "lower_bound", bounds->lower_bound, "crossing_m",
      bounds->crossing_m, "compulsory", (json_int_t)bounds->compulsory, "algorithms", algorithms);
}

static void print_rows(const IoOptions *options, const IoBounds *bounds, const Row *rows) {
  const IoProblem *problem = &options->problem;
  bool small = (double)problem->m < bounds->crossing_m;
  printf("%s, %s form, n %lld, d %lld, M %lld: %s side of the crossing at M = %.0f\n",
         direction_name(problem->direction), problem->form == IO_PAPER ? "paper's" : "kernel's",
         (long long)problem->n, (long long)problem->d, (long long)problem->m,
         small ? "small-cache" : "large-cache", bounds->crossing_m);
  printf("  lower bound  %.4g elements moved (the theorem's expression, constant 1); inputs and "
         "outputs once: %.4g\n",
         bounds->lower_bound, (double)bounds->compulsory);
  if (options->mask)
    printf("  mask %s: %lld of %.4g pairs; the bound is for the worst pattern with as many\n",
           options->mask, (long long)bounds->pairs, (double)problem->n * (double)problem->n);
  for (int i = 0; i < IO_ALGORITHMS; i++)
    if (rows[i].transfers < 0)
      printf("  %-11s  M is too small: at least %lld elements are needed\n", rows[i].name,
             (long long)rows[i].needs);
    else
      printf("  %-11s  %.4g moved (%.4g loaded, %.4g stored), %.2f times the bound\n", rows[i].name,
             (double)rows[i].transfers, (double)rows[i].count.loads, (double)rows[i].count.stores,
             rows[i].ratio);
}

static rota_status run(IoOptions *options, IoMask *mask) {
  IoProblem *problem = &options->problem;
  ROTA_TRY(io_mask_open(options->mask, mask));
  problem->mask = mask->spec.mask;
  problem->bindings = &mask->bindings;
  problem->scale = 1 / sqrt((double)problem->d);
  IoBounds bounds;
  Row rows[IO_ALGORITHMS];
  ROTA_TRY(io_attention_bounds(problem, &bounds));
  for (int i = 0; i < IO_ALGORITHMS; i++)
    ROTA_TRY(count_row(problem, (IoAlgorithm)i, &bounds, &rows[i]));
  if (options->json)
    ROTA_TRY(json_print(describe(options, &bounds, rows)));
  else
    print_rows(options, &bounds, rows);
  if (options->svg || options->png)
    ROTA_TRY(io_figure_write(problem, mask, options->svg, options->png));
  return ROTA_OK;
}

int command_io(int count, char **arguments) {
  struct argp parser = {table,
                        parse_option,
                        "--n N --d D --m M",
                        "Counts the elements that attention moves between a fast memory of M "
                        "elements and a slow one, by algorithm, beside the lower bound.",
                        NULL,
                        NULL,
                        NULL};
  IoOptions options = {.problem = {.form = IO_KERNEL, .direction = ROTA_BACKWARD}};
  static char name[] = "rota io";
  arguments[0] = name;
  argp_err_exit_status = EX_USAGE;
  argp_parse(&parser, count, arguments, 0, NULL, &options);
  IoMask mask;
  rota_status status = run(&options, &mask);
  io_mask_close(&mask);
  return status == ROTA_OK ? EXIT_SUCCESS : command_fail("io");
}
