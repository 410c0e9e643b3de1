/* Level 4. The traffic model: see traffic.h.
 *
 *     shared   operands that warps read, once for each warp that needs them, and what fills them
 *     L2       what blocks load and store: Q and dO of each visit, dQ's partial sums, K and V
 *     DRAM     inputs and outputs once; again for each wave of workers where what a wave streams
 *              does not stay in L2 */
#include "generator/traffic.h"

#include <math.h>

#include "generator/plan_cut.h"
#include "templates/lib/materialised.h"

const char *traffic_name(TrafficAlgorithm algorithm) {
  static const char *const names[] = {
#define X(name, text) text,
      TRAFFIC_LIST(X)
#undef X
  };
  return names[algorithm];
}

int64_t traffic_fast_memory(const Spec *spec, const Target *target) {
  enum { REGISTER_BYTES = 4 };
  return (target->shared_per_sm + (int64_t)REGISTER_BYTES * target->registers_per_sm) /
         dtype_size(spec->dtype);
}

enum {
  SUM_BYTES = 4, /* fp32 sums of dQ, or their fixed-point integers */
  ROW_BYTES = 8, /* LSE and delta of a query */
  GEMM_ROWS = 128,
  GEMM_COLUMNS = 256,
  GEMM_GROUP = 64, /* block of materialised's products, and
                    * the rows of a warpgroup in it */
};
enum { WARP = 32, ACCUMULATORS_MAX = 208 /* of 255 registers, as in lua/architectures */ };
#define L2_SHARE   0.75 /* of the L2 that a stream may hold on to */
#define LOST_EARLY 0.5  /* of the sums of dQ that fit the L2, between the counts: see dram_sums */

/* The sizes that every formula needs. */
typedef struct Sizes {
  const TrafficShape *shape;
  double d, dv, e; /* head dims; bytes of an element */
  double q, k;     /* tile */
  double token;    /* bytes of a row of K and V, or of Q and dO */
  double workers;  /* blocks at a time */
  double group, heads, l2;
  double warps_kv, warps_d, dq_warps_q, warps_q;
  bool wgmma;      /* warpgroups multiply from shared memory */
  bool fused;      /* materialised: dV made with the scores, dS alone through memory */
  bool fused_keys; /* dK, too */
} Sizes;

static Sizes sizes_of(const Spec *spec, const Target *target, const Tiling *tiling,
                      const TrafficShape *shape) {
  double e = dtype_size(spec->dtype), d = spec->head_dim, dv = spec->head_dim_v;
  int blocks = tiling_get(tiling, "blocks_per_sm", 1);
  return (Sizes){.shape = shape,
                 .d = d,
                 .dv = dv,
                 .e = e,
                 .q = tiling->tile_q,
                 .k = tiling->tile_kv,
                 .token = (d + dv) * e,
                 .workers = (double)target->multiprocessors * (blocks > 0 ? blocks : 1),
                 .group = spec_group(spec),
                 .heads = spec->kv_heads,
                 .l2 = L2_SHARE * (double)target->l2_bytes,
                 .warps_kv = tiling_get(tiling, "warps_kv", 1),
                 .warps_d = tiling_get(tiling, "warps_d", 1),
                 .dq_warps_q = tiling_get(tiling, "dq_warps_q", 1),
                 .warps_q = tiling_get(tiling, "warps_q", 1),
                 .wgmma = tiling->wgmma_count > 0,
                 .fused = tiling_get(tiling, "score_planes", 2) == 1,
                 .fused_keys = tiling_get(tiling, "makes_keys", 1) != 0};
}

/* ---- Shared memory, bytes of a visit ---- */

/* S, dP, dV and dK of a chain's visit: warps_kv x warps_d warps over kv rows and, for S and dP,
 * query rows, else columns. P and dS pass through shared memory where warps exchange them. */
static double shared_kv(const Sizes *s) {
  double exchanged = s->warps_d > 1 ? s->q * s->k : 0;
  double scores = s->token * (s->k * s->warps_d + s->q * s->warps_kv);
  double gradients = s->token * s->q * s->warps_kv + 2 * s->e * exchanged * s->warps_d;
  double fill = s->token * s->q + s->e * exchanged * 2;
  return scores + gradients + fill;
}

