/* Level 7. Plans: from a request to the image.
 *
 *     request -> lengths, values -> planes (maps, patterns) -> counts -> image -> tables in it
 *
 * The image is one block, so that a device gets it in one copy: sections in the order of Plan's
 * fields, then the tensors of the mask. Everything on the way is freed before plan_build returns.
 */
#include "generator/plan_cut.h"
#include "generator/plan_problem.h"
#include "generator/plan_tables.h"
#include "generator/plan_values.h"
#include "generator/plan_works.h"

#include <stdlib.h>
#include <string.h>

enum { SECTION_ALIGN = 16, WORKSPACE_ALIGN = 256 };

static int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/* ---- Layout of the image ---- */

/* A section of `count` entries at the image's end so far. */
static void place(size_t *end, RotaSection *section, int64_t count, size_t size) {
  section->offset = (long long)*end;
  section->count = count;
  *end = (size_t)round_up((int64_t)(*end + (size_t)count * size), SECTION_ALIGN);
}

/* Tables first, then the tensors that the plan owns. Counts are below 2^31, tensors below 2^40: no
 * overflow. */
static rota_status lay_out(Plan *plan, const TableCounts *counts) {
  size_t end = 0;
  place(&end, &plan->sequences, counts->sequences, sizeof(RotaSequence));
  place(&end, &plan->rows, counts->rows + counts->pieces, sizeof(RotaRow));
  place(&end, &plan->runs, counts->runs, sizeof(RotaRun));
  place(&end, &plan->row_items, counts->row_items, sizeof(RotaItem));
  place(&end, &plan->chains, counts->chains, sizeof(RotaChain));
  place(&end, &plan->visits, counts->visits, sizeof(RotaVisit));
  place(&end, &plan->chain_items, counts->chain_items, sizeof(RotaItem));
  place(&end, &plan->pieces, counts->pieces, sizeof(RotaPiece));
  place(&end, &plan->joins, counts->joins, sizeof(RotaJoin));
  place(&end, &plan->queue, counts->queue, sizeof(int));
  for (int i = 0; i < plan->symbols.tensor_count; i++) {
    const TensorBinding *tensor = &plan->bindings.tensors[i];
    place(&end, &plan->tensors[i], tensor->data ? tensor_elements(tensor) : 0, sizeof(float));
  }
  plan->image_bytes = end + SECTION_ALIGN; /* masks read element 0 of a tensor without any */
  plan->image = memory_allocate(plan->image_bytes, 1);
  return plan->image ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* For writing, while the plan is being built. */
static void *section_at(const Plan *plan, RotaSection section) {
  return plan->image + section.offset;
}

/* From here on the bindings no longer need the caller's memory. */
static void own_tensors(Plan *plan) {
  for (int i = 0; i < plan->symbols.tensor_count; i++) {
    TensorBinding *tensor = &plan->bindings.tensors[i];
    if (!tensor->data)
      continue;
    void *copy = section_at(plan, plan->tensors[i]);
    tensor_copy_compact(tensor, copy);
    tensor_compact_strides(tensor);
    tensor->data = copy;
  }
}

/* ---- Workspace of a run ---- */

/* Of a forward pass that gives mean_square: floats of each kv tile and head, tile_squares in
 * templates/hopper/forward_spread.cuh. */
static int64_t squares_size(const Plan *plan, const Tiling *tiling) {
  int64_t tile = tiling->tile_kv, tiles = 0, floats = 4 * ((tile + 31) / 32);
  const Lengths *lengths = plan->lengths;
  for (int32_t b = 0; b < lengths->batch; b++) {
    int64_t own = (lengths->rows_k[b] + tile - 1) / tile, slot = lengths->packed ? 0 : b;
    int64_t end = slot * own + lengths->begin_k[b] / tile + 2 * (int64_t)b + own;
    if (end > tiles)
      tiles = end;
  }
  return tiles * plan->kv_heads * floats * (int64_t)sizeof(float);
}

/* Squares and partial results are never wanted together. */
static RotaWorkspace forward_workspace(const Plan *plan, const Tiling *tiling, int head_dim_v) {
  RotaWorkspace workspace = {0};
  int64_t element = (int64_t)sizeof(float);
  if (tiling_get(tiling, "spread", 0)) {
    workspace.works = workspace.bytes = round_up(squares_size(plan, tiling), WORKSPACE_ALIGN);
    return workspace;
  }
  workspace.partial_lse = round_up(plan->partial_rows * head_dim_v * element, WORKSPACE_ALIGN);
  workspace.works = workspace.bytes =
      round_up(workspace.partial_lse + plan->partial_rows * element, WORKSPACE_ALIGN);
  return workspace;
}

/* Blocks that prepare rows, at most. Of co_resident workers none starts before all rows are
 * prepared, so that may fill the device; the layout is made before it is known whether they are. */
static int64_t most_preparers(const Plan *plan) {
  return tiling_get(&plan->tiling, "rows_beside", 0) ? plan->gang : 0;
}

static RotaWorkspace workspace_layout(const Plan *plan, rota_direction direction,
                                      const Tiling *tiling, const Spec *spec) {
  if (direction != ROTA_BACKWARD)
    return forward_workspace(plan, tiling, spec->head_dim_v);
  RotaWorkspace workspace = {0};
  int64_t blocks = plan->row_items.count;
  int64_t rows = blocks * tiling->tile_q, element = (int64_t)sizeof(float);
  bool accumulates = strcmp(tiling->algorithm, "two_pass") != 0 && !works_wanted(tiling);
  int64_t columns = accumulates ? round_up(spec->head_dim, tiling_get(tiling, "pad", 16)) : 0;
  workspace.delta = 0;
  workspace.dq_accumulator =
      round_up(rows * tiling_get(tiling, "row_values", 1) * element, WORKSPACE_ALIGN);
  int64_t dq_end = workspace.dq_accumulator + rows * columns * element;
  workspace.counters = round_up(dq_end, WORKSPACE_ALIGN);
  int64_t counters_end =
      workspace.counters + (blocks + 1 + most_preparers(plan)) * (int64_t)sizeof(int);
  workspace.works = workspace.bytes = round_up(counters_end, WORKSPACE_ALIGN);
  return workspace;
}

/* ---- Figures ---- */

/* Sums over sequences; where heads differ, over heads too, and the mean of them. */
static void count_tiles(Plan *plan, const Planes *planes) {
  int64_t all = 0;
  for (int32_t s = 0; s < plan->lengths->batch; s++)
    for (int head = 0; head < planes->map_heads; head++) {
      const TileMap *map = planes_map(planes, s, head);
      plan->full_tiles += map->full_tiles;
      plan->partial_tiles += map->partial_tiles;
      all += (int64_t)map->q_tiles * map->kv_tiles;
    }
  int64_t empty = all - plan->full_tiles - plan->partial_tiles;
  plan->full_tiles /= planes->map_heads;
  plan->partial_tiles /= planes->map_heads;
  plan->empty_tiles = empty / planes->map_heads;
}

/* ---- Building ---- */

/* A kernel is compiled for a group size, not for a number of heads. */
static rota_status set_heads(const Spec *spec, const rota_plan_request *request, Plan *plan) {
  plan->heads = request->heads ? request->heads : spec->heads;
  plan->kv_heads = request->kv_heads ? request->kv_heads : spec->kv_heads;
  int group = spec_group(spec);
  if (plan->heads < 1 || plan->kv_heads < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "heads %d, kv_heads %d: must be positive",
                       plan->heads, plan->kv_heads);
  if (plan->heads != (int64_t)plan->kv_heads * group)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "heads %d, kv_heads %d: the kernel has %d query heads per kv head",
                       plan->heads, plan->kv_heads, group);
  int packed = tiling_packed(&plan->tiling);
  bool by_head = spec->mask && expression_use(spec->mask).h;
  if (packed < 1 || group % packed || (packed > 1 && by_head))
    return status_fail(ROTA_INTERNAL, "lua/architectures/%s.lua packs %d of %d heads",
                       plan->tiling.architecture, packed, group);
  return ROTA_OK;
}

