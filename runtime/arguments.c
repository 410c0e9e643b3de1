/* The arguments of a run: checks and the block that kernels take. */
#include "runtime/arguments.h"

#include <string.h>

/* What a direction does with a tensor. */
typedef enum Role { UNUSED, READ, WRITTEN, OPTIONAL } Role;

/* One line per tensor of rota_arguments: its rows follow q or k, its heads are query or kv heads,
 * its elements are of the spec's dtype or fp32. */
typedef struct TensorUse {
  const char *name;
  size_t offset; /* in rota_arguments */
  bool keys;     /* rows and heads of K and V */
  bool element;  /* the spec's dtype; else fp32 */
  Role role[2];  /* by rota_direction */
} TensorUse;

#define USE(name, keys, element, forward, backward)                                                \
  {                                                                                                \
#name, offsetof(rota_arguments, name), keys, element, {                                        \
      forward, backward                                                                            \
    }                                                                                              \
  }
static const TensorUse tensor_uses[] = {
    USE(q, false, true, READ, READ),
    USE(k, true, true, READ, READ),
    USE(v, true, true, READ, READ),
    USE(o, false, true, WRITTEN, READ),
    USE(lse, false, false, WRITTEN, READ),
    USE(d_o, false, true, UNUSED, READ),
    USE(d_q, false, true, UNUSED, WRITTEN),
    USE(d_k, true, true, UNUSED, WRITTEN),
    USE(d_v, true, true, UNUSED, WRITTEN),
    USE(d_lse, false, false, UNUSED, OPTIONAL),
    USE(mean_square, false, false, WRITTEN, READ),
};
#undef USE

Extents arguments_extents(const rota_plan *plan, bool keys) {
  const Lengths *lengths = plan->plan->lengths;
  int64_t longest = keys ? plan->longest_k : plan->longest_q;
  int64_t span = keys ? plan->span_k : plan->span_q;
  return (Extents){.batch = lengths->packed ? 1 : lengths->batch,
                   .rows = lengths->packed ? span : longest,
                   .heads = keys ? plan->plan->kv_heads : plan->plan->heads};
}

static const char *direction_name(const rota_plan *plan) {
  return plan->plan->direction == ROTA_FORWARD ? "forward" : "backward";
}

/* The last element's offset must fit 64 bits, counted in bytes with room for one row. */
static rota_status check_reach(const TensorUse *use, const rota_tensor *tensor, Extents extents) {
  const int64_t limit = INT64_MAX / 8;
  const struct {
    const char *name;
    int64_t stride, extent;
  } steps[] = {{"stride_batch", tensor->stride_batch, extents.batch},
               {"stride_row", tensor->stride_row, extents.rows},
               {"stride_head", tensor->stride_head, extents.heads}};
  for (int i = 0; i < 3; i++) {
    int64_t reach;
    if (steps[i].extent < 2)
      continue;
    if (__builtin_mul_overflow(steps[i].stride, steps[i].extent, &reach) || reach > limit ||
        reach < -limit)
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "%s.%s is %lld: %lld steps of it leave the address space", use->name,
                         steps[i].name, (long long)steps[i].stride, (long long)steps[i].extent);
  }
  return ROTA_OK;
}

/* An output whose rows share memory would hold whichever was written last. Inputs may (an expanded
 * tensor). */
static rota_status check_distinct(const TensorUse *use, const rota_tensor *tensor,
                                  Extents extents) {
  const char *shared = tensor->stride_batch == 0 && extents.batch > 1  ? "stride_batch"
                       : tensor->stride_row == 0 && extents.rows > 1   ? "stride_row"
                       : tensor->stride_head == 0 && extents.heads > 1 ? "stride_head"
                                                                       : NULL;
  if (!shared)
    return ROTA_OK;
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "%s is an output and %s is 0: its parts would overwrite each other; give the "
                     "stride in elements",
                     use->name, shared);
}

/* A kernel of the aligned layout class loads 16 bytes at a time. */
static rota_status check_vectors(const rota_plan *plan, const TensorUse *use,
                                 const rota_tensor *tensor, Extents extents) {
  int64_t elements = 16 / dtype_size(plan->kernel->spec.dtype);
  if ((uintptr_t)tensor->data % 16 != 0)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "%s.data is %p, not a multiple of 16 bytes, which this kernel's loads need: "
                       "align it, or prepare the kernel with ROTA_LAYOUT_ANY",
                       use->name, tensor->data);
  const char *name = extents.batch > 1 && tensor->stride_batch % elements  ? "stride_batch"
                     : tensor->stride_row % elements                       ? "stride_row"
                     : extents.heads > 1 && tensor->stride_head % elements ? "stride_head"
                                                                           : NULL;
  if (!name)
    return ROTA_OK;
  int64_t stride = name[7] == 'b'   ? tensor->stride_batch
                   : name[7] == 'r' ? tensor->stride_row
                                    : tensor->stride_head;
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "%s.%s is %lld elements, not a multiple of %lld (16 bytes), which this "
                     "kernel's loads need: pad it, or prepare the kernel with ROTA_LAYOUT_ANY",
                     use->name, name, (long long)stride, (long long)elements);
}