/* dQ = dS K within a chain's visit; dS goes through shared memory. */
static double shared_dq(const Sizes *s) {
  double dq_warps_d = s->warps_kv * s->warps_d / s->dq_warps_q;
  double written = s->warps_d > 1 ? 0 : s->q * s->k; /* else counted already */
  return s->e * (s->q * s->k * dq_warps_d + written + s->k * s->d * s->dq_warps_q);
}

/* S, dP and dQ of the pass over rows: warps_q warps, each with its own query rows. */
static double shared_rows(const Sizes *s) {
  double scores = s->token * (s->q + s->k * s->warps_q);
  return scores + s->e * s->k * s->d * s->warps_q + s->token * s->k;
}

/* A chain's visit where warpgroups with 64 keys each multiply by wgmma. S and dP: both operands
 * from shared memory; dV and dK: P and dS are in registers. dQ: dS goes through shared memory to
 * the one warpgroup that multiplies it with all keys. The partial is staged for the copy engine, or
 * for the last visit fetched and added to. */
static double shared_wgmma(const Sizes *s) {
  double groups = s->k / GEMM_GROUP;
  double scores = s->token * (s->k + groups * s->q), gradients = groups * s->token * s->q;
  double ds = s->e * s->q * s->k, dq = ds + s->e * s->k * s->d;
  return scores + gradients + ds + dq + 2 * SUM_BYTES * s->q * s->d + s->token * s->q;
}

/* ---- Registers ---- */

/* Sums of a chain's thread: dK and dV from end to end, beside them S and dP, or S, P and dQ. What
 * does not fit is written and read once a visit, in local memory, which lies in L2; returns bytes
 * of a visit. */
static double spilled(const Sizes *s, const Tiling *tiling, bool reduces, Traffic *t) {
  double threads = WARP * s->warps_kv * s->warps_d;
  if (tiling_get(tiling, "warps_kv", 0) == 0)
    return 0;
  double scores = s->q * s->k / threads, dq = reduces ? s->q * s->d / threads : 0;
  double sums = s->k * (s->d + s->dv) / threads + fmax(2 * scores, scores + dq);
  t->accumulators = (int)ceil(sums);
  t->spills = sums > ACCUMULATORS_MAX;
  return t->spills ? 2 * SUM_BYTES * threads * (sums - ACCUMULATORS_MAX) : 0;
}

/* ---- DRAM ---- */

/* Inputs read and outputs written once; O and dO by the delta kernel as well. */
static double dram_once(const Sizes *s) {
  double rows_q = s->token + 2 * s->dv * s->e + s->d * s->e + 2 * ROW_BYTES;
  return s->shape->rows_q * rows_q + 2 * s->shape->rows_k * s->token;
}

/* How `items` blocks of each kv head, that all read the same `stream` bytes in step, share the L2:
 * heads whose blocks run at a time; waves of blocks that a head takes, each of which reads the part
 * of the stream that its tiles use; whether the streams stay in the L2. */
typedef struct Sharing {
  double again; /* times that a stream is read but for the first: 0 if all fits */
  bool fits;
} Sharing;

static Sharing share_l2(const Sizes *s, double items, double stream, double heads_at_once) {
  double heads = heads_at_once > 0 ? heads_at_once : floor(s->workers / items);
  heads = fmin(fmax(1, heads), s->heads);
  if (heads * stream <= s->l2)
    return (Sharing){0, true};
  const TrafficShape *shape = s->shape;
  double all = shape->chains * s->group * ceil(shape->longest_q / s->q);
  double waves = ceil(items / fmin(items, s->workers / heads));
  return (Sharing){fmax(0, waves * fmin(1, shape->visits / all) - 1), false};
}

/* Sums of dQ leave the L2 and come back where they do not fit beside what is streamed. Where they
 * do, they are written back once all the same, when they have long been read for the last time:
 * the L2 does not know that nobody wants them any more. And some are lost too early: on an H200 0.2
 * of them were read again where the map is full, 0.5 under a causal mask. */
static double dram_sums(const Sizes *s, Sharing sharing) {
  double sums = SUM_BYTES * s->d * s->shape->rows_q;
  if (!sharing.fits)
    return 2 * sums * (1 + sharing.again);
  return sums + s->shape->rows_q * s->token > s->l2 ? (1 + LOST_EARLY) * sums : 0;
}

/* ---- The algorithms ---- */