/* Sizes first, then the image, then the tables in place: nothing is copied twice. */
static rota_status write_tables(const Spec *spec, const Schedule *schedule, const Planes *planes,
                                Plan *plan) {
  int token = (spec->head_dim + spec->head_dim_v) * dtype_size(spec->dtype);
  /* Chains that add to dQ share its fp32 sums besides. */
  int sums = plan_is_ordered(plan) ? spec->head_dim * (int)sizeof(float) : 0;
  bool forward = plan->direction == ROTA_FORWARD;
  TablesRequest request = {.lengths = plan->lengths,
                           .planes = planes,
                           .heads = plan_row_heads(plan),
                           .kv_heads = plan->kv_heads,
                           .tile_q = plan->tiling.tile_q,
                           .tile_kv = plan->tiling.tile_kv,
                           .schedule = plan->direction == ROTA_BACKWARD ? schedule : NULL,
                           .ordered = plan_is_ordered(plan),
                           .rows_in_order = tiling_get(&plan->tiling, "rows_beside", 0) != 0,
                           .row_workers = forward ? tiling_get(&plan->tiling, "workers", 0) : 0,
                           .pieces = piece_rule(&plan->tiling),
                           .q_bytes = token + sums,
                           .kv_bytes = token};
  TableCounts counts;
  ROTA_TRY(tables_count(&request, &counts));
  ROTA_TRY(lay_out(plan, &counts));
  Tables tables = {.sequences = section_at(plan, plan->sequences),
                   .rows = section_at(plan, plan->rows),
                   .runs = section_at(plan, plan->runs),
                   .row_items = section_at(plan, plan->row_items),
                   .chains = section_at(plan, plan->chains),
                   .visits = section_at(plan, plan->visits),
                   .chain_items = section_at(plan, plan->chain_items),
                   .pieces = section_at(plan, plan->pieces),
                   .joins = section_at(plan, plan->joins),
                   .queue = section_at(plan, plan->queue)};
  ROTA_TRY(tables_fill(&request, &counts, &tables));
  plan->queue.count = counts.queue;
  plan->workers = counts.queue > 0 ? (int32_t)counts.queue - 1 : 0;
  plan->partial_rows = counts.partials;
  plan->workspace = workspace_layout(plan, plan->direction, &plan->tiling, spec);
  count_tiles(plan, planes);
  return ROTA_OK;
}

