/* Level 4. Patterns: in which order each chain visits its query tiles, and in which order a query
 * tile's dQ partials are added. A pattern sees the tile maps of one kv head's group in one
 * sequence, the size of the gang and the cost model, and nothing else: it decides the bits.
 *
 *     maps -> columns -> Schedule.pattern (Lua) -> answer: runs of visits, starts, ranks
 *            -> visits, ranks, lanes = Pattern -> pattern_verify
 *
 * The gang is made of lanes: imagined workers that take the chains in start order, each as soon as
 * it is free. An assignment that gives each lane a worker of its own cannot deadlock. */
#ifndef ROTA_GENERATOR_SCHEDULE_H
#define ROTA_GENERATOR_SCHEDULE_H

#include "generator/costs.h"
#include "generator/lengths.h"
#include "generator/spec.h"
#include "generator/tile_map.h"

typedef struct PatternVisit {
  int32_t q_tile;
  int32_t group_head; /* query head within the group */
  int32_t rank; /* how many partials of this (query head, query tile) are added before this one */
  bool partial; /* tile kind: the mask is evaluated per element */
  bool last;    /* the highest rank */
} PatternVisit;

typedef struct Pattern {
  char name[SYMBOL_NAME_MAX]; /* of the schedule that made it, for messages; may be empty */
  int32_t chains;             /* = kv tiles */
  int32_t group, q_tiles;
  int64_t *chain_begin; /* chains + 1 offsets into visits */
  PatternVisit *visits;
  int32_t *start_order; /* chains: kv tiles in the order in which they start */
  int32_t *lane;        /* chains: which lane runs the chain; NULL if read back from a plan */
  int32_t lanes;        /* at most the gang; 0 if read back from a plan */
  bool in_order;        /* chains wait for chains that start earlier only */
  int32_t together;     /* as Schedule.together, which it replaces; 0: not said */
  int32_t abreast;      /* together: as many pairs as fill the workers with so many chains each */
  int32_t *tier;        /* chains: which tier, never less along start_order; NULL: no tiers */
} Pattern;

/* ---- What a pattern function is shown ---- */

/* Query tiles of each (head, chain), ascending, bit 31: partial. Offsets of (head, chain) are at
 * begin[head * chains + chain]. */
typedef struct Columns {
  int64_t *begin; /* group * chains + 1 */
  uint32_t *tiles;
} Columns;
#define COLUMN_PARTIAL 0x80000000u

typedef struct PatternView {
  const TileMap *const *maps; /* [group] */
  const Columns *columns;
  int32_t group, chains, q_tiles;
  int32_t gang; /* at least 1 */
  const Costs *costs;
  const Lengths *batch; /* all sequences, for a batch-variant schedule alone; else NULL */
  int32_t sequence;     /* its place there */
} PatternView;

/* ---- What it answers ---- */

/* Query tiles from, from + step, ... up to `to` (down to, if step < 0) of a chain, as far as they
 * are not empty, each for heads `head` to `last_head` before the next tile. ALL_HEADS, as both: the
 * chain's runs are gone through once for each head of the group. */
enum { ALL_HEADS = -1 };
typedef struct VisitRun {
  int32_t chain, head, last_head, from, to, step;
  int64_t time; /* for RANKS_BY_TIME_GIVEN */
} VisitRun;

typedef enum Ranks {
  RANKS_BY_TIME,      /* as the gang's lanes would come, if nobody waited */
  RANKS_BY_START,     /* in start order of the chains: waits for earlier chains only */
  RANKS_BY_PRIORITY,  /* by priority of the chains, then by kv tile */
  RANKS_BY_TIME_GIVEN /* by the runs' time, then by kv tile */
} Ranks;

typedef struct PatternAnswer {
  VisitRun *runs; /* owned; a chain's runs in order, chains in any order */
  int64_t run_count, run_capacity;
  int32_t *start;    /* owned; NULL: ascending by kv tile */
  int64_t *priority; /* owned; NULL unless RANKS_BY_PRIORITY */
  int32_t *lane;     /* owned; NULL: chains take the lane that is free first */
  Ranks ranks;
  int32_t gang; /* 0: the view's; may only be smaller */
  int32_t together, abreast;
  int32_t *tier; /* owned; NULL: none */
} PatternAnswer;
/* OUT_OF_MEMORY; the caller frees the answer in any case. */
rota_status answer_add(PatternAnswer *answer, VisitRun run);
void answer_free(PatternAnswer *answer);

/* ---- Assignments: which worker runs which chain ---- */

