/* Schedules of the DASH paper and of the field for tests of the DAG model, built straight from
 * their definitions: shares no code with lua/schedules.lua and the patterns made from it. */
#ifndef ROTA_TESTS_SUPPORT_DAG_CASE_H
#define ROTA_TESTS_SUPPORT_DAG_CASE_H

#include "generator/dag.h"

typedef enum DagCaseVisits {
  CASE_ASCENDING,  /* first .. last query tile of the chain */
  CASE_DESCENDING, /* last .. first */
  CASE_SHIFT,      /* full masks: i, i + 1, .. around */
  CASE_SYMMETRIC,  /* causal masks: see papers on symmetric shift */
  CASE_ROTATE      /* within the chain's own range, from an offset that grows with the chain */
} DagCaseVisits;

typedef enum DagCaseRanks { CASE_BY_KV, CASE_BY_KV_DOWN, CASE_BY_TIME } DagCaseRanks;

/* Which chain runs where. */
typedef enum DagCaseQueues {
  QUEUE_BY_CHAIN, /* worker i keeps kv tile i of every head; `workers` is the number of chains */
  QUEUE_PAIRS,    /* worker i takes i of one head, n - 1 - i of the next */
  QUEUE_HALVES,   /* n / 2 workers a head: i, then n - 1 - i; sets of workers share the heads */
  QUEUE_LIST,     /* heads one after another, chains in start order, to whoever is free */
  QUEUE_LONGEST   /* all heads' chains, the longest first, to whoever is free */
} DagCaseQueues;

typedef struct DagCase {
  int32_t q_tiles, kv_tiles; /* q_tiles is a multiple of kv_tiles */
  bool causal;               /* chain i has the tiles from i * q_tiles / kv_tiles on */
  int32_t heads, workers;
  DagCaseVisits visits;
  DagCaseRanks ranks;
  DagCaseQueues queues;
  bool start_down; /* chains start from the last to the first */
  bool batch_time; /* CASE_BY_TIME looks at all heads together, with all workers as the gang */
  bool unordered;  /* nobody waits */
} DagCase;

/* Simulates a case; fails the running test if that fails. */
DagFigures dag_case_run(const DagCase *dag_case, const Costs *costs);

#endif