/* Planes live only while the tables are written. */
static rota_status build_tables(const Spec *spec, const Schedule *schedule, Plan *plan) {
  Expression *first = NULL, *end = NULL, *rest = NULL;
  if (spec->mask && tiling_get(&plan->tiling, "bounded", 0))
    expression_columns_part(spec->mask, &first, &end, &rest);
  PlanesRequest request = {.mask = spec->mask,
                           .rest = rest,
                           .score = spec->score,
                           .symbols = &plan->symbols,
                           .bindings = &plan->bindings,
                           .lengths = plan->lengths,
                           .heads = plan->heads,
                           .kv_heads = plan->kv_heads,
                           .tile_q = plan->tiling.tile_q,
                           .tile_kv = plan->tiling.tile_kv,
                           .schedule = plan->direction == ROTA_BACKWARD ? schedule : NULL};
  Planes *planes;
  rota_status status = expression_prepare_ranges(&plan->symbols, &plan->bindings);
  if (status == ROTA_OK)
    status = planes_build(&request, &planes);
  expression_release_ranges(&plan->bindings);
  expression_release(first);
  expression_release(end);
  expression_release(rest);
  if (status != ROTA_OK)
    return status;
  status = write_tables(spec, schedule, planes, plan);
  planes_destroy(planes);
  return status;
}

/* Patterns are verified by now, each alone. Tickets in start order, an item each, add no wait to
 * theirs; any other queue is run. */
