/* Level 7. Plans as problems of the DAG model. Sequences and heads with the same chains share a
 * plane, so that a batch costs its items, not its visits. */
#include "generator/plan_problem.h"

#include <stdlib.h>
#include <string.h>

typedef struct Builder {
  const Plan *plan;
  const RotaSequence *sequences;
  const RotaChain *chains;
  const RotaVisit *visits;
  const RotaItem *items;
  const int *queue;
  int32_t instances;
  int64_t *chain_base; /* [instances + 1] into chain_of */
  int32_t *chain_of;   /* index of an instance's kv tile in the chain table */
  int32_t *plane_of;   /* [instances] */
  int32_t *first;      /* [planes] an instance on it */
  int32_t *q_tiles, *sequence, *kv_head;
  int64_t *queue_begin;
  DagItem *dag_items;
} Builder;

/* Memory that the problem frees. */
static void *own(PlanProblem *problem, size_t count, size_t size) {
  void *block = memory_allocate(count + 1, size);
  problem->block[problem->blocks++] = block;
  return block;
}

static rota_status allocate(const Plan *plan, PlanProblem *problem, Builder *builder) {
  size_t instances = (size_t)builder->instances, items = (size_t)plan->chain_items.count;
  builder->plane_of = own(problem, instances, sizeof(int32_t));
  builder->q_tiles = own(problem, instances, sizeof(int32_t));
  builder->sequence = own(problem, instances, sizeof(int32_t));
  builder->kv_head = own(problem, instances, sizeof(int32_t));
  builder->queue_begin = own(problem, (size_t)plan->workers, sizeof(int64_t));
  builder->dag_items = own(problem, items, sizeof(DagItem));
  problem->planes = memory_allocate(instances + 1, sizeof(DagPlane));
  builder->chain_base = memory_allocate(instances + 1, sizeof(int64_t));
  builder->chain_of = memory_allocate(items + 1, sizeof(int32_t));
  builder->first = memory_allocate(instances + 1, sizeof(int32_t));
  bool done = problem->planes && builder->chain_base && builder->chain_of && builder->first;
  for (int i = 0; i < problem->blocks; i++)
    done = done && problem->block[i];
  return done ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

/* Items and queues, and which chain is whose. */
static void read_items(Builder *builder) {
  const Plan *plan = builder->plan;
  for (int32_t i = 0; i < builder->instances; i++) {
    builder->sequence[i] = i / plan->kv_heads;
    builder->kv_head[i] = i % plan->kv_heads;
    builder->chain_base[i + 1] =
        builder->chain_base[i] + builder->sequences[builder->sequence[i]].kv_tiles;
  }
  for (int64_t i = 0; i < plan->chain_items.count; i++) {
    RotaItem item = builder->items[i];
    const RotaChain *chain = &builder->chains[item.index];
    int32_t instance = chain->sequence * plan->kv_heads + item.head;
    builder->chain_of[builder->chain_base[instance] + chain->kv_tile] = item.index;
    builder->dag_items[i] = (DagItem){instance, chain->kv_tile};
  }
  for (int32_t w = 0; w <= plan->workers; w++)
    builder->queue_begin[w] = builder->queue[w];
}

/* ---- Planes ---- */

static const RotaSequence *sequence_of(const Builder *builder, int32_t instance) {
  return &builder->sequences[builder->sequence[instance]];
}

static const RotaChain *chain_of(const Builder *builder, int32_t instance, int32_t kv_tile) {
  return &builder->chains[builder->chain_of[builder->chain_base[instance] + kv_tile]];
}

static bool same_plane(const Builder *builder, int32_t a, int32_t b) {
  const RotaSequence *x = sequence_of(builder, a), *y = sequence_of(builder, b);
  if (x->kv_tiles != y->kv_tiles || x->q_tiles != y->q_tiles)
    return false;
  for (int32_t kv = 0; kv < x->kv_tiles; kv++) {
    const RotaChain *p = chain_of(builder, a, kv), *q = chain_of(builder, b, kv);
    if (p->visit_begin != q->visit_begin || p->visit_end != q->visit_end)
      return false;
  }
  return true;
}

static uint64_t plane_hash(const Builder *builder, int32_t instance) {
  const RotaSequence *sequence = sequence_of(builder, instance);
  uint64_t hash = (uint64_t)(uint32_t)sequence->q_tiles;
  for (int32_t kv = 0; kv < sequence->kv_tiles; kv++) {
    const RotaChain *chain = chain_of(builder, instance, kv);
    hash = (hash ^ (uint64_t)(uint32_t)chain->visit_begin) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (uint64_t)(uint32_t)chain->visit_end) * 0x9e3779b97f4a7c15u;
  }
  return hash ^ hash >> 32;
}

/* Numbers the planes in order of first appearance. */
static rota_status find_planes(Builder *builder, int32_t *count) {
  size_t slots = 2;
  while (slots < 2 * (size_t)builder->instances)
    slots *= 2;
  int32_t *table = memory_allocate(slots, sizeof(int32_t)); /* plane + 1; 0: free */
  if (!table)
    return ROTA_OUT_OF_MEMORY;
  *count = 0;
  for (int32_t i = 0; i < builder->instances; i++) {
    size_t slot = (size_t)plane_hash(builder, i) & (slots - 1);
    while (table[slot] && !same_plane(builder, builder->first[table[slot] - 1], i))
      slot = (slot + 1) & (slots - 1);
    if (!table[slot]) {
      builder->first[(*count)++] = i;
      table[slot] = *count;
    }
    builder->plane_of[i] = table[slot] - 1;
  }
  free(table);
  return ROTA_OK;
}

