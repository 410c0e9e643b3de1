/* Level 5. One shape: tile maps, verified patterns, and the tables that kernels read
 * (templates/lib/abi.h), in one host image. */
#ifndef ROTA_GENERATOR_PLAN_H
#define ROTA_GENERATOR_PLAN_H

#include "generator/schedule.h"
#include "generator/spec.h"
#include "generator/tiling.h"
#include "templates/lib/abi.h"

/* Copied and checked lengths; arrays have `batch` entries. */
typedef struct Lengths {
  int32_t batch;
  bool packed;
  int32_t *n_q, *n_k;         /* rows in use */
  int32_t *rows_q, *rows_k;   /* rows of the slot: outputs beyond n are zeros */
  int64_t *begin_q, *begin_k; /* first row of the slot; 0 unless packed */
} Lengths;
/* INVALID_ARGUMENT: negative or descending values, used beyond the slot, over LIMIT_LENGTH, only
 * one cu_seqlens given. */
rota_status lengths_create(const rota_lengths *request, Lengths **lengths);
void lengths_destroy(Lengths *lengths);

typedef struct Plan {
  rota_direction direction;
  int heads, kv_heads;
  Tiling tiling;
  Lengths *lengths;
  Symbols symbols;
  Bindings bindings; /* of host tensors; their data are copies owned by the plan */
  /* The image: sections at 16-byte aligned offsets, uploaded as it is. Pointers into it are for the
   * host. */
  unsigned char *image;
  size_t image_bytes;
  RotaSection sequences, rows, runs, row_items, chains, visits, chain_items,
      queue;                        /* offset and count of each */
  RotaSection tensors[TENSORS_MAX]; /* data of plan-owned tensors within the image; count 0: passed
                                       at each run */
  int32_t workers;
  RotaWorkspace workspace; /* offsets and total bytes */
  int64_t full_tiles, partial_tiles, empty_tiles;
  Digest pattern_digest; /* of the tables that decide bits: runs, rows, chains, visits; not the
                            items' order */
} Plan;

/* Builds maps (one per distinct mask plane), pattern and assignment, verifies, lays out. */
rota_status plan_build(const Spec *spec, rota_direction direction, const Tiling *tiling,
                       const ScheduleRule *rule, const rota_plan_request *request, Plan **plan);
void plan_destroy(Plan *plan);
/* Blocks of a launch. */
int64_t plan_grid(const Plan *plan, Grid grid);
/* Typed views of the image's sections. */
const void *plan_section(const Plan *plan, RotaSection section);

/* A plan as bytes, versioned and checksummed; `key` (hex of the program's digest) is stored and
 * compared on load. */
rota_status plan_save(const Plan *plan, const Digest *key, const char *path);
rota_status plan_load(const char *path, const Digest *key, Plan **plan);

#endif