static rota_status check_tensor(const rota_plan *plan, const TensorUse *use,
                                const rota_tensor *tensor) {
  Role role = use->role[plan->plan->direction];
  if (role == UNUSED)
    return ROTA_OK;
  Extents extents = arguments_extents(plan, use->keys);
  int64_t elements = (use->keys ? plan->rows_k : plan->rows_q) * extents.heads;
  if (!tensor->data) {
    /* An empty tensor has no address to give. */
    if (role == OPTIONAL || elements == 0)
      return ROTA_OK;
    return status_fail(ROTA_INVALID_ARGUMENT, "%s.data is NULL, but %s %s it", use->name,
                       direction_name(plan), role == READ ? "reads" : "writes");
  }
  if (elements == 0)
    return ROTA_OK;
  int size = use->element ? dtype_size(plan->kernel->spec.dtype) : 4;
  if ((uintptr_t)tensor->data % (unsigned)size != 0)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "%s.data is %p, which is not a multiple of its element's %d bytes",
                       use->name, tensor->data, size);
  ROTA_TRY(check_reach(use, tensor, extents));
  if (role == WRITTEN)
    ROTA_TRY(check_distinct(use, tensor, extents));
  if (use->element && plan->kernel->layout == ROTA_LAYOUT_ALIGNED)
    ROTA_TRY(check_vectors(plan, use, tensor, extents));
  return ROTA_OK;
}

/* What only specs with bound = "spread" have. */
static bool is_spread(const TensorUse *use) {
  return use->offset == offsetof(rota_arguments, mean_square);
}

static rota_status check_spread(const rota_plan *plan, const rota_arguments *arguments) {
  bool has = plan->kernel->spec.spread, given = arguments->mean_square.data != NULL;
  if (given && !has)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "mean_square was given, but the spec's bound is not \"spread\": set it, or "
                       "pass NULL");
  bool backward = plan->plan->direction == ROTA_BACKWARD;
  if (has && !given && backward && plan->rows_q > 0)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "mean_square.data is NULL, but bound = \"spread\" goes by it: the forward "
                       "pass of the same spec writes it; after any other one use bound = \"norm\"");
  return ROTA_OK;
}

static rota_status check_sink(const rota_plan *plan, const rota_arguments *arguments) {
  bool has = plan->kernel->spec.sink_logit;
  bool backward = plan->plan->direction == ROTA_BACKWARD;
  if (has && !arguments->sink)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "sink is NULL, but the spec has sink_logit: give one fp32 logit per head");
  if (!has && (arguments->sink || (backward && arguments->d_sink)))
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "%s was given, but the spec has no sink_logit: set it, or pass NULL",
                       arguments->sink ? "sink" : "d_sink");
  if ((uintptr_t)arguments->sink % 4 || (backward && (uintptr_t)arguments->d_sink % 4))
    return status_fail(ROTA_INVALID_ARGUMENT, "sink and d_sink are fp32: align them to 4 bytes");
  return ROTA_OK;
}

/* A tensor of the score without data in the plan. Masks are classified when planning: theirs are
 * always there. */
static bool passed_by_run(const Plan *plan, int index) {
  return plan->tensors[index].count == 0 && !plan->symbols.tensors[index].in_mask;
}

static const rota_named_tensor *find_tensor(const rota_arguments *arguments, const char *name) {
  for (int i = 0; i < arguments->tensor_count; i++)
    if (arguments->tensors[i].name && strcmp(arguments->tensors[i].name, name) == 0)
      return &arguments->tensors[i];
  return NULL;
}

/* The bounds proof of the plan holds for the sizes it was given, so a run's sizes must be the same.
 */
static rota_status check_named(const rota_plan *plan, int index, const rota_named_tensor *tensor) {
  const TensorSymbol *symbol = &plan->plan->symbols.tensors[index];
  const TensorBinding *planned = &plan->plan->bindings.tensors[index];
  if (tensor->dtype != symbol->element || tensor->rank != symbol->rank)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "tensor '%s' has dtype %s and rank %d; the spec uses it with %s and rank %d",
                       symbol->name, dtype_name(tensor->dtype), tensor->rank,
                       dtype_name(symbol->element), symbol->rank);
  bool empty = false;
  for (int i = 0; i < symbol->rank; i++) {
    empty = empty || tensor->size[i] == 0;
    if (tensor->size[i] != planned->size[i])
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "tensor '%s' has size %lld in dimension %d; the plan was made for %lld",
                         symbol->name, (long long)tensor->size[i], i + 1,
                         (long long)planned->size[i]);
  }
  if (!empty && (!tensor->data || (uintptr_t)tensor->data % 4))
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "tensor '%s': data is %s; pass its address, in the plan's device",
                       symbol->name, tensor->data ? "not aligned to 4 bytes" : "NULL");
  return ROTA_OK;
}

