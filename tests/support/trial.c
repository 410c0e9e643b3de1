/* Trials: their tensors, and the comparison with the reference. Running them is in trial_run.c. */
#include "tests/support/trial.h"

#include "runtime/cpu_numbers.h"
#include "runtime/prepared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, POISON = 0xff /* NaN in each of the formats */ };

static void require(bool condition, const char *what) {
  if (condition)
    return;
  fprintf(stderr, "test trial: %s: %s\n", what, rota_error_message());
  abort();
}

/* A number that depends on seed and index alone, so that filling may run on any number of
 * threads. */
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Near normal: four uniform numbers added, scaled to a standard deviation of 1. */
static float random_normal(uint64_t seed, uint64_t index) {
  uint64_t bits = mix(mix(seed) + index * 0x9e3779b97f4a7c15u);
  double sum = 0.0;
  for (int i = 0; i < 4; i++)
    sum += (double)((bits >> (16 * i)) & 0xffff);
  return (float)((sum / 65536.0 - 2.0) * sqrt(3.0));
}

static int64_t element_index(const Trial *trial, const TrialBuffer *buffer, int b, int64_t row,
                             int head) {
  const Lengths *lengths = trial->lengths;
  int64_t begin = buffer->keys ? lengths->begin_k[b] : lengths->begin_q[b];
  int64_t slot = lengths->packed ? 0 : b;
  return slot * buffer->view.stride_batch + (begin + row) * buffer->view.stride_row +
         head * buffer->view.stride_head;
}

static char *element_address(const Trial *trial, TrialRole role, int b, int64_t row, int head,
                             int i) {
  const TrialBuffer *buffer = &trial->buffers[role];
  int64_t index = role >= TRIAL_SINK ? head : element_index(trial, buffer, b, row, head) + i;
  return (char *)buffer->view.data + index * dtype_size(buffer->dtype);
}

double trial_get(const Trial *trial, TrialRole role, int b, int64_t row, int head, int i) {
  float value;
  numbers_load(trial->buffers[role].dtype, element_address(trial, role, b, row, head, i), 1,
               &value);
  return (double)value;
}

void trial_set(Trial *trial, TrialRole role, int b, int64_t row, int head, int i, double value) {
  float narrow = (float)value;
  numbers_store(trial->buffers[role].dtype, &narrow, 1,
                element_address(trial, role, b, row, head, i));
}

/* Memory for the view's strides, all poison. `skew`: elements by which the base is off
 * alignment. */
static void allocate(TrialBuffer *buffer, int64_t skew) {
  int64_t last = 0, size = dtype_size(buffer->dtype);
  if (buffer->batch > 1)
    last += (buffer->batch - 1) * buffer->view.stride_batch;
  if (buffer->rows > 1)
    last += (buffer->rows - 1) * buffer->view.stride_row;
  if (buffer->heads > 1)
    last += (buffer->heads - 1) * buffer->view.stride_head;
  buffer->base = GUARD + (size_t)(skew * size);
  buffer->bytes =
      (buffer->base + (size_t)((last + buffer->dim) * size) + 2 * GUARD - 1) / GUARD * GUARD;
  buffer->memory = aligned_alloc(GUARD, buffer->bytes);
  require(buffer->memory, buffer->name);
  memset(buffer->memory, POISON, buffer->bytes);
  buffer->view.data = buffer->memory + buffer->base;
}

static int64_t slot_rows(const Trial *trial, bool keys, int b) {
  return keys ? trial->lengths->rows_k[b] : trial->lengths->rows_q[b];
}

static void fill_random(Trial *trial, TrialRole role) {
  const TrialBuffer *buffer = &trial->buffers[role];
  uint64_t seed = trial->shape.seed * 64 + role;
  for (int b = 0; b < trial->lengths->batch; b++) {
    int64_t begin = buffer->keys ? trial->lengths->begin_k[b] : trial->lengths->begin_q[b];
    int64_t first = trial->lengths->packed ? begin : b * buffer->rows,
            rows = slot_rows(trial, buffer->keys, b);
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++)
      for (int head = 0; head < buffer->heads; head++)
        for (int i = 0; i < buffer->dim; i++) {
          int64_t index = ((first + row) * buffer->heads + head) * buffer->dim + i;
          trial_set(trial, role, b, row, head, i, (double)random_normal(seed, (uint64_t)index));
        }
  }
}

