/* Backward, in four steps, none of which waits for another thread:
 *
 *   delta    per (query tile, head)   delta = rowsum(dO * O) - dLSE, into the workspace
 *   chains   per (kv tile, kv head)   dK, dV: the chain's visits in visiting order
 *   rows     per (query tile, head)   dQ: partials added one by one, in the plan's order
 *   sinks    per head                 dSink = -sum exp(sink - LSE) * delta
 *
 * A kernel adds each visit's dQ partial when its rank comes, waiting if it must. Here `rows`
 * computes the partials once more, rank after rank: 7 products instead of 5, but the same order
 * of addition under any schedule, any number of threads and any load, without a wait. `two_pass`
 * has no ranks and takes the order of its runs, as its dQ kernel does; `atomic` goes by the
 * ranks: the order of arrival is one of those allowed. */
#include "runtime/cpu_backward.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* kv tiles of each (query tile, head), in the order in which their partials are added. Slot =
 * (tile_begin + q_tile) * heads + head, entries [begin[slot], begin[slot + 1]); bit 31 of an
 * entry: partial. */
typedef struct Order {
  int64_t *begin;
  uint32_t *tiles;
} Order;
#define ORDER_MISSING UINT32_MAX

static int64_t order_slot(const CpuRun *run, const RotaSequence *sequence, int q_tile, int head) {
  return ((int64_t)sequence->tile_begin + q_tile) * run->heads + head;
}

/* Slot of a visit of chain item `item`. */
static int64_t visit_slot(const CpuRun *run, RotaItem item, RotaVisit visit) {
  const RotaSequence *sequence = &run->sequences[run->chains[item.index].sequence];
  int head = item.head * run->group + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
  return order_slot(run, sequence, (int)(visit.tile & ROTA_VISIT_TILE), head);
}

static int64_t row_slot(const CpuRun *run, RotaItem item) {
  const RotaRow *row = &run->rows[item.index];
  return order_slot(run, &run->sequences[row->sequence], row->q_tile, item.head);
}

static int run_end(const RotaRun *tiles) {
  return (int)(tiles->end_kind & ~ROTA_RUN_PARTIAL);
}

/* Numbers of entries, one place to the right of their slot: begin[slot + 1]. */
static void order_count(const CpuRun *run, bool by_rank, int64_t *begin) {
  if (by_rank) {
    for (int64_t i = 0; i < run->plan->chain_items.count; i++) {
      const RotaChain *chain = &run->chains[run->chain_items[i].index];
      for (int v = chain->visit_begin; v < chain->visit_end; v++)
        begin[visit_slot(run, run->chain_items[i], run->visits[v]) + 1]++;
    }
    return;
  }
  for (int64_t i = 0; i < run->plan->row_items.count; i++) {
    const RotaRow *row = &run->rows[run->row_items[i].index];
    for (int r = row->run_begin; r < row->run_end; r++)
      begin[row_slot(run, run->row_items[i]) + 1] += run_end(&run->runs[r]) - run->runs[r].begin;
  }
}

static rota_status order_fill_by_rank(const CpuRun *run, Order *order) {
  for (int64_t i = 0; i < run->plan->chain_items.count; i++) {
    const RotaChain *chain = &run->chains[run->chain_items[i].index];
    for (int v = chain->visit_begin; v < chain->visit_end; v++) {
      RotaVisit visit = run->visits[v];
      int64_t slot = visit_slot(run, run->chain_items[i], visit);
      int64_t at = order->begin[slot] + (visit.rank & ROTA_VISIT_RANK);
      if (at >= order->begin[slot + 1] || order->tiles[at] != ORDER_MISSING)
        return status_fail(ROTA_INTERNAL,
                           "plan: kv tile %d adds to query tile %d at a rank already taken",
                           chain->kv_tile, (int)(visit.tile & ROTA_VISIT_TILE));
      order->tiles[at] = (uint32_t)chain->kv_tile | (visit.tile & ROTA_VISIT_PARTIAL);
    }
  }
  return ROTA_OK; /* as many entries as places, no place twice: none is missing */
}

static void order_fill_by_runs(const CpuRun *run, Order *order) {
  for (int64_t i = 0; i < run->plan->row_items.count; i++) {
    const RotaRow *row = &run->rows[run->row_items[i].index];
    int64_t at = order->begin[row_slot(run, run->row_items[i])];
    for (int r = row->run_begin; r < row->run_end; r++)
      for (int kv_tile = run->runs[r].begin; kv_tile < run_end(&run->runs[r]); kv_tile++)
        order->tiles[at++] = (uint32_t)kv_tile | (run->runs[r].end_kind & ROTA_RUN_PARTIAL);
  }
}