/* Every tensor that the plan has no data for is given, and nothing else. */
static rota_status check_named_tensors(const rota_plan *plan, const rota_arguments *arguments) {
  const Symbols *symbols = &plan->plan->symbols;
  if (arguments->tensor_count < 0 || (arguments->tensor_count > 0 && !arguments->tensors))
    return status_fail(ROTA_INVALID_ARGUMENT, "tensor_count is %d and tensors is %p",
                       arguments->tensor_count, (const void *)arguments->tensors);
  int expected = 0;
  for (int i = 0; i < symbols->tensor_count; i++) {
    if (!passed_by_run(plan->plan, i))
      continue;
    const rota_named_tensor *tensor = find_tensor(arguments, symbols->tensors[i].name);
    if (!tensor)
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "tensor '%s' of the score is missing: the plan was not given its data, so "
                         "each run passes it in `tensors`",
                         symbols->tensors[i].name);
    ROTA_TRY(check_named(plan, i, tensor));
    expected++;
  }
  for (int i = 0; i < arguments->tensor_count && arguments->tensor_count != expected; i++) {
    const char *name = arguments->tensors[i].name ? arguments->tensors[i].name : "";
    int index = 0;
    while (index < symbols->tensor_count && strcmp(symbols->tensors[index].name, name) != 0)
      index++;
    if (index == symbols->tensor_count || !passed_by_run(plan->plan, index))
      return status_fail(ROTA_INVALID_ARGUMENT, "tensor '%s' is not one that a run passes: %s",
                         name,
                         index == symbols->tensor_count ? "the spec names no such tensor"
                                                        : "the plan holds its data");
  }
  return ROTA_OK;
}

rota_status arguments_check(const rota_plan *plan, const rota_arguments *arguments) {
  ROTA_TRY(check_spread(plan, arguments));
  for (size_t i = 0; i < sizeof tensor_uses / sizeof tensor_uses[0]; i++) {
    rota_tensor tensor;
    if (is_spread(&tensor_uses[i]) && !plan->kernel->spec.spread)
      continue;
    memcpy(&tensor, (const char *)arguments + tensor_uses[i].offset, sizeof tensor);
    ROTA_TRY(check_tensor(plan, &tensor_uses[i], &tensor));
  }
  ROTA_TRY(check_sink(plan, arguments));
  return check_named_tensors(plan, arguments);
}

rota_status arguments_check_workspace(const rota_plan *plan, const void *workspace, size_t bytes) {
  size_t needed = (size_t)plan->plan->workspace.bytes;
  if (needed == 0)
    return ROTA_OK;
  if (!workspace)
    return status_fail(ROTA_WORKSPACE, "workspace is NULL; this plan needs %zu bytes", needed);
  if (bytes < needed)
    return status_fail(ROTA_WORKSPACE,
                       "workspace_size is %zu bytes; this plan needs %zu (see "
                       "rota_plan_workspace_size)",
                       bytes, needed);
  if ((uintptr_t)workspace % 256)
    return status_fail(ROTA_WORKSPACE, "workspace is %p; its address must be a multiple of 256",
                       workspace);
  return ROTA_OK;
}

static RotaTensor device_tensor(const rota_tensor *tensor) {
  return (RotaTensor){tensor->data, tensor->stride_batch, tensor->stride_row, tensor->stride_head};
}

static void fill_tensors(const rota_arguments *arguments, RotaArguments *block) {
  block->q = device_tensor(&arguments->q);
  block->k = device_tensor(&arguments->k);
  block->v = device_tensor(&arguments->v);
  block->o = device_tensor(&arguments->o);
  block->lse = device_tensor(&arguments->lse);
  block->d_o = device_tensor(&arguments->d_o);
  block->d_q = device_tensor(&arguments->d_q);
  block->d_k = device_tensor(&arguments->d_k);
  block->d_v = device_tensor(&arguments->d_v);
  block->d_lse = device_tensor(&arguments->d_lse);
  block->mean_square = device_tensor(&arguments->mean_square);
  block->sink = arguments->sink;
  block->d_sink = arguments->d_sink;
}

/* A device address as the kernels' pointer. */
static void *device_pointer(CUdeviceptr base, int64_t offset) {
  return (void *)(uintptr_t)(base + (CUdeviceptr)offset);
}

