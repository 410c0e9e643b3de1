/* Level 1. What the CPU device's passes share: one run's tables, scratch tiles, loads and
 * stores, the small matrix product, and masks and scores of one tile.
 *
 * Tiles in scratch are fp32, row-major, rows padded to 4 and pitches to 8 elements, so that the
 * product needs no remainder loops:
 *
 *     q, d_o   [tile_q ][dim]      k_t, v_t [dim][tile_kv]     (transposed while loading)
 *     s, dp    [tile_q ][tile_kv]  k, v     [tile_kv][dim] */
#ifndef ROTA_RUNTIME_CPU_TILE_H
#define ROTA_RUNTIME_CPU_TILE_H

#include "generator/plan.h"

/* One call of cpu_device_run: everything that its threads only read, but the scratch. */
typedef struct CpuRun {
  const Plan *plan;
  const Spec *spec;
  const rota_arguments *arguments;
  Bindings bindings; /* the plan's, with the tensors that the arguments pass */
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaItem *row_items, *chain_items;
  const RotaChain *chains;
  const RotaVisit *visits;
  int tile_q, tile_kv, heads, kv_heads, group;
  int q_rows;                      /* tile_q up to a multiple of 4 */
  int kv_pitch, qk_pitch, v_pitch; /* tile_kv, head_dim, head_dim_v up to multiples of 8 */
  float *delta;                    /* workspace; see RotaWorkspace */
  int threads;
  char *scratch; /* threads * scratch_bytes */
  size_t scratch_bytes;
} CpuRun;

/* One thread's tiles. */
typedef struct CpuScratch {
  float *q, *d_o, *k_t, *k, *v_t, *v;
  float *s, *dp, *slope; /* scores then P; dP then dS; d score / d s */
  float *sum_q, *part_q, *sum_k, *sum_v, *o;
  float *row_max, *row_sum, *lse, *delta;
  bool *allowed;             /* [tile_q][tile_kv] */
  bool *row_used, *key_used; /* has any allowed position in this tile */
} CpuScratch;

/* One tile's place: rows [q_begin, q_begin + rows) against keys [k_begin, k_begin + keys), none
 * past its end. */
typedef struct CpuTile {
  const RotaSequence *sequence;
  int head; /* query head */
  int q_begin, rows, k_begin, keys;
  bool partial; /* the mask must be asked */
} CpuTile;

/* Bytes of one thread's scratch. */
size_t cpu_scratch_bytes(const CpuRun *run);
/* The calling thread's tiles, `thread` < run->threads. */
CpuScratch cpu_scratch(const CpuRun *run, int thread);

/* c[m][n] += a[m][depth] b[depth][n], m a multiple of 4, n of 8. `a` by two strides, so that its
 * transpose costs nothing. Each sum runs in ascending order of depth: its bits depend on no
 * vector width. */
void cpu_multiply_add(int m, int n, int depth, const float *a, int a_row, int a_column,
                      const float *b, int b_row, float *c, int c_row);

/* Rows [row, row + count) of one head as fp32; padding up to pitch and `padded` rows becomes
 * zero. `row` counts within the packed tensor. */
void cpu_load(const CpuRun *run, const rota_tensor *tensor, int dim, int slot, int64_t row,
              int count, int head, float *to, int pitch, int padded);
/* The same, transposed: to[dim][pitch]. */
void cpu_load_transposed(const CpuRun *run, const rota_tensor *tensor, int dim, int slot,
                         int64_t row, int count, int head, float *to, int pitch);
/* Writes factor * from. `from` NULL: zeros. */
void cpu_store(const CpuRun *run, const rota_tensor *tensor, int dim, int slot, int64_t row,
               int count, int head, const float *from, int pitch, float factor);
/* The element of a tensor without a head dim, such as LSE. */
float *cpu_element(const rota_tensor *tensor, int slot, int64_t row, int head);

/* Fills allowed, row_used and key_used. */
void cpu_tile_mask(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile);
/* s = q k^T, scaled, then through the score; with `slope` also its derivative. */
void cpu_tile_scores(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile, bool slope);

#endif