static rota_status verify_queues(const Schedule *schedule, Plan *plan) {
  if (!plan_is_ordered(plan)) /* a forward plan has no schedule */
    return ROTA_OK;
  if (schedule->portable && schedule->assignment == ASSIGN_TICKETS)
    return ROTA_OK;
  return plan_verify_queues(plan, &plan->co_resident);
}

/* `exact` scales by a bound of every sum, the score's slope in it; the last parameter's place takes
 * it to the kernels. */
static rota_status check_slope(const Spec *spec, const Plan *plan) {
  float bound;
  if (strcmp(plan->tiling.algorithm, backward_name(BACKWARD_EXACT)) != 0)
    return ROTA_OK;
  if (plan->symbols.parameter_count == PARAMETERS_MAX)
    return status_fail(ROTA_UNSUPPORTED,
                       "backward = \"exact\" serves at most %d parameters; use \"ordered\"",
                       PARAMETERS_MAX - 1);
  if (expression_slope_bound(spec->score_derivative, &plan->bindings, &bound))
    return ROTA_OK;
  return status_fail(ROTA_UNSUPPORTED,
                     "backward = \"exact\" needs a score whose slope by s is bounded, the same for "
                     "all positions; use \"ordered\"");
}

/* The bindings borrow the caller's tensors until the image has its own copies. */
static rota_status build(const Spec *spec, const Schedule *schedule,
                         const rota_plan_request *request, Plan *plan) {
  ROTA_TRY(set_heads(spec, request, plan));
  ROTA_TRY(lengths_create(&request->lengths, &plan->lengths));
  ROTA_TRY(plan_bind_values(&plan->symbols, request, &plan->bindings));
  ROTA_TRY(check_slope(spec, plan));
  ROTA_TRY(build_tables(spec, schedule, plan));
  own_tensors(plan);
  ROTA_TRY(verify_queues(schedule, plan));
  ROTA_TRY(works_build(spec, plan));
  return plan_digest_tables(plan, &plan->pattern_digest);
}

rota_status plan_build(const Spec *spec, rota_direction direction, const Tiling *tiling,
                       const Schedule *schedule, const rota_plan_request *request, Plan **plan) {
  *plan = NULL;
  if (direction == ROTA_BACKWARD && !schedule)
    return status_fail(ROTA_INTERNAL, "plan: the backward pass needs a schedule");
  Plan *result = memory_allocate(1, sizeof(Plan));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->direction = direction;
  result->scale = spec->scale;
  result->tiling = *tiling;
  result->workspace_limit =
      request->workspace_limit > 0 ? (int64_t)request->workspace_limit : WORKSPACE_LIMIT;
  result->symbols = spec->symbols;
  if (direction == ROTA_BACKWARD) {
    result->gang = schedule->workers;
    memcpy(result->schedule, schedule->name, sizeof result->schedule);
  }
  rota_status status = build(spec, schedule, request, result);
  if (status == ROTA_OK)
    *plan = result;
  else
    plan_destroy(result);
  return status;
}

void plan_destroy(Plan *plan) {
  if (!plan)
    return;
  lengths_destroy(plan->lengths);
  free(plan->works.image);
  free(plan->image);
  free(plan);
}

int64_t plan_grid(const Plan *plan, Grid grid) {
  switch (grid) {
  case GRID_ROW_ITEMS:
    return plan->row_items.count;
  case GRID_CHAIN_ITEMS:
    return plan->chain_items.count;
  case GRID_WORKERS: {
    bool persistent = tiling_get(&plan->tiling, "persistent", 0); /* they take queue after queue */
    return persistent && plan->gang < plan->workers ? plan->gang : plan->workers;
  }
  case GRID_PREPARERS: {
    int64_t most = most_preparers(plan), few = (most + 2) / 3; /* they keep memory busy */
    int64_t wanted = plan->co_resident ? most : few;
    if (wanted > plan->row_items.count) /* one resets what chains look at */
      wanted = plan->row_items.count > 0 ? plan->row_items.count : plan->chain_items.count > 0;
    return wanted;
  }
  case GRID_ROW_WORKERS:
    return plan->workers;
  case GRID_HEADS:
    return plan->heads;
  case GRID_JOINS:
    return plan->joins.count;
  case GRID_WORKS: {
    int processors = tiling_get(&plan->tiling, "processors", 1);
    return plan->works.tickets < processors ? plan->works.tickets : processors;
  }
  case GRID_COUNT:
    break;
  }
  return 0;
}