static rota_status fill_plane(const Builder *builder, int32_t instance, DagPlane *plane) {
  const RotaSequence *sequence = sequence_of(builder, instance);
  int32_t group = builder->plan->heads / builder->plan->kv_heads;
  plane->chains = sequence->kv_tiles;
  plane->tiles = group * sequence->q_tiles;
  int64_t *begin = memory_allocate((size_t)plane->chains + 1, sizeof(int64_t));
  plane->chain_begin = begin;
  if (!begin)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t kv = 0; kv < plane->chains; kv++) {
    const RotaChain *chain = chain_of(builder, instance, kv);
    begin[kv + 1] = begin[kv] + chain->visit_end - chain->visit_begin;
  }
  DagVisit *visits = memory_allocate((size_t)begin[plane->chains] + 1, sizeof(DagVisit));
  plane->visits = visits;
  if (!visits)
    return ROTA_OUT_OF_MEMORY;
  for (int32_t kv = 0; kv < plane->chains; kv++) {
    const RotaChain *chain = chain_of(builder, instance, kv);
    for (int32_t v = chain->visit_begin; v < chain->visit_end; v++) {
      RotaVisit visit = builder->visits[v];
      *visits++ = (DagVisit){(int32_t)(visit.rank >> ROTA_VISIT_HEAD_SHIFT) * sequence->q_tiles +
                                 (int32_t)(visit.tile & ROTA_VISIT_TILE),
                             (int32_t)(visit.rank & ROTA_VISIT_RANK), visit_evaluates(visit)};
    }
  }
  return ROTA_OK;
}

static rota_status build(Builder *builder, PlanProblem *problem) {
  const Plan *plan = builder->plan;
  ROTA_TRY(allocate(plan, problem, builder));
  read_items(builder);
  int32_t planes;
  ROTA_TRY(find_planes(builder, &planes));
  problem->problem.plane_count = planes;
  for (int32_t i = 0; i < planes; i++) {
    ROTA_TRY(fill_plane(builder, builder->first[i], &problem->planes[i]));
    builder->q_tiles[i] = sequence_of(builder, builder->first[i])->q_tiles;
  }
  problem->problem = (DagProblem){.planes = problem->planes,
                                  .plane_count = planes,
                                  .plane_of = builder->plane_of,
                                  .instances = builder->instances,
                                  .workers = plan->gang,
                                  .queues = plan->workers,
                                  .queue_begin = builder->queue_begin,
                                  .items = builder->dag_items,
                                  .unordered = !plan_is_ordered(plan)};
  problem->names =
      (QueueNames){plan->schedule, builder->q_tiles, builder->sequence, builder->kv_head};
  return ROTA_OK;
}

rota_status plan_problem_build(const Plan *plan, PlanProblem *problem) {
  *problem = (PlanProblem){.blocks = 0};
  if (plan->direction != ROTA_BACKWARD)
    return status_fail(ROTA_INVALID_ARGUMENT, "plan: a forward plan has no schedule");
  int64_t instances = (int64_t)plan->lengths->batch * plan->kv_heads;
  if (instances > INT32_MAX)
    return status_fail(ROTA_UNSUPPORTED, "plan: %lld (sequence, kv head) pairs; split the batch",
                       (long long)instances);
  Builder builder = {.plan = plan,
                     .sequences = plan_section(plan, plan->sequences),
                     .chains = plan_section(plan, plan->chains),
                     .visits = plan_section(plan, plan->visits),
                     .items = plan_section(plan, plan->chain_items),
                     .queue = plan_section(plan, plan->queue),
                     .instances = (int32_t)instances};
  rota_status status = build(&builder, problem);
  free(builder.chain_base);
  free(builder.chain_of);
  free(builder.first);
  if (status != ROTA_OK)
    plan_problem_free(problem);
  return status;
}

void plan_problem_free(PlanProblem *problem) {
  for (int32_t i = 0; problem->planes && i < problem->problem.plane_count; i++) {
    free((void *)problem->planes[i].chain_begin);
    free((void *)problem->planes[i].visits);
  }
  free(problem->planes);
  for (int i = 0; i < problem->blocks; i++)
    free(problem->block[i]);
  *problem = (PlanProblem){.blocks = 0};
}

rota_status plan_verify_queues(const Plan *plan, bool *co_resident) {
  PlanProblem problem;
  *co_resident = false;
  ROTA_TRY(plan_problem_build(plan, &problem));
  rota_status status = queues_verify(&problem.problem, QUEUES_IN_SEQUENCE, &problem.names);
  if (status == ROTA_SCHEDULE && plan->workers <= plan->gang) {
    *co_resident = true;
    status = queues_verify(&problem.problem, QUEUES_TOGETHER, &problem.names);
  }
  plan_problem_free(&problem);
  return status;
}
