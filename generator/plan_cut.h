/* Level 1. How to cut a plane into units so that the workspace holds some of them, and the sums
 * that go through several units. */
#ifndef ROTA_GENERATOR_PLAN_CUT_H
#define ROTA_GENERATOR_PLAN_CUT_H

#include "generator/status.h"

/* Bytes of workspace where a request names no limit. */
#define WORKSPACE_LIMIT ((int64_t)512 << 20)

enum { WORKS_CHAIN_STEPS = 6 }; /* of a tile where dK and dV are made with its scores */

typedef struct Cut Cut;
typedef struct CutRequest {
  int64_t rows;         /* group rows */
  int64_t kv_tiles;     /* even */
  int64_t block_bytes;  /* P (and dS) of a query tile and 64 keys */
  int64_t sum_q, sum_k; /* bytes of a group row's sums of dQ, of a kv tile's of dK and dV */
  int64_t limit;        /* bytes */
  int places;           /* units that the workspace holds at once */
  int lanes;            /* planes whose units take turns, each with sums of its own */
  double steps;         /* of 64 in the sums of a tile's products */
  int row_steps;        /* of those, a tile's in the longest work of a kv tile */
  int processors;
  int64_t panel;     /* kv tiles that a unit has, or all that there are; even; 0: any number */
  const Cut *within; /* keeps to its sums and the size of its units; NULL: to the limit */
  bool forward;      /* sums over keys alone */
} CutRequest;

struct Cut {
  int64_t rows, kv_tiles; /* of a unit */
  bool rows_outer; /* units of the same rows follow one another; else those of the same keys */
  int64_t sum_rows, sum_kv_tiles; /* for which sums have a place */
  int64_t units;                  /* at most */
  int64_t moved;                  /* bytes of sums that go to memory, and come back, in all */
  int64_t bytes;                  /* the places and the sums */
};

/* The quickest cut within the limit; the smallest one if none is. */
Cut works_cut(const CutRequest *request);

#endif
