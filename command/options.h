/* What the subcommands of `rota` share: option groups for argp. */
#ifndef ROTA_COMMAND_OPTIONS_H
#define ROTA_COMMAND_OPTIONS_H

#include "rota/rota.h"

enum { VALUES_MAX = 16 };

/* Every option of every subcommand; a subcommand offers the groups it needs. */
typedef struct Options {
  /* model group: -e CHUNK, or a file */
  const char *chunk, *model_path;
  /* target group */
  rota_direction direction;
  bool both_directions; /* no --direction given */
  const char *architecture;
  rota_layout layout;
  /* shape group */
  int32_t n_q, n_k, batch;
  const char *input;
  rota_named_value values[VALUES_MAX];
  int value_count;
  size_t workspace_limit; /* bytes; 0: the library's default */
  /* schedule group */
  int32_t tiles_q, tiles_kv; /* 0: by --seqlen */
  int32_t workers;           /* 0: the device's */
  const char *costs;         /* NAME=NUMBER,... or a cost file; NULL: the device's */
  const char *schedule;      /* NULL: the model's; "all" */
  bool explain;              /* the traffic model's ranking */
  const char *tuning;        /* a tuning file */
  /* output */
  bool json;
  const char *output, *svg;
  /* run group */
  rota_device_kind device;
  int32_t ordinal;
  bool backward, check;
  int32_t repeat;
  uint64_t seed;
  /* operand of cache and export */
  const char *action;
} Options;

/* The groups, to be combined: each is a bit. */
enum {
  OPTIONS_MODEL = 1,  /* MODEL.lua or -e */
  OPTIONS_TARGET = 2, /* --direction --arch --layout */
  OPTIONS_SHAPE = 4,  /* --seqlen --batch --input --set --workspace */
  OPTIONS_RUN = 8,    /* --backward --check --repeat --seed */
  OPTIONS_SVG = 16,
  OPTIONS_OUTPUT = 32,
  OPTIONS_JSON = 64,
  OPTIONS_ACTION = 128,   /* one operand */
  OPTIONS_SCHEDULE = 256, /* --schedule */
  OPTIONS_COSTS = 512,    /* --costs --workers --tiles */
  OPTIONS_TUNING = 1024,
  OPTIONS_DEVICE = 2048, /* --device */
  OPTIONS_ARCH = 4096,   /* --arch alone */
  OPTIONS_EXPLAIN = 8192,
  OPTIONS_DIRECTION = 16384, /* --direction alone */
};

/* Parses arguments[1 ..] of subcommand arguments[0]; exits with 64 on a usage error, 0 after
 * --help. */
void options_parse(int count, char **arguments, unsigned groups, const char *synopsis,
                   const char *description, Options *options);

#endif