/* Reads and writes of the delta kernel. */
static double l2_delta(const Sizes *s) {
  return s->shape->rows_q * (2 * s->dv * s->e + 2 * ROW_BYTES);
}

/* One kernel; dQ's partials are added in L2, and the last adder (ordered) or another kernel (exact)
 * converts them. */
static void model_chains(const Sizes *s, const Tiling *tiling, bool exact, Traffic *t) {
  const TrafficShape *shape = s->shape;
  t->products = 5;
  t->flops = 2 * s->q * s->k * (3 * s->d + 2 * s->dv) * shape->visits;
  t->shared_bytes = shape->visits * (s->wgmma ? shared_wgmma(s) : shared_kv(s) + shared_dq(s));
  double visit = s->q * (s->token + ROW_BYTES + SUM_BYTES * s->d) + spilled(s, tiling, true, t);
  /* With wgmma the last visit reads the sum instead of adding to it. */
  double conversion = shape->rows_q * s->d * (s->e + (s->wgmma && !exact ? 0 : SUM_BYTES));
  /* The bounds' pass over K and V, and zeros before the sums. */
  double before = exact ? shape->rows_k * s->token + shape->rows_q * s->d * SUM_BYTES : 0;
  t->l2_bytes = shape->visits * visit + 2 * shape->chains * s->k * s->token + conversion + before +
                l2_delta(s);
  double items = ceil(shape->longest_k / s->k);
  double stream = s->group * shape->longest_q * (s->token + SUM_BYTES * s->d);
  Sharing sharing = share_l2(s, items, stream, shape->heads_at_once);
  t->dram_bytes = dram_once(s) + sharing.again * shape->rows_q * s->token + dram_sums(s, sharing);
  if (exact)
    t->dram_bytes += shape->rows_k * s->token;
}

static void model_two_pass(const Sizes *s, const Tiling *tiling, Traffic *t) {
  const TrafficShape *shape = s->shape;
  t->products = 7;
  t->flops = 2 * s->q * s->k * (4 * s->d + 3 * s->dv) * shape->visits;
  t->shared_bytes = shape->visits * (shared_kv(s) + shared_rows(s));
  double kv_pass =
      shape->visits * s->q * (s->token + ROW_BYTES) + 2 * shape->chains * s->k * s->token;
  double q_pass = shape->visits * s->k * s->token +
                  shape->row_items * s->q * (s->token + ROW_BYTES + s->d * s->e);
  t->l2_bytes = kv_pass + q_pass + l2_delta(s);
  t->l2_bytes += shape->visits * spilled(s, tiling, false, t);
  double chains = ceil(shape->longest_k / s->k), rows = ceil(shape->longest_q / s->q) * s->group;
  double queries = s->group * shape->longest_q * s->token, keys = shape->longest_k * s->token;
  t->dram_bytes = dram_once(s) + (shape->rows_q + shape->rows_k) * s->token +
                  share_l2(s, chains, queries, 0).again * shape->rows_q * s->token +
                  share_l2(s, rows, keys, 0).again * shape->rows_k * s->token;
}

/* The cut of one head's plane, as for a plan with the default workspace. */
static Cut cut_of(const Sizes *s) {
  double tiles_q = ceil(s->shape->longest_q / GEMM_ROWS);
  double pairs = ceil(s->shape->longest_k / GEMM_COLUMNS);
  double blocks = ceil(s->dv / GEMM_COLUMNS) + 2 * ceil(s->d / GEMM_COLUMNS);
  double planes = s->fused ? 1 : 2, steps = (s->d + s->dv) / GEMM_ROWS + 2 * blocks;
  CutRequest request = {.rows = (int64_t)(s->group * tiles_q),
                        .kv_tiles = 2 * (int64_t)pairs,
                        .block_bytes = (int64_t)(planes * s->e * GEMM_ROWS * GEMM_GROUP),
                        .sum_q = (int64_t)(SUM_BYTES * GEMM_ROWS * s->d),
                        .sum_k = (int64_t)(SUM_BYTES * GEMM_ROWS * (s->d + s->dv)),
                        .limit = WORKSPACE_LIMIT,
                        .places = ROTA_PLACES,
                        .lanes = 2,
                        .steps =
                            s->fused ? WORKS_CHAIN_STEPS + 2 * ceil(s->d / GEMM_COLUMNS) : steps,
                        .row_steps = s->fused ? WORKS_CHAIN_STEPS : 2,
                        .processors = (int)s->workers};
  return works_cut(&request);
}

