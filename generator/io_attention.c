/* Level 5. Running the algorithms, and their bounds: see io_attention.h. */
#include "generator/io_attention.h"

#include <math.h>
#include <string.h>

#include "generator/io_programs.h"

const char *io_algorithm_name(IoAlgorithm algorithm) {
  static const char *const names[] = {
#define X(name, text) text,
      IO_ALGORITHM_LIST(X)
#undef X
  };
  return names[algorithm];
}

static char role_of(const IoProblem *problem, IoTensor tensor) {
  static const char *const roles[] = {
#define X(name, rows, columns, roles) roles,
      IO_TENSOR_LIST(X)
#undef X
  };
  return roles[tensor][2 * (problem->form == IO_PAPER) + (problem->direction == ROTA_BACKWARD)];
}

static void shape_of(const IoProblem *problem, IoTensor tensor, int64_t *rows, int64_t *columns) {
  int64_t n = problem->n, d = problem->d;
  const int64_t shapes[][2] = {
#define X(name, rows, columns, roles) {rows, columns},
      IO_TENSOR_LIST(X)
#undef X
  };
  *rows = shapes[tensor][0];
  *columns = shapes[tensor][1];
}

int64_t io_tensor_elements(const IoProblem *problem, IoTensor tensor, char role) {
  int64_t rows, columns;
  shape_of(problem, tensor, &rows, &columns);
  return role_of(problem, tensor) == role ? rows * columns : 0;
}

static rota_status check(const IoProblem *problem) {
  if (problem->n < 1 || problem->n > IO_LENGTH_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "n = %lld: 1 to %d rows are counted",
                       (long long)problem->n, IO_LENGTH_MAX);
  if (problem->d < 1 || problem->d > IO_HEAD_DIM_MAX)
    return status_fail(ROTA_INVALID_ARGUMENT, "d = %lld: head dims from 1 to %d are counted",
                       (long long)problem->d, IO_HEAD_DIM_MAX);
  if (problem->m < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "M = %lld: fast memory has at least one element",
                       (long long)problem->m);
  return ROTA_OK;
}

int64_t io_attention_minimum(const IoProblem *problem, IoAlgorithm algorithm) {
  enum { TILED_MINIMUM = 3 }; /* an accumulator and two factors */
  return algorithm == IO_LARGE_CACHE ? io_large_cache_minimum(problem) : TILED_MINIMUM;
}

/* ---- Running ---- */

/* K is A2 in the paper's form: the same matrix under both names. */
static void open_tensors(IoJob *job) {
  for (int i = 0; i < IO_TENSORS; i++) {
    int64_t rows, columns;
    shape_of(job->problem, (IoTensor)i, &rows, &columns);
    if (role_of(job->problem, (IoTensor)i) != '.')
      job->tensors[i] = io_matrix_create(job->machine, rows, columns);
  }
  if (job->problem->form == IO_PAPER)
    job->tensors[IO_K] = job->tensors[IO_A2];
}

/* Between the caller's arrays and slow memory, before and after the game: not counted. */
static void copy_values(const IoJob *job, IoValues *values, char role) {
  for (int i = 0; i < IO_TENSORS; i++) {
    size_t bytes = (size_t)io_tensor_elements(job->problem, (IoTensor)i, role) * sizeof(double);
    if (bytes == 0)
      continue;
    double *inside = job->tensors[i]->data, *outside = values->of[i];
    memcpy(role == 'i' ? inside : outside, role == 'i' ? outside : inside, bytes);
  }
}

static rota_status run_on(IoMachine *machine, const IoProblem *problem, IoAlgorithm algorithm,
                          IoValues *values, IoCount *count) {
  IoJob job = {.problem = problem, .machine = machine, .naive = algorithm == IO_NAIVE};
  open_tensors(&job);
  if (values && !io_refused(machine))
    copy_values(&job, values, 'i');
  ROTA_TRY(algorithm == IO_LARGE_CACHE ? io_large_cache_run(&job) : io_tiled_run(&job));
  ROTA_TRY(io_machine_finish(machine, count));
  if (values)
    copy_values(&job, values, 'o');
  return ROTA_OK;
}

rota_status io_attention_run(const IoProblem *problem, IoAlgorithm algorithm, IoValues *values,
                             IoCount *count) {
  *count = (IoCount){0};
  ROTA_TRY(check(problem));
  int64_t minimum = io_attention_minimum(problem, algorithm);
  if (problem->m < minimum)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "M = %lld is too small for %s at d = %lld: at least %lld elements",
                       (long long)problem->m, io_algorithm_name(algorithm), (long long)problem->d,
                       (long long)minimum);
  IoMachine *machine;
  ROTA_TRY(io_machine_create(values ? IO_EXECUTE : IO_COUNT, problem->m, &machine));
  rota_status status = run_on(machine, problem, algorithm, values, count);
  io_machine_destroy(machine);
  return status;
}

/* ---- Bounds ---- */

rota_status io_attention_bounds(const IoProblem *problem, IoBounds *bounds) {
  ROTA_TRY(check(problem));
  double n = (double)problem->n, d = (double)problem->d, m = (double)problem->m;
  bool paper = problem->form == IO_PAPER;
  *bounds = (IoBounds){.pairs = problem->n * problem->n};
  if (problem->mask) {
    IoPlane plane; /* tiles of one position are decided exactly */
    ROTA_TRY(io_plane_build(problem->mask, problem->bindings, (int32_t)problem->n, 1, 1, &plane));
    bounds->pairs = plane.pairs;
    io_plane_free(&plane);
  }
  double z = n * d, pairs = (double)bounds->pairs;
  double large = z * z + (paper ? n * d * d * d : 0);
  double small = z * sqrt(pairs) + (paper ? n * d * d : 0);
  bounds->large = large / m;
  bounds->small = small / sqrt(m);
  bounds->lower_bound = fmin(bounds->large, bounds->small);
  bounds->crossing_m = small > 0 ? large / small * (large / small) : 0;
  for (int i = 0; i < IO_TENSORS; i++)
    bounds->compulsory += io_tensor_elements(problem, (IoTensor)i, 'i') +
                          io_tensor_elements(problem, (IoTensor)i, 'o');
  return ROTA_OK;
}