static rota_status order_build(const CpuRun *run, Order *order) {
  bool by_rank = strcmp(run->plan->tiling.algorithm, backward_name(BACKWARD_TWO_PASS)) != 0;
  int64_t slots = 0;
  for (int64_t i = 0; i < run->plan->sequences.count; i++)
    slots += run->sequences[i].q_tiles;
  slots *= run->heads;
  order->begin = memory_allocate((size_t)slots + 1, sizeof *order->begin);
  if (!order->begin)
    return ROTA_OUT_OF_MEMORY;
  order_count(run, by_rank, order->begin);
  for (int64_t i = 0; i < slots; i++)
    order->begin[i + 1] += order->begin[i];
  size_t entries = (size_t)order->begin[slots];
  order->tiles = memory_allocate(entries + 1, sizeof *order->tiles);
  if (!order->tiles)
    return ROTA_OUT_OF_MEMORY;
  memset(order->tiles, 0xff, entries * sizeof *order->tiles);
  if (by_rank)
    return order_fill_by_rank(run, order);
  order_fill_by_runs(run, order);
  return ROTA_OK;
}

static int clamp(int value, int low, int high) {
  return value < low ? low : value > high ? high : value;
}

static CpuTile row_tile(const CpuRun *run, const RotaSequence *sequence, int q_tile, int head) {
  CpuTile tile = {.sequence = sequence, .head = head, .q_begin = q_tile * run->tile_q};
  tile.rows = clamp(sequence->n_q - tile.q_begin, 0, run->tile_q);
  return tile;
}

static void delta_item(const CpuRun *run, const CpuScratch *scratch, RotaItem item) {
  const rota_arguments *arguments = run->arguments;
  const RotaRow *row = &run->rows[item.index];
  const RotaSequence *sequence = &run->sequences[row->sequence];
  CpuTile tile = row_tile(run, sequence, row->q_tile, item.head);
  int64_t first = sequence->begin_q + tile.q_begin;
  int dim = run->spec->head_dim_v;
  cpu_load(run, &arguments->d_o, dim, sequence->slot, first, tile.rows, item.head, scratch->d_o,
           run->v_pitch, 0);
  cpu_load(run, &arguments->o, dim, sequence->slot, first, tile.rows, item.head, scratch->o,
           run->v_pitch, 0);
  float *delta = run->delta + row_slot(run, item) * run->tile_q;
  for (int r = 0; r < tile.rows; r++) {
    const float *d_o = scratch->d_o + (ptrdiff_t)r * run->v_pitch;
    const float *o = scratch->o + (ptrdiff_t)r * run->v_pitch;
    float sum = 0.0f;
    for (int i = 0; i < dim; i++)
      sum += d_o[i] * o[i];
    if (arguments->d_lse.data)
      sum -= *cpu_element(&arguments->d_lse, sequence->slot, first + r, item.head);
    delta[r] = sum;
  }
}

/* Q, dO, LSE and delta of a query tile. */
static void load_query_side(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  const rota_arguments *arguments = run->arguments;
  const RotaSequence *sequence = tile->sequence;
  int64_t first = sequence->begin_q + tile->q_begin;
  cpu_load(run, &arguments->q, run->spec->head_dim, sequence->slot, first, tile->rows, tile->head,
           scratch->q, run->qk_pitch, run->q_rows);
  cpu_load(run, &arguments->d_o, run->spec->head_dim_v, sequence->slot, first, tile->rows,
           tile->head, scratch->d_o, run->v_pitch, run->q_rows);
  int64_t slot = order_slot(run, sequence, tile->q_begin / run->tile_q, tile->head);
  memcpy(scratch->delta, run->delta + slot * run->tile_q, (size_t)tile->rows * sizeof(float));
  for (int r = 0; r < tile->rows; r++)
    scratch->lse[r] = *cpu_element(&arguments->lse, sequence->slot, first + r, tile->head);
}

/* K and V of a kv tile, transposed. */
static void load_key_side(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  const rota_arguments *arguments = run->arguments;
  int64_t first = tile->sequence->begin_k + tile->k_begin;
  int slot = tile->sequence->slot, head = tile->head / run->group;
  cpu_load_transposed(run, &arguments->k, run->spec->head_dim, slot, first, tile->keys, head,
                      scratch->k_t, run->kv_pitch);
  cpu_load_transposed(run, &arguments->v, run->spec->head_dim_v, slot, first, tile->keys, head,
                      scratch->v_t, run->kv_pitch);
}

/* P into `s` and dS into `dp`. Positions that are not allowed are selected away, whatever they
 * hold. */
