/* Options of the subcommands, by groups, with argp: see options.h. */
#include "command/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* One line per option: the group that offers it, then argp's fields. */
static const struct {
  unsigned group;
  struct argp_option option;
} table[] = {
    {OPTIONS_MODEL, {"evaluate", 'e', "CHUNK", 0, "Take CHUNK as the model script", 1}},
    {OPTIONS_TARGET | OPTIONS_DIRECTION,
     {"direction", 'd', "DIRECTION", 0, "forward or backward (default: both)", 2}},
    {OPTIONS_TARGET | OPTIONS_ARCH,
     {"arch", 'a', "ARCH", 0, "Architecture: sm_80, sm_90, ... (default: the GPU's)", 2}},
    {OPTIONS_TARGET, {"layout", 'l', "CLASS", 0, "aligned (16-byte accesses, default) or any", 2}},
    {OPTIONS_SHAPE, {"seqlen", 'n', "N[xM]", 0, "Query and key length (default 1024)", 3}},
    {OPTIONS_SHAPE, {"batch", 'b', "B", 0, "Sequences in the batch (default 1)", 3}},
    {OPTIONS_SHAPE,
     {"input", 'i', "FILE", 0, "Tensors from a .safetensors file: q, k, v, and the mask's by name",
      3}},
    {OPTIONS_SHAPE, {"set", 's', "NAME=VALUE", 0, "Value of a parameter of the mask or score", 3}},
    {OPTIONS_SHAPE,
     {"workspace", 'W', "MB", 0,
      "Most memory that kernels which pass matrices through it may take (default 512)", 3}},
    {OPTIONS_DEVICE, {"device", 'D', "DEVICE", 0, "auto, cuda, cuda:1, ... or cpu", 4}},
    {OPTIONS_RUN, {"backward", 'B', 0, 0, "Run the backward pass as well", 4}},
    {OPTIONS_RUN, {"check", 'c', 0, 0, "Compare with a dense fp64 computation", 4}},
    {OPTIONS_RUN, {"repeat", 'r', "TIMES", 0, "Run again and compare bit for bit (default 1)", 4}},
    {OPTIONS_RUN, {"seed", 'S', "SEED", 0, "Seed of random inputs (default 1)", 4}},
    {OPTIONS_COSTS,
     {"tiles", 't', "QxK", 0, "Query tiles and kv tiles, square ones, in place of --seqlen", 3}},
    {OPTIONS_SCHEDULE,
     {"schedule", 'P', "NAME", 0, "Schedule of the backward pass; for plan and tune also all", 4}},
    {OPTIONS_COSTS, {"workers", 'w', "W", 0, "Workers at once (default: the GPU's)", 4}},
    {OPTIONS_COSTS,
     {"costs", 'C', "COSTS", 0,
      "What the DAG model charges: c=2,r=1,handoff=0, or a file of `rota calibrate`", 4}},
    {OPTIONS_TUNING, {"tuning", 'T', "FILE", 0, "Adopt the choices in FILE, by `rota tune`", 4}},
    {OPTIONS_EXPLAIN,
     {"explain", 'x', 0, 0, "Rank the backward algorithms by modelled traffic", 4}},
    {OPTIONS_SVG, {"svg", 'g', "FILE", 0, "Draw the tile map and the schedule to FILE", 5}},
    {OPTIONS_OUTPUT, {"output", 'o', "FILE", 0, "Write to FILE instead of standard output", 5}},
    {OPTIONS_JSON, {"json", 'j', 0, 0, "Print JSON", 6}},
};
enum { TABLE_SIZE = sizeof table / sizeof table[0], WORKERS_MAX = 65536 };

typedef struct ParseState {
  unsigned groups;
  Options *options;
} ParseState;

static int32_t parse_count(struct argp_state *state, const char *option, const char *text,
                           long minimum, const char **end) {
  char *stop;
  errno = 0;
  long value = strtol(text, &stop, 10);
  if (stop == text || errno || value < minimum || value > INT32_MAX || (!end && *stop))
    argp_error(state, "--%s: '%s' is not an integer of at least %ld", option, text, minimum);
  if (end)
    *end = stop;
  return (int32_t)value;
}

static void parse_tiles(struct argp_state *state, const char *text, Options *options) {
  const char *end = text;
  options->tiles_q = options->tiles_kv = parse_count(state, "tiles", text, 1, &end);
  if (*end == 'x')
    options->tiles_kv = parse_count(state, "tiles", end + 1, 1, NULL);
  else if (*end)
    argp_error(state, "--tiles: '%s' is neither N nor QxK", text);
}

static void parse_lengths(struct argp_state *state, const char *text, Options *options) {
  const char *end = text;
  options->n_q = options->n_k = parse_count(state, "seqlen", text, 0, &end);
  if (*end == 'x')
    options->n_k = parse_count(state, "seqlen", end + 1, 0, NULL);
  else if (*end)
    argp_error(state, "--seqlen: '%s' is neither N nor NxM", text);
}

static void parse_value(struct argp_state *state, char *text, Options *options) {
  char *equals = strchr(text, '='), *end = NULL;
  if (!equals || equals == text) {
    argp_error(state, "--set: '%s' is not NAME=VALUE", text);
    return; /* argp_error has left the program; a compiler cannot know */
  }
  if (options->value_count == VALUES_MAX)
    argp_error(state, "--set: more than %d values", VALUES_MAX);
  double value = strtod(equals + 1, &end);
  if (end == equals + 1 || *end)
    argp_error(state, "--set: '%s' is not a number", equals + 1);
  *equals = 0;
  options->values[options->value_count++] = (rota_named_value){text, value};
}