/* The strides that the shape asks for. */
static void choose_strides(const TrialShape *shape, TrialBuffer *buffer) {
  bool odd = shape->layout == ROTA_LAYOUT_ANY;
  int64_t pitch = buffer->dim;
  if (buffer->dim > 1)
    pitch = odd ? buffer->dim | 1 : (buffer->dim + 7) / 8 * 8;
  buffer->view.stride_head = shape->heads_outside ? pitch * buffer->rows : pitch;
  buffer->view.stride_row = shape->heads_outside ? pitch : pitch * buffer->heads;
  if (odd)
    buffer->view.stride_row += shape->heads_outside ? 0 : 3;
  buffer->view.stride_batch =
      pitch * buffer->rows * buffer->heads + (odd ? 3 * buffer->rows + 5 : 0);
}

static void add_tensor(Trial *trial, TrialRole role, const char *name, bool keys, int dim,
                       bool output) {
  const TrialShape *shape = &trial->shape;
  TrialBuffer *buffer = &trial->buffers[role];
  *buffer = (TrialBuffer){.name = name, .keys = keys, .output = output, .batch = shape->batch};
  buffer->heads = keys ? shape->kv_heads : shape->heads;
  buffer->dim = dim == 1 ? shape->head_dim : dim == 2 ? shape->head_dim_v : 1;
  buffer->dtype = dim == 0 ? ROTA_FP32 : shape->dtype;
  buffer->rows = keys ? shape->n_k : shape->n_q;
  if (trial->lengths->packed) {
    buffer->rows = keys ? shape->cu_k[shape->batch] : shape->cu_q[shape->batch];
    buffer->batch = 1;
  }
  choose_strides(shape, buffer);
  allocate(buffer, shape->layout == ROTA_LAYOUT_ANY ? 1 : 0);
  if (!output)
    fill_random(trial, role);
}

static void add_sink(Trial *trial, TrialRole role, const char *name, bool output) {
  TrialBuffer *buffer = &trial->buffers[role];
  *buffer = (TrialBuffer){
      .name = name, .output = output, .batch = 1, .rows = 1, .dim = 1, .dtype = ROTA_FP32};
  buffer->heads = trial->shape.heads;
  buffer->view.stride_head = 1;
  allocate(buffer, 0);
  for (int head = 0; head < buffer->heads && !output; head++)
    trial_set(trial, role, 0, 0, head, 0, (double)random_normal(trial->shape.seed, (uint64_t)head));
}