static void differentiate_tile(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  cpu_tile_mask(run, scratch, tile);
  cpu_tile_scores(run, scratch, tile, true);
  memset(scratch->dp, 0, (size_t)run->q_rows * (size_t)run->kv_pitch * sizeof *scratch->dp);
  cpu_multiply_add(run->q_rows, run->kv_pitch, run->spec->head_dim_v, scratch->d_o, run->v_pitch, 1,
                   scratch->v_t, run->kv_pitch, scratch->dp, run->kv_pitch);
  for (int r = 0; r < tile->rows; r++) {
    float *s = scratch->s + (ptrdiff_t)r * run->kv_pitch,
          *dp = scratch->dp + (ptrdiff_t)r * run->kv_pitch;
    const float *slope = scratch->slope + (ptrdiff_t)r * run->kv_pitch;
    const bool *allowed = scratch->allowed + (ptrdiff_t)r * run->kv_pitch;
    float lse = scratch->lse[r], delta = scratch->delta[r];
    bool empty = lse == -INFINITY;
    for (int j = 0; j < tile->keys; j++) {
      bool use = allowed[j] && !empty;
      float p = use ? expf(s[j] - lse) : 0.0f;
      dp[j] = use ? p * (dp[j] - delta) * slope[j] : 0.0f;
      s[j] = p;
    }
  }
}

static void chain_visit(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  load_query_side(run, scratch, tile);
  differentiate_tile(run, scratch, tile);
  for (int r = 0; r < tile->rows;
       r++) { /* 0 * NaN must not come from rows that attend nothing here */
    if (scratch->row_used[r])
      continue;
    memset(scratch->q + (ptrdiff_t)r * run->qk_pitch, 0, (size_t)run->qk_pitch * sizeof(float));
    memset(scratch->d_o + (ptrdiff_t)r * run->v_pitch, 0, (size_t)run->v_pitch * sizeof(float));
  }
  cpu_multiply_add(run->kv_pitch, run->v_pitch, tile->rows, scratch->s, 1, run->kv_pitch,
                   scratch->d_o, run->v_pitch, scratch->sum_v, run->v_pitch);
  cpu_multiply_add(run->kv_pitch, run->qk_pitch, tile->rows, scratch->dp, 1, run->kv_pitch,
                   scratch->q, run->qk_pitch, scratch->sum_k, run->qk_pitch);
}

static void chain_item(const CpuRun *run, const CpuScratch *scratch, RotaItem item) {
  const rota_arguments *arguments = run->arguments;
  const RotaChain *chain = &run->chains[item.index];
  const RotaSequence *sequence = &run->sequences[chain->sequence];
  int k_begin = chain->kv_tile * run->tile_kv,
      keys = clamp(sequence->n_k - k_begin, 0, run->tile_kv);
  int slot_rows = clamp(sequence->rows_k - k_begin, 0, run->tile_kv);
  memset(scratch->sum_k, 0, (size_t)run->kv_pitch * (size_t)run->qk_pitch * sizeof(float));
  memset(scratch->sum_v, 0, (size_t)run->kv_pitch * (size_t)run->v_pitch * sizeof(float));
  CpuTile tile = {
      .sequence = sequence, .head = item.head * run->group, .k_begin = k_begin, .keys = keys};
  load_key_side(run, scratch, &tile);
  for (int v = chain->visit_begin; v < chain->visit_end && keys > 0; v++) {
    RotaVisit visit = run->visits[v];
    int head = item.head * run->group + (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT);
    tile = row_tile(run, sequence, (int)(visit.tile & ROTA_VISIT_TILE), head);
    tile.k_begin = k_begin;
    tile.keys = keys;
    tile.partial = (visit.tile & ROTA_VISIT_PARTIAL) != 0;
    chain_visit(run, scratch, &tile);
  }
  int64_t first = sequence->begin_k + k_begin;
  int qk = run->spec->head_dim, dv = run->spec->head_dim_v, slot = sequence->slot,
      rest = slot_rows - keys;
  cpu_store(run, &arguments->d_k, qk, slot, first, keys, item.head, scratch->sum_k, run->qk_pitch,
            run->spec->scale);
  cpu_store(run, &arguments->d_v, dv, slot, first, keys, item.head, scratch->sum_v, run->v_pitch,
            1.0f);
  cpu_store(run, &arguments->d_k, qk, slot, first + keys, rest, item.head, NULL, 0, 0.0f);
  cpu_store(run, &arguments->d_v, dv, slot, first + keys, rest, item.head, NULL, 0, 0.0f);
}

