/* Level 7. One shape: tile maps, verified patterns, and the tables that kernels read
 * (templates/lib/abi.h), in one host image. */
#ifndef ROTA_GENERATOR_PLAN_H
#define ROTA_GENERATOR_PLAN_H

#include "generator/lengths.h"
#include "generator/schedule.h"
#include "generator/spec.h"
#include "generator/tiling.h"
#include "templates/lib/abi.h"

/* Works of the kernels that take them, in an image of their own; see plan_works.h. */
typedef struct Works {
  unsigned char *image;
  size_t image_bytes; /* 0: none */
  RotaSection units, segments, chunks, works, offsets;
  int32_t tickets;
} Works;

typedef struct Plan {
  rota_direction direction;
  int heads, kv_heads;
  float scale; /* softmax scale, the spec's */
  Tiling tiling;
  Lengths *lengths;
  Symbols symbols;
  Bindings bindings; /* of host tensors; their data are copies within the image, row-major */
  /* The image: sections at 16-byte aligned offsets, uploaded as it is. Pointers into it are for the
   * host. */
  unsigned char *image;
  size_t image_bytes;                           /* at least 16 */
  RotaSection sequences, rows, runs, row_items; /* offset and count of each */
  RotaSection chains, visits, chain_items;      /* count 0 in a forward plan */
  RotaSection pieces, joins; /* forward: of rows that are cut; their rows lie behind the others */
  RotaSection queue;         /* of workers: forward, of row items; backward, of chain items */
  RotaSection
      tensors[TENSORS_MAX]; /* elements of plan-owned tensors; count 0: passed at each run */
  int64_t partial_rows;     /* of the pieces' results */
  int32_t workers;          /* queues; blocks of a launch over workers: plan_grid */
  int32_t gang;     /* blocks that the schedule took to be resident together; 0 in a forward plan */
  bool co_resident; /* a worker may wait for any other: all of them must be resident */
  char schedule[SYMBOL_NAME_MAX]; /* name, "" in a forward plan */
  RotaWorkspace workspace;        /* offsets and total bytes */
  int64_t workspace_limit;        /* bytes; works keep to it */
  Works works;
  int64_t full_tiles, partial_tiles, empty_tiles;
  /* Of all that decides bits beside the cubin: heads, scale, values, tensors, and for each sequence
   * its lengths, runs and visits; not the items' order, nor how often or where a sequence occurs.
   */
  Digest pattern_digest;
} Plan;

/* Builds maps (one per distinct mask plane), pattern and assignment, verifies, lays out. `schedule`
 * may be NULL for FORWARD. */
rota_status plan_build(const Spec *spec, rota_direction direction, const Tiling *tiling,
                       const Schedule *schedule, const rota_plan_request *request, Plan **plan);
void plan_destroy(Plan *plan);
/* Blocks of a launch; 0 is possible: there is nothing to launch then. */
int64_t plan_grid(const Plan *plan, Grid grid);
/* Start of a section, of which the caller knows the type. */
const void *plan_section(const Plan *plan, RotaSection section);
/* Row items of a query tile: its query heads, or what packing makes of them. */
int plan_row_heads(const Plan *plan);
/* Rows, without those of pieces, and query tiles of all sequences: RotaArguments.tiles. */
int64_t plan_whole_rows(const Plan *plan);
int64_t plan_q_tiles(const Plan *plan);
/* A chain's worker may wait for another's: the launch order of the items matters. */
bool plan_is_ordered(const Plan *plan);

/* The mask is evaluated for every element of the visit's tile. */
static inline bool visit_evaluates(RotaVisit visit) {
  return (visit.tile & (ROTA_VISIT_PARTIAL | ROTA_VISIT_BOUNDED)) == ROTA_VISIT_PARTIAL;
}

/* Checks the tables themselves, whatever made them: every index and count in range, every item
 * present once, ranks complete under the queue's order. A kernel given checked tables stays in
 * bounds and ends. FILE with what is wrong. */
rota_status plan_check(const Plan *plan);

/* What pattern_digest must be. */
rota_status plan_digest_tables(const Plan *plan, Digest *digest);

/* The map of one query head and the pattern of one kv head, read back from the tables. */
rota_status plan_tile_map(const Plan *plan, int32_t sequence, int head, TileMap **map);
rota_status plan_pattern(const Plan *plan, int32_t sequence, int kv_head, Pattern **pattern);

/* A loaded plan against the kernel that is to run it: same direction, tiling, group, scale, symbols
 * and workspace. INVALID_ARGUMENT. */
rota_status plan_matches(const Plan *plan, const Spec *spec, rota_direction direction,
                         const Tiling *tiling);

/* A plan as bytes, versioned and checksummed; `key` (hex of the program's digest) is stored and
 * compared on load: INVALID_ARGUMENT if it differs. FILE if the file cannot be read or written or
 * is damaged. */
rota_status plan_save(const Plan *plan, const Digest *key, const char *path);
rota_status plan_load(const char *path, const Digest *key, Plan **plan);

#endif