Trial *trial_create(const TrialShape *shape) {
  Trial *trial = calloc(1, sizeof *trial);
  require(trial, "out of memory");
  trial->shape = *shape;
  if (!trial->shape.heads)
    trial->shape.heads = 1;
  if (!trial->shape.kv_heads)
    trial->shape.kv_heads = trial->shape.heads;
  if (!trial->shape.head_dim_v)
    trial->shape.head_dim_v = trial->shape.head_dim;
  rota_lengths lengths = {shape->batch, shape->n_q,    shape->n_k,   shape->cu_q,
                          shape->cu_k,  shape->used_q, shape->used_k};
  require(lengths_create(&lengths, &trial->lengths) == ROTA_OK, "lengths");
  enum { NEITHER, FORWARD, BACKWARD };
  const bool spread = shape->bound && strcmp(shape->bound, "spread") == 0;
#define X(role, field, keys, dim, writer)                                                          \
  if (TRIAL_##role == TRIAL_D_LSE         ? shape->d_lse                                           \
      : TRIAL_##role == TRIAL_MEAN_SQUARE ? spread                                                 \
                                          : true)                                                  \
    add_tensor(trial, TRIAL_##role, #field, keys, dim, writer != NEITHER);
  TRIAL_TENSOR_LIST(X)
#undef X
  if (shape->sink) {
    add_sink(trial, TRIAL_SINK, "sink", false);
    add_sink(trial, TRIAL_D_SINK, "d_sink", true);
  }
  return trial;
}

void trial_restride(Trial *trial, TrialRole role, int64_t batch, int64_t row, int64_t head) {
  Trial old = *trial;
  TrialBuffer *buffer = &trial->buffers[role];
  buffer->view.stride_batch = batch;
  buffer->view.stride_row = row;
  buffer->view.stride_head = head;
  allocate(buffer, 0);
  /* Backwards, so that where a stride of 0 lays parts over one another the first one's content
   * stays. */
  for (int b = trial->lengths->batch - 1; b >= 0; b--)
    for (int64_t r = slot_rows(trial, buffer->keys, b) - 1; r >= 0; r--)
      for (int h = buffer->heads - 1; h >= 0; h--)
        for (int i = 0; i < buffer->dim; i++)
          trial_set(trial, role, b, r, h, i, trial_get(&old, role, b, r, h, i));
  free(old.buffers[role].memory);
}

/* Elements of one role in logical order, as bytes or replaced by poison. */
static void walk_elements(const Trial *trial, TrialRole role, unsigned char *gather) {
  const TrialBuffer *buffer = &trial->buffers[role];
  size_t row_bytes = (size_t)buffer->dim * (size_t)dtype_size(buffer->dtype);
  int batch = role >= TRIAL_SINK ? 1 : trial->lengths->batch;
  for (int b = 0; b < batch; b++) {
    int64_t rows = role >= TRIAL_SINK ? 1 : slot_rows(trial, buffer->keys, b);
    for (int64_t row = 0; row < rows; row++)
      for (int head = 0; head < buffer->heads; head++) {
        char *at = element_address(trial, role, b, row, head, 0);
        if (gather) {
          memcpy(gather, at, row_bytes);
          gather += row_bytes;
        } else {
          memset(at, POISON, row_bytes);
        }
      }
  }
}

static size_t element_bytes(const Trial *trial, TrialRole role) {
  const TrialBuffer *buffer = &trial->buffers[role];
  int64_t rows = role >= TRIAL_SINK ? 1 : 0;
  for (int b = 0; b < trial->lengths->batch && role < TRIAL_SINK; b++)
    rows += slot_rows(trial, buffer->keys, b);
  return (size_t)(rows * buffer->heads * buffer->dim * dtype_size(buffer->dtype));
}

Digest trial_bits(const Trial *trial, TrialRole role) {
  size_t bytes = element_bytes(trial, role);
  unsigned char *gathered = malloc(bytes + 1);
  require(gathered, "out of memory");
  walk_elements(trial, role, gathered);
  Digest digest = digest_of(gathered, bytes);
  free(gathered);
  return digest;
}

static bool is_written(const Trial *trial, TrialRole role) {
  const TrialBuffer *buffer = &trial->buffers[role];
  if (!buffer->view.data || !buffer->output)
    return false;
  return !trial->shape.forward_only || role == TRIAL_O || role == TRIAL_LSE ||
         role == TRIAL_MEAN_SQUARE;
}

Digest trial_all_bits(const Trial *trial) {
  DigestStream *stream = digest_begin();
  require(stream, "out of memory");
  for (TrialRole role = 0; role < TRIAL_ROLES; role++)
    if (is_written(trial, role))
      digest_add_string(stream, trial_bits(trial, role).hex);
  return digest_end(stream);
}

bool trial_margins_intact(Trial *trial) {
  bool intact = true;
  for (TrialRole role = 0; role < TRIAL_ROLES; role++) {
    const TrialBuffer *buffer = &trial->buffers[role];
    if (!is_written(trial, role))
      continue;
    walk_elements(trial, role, NULL);
    for (size_t i = 0; i < buffer->bytes && intact; i++) {
      if (buffer->memory[i] == POISON)
        continue;
      fprintf(stderr, "%s: byte %zu of %zu (tensor at %zu) was written\n", buffer->name, i,
              buffer->bytes, buffer->base);
      intact = false;
    }
  }
  return intact;
}

void trial_reference(const Trial *trial, bool rounded, ReferenceResult *result) {
  const TrialShape *shape = &trial->shape;
  rota_arguments arguments = {0};
#define X(role, field, keys, dim, writer) arguments.field = trial->buffers[TRIAL_##role].view;
  TRIAL_TENSOR_LIST(X)
#undef X
  arguments.sink = trial->buffers[TRIAL_SINK].view.data;
  ReferenceProblem reference = {.direction = shape->forward_only ? ROTA_FORWARD : ROTA_BACKWARD,
                                .dtype = shape->dtype,
                                .head_dim = shape->head_dim,
                                .head_dim_v = shape->head_dim_v,
                                .heads = shape->heads,
                                .kv_heads = shape->kv_heads,
                                .lengths = trial->lengths,
                                .arguments = &arguments,
                                .rounded = rounded};
  reference.scale =
      shape->scale != 0.0f ? (double)shape->scale : 1.0 / sqrt((double)shape->head_dim);
  Bindings bindings = {0};
  ReferenceExpressions expressions = {&trial->kernels[ROTA_FORWARD]->spec, &bindings};
  if (shape->mask || shape->score) {
    bindings = trial->plans[ROTA_FORWARD]->plan->bindings;
    const Symbols *symbols = &trial->plans[ROTA_FORWARD]->plan->symbols;
    for (int t = 0; t < symbols->tensor_count; t++)
      for (int i = 0; i < shape->tensor_count; i++)
        if (strcmp(symbols->tensors[t].name, shape->tensors[i].name) == 0) {
          bindings.tensors[t].data = shape->tensors[i].data;
          memcpy(bindings.tensors[t].stride, shape->tensors[i].stride,
                 sizeof bindings.tensors[t].stride);
        }
    reference_use_expressions(&reference, &expressions);
  }
  if (shape->reference_mask)
    reference.mask = shape->reference_mask;
  if (shape->reference_score)
    reference.score = shape->reference_score;
  require(reference_run(&reference, result) == ROTA_OK, "reference");
}

static const double *reference_output(const ReferenceResult *result, TrialRole role) {
  switch (role) {
  case TRIAL_O:
    return result->o;
  case TRIAL_LSE:
    return result->lse;
  case TRIAL_MEAN_SQUARE:
    return result->mean_square;
  case TRIAL_D_Q:
    return result->d_q;
  case TRIAL_D_K:
    return result->d_k;
  case TRIAL_D_V:
    return result->d_v;
  case TRIAL_D_SINK:
    return result->d_sink;
  default:
    return NULL;
  }
}

/* Root mean square of a tensor's elements, past its NaN. */
static double root_mean_square(const Trial *trial, TrialRole role) {
  const TrialBuffer *buffer = &trial->buffers[role];
  double sum = 0.0, count = 0.0;
  for (int b = 0; b < trial->lengths->batch; b++)
    for (int64_t row = 0; row < slot_rows(trial, buffer->keys, b); row++)
      for (int head = 0; head < buffer->heads; head++)
        for (int i = 0; i < buffer->dim; i++) {
          double value = trial_get(trial, role, b, row, head, i);
          if (!isfinite(value))
            continue;
          sum += value * value;
          count += 1.0;
        }
  return count > 0.0 ? sqrt(sum / count) : 0.0;
}

/* A norm below which dQ and dK count as cancelled: dS = P (dP - delta) vanishes for a row of one
 * key, and what is left is noise of dP's size. A hundredth of a row's norm before cancelling, P
 * = 1; rows of thousands of keys are larger. */
static double cancelled_norm(const Trial *trial, TrialRole role, int64_t rows) {
  if (role != TRIAL_D_Q && role != TRIAL_D_K)
    return 0.0;
  const TrialShape *shape = &trial->shape;
  double scale = shape->scale != 0.0f ? (double)shape->scale : 1.0 / sqrt((double)shape->head_dim);
  double other = root_mean_square(trial, role == TRIAL_D_Q ? TRIAL_K : TRIAL_Q);
  double dp = root_mean_square(trial, TRIAL_D_O) * root_mean_square(trial, TRIAL_V);
  return 0.01 * fabs(scale) * other * dp * sqrt((double)shape->head_dim * shape->head_dim_v) *
         sqrt((double)rows);
}

/* The error of one output; `worst`: of a single row, in units of the root mean square row. */
static double compare(const Trial *trial, TrialRole role, const ReferenceResult *exact,
                      double floor, double *worst) {
  const TrialBuffer *buffer = &trial->buffers[role];
  const double *want = reference_output(exact, role);
  ReferenceError error = {0};
  double largest = 0.0;
  int64_t count = 0;
  int batch = role == TRIAL_D_SINK ? 1 : trial->lengths->batch;
  for (int b = 0; b < batch; b++) {
    int64_t rows = role == TRIAL_D_SINK ? 1 : slot_rows(trial, buffer->keys, b);
    for (int64_t row = 0; row < rows; row++)
      for (int head = 0; head < buffer->heads; head++, count++) {
        ReferenceError line = {0};
        for (int i = 0; i < buffer->dim; i++, want++)
          reference_error_add(&line, trial_get(trial, role, b, row, head, i), *want);
        error.difference += line.difference;
        error.norm += line.norm;
        if (line.difference > largest)
          largest = line.difference;
      }
  }
  if (error.norm < floor * floor)
    error.norm = floor * floor;
  *worst = largest == 0.0 ? 0.0 : sqrt(largest * (double)count / error.norm);
  return reference_error(&error);
}

/* mean_square may be more than the mean, of whose keys some count as their neighbours do, but not
 * less: by how much it is, or is above four times the mean. */
static double compare_squares(const Trial *trial, const double *want) {
  const TrialBuffer *buffer = &trial->buffers[TRIAL_MEAN_SQUARE];
  double worst = 0.0;
  for (int b = 0; b < trial->lengths->batch; b++)
    for (int64_t row = 0; row < slot_rows(trial, false, b); row++)
      for (int head = 0; head < buffer->heads; head++, want++) {
        double got = trial_get(trial, TRIAL_MEAN_SQUARE, b, row, head, 0);
        double error = got == *want ? 0.0 : fmax(1.0 - got / *want, 0.25 * got / *want - 1.0);
        if (!(error <= worst))
          worst = error;
      }
  return worst;
}

static double compare_references(const ReferenceResult *got, const ReferenceResult *want,
                                 TrialRole role, int64_t count, double floor) {
  const double *a = reference_output(got, role), *b = reference_output(want, role);
  ReferenceError error = {0};
  for (int64_t i = 0; i < count; i++)
    reference_error_add(&error, a[i], b[i]);
  if (error.norm < floor * floor)
    error.norm = floor * floor;
  return reference_error(&error);
}

/* What fp32 accumulation alone may cost, whatever the dtype: sums of a few thousand terms, exp
 * and log. */
#define NOISE 2e-5

static double rounding_of(rota_dtype dtype) {
  return dtype == ROTA_BF16 ? 1.6e-3 : dtype == ROTA_FP16 ? 2e-4 : 0.0;
}

/* What rounding a result alone costs, as a root mean square: where the rest of a computation
 * happens to be exact, the yardstick is no larger. LSE is fp32. dSink is too, but sums O rounded
 * to its dtype; it has one number a head, too few for its own yardstick to be more than chance. */
static double rounding_alone(const Trial *trial, TrialRole role) {
  if (role == TRIAL_D_SINK)
    return 0.5 * rounding_of(trial->buffers[TRIAL_O].dtype);
  return rounding_of(trial->buffers[role].dtype);
}

void trial_references_make(const Trial *trial, TrialReferences *references) {
  trial_reference(trial, false, &references->exact);
  trial_reference(trial, true, &references->rounded);
}

void trial_references_free(TrialReferences *references) {
  reference_free(&references->exact);
  reference_free(&references->rounded);
}

TrialReport trial_compare(const Trial *trial, const TrialReferences *references) {
  TrialReport report = {.good = true};
  for (TrialRole role = 0; role < TRIAL_ROLES; role++) {
    if (!is_written(trial, role))
      continue;
    int64_t count = (int64_t)element_bytes(trial, role) / dtype_size(trial->buffers[role].dtype);
    double floor = cancelled_norm(trial, role, count / trial->buffers[role].dim);
    report.error[role] =
        role == TRIAL_MEAN_SQUARE
            ? compare_squares(trial, references->exact.mean_square)
            : compare(trial, role, &references->exact, floor, &report.worst_row[role]);
    report.yardstick[role] =
        compare_references(&references->rounded, &references->exact, role, count, floor);
    report.limit[role] = 2.0 * fmax(report.yardstick[role], rounding_alone(trial, role)) + NOISE;
    if (!(report.error[role] <= report.limit[role]))
      report.good = false;
  }
  return report;
}

TrialReport trial_check(const Trial *trial) {
  TrialReferences references;
  trial_references_make(trial, &references);
  TrialReport report = trial_compare(trial, &references);
  trial_references_free(&references);
  return report;
}

void trial_print_report(const TrialReport *report) {
  static const struct {
    TrialRole role;
    const char *name;
  } columns[] = {{TRIAL_O, "o"},         {TRIAL_LSE, "lse"}, {TRIAL_MEAN_SQUARE, "square"},
                 {TRIAL_D_Q, "dq"},      {TRIAL_D_K, "dk"},  {TRIAL_D_V, "dv"},
                 {TRIAL_D_SINK, "dsink"}};
  for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
    TrialRole role = columns[i].role;
    if (report->limit[role] == 0.0)
      continue;
    printf(" %s %.1e/%.1e", columns[i].name, report->error[role], report->yardstick[role]);
  }
  printf(report->good ? "\n" : "  TOO LARGE\n");
}