/* One visit's dQ partial; `first` stores it, the others add. */
static void row_visit(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile,
                      bool first) {
  load_key_side(run, scratch, tile);
  cpu_load(run, &run->arguments->k, run->spec->head_dim, tile->sequence->slot,
           tile->sequence->begin_k + tile->k_begin, tile->keys, tile->head / run->group, scratch->k,
           run->qk_pitch, 0);
  differentiate_tile(run, scratch, tile);
  for (int j = 0; j < tile->keys; j++)
    if (!scratch->key_used[j])
      memset(scratch->k + (ptrdiff_t)j * run->qk_pitch, 0, (size_t)run->qk_pitch * sizeof(float));
  size_t bytes = (size_t)run->q_rows * (size_t)run->qk_pitch * sizeof(float);
  memset(scratch->part_q, 0, bytes);
  cpu_multiply_add(run->q_rows, run->qk_pitch, tile->keys, scratch->dp, run->kv_pitch, 1,
                   scratch->k, run->qk_pitch, scratch->part_q, run->qk_pitch);
  if (first) {
    memcpy(scratch->sum_q, scratch->part_q, bytes);
    return;
  }
  for (int i = 0; i < run->q_rows * run->qk_pitch; i++)
    scratch->sum_q[i] += scratch->part_q[i];
}

static void row_item(const CpuRun *run, const CpuScratch *scratch, const Order *order,
                     RotaItem item) {
  const RotaRow *row = &run->rows[item.index];
  const RotaSequence *sequence = &run->sequences[row->sequence];
  CpuTile tile = row_tile(run, sequence, row->q_tile, item.head);
  int slot_rows = clamp(sequence->rows_q - tile.q_begin, 0, run->tile_q), written = 0;
  int64_t slot = row_slot(run, item), first = sequence->begin_q + tile.q_begin;
  if (tile.rows > 0 && order->begin[slot] < order->begin[slot + 1]) {
    load_query_side(run, scratch, &tile);
    for (int64_t i = order->begin[slot]; i < order->begin[slot + 1]; i++) {
      tile.k_begin = (int)(order->tiles[i] & ~ROTA_VISIT_PARTIAL) * run->tile_kv;
      tile.keys = clamp(sequence->n_k - tile.k_begin, 0, run->tile_kv);
      tile.partial = (order->tiles[i] & ROTA_VISIT_PARTIAL) != 0;
      row_visit(run, scratch, &tile, i == order->begin[slot]);
    }
    written = tile.rows;
    cpu_store(run, &run->arguments->d_q, run->spec->head_dim, sequence->slot, first, written,
              item.head, scratch->sum_q, run->qk_pitch, run->spec->scale);
  }
  /* Rows past the used length, and query tiles without contributors. */
  cpu_store(run, &run->arguments->d_q, run->spec->head_dim, sequence->slot, first + written,
            slot_rows - written, item.head, NULL, 0, 0.0f);
}

/* The sum over all rows of the batch, sequence by sequence; double, since it may have a million
 * terms. */
static void sink_gradient(const CpuRun *run, int head) {
  const rota_arguments *arguments = run->arguments;
  double sum = 0.0;
  for (int64_t b = 0; b < run->plan->sequences.count; b++) {
    const RotaSequence *sequence = &run->sequences[b];
    for (int q = 0; q < sequence->n_q; q++) {
      int64_t slot = order_slot(run, sequence, q / run->tile_q, head);
      float lse = *cpu_element(&arguments->lse, sequence->slot, sequence->begin_q + q, head);
      if (lse == -INFINITY)
        continue; /* then the sink is -inf too, and has no part in the row */
      sum -= (double)(expf(arguments->sink[head] - lse) *
                      run->delta[slot * run->tile_q + q % run->tile_q]);
    }
  }
  arguments->d_sink[head] = (float)sum;
}

rota_status cpu_backward(const CpuRun *run) {
  Order order = {0};
  rota_status status = order_build(run, &order);
  int64_t rows = run->plan->row_items.count, chains = run->plan->chain_items.count;
  bool sinks = run->spec->sink_logit && run->arguments->d_sink;
  if (status == ROTA_OK) {
#pragma omp parallel num_threads(run->threads)
    {
      CpuScratch scratch = cpu_scratch(run, omp_get_thread_num());
      /* Each loop ends in a barrier: delta is complete before it is read. */
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < rows; i++)
        delta_item(run, &scratch, run->row_items[i]);
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < chains; i++)
        chain_item(run, &scratch, run->chain_items[i]);
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < rows; i++)
        row_item(run, &scratch, &order, run->row_items[i]);
#pragma omp for schedule(dynamic, 1)
      for (int head = 0; head < run->heads; head++)
        if (sinks)
          sink_gradient(run, head);
    }
  }
  free(order.begin);
  free(order.tiles);
  return status;
}
