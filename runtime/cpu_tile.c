/* Scratch tiles of the CPU device and what is done to one tile at a time. */
#include "runtime/cpu_tile.h"

#include "runtime/cpu_numbers.h"

#include <string.h>

/* One row per buffer: name, element type, count. The scratch is these arrays, one behind the
 * other. */
#define SCRATCH_LIST(X)                                                                            \
  X(q, float, (size_t)run->q_rows *(size_t)run->qk_pitch)                                          \
  X(d_o, float, (size_t)run->q_rows *(size_t)run->v_pitch)                                         \
  X(k_t, float, (size_t)run->spec->head_dim *(size_t)run->kv_pitch)                                \
  X(k, float, (size_t)run->kv_pitch *(size_t)run->qk_pitch)                                        \
  X(v_t, float, (size_t)run->spec->head_dim_v *(size_t)run->kv_pitch)                              \
  X(v, float, (size_t)run->kv_pitch *(size_t)run->v_pitch)                                         \
  X(s, float, (size_t)run->q_rows *(size_t)run->kv_pitch)                                          \
  X(dp, float, (size_t)run->q_rows *(size_t)run->kv_pitch)                                         \
  X(slope, float, (size_t)run->q_rows *(size_t)run->kv_pitch)                                      \
  X(sum_q, float, (size_t)run->q_rows *(size_t)run->qk_pitch)                                      \
  X(part_q, float, (size_t)run->q_rows *(size_t)run->qk_pitch)                                     \
  X(sum_k, float, (size_t)run->kv_pitch *(size_t)run->qk_pitch)                                    \
  X(sum_v, float, (size_t)run->kv_pitch *(size_t)run->v_pitch)                                     \
  X(o, float, (size_t)run->q_rows *(size_t)run->v_pitch)                                           \
  X(row_max, float, (size_t)run->q_rows)                                                           \
  X(row_sum, float, (size_t)run->q_rows)                                                           \
  X(lse, float, (size_t)run->q_rows)                                                               \
  X(delta, float, (size_t)run->q_rows)                                                             \
  X(allowed, bool, (size_t)run->q_rows *(size_t)run->kv_pitch)                                     \
  X(row_used, bool, (size_t)run->q_rows)                                                           \
  X(key_used, bool, (size_t)run->kv_pitch)

