/* Level 3. The DAG model of a backward pass, simulated in integer ticks.
 *
 * As in the DASH paper (arXiv 2601.21824): a visit is a compute edge followed by a reduction edge;
 * the visits of a chain follow one another on one worker; the reductions of a query tile follow one
 * another in the order of their ranks. Besides: hand-offs between workers take time, tiles that
 * evaluate the mask cost more, a chain costs something to start, workers are few, finished partials
 * may wait in staging buffers while the worker computes on, and what has left the L2 has to be
 * brought back (see costs.h). */
#ifndef ROTA_GENERATOR_DAG_H
#define ROTA_GENERATOR_DAG_H

#include "generator/costs.h"

typedef struct DagVisit {
  int32_t tile; /* below DagPlane.tiles: query tile and head of the group */
  int32_t rank; /* how many partials of the tile are added before this one */
  bool partial;
} DagVisit;

/* The chains of one pattern. */
typedef struct DagPlane {
  int32_t chains, tiles;
  const int64_t *chain_begin; /* chains + 1 offsets into visits */
  const DagVisit *visits;
} DagPlane;

/* One chain of one (sequence, kv head). */
typedef struct DagItem {
  int32_t instance, chain;
} DagItem;

/* Queues of items, in the order of their tickets. With no more queues than workers each worker has
 * its own; with more, a worker that has finished a queue takes the next one. */
typedef struct DagProblem {
  const DagPlane *planes;
  int32_t plane_count;
  const int32_t *plane_of; /* [instances] */
  int32_t instances;
  int32_t workers;
  int32_t queues;
  const int64_t *queue_begin; /* queues + 1 offsets into items */
  const DagItem *items;
  bool unordered; /* without order edges: nobody waits for anybody */
} DagProblem;

typedef struct DagFigures {
  int64_t makespan;      /* ticks */
  int64_t work;          /* ticks of all workers' work */
  int64_t critical_path; /* with order edges and a worker for each chain */
  int64_t chain_path;    /* the same without order edges: the longest chain */
  int32_t workers;
  /* No two workers meet at a query tile at the same step: earlier ranks come at earlier steps of
   * their workers (the paper's Lemma 1). */
  bool depth_monotone;
} DagFigures;

/* Ticks at which a visit's computing begins and ends, its partial is in a staging buffer (without
 * any: at once), and its reduction begins and ends. */
typedef struct DagSpan {
  int64_t begin, computed, stored, turn, end;
} DagSpan;

typedef struct DagTrace {
  int64_t *item_begin; /* items + 1 offsets into spans */
  DagSpan *spans;
  int32_t *worker; /* [items] */
} DagTrace;

/* `trace` may be NULL; its content is the caller's (dag_trace_free), also on failure. SCHEDULE if
 * workers wait for ever: ranks and queues contain a cycle. Ranks must be complete. */
rota_status dag_simulate(const DagProblem *problem, const Costs *costs, DagFigures *figures,
                         DagTrace *trace);
void dag_trace_free(DagTrace *trace);

/* Bounds and shares of a simulation; 0 where there is no work. */
double dag_work_bound(const DagFigures *figures); /* ticks */
double dag_stall_share(const DagFigures *figures);
double dag_bound_ratio(const DagFigures *figures);

/* ---- Reduction order by time (dag_order.c) ---- */

typedef struct DagOrderRequest {
  int32_t chains, tiles;
  const int64_t *chain_begin;
  const int32_t *start_order; /* [chains] */
  int32_t gang;               /* workers that take the chains in start order; at least 1 */
} DagOrderRequest;

/* Gives each visit the rank that its partial has in an unordered run: `gang` workers take the
 * chains in start order, nobody waits. Ties go to the chain that starts first. Time moves on with
 * each visit, so order and chains together are free of cycles. */
rota_status dag_order_by_time(const DagOrderRequest *request, const Costs *costs, DagVisit *visits);

#endif
