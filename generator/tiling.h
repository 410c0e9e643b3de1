/* Level 2. How large the pieces are, as Lua's architecture file decides. Every integer of the Lua
 * table becomes a named constant of tiling.cuh, so a new template may ask for fields that C knows
 * nothing of. */
#ifndef ROTA_GENERATOR_TILING_H
#define ROTA_GENERATOR_TILING_H

#include "generator/value.h"

enum {
  TILING_FIELDS_MAX = 32,
  LAUNCHES_MAX = 6,
  TILING_NAME_MAX = 48,
  TILING_WGMMA_MAX = 8,
  TILING_MAPS_MAX = 8, /* ROTA_ABI_MAPS */
  TILING_REASON_MAX = 256,
};

/* What the target offers; filled from the device, or from lua/architectures for a name. */
typedef struct Target {
  char name[16];        /* "sm_80" */
  int sm;               /* 80, 90 */
  int shared_per_block; /* bytes, opt-in */
  int shared_per_sm;    /* bytes */
  int registers_per_sm;
  int multiprocessors;
  int64_t l2_bytes;
  bool tensor_maps; /* the driver makes tensor maps for the copy engine: sm_90 and CUDA 12.0 on */
} Target;

/* How many blocks a launch has, decided per plan: name and meaning. */
#define GRID_LIST(X)                                                                               \
  X(ROW_ITEMS, "row_items", "one block per (query tile, query head)")                              \
  X(CHAIN_ITEMS, "chain_items", "one block per (kv tile, kv head)")                                \
  X(WORKERS, "workers", "one block per worker of the schedule")                                    \
  X(PREPARERS, "preparers", "blocks that prepare rows beside the first workers (`rows_beside`)")   \
  X(HEADS, "heads", "one block per query head")                                                    \
  X(ROW_WORKERS, "row_workers", "one block per queue of row items: the tiling's `workers`")        \
  X(JOINS, "joins", "one block per `join_rows` rows of a query tile that is cut into pieces")      \
  X(WORKS, "works", "one block per multiprocessor, at most one per work (generator/plan_works.h)")
typedef enum Grid {
#define X(name, text, meaning) GRID_##name,
  GRID_LIST(X)
#undef X
      GRID_COUNT
} Grid;

/* Tensors that the copy engine may bring, as in templates/lib/abi.h: name, whether its rows and
 * heads are those of keys, whether its head dim is that of V. */
#define MAPPED_LIST(X)                                                                             \
  X(q, false, false)                                                                               \
  X(k, true, false)                                                                                \
  X(v, true, true)                                                                                 \
  X(o, false, true)                                                                                \
  X(d_o, false, true)                                                                              \
  X(d_q, false, false)                                                                             \
  X(d_k, true, false)                                                                              \
  X(d_v, true, true)
typedef enum Mapped {
#define X(name, keys, values) MAPPED_##name,
  MAPPED_LIST(X)
#undef X
      MAPPED_COUNT
} Mapped;

/* A map that every entry of the program is handed: boxes of 64 columns and so many rows of one
 * head, or of several: then those of a row lie side by side. */
typedef struct TilingMap {
  Mapped tensor;
  int rows;
  int heads; /* 0: one, and dimensions (head dim, row, head, slot) instead of (.., head, row, slot)
              */
} TilingMap;

typedef struct Launch {
  char entry[TILING_NAME_MAX]; /* extern "C" name in the program */
  Grid grid;
  int threads;
  int shared_bytes; /* dynamic shared memory */
  bool overlaps;    /* may start before the kernel ahead of it on the stream has ended; it calls
                       wait_for_predecessor before it reads what others write, or waits for words
                       that the kernel ahead, which does not overlap, has reset before it let it
                       start */
} Launch;

typedef struct TilingField {
  char name[TILING_NAME_MAX];
  int value;
} TilingField;

typedef struct Tiling {
  char architecture[TILING_NAME_MAX];    /* file in lua/architectures: "portable" */
  char algorithm[TILING_NAME_MAX];       /* "forward", or the backward pass's */
  char template_path[96];                /* "templates/portable/forward.cuh" */
  int tile_q, tile_kv;                   /* also among the fields */
  TilingField fields[TILING_FIELDS_MAX]; /* sorted by name */
  int field_count;
  Launch launches[LAUNCHES_MAX]; /* in order, on one stream */
  int launch_count;
  char code[16];               /* architecture to compile for, "sm_90a"; "": the target's */
  int wgmma[TILING_WGMMA_MAX]; /* values of N that the program multiplies with */
  int wgmma_count;
  TilingMap maps[TILING_MAPS_MAX]; /* each tensor once at most */
  int map_count;
  char passed_over[TILING_REASON_MAX]; /* architectures of higher priority, and why they do not
                                          serve: "hopper: head_dim 100 ..."; "": none */
} Tiling;

/* Query heads of a group that a forward kernel's query tile holds of each of its tile_q queries. */
int tiling_packed(const Tiling *tiling);
/* Value of a field, `otherwise` if there is none. */
int tiling_get(const Tiling *tiling, const char *name, int otherwise);
/* The largest dynamic shared memory of its launches, in bytes. */
int tiling_shared_bytes(const Tiling *tiling);
const char *grid_name(Grid grid);
const char *mapped_name(Mapped tensor);
/* The architecture that the program is to be compiled for. */
const char *tiling_code(const Tiling *tiling, const Target *target);

/* From what lua/architectures returned. INTERNAL names the architecture file's mistake. */
rota_status tiling_from_value(const Value *value, Tiling *tiling);
rota_status target_from_value(const Value *value, Target *target);
rota_status target_to_value(const Target *target, Value *record);

#endif