static void parse_device(struct argp_state *state, const char *text, Options *options) {
  if (!strcmp(text, "auto"))
    options->device = ROTA_DEVICE_AUTO;
  else if (!strcmp(text, "cpu"))
    options->device = ROTA_DEVICE_CPU;
  else if (!strcmp(text, "cuda") || !strncmp(text, "cuda:", 5)) {
    options->device = ROTA_DEVICE_CUDA;
    if (text[4])
      options->ordinal = parse_count(state, "device", text + 5, 0, NULL);
  } else
    argp_error(state, "--device: '%s' is none of auto, cuda, cuda:N, cpu", text);
}

/* One of two words. */
static bool parse_word(struct argp_state *state, const char *option, const char *text,
                       const char *no, const char *yes) {
  if (strcmp(text, no) != 0 && strcmp(text, yes) != 0)
    argp_error(state, "--%s: '%s' is neither %s nor %s", option, text, no, yes);
  return !strcmp(text, yes);
}

static void parse_operand(struct argp_state *state, char *text, ParseState *parse) {
  if ((parse->groups & OPTIONS_ACTION) && !parse->options->action)
    parse->options->action = text;
  else if ((parse->groups & OPTIONS_MODEL) && !parse->options->model_path)
    parse->options->model_path = text;
  else
    argp_error(state, "too many arguments: '%s'", text);
}

static void parse_end(struct argp_state *state, const ParseState *parse) {
  const Options *options = parse->options;
  if ((parse->groups & OPTIONS_ACTION) && !options->action)
    argp_error(state, "what to do is missing");
  if (!(parse->groups & OPTIONS_MODEL))
    return;
  if (!options->chunk && !options->model_path)
    argp_error(state, "a model script is missing: MODEL.lua or -e 'return rota.attention{...}'");
  if (options->chunk && options->model_path)
    argp_error(state, "both -e and '%s' are given", options->model_path);
}

/* Options that name what is to be made; false if `key` is none of them. */
static bool parse_subject(int key, char *text, struct argp_state *state, Options *options) {
  switch (key) {
  case 'e':
    options->chunk = text;
    return true;
  case 'd':
    options->direction =
        parse_word(state, "direction", text, "forward", "backward") ? ROTA_BACKWARD : ROTA_FORWARD;
    options->both_directions = false;
    return true;
  case 'a':
    options->architecture = text;
    return true;
  case 'l':
    options->layout =
        parse_word(state, "layout", text, "aligned", "any") ? ROTA_LAYOUT_ANY : ROTA_LAYOUT_ALIGNED;
    return true;
  case 'n':
    parse_lengths(state, text, options);
    return true;
  case 'b':
    options->batch = parse_count(state, "batch", text, 0, NULL);
    return true;
  case 'i':
    options->input = text;
    return true;
  case 's':
    parse_value(state, text, options);
    return true;
  case 'W':
    options->workspace_limit = (size_t)parse_count(state, "workspace", text, 1, NULL) << 20;
    return true;
  default:
    return false;
  }
}

/* Options that say what to do with it. */
static bool parse_action(int key, char *text, struct argp_state *state, Options *options) {
  switch (key) {
  case 'D':
    parse_device(state, text, options);
    return true;
  case 'B':
    options->backward = true;
    return true;
  case 'c':
    options->check = true;
    return true;
  case 'r':
    options->repeat = parse_count(state, "repeat", text, 1, NULL);
    return true;
  case 'S':
    options->seed = (uint64_t)parse_count(state, "seed", text, 0, NULL);
    return true;
  case 'g':
    options->svg = text;
    return true;
  case 'o':
    options->output = text;
    return true;
  case 'j':
    options->json = true;
    return true;
  default:
    return false;
  }
}

/* Options that say how it is scheduled. */
static bool parse_schedule(int key, char *text, struct argp_state *state, Options *options) {
  switch (key) {
  case 't':
    parse_tiles(state, text, options);
    return true;
  case 'w':
    options->workers = parse_count(state, "workers", text, 1, NULL);
    if (options->workers > WORKERS_MAX)
      argp_error(state, "--workers: more than %d", WORKERS_MAX);
    return true;
  case 'C':
    options->costs = text;
    return true;
  case 'P':
    options->schedule = text;
    return true;
  case 'T':
    options->tuning = text;
    return true;
  case 'x':
    options->explain = true;
    return true;
  default:
    return false;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ParseState *parse = state->input;
  if (key == ARGP_KEY_ARG)
    parse_operand(state, text, parse);
  else if (key == ARGP_KEY_END)
    parse_end(state, parse);
  else if (!parse_subject(key, text, state, parse->options) &&
           !parse_schedule(key, text, state, parse->options) &&
           !parse_action(key, text, state, parse->options))
    return ARGP_ERR_UNKNOWN;
  return 0;
}

void options_parse(int count, char **arguments, unsigned groups, const char *synopsis,
                   const char *description, Options *options) {
  *options = (Options){
      .both_directions = true, .n_q = 1024, .n_k = 1024, .batch = 1, .repeat = 1, .seed = 1};
  struct argp_option offered[TABLE_SIZE + 1] = {{0}};
  int used = 0;
  for (int i = 0; i < TABLE_SIZE; i++)
    if (table[i].group & groups)
      offered[used++] = table[i].option;
  struct argp parser = {offered, parse_option, synopsis, description, NULL, NULL, NULL};
  char name[64];
  snprintf(name, sizeof name, "rota %s", arguments[0]);
  arguments[0] = name;
  ParseState parse = {groups, options};
  argp_err_exit_status = EX_USAGE;
  argp_parse(&parser, count, arguments, 0, NULL, &parse);
}