static void fill_tables(const rota_plan *plan, RotaArguments *block) {
  const Plan *tables = plan->plan;
  block->sequences = device_pointer(plan->image, tables->sequences.offset);
  block->rows = device_pointer(plan->image, tables->rows.offset);
  block->runs = device_pointer(plan->image, tables->runs.offset);
  block->row_items = device_pointer(plan->image, tables->row_items.offset);
  block->chains = device_pointer(plan->image, tables->chains.offset);
  block->visits = device_pointer(plan->image, tables->visits.offset);
  block->chain_items = device_pointer(plan->image, tables->chain_items.offset);
  block->queue = plan->one_each ? NULL : device_pointer(plan->image, tables->queue.offset);
  block->pieces = device_pointer(plan->image, tables->pieces.offset);
  block->joins = device_pointer(plan->image, tables->joins.offset);
  block->piece_begin = (int)plan_whole_rows(tables);
  block->heads = tables->heads;
  block->kv_heads = tables->kv_heads;
  block->batch = tables->lengths->batch;
  block->tiles = plan->tiles;
  block->row_item_count = (int)tables->row_items.count;
  block->chain_item_count = (int)tables->chain_items.count;
  block->workers = tables->workers;
  block->preparers = (int)plan_grid(tables, GRID_PREPARERS);
}

static void fill_symbols(const rota_plan *plan, const rota_arguments *arguments,
                         RotaArguments *block) {
  const Plan *tables = plan->plan;
  _Static_assert(sizeof(RotaScalar) == sizeof(Scalar), "both hold 32 bits of int or float");
  _Static_assert(ROTA_ABI_PARAMETERS == PARAMETERS_MAX && ROTA_ABI_TENSORS == TENSORS_MAX &&
                     ROTA_ABI_RANK == TENSOR_RANK_MAX,
                 "the generator's limits are the kernels' limits");
  memcpy(block->parameters, tables->bindings.parameters, sizeof block->parameters);
  if (strcmp(tables->tiling.algorithm, backward_name(BACKWARD_EXACT)) == 0) /* checked: it exists */
    expression_slope_bound(plan->kernel->spec.score_derivative, &tables->bindings,
                           &block->parameters[ROTA_ABI_PARAMETERS - 1].as_float);
  for (int i = 0; i < tables->symbols.tensor_count; i++) {
    RotaIndexed *to = &block->tensors[i];
    const TensorBinding *binding = &tables->bindings.tensors[i];
    const rota_named_tensor *given = NULL;
    if (passed_by_run(tables, i))
      given = find_tensor(arguments, tables->symbols.tensors[i].name);
    to->data = given ? given->data : device_pointer(plan->image, tables->tensors[i].offset);
    for (int j = 0; j < tables->symbols.tensors[i].rank; j++) {
      to->size[j] = binding->size[j];
      to->stride[j] = given ? given->stride[j] : binding->stride[j];
    }
  }
}

static void fill_works(const rota_plan *plan, char *scratch, RotaMaterialised *block) {
  const Works *works = &plan->plan->works;
  const RotaWorkspace *workspace = &plan->plan->workspace;
  block->units = device_pointer(plan->works_image, works->units.offset);
  block->segments = device_pointer(plan->works_image, works->segments.offset);
  block->chunks = device_pointer(plan->works_image, works->chunks.offset);
  block->works = device_pointer(plan->works_image, works->works.offset);
  block->offsets = device_pointer(plan->works_image, works->offsets.offset);
  block->segment_count = (int)works->segments.count;
  block->chunk_count = (int)works->chunks.count;
  block->ticket_count = works->tickets;
  block->scores = (unsigned char *)scratch + workspace->scores;
  block->stats = (float *)(void *)(scratch + workspace->stats);
  block->sum_q = (float *)(void *)(scratch + workspace->sum_q);
  block->sum_k = (float *)(void *)(scratch + workspace->sum_k);
  block->counters = (int *)(void *)(scratch + workspace->work_counters);
}

void arguments_fill(const rota_plan *plan, const rota_arguments *arguments, void *workspace,
                    RotaArguments *block) {
  memset(block, 0, sizeof *block);
  fill_tensors(arguments, block);
  fill_tables(plan, block);
  fill_symbols(plan, arguments, block);
  block->scale = plan->kernel->spec.scale;
  char *scratch = workspace;
  if (!scratch)
    return;
  block->delta = (float *)(void *)(scratch + plan->plan->workspace.delta);
  block->dq_accumulator = (float *)(void *)(scratch + plan->plan->workspace.dq_accumulator);
  block->counters = (int *)(void *)(scratch + plan->plan->workspace.counters);
  block->partials = (float *)(void *)(scratch + plan->plan->workspace.partials);
  block->partial_lse = (float *)(void *)(scratch + plan->plan->workspace.partial_lse);
  fill_works(plan, scratch, &block->materialised);
}
