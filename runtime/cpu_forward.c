/* Forward: one (query tile, query head) after another, its kv tiles in the order of its runs,
 * with the running maximum and sum of an online softmax, as the kernels do it. Rows are computed
 * whole and heads apart, whatever items the plan has for a kernel. */
#include "runtime/cpu_forward.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Folds the tile's scores into a row's maximum and sum; leaves P (relative to the new maximum)
 * in `s`. */
static void soften_row(const CpuScratch *scratch, const CpuRun *run, const CpuTile *tile, int r) {
  float *s = scratch->s + (ptrdiff_t)r * run->kv_pitch;
  const bool *allowed = scratch->allowed + (ptrdiff_t)r * run->kv_pitch;
  float old = scratch->row_max[r], now = old;
  for (int j = 0; j < tile->keys; j++) {
    s[j] = allowed[j] ? s[j] : -INFINITY;
    /* A NaN score becomes the maximum and stays it, and with it the row's result. */
    if (s[j] > now || isnan(s[j]))
      now = s[j];
  }
  if (now == -INFINITY) { /* nothing allowed yet */
    memset(s, 0, (size_t)tile->keys * sizeof *s);
    return;
  }
  float kept = expf(old - now), sum = 0.0f;
  for (int j = 0; j < tile->keys; j++) {
    s[j] = allowed[j] ? expf(s[j] - now) : 0.0f;
    sum += s[j];
  }
  scratch->row_sum[r] = scratch->row_sum[r] * kept + sum;
  scratch->row_max[r] = now;
  float *o = scratch->o + (ptrdiff_t)r * run->v_pitch;
  for (int i = 0; i < run->v_pitch; i++)
    o[i] *= kept;
}

static void forward_tile(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  const RotaSequence *sequence = tile->sequence;
  const rota_arguments *arguments = run->arguments;
  int kv_head = tile->head / run->group;
  int64_t row = sequence->begin_k + tile->k_begin;
  cpu_load_transposed(run, &arguments->k, run->spec->head_dim, sequence->slot, row, tile->keys,
                      kv_head, scratch->k_t, run->kv_pitch);
  cpu_load(run, &arguments->v, run->spec->head_dim_v, sequence->slot, row, tile->keys, kv_head,
           scratch->v, run->v_pitch, 0);
  cpu_tile_mask(run, scratch, tile);
  cpu_tile_scores(run, scratch, tile, false);
  for (int r = 0; r < tile->rows; r++)
    soften_row(scratch, run, tile, r);
  for (int j = 0; j < tile->keys;
       j++) /* 0 * NaN must not come from keys that no row here attends */
    if (!scratch->key_used[j])
      memset(scratch->v + (ptrdiff_t)j * run->v_pitch, 0,
             (size_t)run->v_pitch * sizeof *scratch->v);
  cpu_multiply_add(run->q_rows, run->v_pitch, tile->keys, scratch->s, run->kv_pitch, 1, scratch->v,
                   run->v_pitch, scratch->o, run->v_pitch);
}

/* Divides by the denominator, with the sink in it, and writes O and LSE. */
static void finish_rows(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  const RotaSequence *sequence = tile->sequence;
  const rota_arguments *arguments = run->arguments;
  float sink = run->spec->sink_logit ? arguments->sink[tile->head] : -INFINITY;
  for (int r = 0; r < tile->rows; r++) {
    float largest = scratch->row_max[r], top = !(sink <= largest) ? sink : largest;
    float kept = top == -INFINITY ? 0.0f : expf(largest - top);
    float denominator = scratch->row_sum[r] * kept;
    if (top != -INFINITY)
      denominator += expf(sink - top);
    /* No allowed key: the sum is 0 and so is O, sink or not. */
    float factor = scratch->row_sum[r] == 0.0f ? 0.0f : kept / denominator;
    float *o = scratch->o + (ptrdiff_t)r * run->v_pitch;
    for (int i = 0; i < run->v_pitch; i++)
      o[i] *= factor;
    int64_t row = sequence->begin_q + tile->q_begin + r;
    *cpu_element(&arguments->lse, sequence->slot, row, tile->head) = top + logf(denominator);
  }
  cpu_store(run, &arguments->o, run->spec->head_dim_v, sequence->slot,
            sequence->begin_q + tile->q_begin, tile->rows, tile->head, scratch->o, run->v_pitch,
            1.0f);
}

static int clamp(int value, int low, int high) {
  return value < low ? low : value > high ? high : value;
}

static void forward_row(const CpuRun *run, const CpuScratch *scratch, const RotaRow *row,
                        int head) {
  const RotaSequence *sequence = &run->sequences[row->sequence];
  const rota_arguments *arguments = run->arguments;
  CpuTile tile = {.sequence = sequence, .head = head, .q_begin = row->q_tile * run->tile_q};
  tile.rows = clamp(sequence->n_q - tile.q_begin, 0, run->tile_q);
  int slot_rows = clamp(sequence->rows_q - tile.q_begin, 0, run->tile_q);
  int64_t first = sequence->begin_q + tile.q_begin;
  if (tile.rows > 0) {
    cpu_load(run, &arguments->q, run->spec->head_dim, sequence->slot, first, tile.rows, head,
             scratch->q, run->qk_pitch, run->q_rows);
    memset(scratch->o, 0, (size_t)run->q_rows * (size_t)run->v_pitch * sizeof *scratch->o);
    for (int r = 0; r < tile.rows; r++) {
      scratch->row_max[r] = -INFINITY;
      scratch->row_sum[r] = 0.0f;
    }
    for (int i = row->run_begin; i < row->run_end; i++) {
      int end = (int)(run->runs[i].end_kind & ROTA_RUN_END);
      tile.partial = (run->runs[i].end_kind & ROTA_RUN_PARTIAL) != 0;
      for (int kv_tile = run->runs[i].begin; kv_tile < end; kv_tile++) {
        tile.k_begin = kv_tile * run->tile_kv;
        tile.keys = clamp(sequence->n_k - tile.k_begin, 0, run->tile_kv);
        if (tile.keys > 0)
          forward_tile(run, scratch, &tile);
      }
    }
    finish_rows(run, scratch, &tile);
  }
  /* Rows of the slot past its used length. */
  cpu_store(run, &arguments->o, run->spec->head_dim_v, sequence->slot, first + tile.rows,
            slot_rows - tile.rows, head, NULL, 0, 0.0f);
  for (int r = tile.rows; r < slot_rows; r++)
    *cpu_element(&arguments->lse, sequence->slot, first + r, head) = -INFINITY;
}

/* The row of a query tile, counted over all sequences, and head. */
static const RotaRow *find_row(const CpuRun *run, int32_t tile, int head) {
  int32_t low = 0, high = run->plan->lengths->batch;
  while (high - low > 1) {
    int32_t middle = low + (high - low) / 2;
    if (run->sequences[middle].tile_begin <= tile)
      low = middle;
    else
      high = middle;
  }
  const RotaSequence *sequence = &run->sequences[low];
  bool per_head = plan_whole_rows(run->plan) > plan_q_tiles(run->plan);
  return &run->rows[sequence->row_begin + (per_head ? (int64_t)head * sequence->q_tiles : 0) +
                    tile - sequence->tile_begin];
}

void cpu_forward(const CpuRun *run) {
  int64_t count = plan_q_tiles(run->plan) * run->heads;
#pragma omp parallel num_threads(run->threads)
  {
    CpuScratch scratch = cpu_scratch(run, omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
      forward_row(run, &scratch, find_row(run, (int32_t)(i / run->heads), (int)(i % run->heads)),
                  (int)(i % run->heads));
  }
}
