/* Level 4. A model of what the backward algorithms move and compute on a GPU: bytes through shared
 * memory, L2 and DRAM, and the least time that each of them and the tensor cores would need. It
 * explains and ranks; it measures nothing, and it knows no waiting: that is the DAG model's
 * (generator/dag.h). */
#ifndef ROTA_GENERATOR_TRAFFIC_H
#define ROTA_GENERATOR_TRAFFIC_H

#include "generator/spec.h"
#include "generator/tiling.h"

/* From lua/rates.lua; per second. */
typedef struct Rates {
  double tensor, fp32;     /* FLOP: of bf16 and fp16, of fp32 */
  double dram, l2, shared; /* bytes */
} Rates;

/* How much there is to do, summed over batch and heads. */
typedef struct TrafficShape {
  double visits;               /* (kv tile, query tile) of all query heads that are not empty */
  double rows_q, rows_k;       /* rows of Q over all query heads; of K over all kv heads */
  double chains, row_items;    /* kv tiles over all kv heads; query tiles over all query heads */
  double longest_q, longest_k; /* rows of the longest sequence */
  double heads_at_once;        /* kv heads whose chains run at a time; 0: as many as fill the GPU */
} TrafficShape;

#define TRAFFIC_LIST(X)                                                                            \
  X(ORDERED, "ordered")                                                                            \
  X(EXACT, "exact")                                                                                \
  X(TWO_PASS, "two_pass")                                                                          \
  X(MATERIALISED, "materialised")
typedef enum TrafficAlgorithm {
#define X(name, text) TRAFFIC_##name,
  TRAFFIC_LIST(X)
#undef X
      TRAFFIC_ALGORITHMS
} TrafficAlgorithm;
const char *traffic_name(TrafficAlgorithm algorithm);

typedef struct Traffic {
  TrafficAlgorithm algorithm;
  int products; /* matrix products of a tile */
  double flops, shared_bytes, l2_bytes, dram_bytes;
  double seconds;    /* the longest of the four at their rates */
  const char *limit; /* whose it is: "shared memory" */
  int64_t chunks;    /* of materialised; else 0 */
  int accumulators;  /* registers of a thread for sums, where the tiling tells; else 0 */
  bool spills;       /* they are more than a thread keeps; counted as traffic through L2 */
} Traffic;

/* `tiling`: of the algorithm's own kernels; of `ordered` or `two_pass` for the algorithms that are
 * modelled without kernels (their visits are that tiling's). */
void traffic_model(TrafficAlgorithm algorithm, const Spec *spec, const Target *target,
                   const Rates *rates, const Tiling *tiling, const TrafficShape *shape,
                   Traffic *traffic);

/* Elements that a multiprocessor's shared memory and registers hold: M of the I/O model. */
int64_t traffic_fast_memory(const Spec *spec, const Target *target);

#endif