/* name, text, meaning. Items: every chain of every (sequence, kv head), in start order. */
#define ASSIGNMENT_LIST(X)                                                                         \
  X(TICKETS, "tickets", "whoever is free takes the next item; waits for earlier items only")       \
  X(LONGEST, "longest", "the same, the longest item of all, or of so many pairs, first")           \
  X(CYCLIC, "cyclic", "item i belongs to worker i mod workers")                                    \
  X(LANES, "lanes",                                                                                \
    "one (sequence, kv head) after another, longest lane to the least busy worker")                \
  X(MIXED, "mixed",                                                                                \
    "pairs that wait in start order as in `longest`, then the others as in `lanes`")               \
  X(STRETCHES, "stretches",                                                                        \
    "as `mixed`, but of pairs in start order the one with most left runs its next chains, as "     \
    "long "                                                                                        \
    "as each is no shorter than the one before")
typedef enum Assignment {
#define X(name, text, meaning) ASSIGN_##name,
  ASSIGNMENT_LIST(X)
#undef X
      ASSIGN_CALL /* by Schedule.assign */
} Assignment;

/* One item of a batch, as an assignment function sees it. */
typedef struct BatchItem {
  int32_t sequence, kv_head, kv_tile;
  int32_t visits; /* of all heads of the group */
  int32_t lane;
} BatchItem;

typedef struct BatchView {
  int32_t sequences, kv_heads, workers;
  const BatchItem *items; /* sequence by sequence, head by head, in start order */
  int64_t item_count;
} BatchView;

/* Queues of item numbers, one queue after another; each item once. */
typedef struct BatchAnswer {
  int64_t *items;     /* [item_count] of the view, owned by the planner */
  int64_t count;      /* filled so far */
  int64_t *queue_end; /* [queue_capacity], owned by the planner: offsets into items */
  int32_t queues, queue_capacity;
} BatchAnswer;

/* ---- Schedules ---- */

/* A schedule chosen for a spec and tiling. Its functions are called while planning; they belong to
 * `owner`, usually a Script. */
typedef struct Schedule Schedule;
struct Schedule {
  char name[SYMBOL_NAME_MAX]; /* with its options: "shift:stagger=2" */
  char algorithm[48];         /* of the tiling */
  bool portable;      /* waits for chains earlier in start order only; the gang has no say */
  bool batch_variant; /* the pattern looks at the batch */
  Assignment assignment;
  int32_t together; /* LONGEST: so many (sequence, kv head) pairs at a time; 0: all */
  bool persistent;  /* the kernel's workers take item after item: MIXED pairs may take turns */
  int32_t workers;  /* blocks that are resident together, also the size of the gang; at least 1 */
  Costs costs;
  void *owner;
  const SpecScript *script; /* of the spec, that defines the schedule; NULL: a shipped one */
  rota_status (*pattern)(const Schedule *schedule, const PatternView *view, PatternAnswer *answer);
  rota_status (*assign)(const Schedule *schedule, const BatchView *view, BatchAnswer *answer);
};

/* maps: one per query head of the group (pointers may be equal). SCHEDULE where the answer is not
 * a pattern: a tile left out or visited twice, a start order that is none. `batch` as in
 * PatternView. */
rota_status pattern_build(const Schedule *schedule, const TileMap *const *maps, int group,
                          const Lengths *batch, int32_t sequence, Pattern **pattern);
void pattern_destroy(Pattern *pattern);

rota_status columns_build(const TileMap *const *maps, int group, Columns *columns);
void columns_free(Columns *columns);

/* Ranks and lanes of a pattern whose visits and start order are set, by a gang of at most
 * schedule->workers. `times` of the visits for RANKS_BY_TIME_GIVEN, else NULL. */
rota_status pattern_rank(const Schedule *schedule, const PatternAnswer *answer,
                         const int64_t *times, Pattern *pattern);

/* A list scheduler on the DAG (schedule_optimize.c): writes visits, starts and ranks into an empty
 * answer. `iterations` bounds the local improvement. */
rota_status pattern_optimize(const PatternView *view, int32_t iterations, PatternAnswer *answer);

/* Coverage (each non-empty tile once, with its kind), ranks complete and `last` right, and no
 * cycle: `portable`: when chains run one after another in start order, which any number of workers
 * may then do; else when all lanes run at once (all chains, where the pattern has no lanes).
 * SCHEDULE with the tiles at fault. */
rota_status pattern_verify(const Pattern *pattern, const TileMap *const *maps, bool portable);

#endif