const void *plan_section(const Plan *plan, RotaSection section) {
  return section_at(plan, section);
}

int plan_row_heads(const Plan *plan) {
  bool forward = plan->direction == ROTA_FORWARD;
  return forward ? plan->heads / tiling_packed(&plan->tiling) : plan->heads;
}

int64_t plan_whole_rows(const Plan *plan) {
  return plan->rows.count - plan->pieces.count;
}

int64_t plan_q_tiles(const Plan *plan) {
  const RotaSequence *sequences = plan_section(plan, plan->sequences);
  int64_t count = plan->sequences.count;
  return count > 0 ? sequences[count - 1].tile_begin + sequences[count - 1].q_tiles : 0;
}

bool plan_is_ordered(const Plan *plan) {
  return plan->direction == ROTA_BACKWARD && strcmp(plan->tiling.algorithm, "ordered") == 0;
}

/* The fields that a program or a launch depends on. */
static bool same_tiling(const Tiling *a, const Tiling *b) {
  if (strcmp(a->algorithm, b->algorithm) != 0 || strcmp(a->architecture, b->architecture) != 0 ||
      a->tile_q != b->tile_q || a->tile_kv != b->tile_kv || a->field_count != b->field_count ||
      a->launch_count != b->launch_count || a->map_count != b->map_count)
    return false;
  for (int i = 0; i < a->map_count; i++)
    if (a->maps[i].tensor != b->maps[i].tensor || a->maps[i].rows != b->maps[i].rows ||
        a->maps[i].heads != b->maps[i].heads)
      return false;
  for (int i = 0; i < a->field_count; i++)
    if (strcmp(a->fields[i].name, b->fields[i].name) != 0 ||
        a->fields[i].value != b->fields[i].value)
      return false;
  for (int i = 0; i < a->launch_count; i++) {
    const Launch *x = &a->launches[i], *y = &b->launches[i];
    if (strcmp(x->entry, y->entry) != 0 || x->grid != y->grid || x->threads != y->threads ||
        x->shared_bytes != y->shared_bytes || x->overlaps != y->overlaps)
      return false;
  }
  return true;
}

/* Values are the plan's own business; names, types and ranks are the program's. */
static bool same_symbols(const Symbols *a, const Symbols *b) {
  if (a->parameter_count != b->parameter_count || a->tensor_count != b->tensor_count)
    return false;
  for (int i = 0; i < a->parameter_count; i++)
    if (strcmp(a->parameters[i].name, b->parameters[i].name) != 0 ||
        a->parameters[i].type != b->parameters[i].type)
      return false;
  for (int i = 0; i < a->tensor_count; i++)
    if (strcmp(a->tensors[i].name, b->tensors[i].name) != 0 ||
        a->tensors[i].element != b->tensors[i].element || a->tensors[i].rank != b->tensors[i].rank)
      return false;
  return true;
}

rota_status plan_matches(const Plan *plan, const Spec *spec, rota_direction direction,
                         const Tiling *tiling) {
  RotaWorkspace workspace = workspace_layout(plan, direction, tiling, spec);
  if (plan->direction == direction && same_tiling(&plan->tiling, tiling) &&
      same_symbols(&plan->symbols, &spec->symbols) &&
      plan->heads == (int64_t)plan->kv_heads * spec_group(spec) && plan->scale == spec->scale &&
      memcmp(&plan->workspace, &workspace, offsetof(RotaWorkspace, scores)) == 0)
    return ROTA_OK;
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "the plan was made for another kernel: direction, tiling, heads, scale or the "
                     "names of its parameters and tensors differ");
}