/* P and dS written; P read once and dS twice, again for each block of columns, which run side by
 * side: from L2. */
static void model_products(const Sizes *s, double pairs, Traffic *t) {
  double width = s->e * (1.0 / GEMM_ROWS + 1.0 / GEMM_COLUMNS);
  /* Filled once for each block; read once along columns, and by each warpgroup along rows. */
  t->shared_bytes =
      pairs * (3 * s->d + 2 * s->dv) * (width + s->e * (1.0 / GEMM_COLUMNS + 1.0 / GEMM_GROUP));
  double read = s->e * pairs * (ceil(s->dv / GEMM_COLUMNS) + 2 * ceil(s->d / GEMM_COLUMNS));
  double scores = pairs * (s->d + s->dv) * width;
  double gradients = pairs * (2 * s->d + s->dv) * s->e / GEMM_ROWS;
  t->l2_bytes = 2 * s->e * pairs + read + scores + gradients;
}

/* dS written and read, by dK's sums, too, where these are not made with the scores. Q and dO come
 * once for each kv tile, K for each query tile. */
static void model_fused(const Sizes *s, double pairs, Traffic *t) {
  /* Per warpgroup, 64 x 64 at a time: K and Q, V and dO for scores, dO and Q for dV and dK, K for
   * dQ; what fills the stages; dS stored twice, read twice. */
  double sums = s->fused_keys ? 1 : 2, fill = (1 + sums) * s->d + s->dv;
  double products = 3 * (s->d + s->dv) + s->d;
  t->shared_bytes = pairs * s->e * (products / GEMM_GROUP + fill / GEMM_ROWS + 2 + 2 * sums);
  t->l2_bytes = pairs * s->e * (1 + sums + fill / GEMM_ROWS) + s->shape->rows_k * s->token;
}

static void model_materialised(const Sizes *s, Traffic *t) {
  const TrafficShape *shape = s->shape;
  double pairs = shape->visits * s->q * s->k;
  Cut cut = cut_of(s);
  double heads = shape->longest_k > 0 ? shape->rows_k / shape->longest_k : 0;
  t->products = 5;
  t->chunks = cut.units;
  t->flops = 2 * pairs * (3 * s->d + 2 * s->dv);
  if (s->fused)
    model_fused(s, pairs, t);
  else
    model_products(s, pairs, t);
  double sums = 2 * (double)cut.moved * heads;
  t->l2_bytes += sums + l2_delta(s);
  /* All heads' matrices, or as much as the workspace holds at a time: larger than the L2, they go
   * to DRAM. */
  double written = (s->fused ? 1 : 2) * s->e * pairs,
         read = (s->fused ? s->fused_keys ? 1 : 2 : 3) * s->e * pairs;
  double held = fmin(written, (double)WORKSPACE_LIMIT);
  t->dram_bytes = dram_once(s) + (held > s->l2 ? written + read + sums : 0);
}

static void find_limit(const Rates *rates, bool fp32, Traffic *t) {
  const struct {
    const char *name;
    double seconds;
  } parts[] = {
      {fp32 ? "fp32 units" : "tensor cores", t->flops / (fp32 ? rates->fp32 : rates->tensor)},
      {"shared memory", t->shared_bytes / rates->shared},
      {"L2", t->l2_bytes / rates->l2},
      {"DRAM", t->dram_bytes / rates->dram}};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
    if (i == 0 || parts[i].seconds > t->seconds) {
      t->seconds = parts[i].seconds;
      t->limit = parts[i].name;
    }
}

void traffic_model(TrafficAlgorithm algorithm, const Spec *spec, const Target *target,
                   const Rates *rates, const Tiling *tiling, const TrafficShape *shape,
                   Traffic *traffic) {
  Sizes sizes = sizes_of(spec, target, tiling, shape);
  *traffic = (Traffic){.algorithm = algorithm};
  switch (algorithm) {
  case TRAFFIC_TWO_PASS:
    model_two_pass(&sizes, tiling, traffic);
    break;
  case TRAFFIC_MATERIALISED:
    model_materialised(&sizes, traffic);
    break;
  default:
    model_chains(&sizes, tiling, algorithm == TRAFFIC_EXACT, traffic);
  }
  find_limit(rates, spec->dtype == ROTA_FP32, traffic);
}