/* Buffers start on their own cache line: neighbours belong to other threads. */
static size_t line_up(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

size_t cpu_scratch_bytes(const CpuRun *run) {
  size_t bytes = 0;
#define X(name, type, count) bytes += line_up((count) * sizeof(type));
  SCRATCH_LIST(X)
#undef X
  return bytes;
}

CpuScratch cpu_scratch(const CpuRun *run, int thread) {
  CpuScratch scratch;
  char *at = run->scratch + (size_t)thread * run->scratch_bytes;
#define X(name, type, count)                                                                       \
  scratch.name = (type *)(void *)at;                                                               \
  at += line_up((count) * sizeof(type));
  SCRATCH_LIST(X)
#undef X
  return scratch;
}

/* Four lanes: what every 64-bit processor has. Unaligned, since pitches are multiples of 8
 * floats only. */
typedef float Lanes __attribute__((vector_size(16), aligned(4), may_alias));

/* A 4 x 8 block of c in registers over the whole depth. */
static void multiply_block(int depth, const float *restrict a, int a_row, int a_column,
                           const float *restrict b, int b_row, float *restrict c, int c_row) {
  Lanes sum[4][2];
  for (int r = 0; r < 4; r++) {
    sum[r][0] = *(const Lanes *)(c + (ptrdiff_t)r * c_row);
    sum[r][1] = *(const Lanes *)(c + (ptrdiff_t)r * c_row + 4);
  }
  for (int l = 0; l < depth; l++) {
    Lanes b0 = *(const Lanes *)b, b1 = *(const Lanes *)(b + 4);
    for (int r = 0; r < 4; r++) {
      float factor = a[(ptrdiff_t)r * a_row];
      sum[r][0] += factor * b0;
      sum[r][1] += factor * b1;
    }
    a += a_column;
    b += b_row;
  }
  for (int r = 0; r < 4; r++) {
    *(Lanes *)(c + (ptrdiff_t)r * c_row) = sum[r][0];
    *(Lanes *)(c + (ptrdiff_t)r * c_row + 4) = sum[r][1];
  }
}

void cpu_multiply_add(int m, int n, int depth, const float *a, int a_row, int a_column,
                      const float *b, int b_row, float *c, int c_row) {
  /* Columns outside: a panel of b, 8 wide, stays in the first-level cache while all rows use it. */
  for (int j = 0; j < n; j += 8)
    for (int i = 0; i < m; i += 4)
      multiply_block(depth, a + (ptrdiff_t)i * a_row, a_row, a_column, b + j, b_row,
                     c + (ptrdiff_t)i * c_row + j, c_row);
}

static int64_t element_offset(const rota_tensor *tensor, int slot, int64_t row, int head) {
  return slot * tensor->stride_batch + row * tensor->stride_row + head * tensor->stride_head;
}

float *cpu_element(const rota_tensor *tensor, int slot, int64_t row, int head) {
  return (float *)tensor->data + element_offset(tensor, slot, row, head);
}

void cpu_load(const CpuRun *run, const rota_tensor *tensor, int dim, int slot, int64_t row,
              int count, int head, float *to, int pitch, int padded) {
  int size = dtype_size(run->spec->dtype);
  for (int r = 0; r < count; r++) {
    const char *from =
        (const char *)tensor->data + size * element_offset(tensor, slot, row + r, head);
    float *line = to + (ptrdiff_t)r * pitch;
    numbers_load(run->spec->dtype, from, dim, line);
    memset(line + dim, 0, (size_t)(pitch - dim) * sizeof *line);
  }
  if (padded > count)
    memset(to + (ptrdiff_t)count * pitch, 0, (size_t)(padded - count) * (size_t)pitch * sizeof *to);
}

void cpu_load_transposed(const CpuRun *run, const rota_tensor *tensor, int dim, int slot,
                         int64_t row, int count, int head, float *to, int pitch) {
  int size = dtype_size(run->spec->dtype);
  float line[HEAD_DIM_MAX];
  for (int r = 0; r < count; r++) {
    const char *from =
        (const char *)tensor->data + size * element_offset(tensor, slot, row + r, head);
    numbers_load(run->spec->dtype, from, dim, line);
    for (int i = 0; i < dim; i++)
      to[(ptrdiff_t)i * pitch + r] = line[i];
  }
  for (int i = 0; i < dim; i++)
    memset(to + (ptrdiff_t)i * pitch + count, 0, (size_t)(pitch - count) * sizeof *to);
}

void cpu_store(const CpuRun *run, const rota_tensor *tensor, int dim, int slot, int64_t row,
               int count, int head, const float *from, int pitch, float factor) {
  int size = dtype_size(run->spec->dtype);
  float line[HEAD_DIM_MAX] = {0};
  for (int r = 0; r < count; r++) {
    if (from)
      for (int i = 0; i < dim; i++)
        line[i] = factor * from[(ptrdiff_t)r * pitch + i];
    char *to = (char *)tensor->data + size * element_offset(tensor, slot, row + r, head);
    numbers_store(run->spec->dtype, line, dim, to);
  }
}

static RowPosition row_position(const CpuTile *tile, int r) {
  return (RowPosition){.q = tile->q_begin + r,
                       .h = tile->head,
                       .b = tile->sequence->batch,
                       .n_q = tile->sequence->n_q,
                       .n_k = tile->sequence->n_k};
}

void cpu_tile_mask(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile) {
  size_t keys = (size_t)tile->keys;
  if (!tile->partial || !run->spec->mask) {
    for (int r = 0; r < tile->rows; r++)
      memset(scratch->allowed + (ptrdiff_t)r * run->kv_pitch, 1, keys);
    memset(scratch->row_used, tile->keys > 0, (size_t)tile->rows);
    memset(scratch->key_used, tile->rows > 0, keys);
    return;
  }
  memset(scratch->key_used, 0, keys);
  for (int r = 0; r < tile->rows; r++) {
    bool *allowed = scratch->allowed + (ptrdiff_t)r * run->kv_pitch;
    RowPosition position = row_position(tile, r);
    expression_evaluate_mask(run->spec->mask, &run->bindings, &position, tile->k_begin, tile->keys,
                             allowed);
    bool used = false;
    for (int j = 0; j < tile->keys; j++) {
      used |= allowed[j];
      scratch->key_used[j] |= allowed[j];
    }
    scratch->row_used[r] = used;
  }
}

void cpu_tile_scores(const CpuRun *run, const CpuScratch *scratch, const CpuTile *tile,
                     bool slope) {
  const Spec *spec = run->spec;
  memset(scratch->s, 0, (size_t)run->q_rows * (size_t)run->kv_pitch * sizeof *scratch->s);
  cpu_multiply_add(run->q_rows, run->kv_pitch, spec->head_dim, scratch->q, run->qk_pitch, 1,
                   scratch->k_t, run->kv_pitch, scratch->s, run->kv_pitch);
  for (int r = 0; r < tile->rows; r++) {
    float *s = scratch->s + (ptrdiff_t)r * run->kv_pitch;
    for (int j = 0; j < tile->keys; j++)
      s[j] *= spec->scale;
    if (!spec->score)
      continue;
    RowPosition position = row_position(tile, r);
    if (slope) /* before s is overwritten: the derivative is taken at the scaled score */
      expression_evaluate_score(spec->score_derivative, &run->bindings, &position, tile->k_begin,
                                tile->keys, s, scratch->slope + (ptrdiff_t)r * run->kv_pitch);
    expression_evaluate_score(spec->score, &run->bindings, &position, tile->k_begin, tile->keys, s,
                              s);
  }
  if (slope && !spec->score)
    for (int i = 0; i < run->q_rows * run->kv_pitch; i++)
      scratch->slope[i] = 1.0f;
}
