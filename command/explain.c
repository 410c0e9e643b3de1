/* rota plan --explain: see explain.h. */
#include "command/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/script_rates.h"

enum { REASON_MAX = 240 };

/* One algorithm of the model. */
typedef struct Entry {
  Traffic traffic;
  bool modelled;           /* else `reason` says why not */
  bool has_kernel;         /* of this project, for this spec */
  int tile_q, tile_kv;     /* of its kernels, or of those whose tiles the model borrows */
  char reason[REASON_MAX]; /* why there is no kernel, or no model */
} Entry;

typedef struct Explanation {
  Target target;
  Rates rates;
  Entry entries[TRAFFIC_ALGORITHMS];
  TrafficAlgorithm rank[TRAFFIC_ALGORITHMS]; /* fastest first; those without a model last */
} Explanation;

/* ---- Modelling ---- */

/* kv heads, of all sequences, that the workers' first chains belong to; 0 without queues. */
static double heads_at_once(const Plan *plan) {
  if (plan->queue.count == 0 || plan->workers == 0)
    return 0;
  const int *queue = plan_section(plan, plan->queue);
  const RotaItem *items = plan_section(plan, plan->chain_items);
  const RotaChain *chains = plan_section(plan, plan->chains);
  double count = 0;
  int64_t workers = plan_grid(plan, GRID_WORKERS);
  for (int32_t w = 0; w < workers; w++) {
    if (queue[w] == queue[w + 1])
      continue;
    const RotaItem *item = &items[queue[w]];
    bool known = false;
    for (int32_t v = 0; v < w && !known; v++) {
      const RotaItem *other = &items[queue[v]];
      known = queue[v] < queue[v + 1] && other->head == item->head &&
              chains[other->index].sequence == chains[item->index].sequence;
    }
    count += !known;
  }
  return count;
}

static TrafficShape shape_of(const Plan *plan) {
  TrafficShape shape = {
      .visits = (double)(plan->full_tiles + plan->partial_tiles) * plan->heads,
      .chains = (double)plan->chain_items.count,
      .row_items = (double)plan_q_tiles(plan) * plan_row_heads(plan),
      .heads_at_once = heads_at_once(plan),
  };
  const Lengths *lengths = plan->lengths;
  for (int32_t i = 0; i < lengths->batch; i++) {
    shape.rows_q += (double)lengths->n_q[i] * plan->heads;
    shape.rows_k += (double)lengths->n_k[i] * plan->kv_heads;
    if (lengths->n_q[i] > shape.longest_q)
      shape.longest_q = lengths->n_q[i];
    if (lengths->n_k[i] > shape.longest_k)
      shape.longest_k = lengths->n_k[i];
  }
  return shape;
}

/* Plans with the algorithm's own kernels, whatever the spec chooses. */
static rota_status plan_with(const Options *options, const Model *model, Backward backward,
                             Planned *planned) {
  Model other = *model;
  spec_copy(&other.spec, &model->spec);
  other.spec.backward = backward;
  other.spec.spread = model->spec.spread && backward == BACKWARD_EXACT;
  rota_status status = planned_create(options, &other, ROTA_BACKWARD, NULL, false, planned);
  spec_free(&other.spec);
  return status;
}

static void model_entry(Explanation *all, const Spec *spec, TrafficAlgorithm algorithm,
                        const Plan *plan, bool has_kernel, const char *reason) {
  Entry *entry = &all->entries[algorithm];
  snprintf(entry->reason, sizeof entry->reason, "%s", reason);
  entry->has_kernel = has_kernel;
  if (!plan)
    return;
  TrafficShape shape = shape_of(plan);
  traffic_model(algorithm, spec, &all->target, &all->rates, &plan->tiling, &shape, &entry->traffic);
  entry->modelled = true;
  entry->tile_q = plan->tiling.tile_q;
  entry->tile_kv = plan->tiling.tile_kv;
}

/* The algorithms without kernels borrow the tiles of those that have some. */
static rota_status model_all(const Options *options, const Model *model, Explanation *all) {
  static const Backward algorithms[] = {BACKWARD_ORDERED, BACKWARD_TWO_PASS, BACKWARD_MATERIALISED,
                                        BACKWARD_EXACT};
  enum { COUNT = sizeof algorithms / sizeof algorithms[0] };
  Planned planned[COUNT] = {{0}};
  char refusal[COUNT][REASON_MAX] = {""};
  const Plan *plans[COUNT] = {NULL};
  rota_status status = ROTA_OK;
  for (int i = 0; i < COUNT; i++) {
    rota_status one = plan_with(options, model, algorithms[i], &planned[i]);
    if (one == ROTA_OK)
      plans[i] = planned[i].plan;
    else
      snprintf(refusal[i], REASON_MAX, "%s", status_message());
    if (i == 1)
      status = one;
  }
  const Plan *first = plans[0], *second = plans[1], *third = plans[2], *exact = plans[3];
  const Spec *spec = &model->spec;
  const Plan *borrowed = spec->dtype == ROTA_FP32 ? NULL : first ? first : second;
  model_entry(all, spec, TRAFFIC_ORDERED, first, first != NULL, refusal[0]);
  model_entry(all, spec, TRAFFIC_TWO_PASS, second, second != NULL, refusal[1]);
  model_entry(all, spec, TRAFFIC_EXACT, exact ? exact : first, exact != NULL,
              "not modelled: it would have the tiles of `ordered`, which is not served");
  model_entry(all, spec, TRAFFIC_MATERIALISED, third ? third : borrowed, third != NULL,
              "not modelled: its products need tensor cores");
  for (int i = 0; i < COUNT; i++)
    planned_free(&planned[i]);
  if (!first && !second && !third)
    return status_fail(status, "%s", refusal[1]);
  status_clear();
  return ROTA_OK;
}

/* Insertion; equal times keep the list's order. */
static void rank_all(Explanation *all) {
  for (int i = 0; i < TRAFFIC_ALGORITHMS; i++) {
    const Entry *entry = &all->entries[i];
    int at = i;
    for (; at > 0; at--) {
      const Entry *before = &all->entries[all->rank[at - 1]];
      if (before->modelled &&
          (!entry->modelled || entry->traffic.seconds >= before->traffic.seconds))
        break;
      if (!before->modelled && !entry->modelled)
        break;
      all->rank[at] = all->rank[at - 1];
    }
    all->rank[at] = (TrafficAlgorithm)i;
  }
}

/* ---- Saying it ---- */

/* What sets the algorithm apart, besides figures. */
static void remark(const Entry *entry, const Spec *spec, char *text, size_t size) {
  switch (entry->traffic.algorithm) {
  case TRAFFIC_ORDERED:
    snprintf(text, size, "dQ is added in turn; waiting is not modelled here");
    break;
  case TRAFFIC_EXACT:
    snprintf(text, size, "no turns, but dQ is zeroed first and converted last; %s bound",
             bound_name(spec->spread));
    break;
  case TRAFFIC_TWO_PASS:
    snprintf(text, size, "S and dP twice, dQ stays in registers");
    break;
  default:
    snprintf(text, size, "scores through memory, units of a head: %lld",
             (long long)entry->traffic.chunks);
  }
}

static const char *side(int64_t m, int64_t crossing) {
  return m < crossing ? "small-cache" : "large-cache";
}

static void print_all(const Explanation *all, const Spec *spec, const char *chosen) {
  int64_t m = traffic_fast_memory(spec, &all->target);
  int64_t crossing = (int64_t)spec->head_dim * spec->head_dim;
  bool fp32 = spec->dtype == ROTA_FP32;
  printf("explained by the traffic model for %s; figures are modelled, not measured\n",
         all->target.name);
  printf("  rates: %s %.0f TFLOP/s, shared memory %.1f, L2 %.1f, DRAM %.1f TB/s\n",
         fp32 ? "fp32 units" : "tensor cores", (fp32 ? all->rates.fp32 : all->rates.tensor) / 1e12,
         all->rates.shared / 1e12, all->rates.l2 / 1e12, all->rates.dram / 1e12);
  printf("  a multiprocessor holds M = %lld elements (shared memory and registers), d^2 = %lld: "
         "%s side\n",
         (long long)m, (long long)crossing, side(m, crossing));
  printf("  %-14s %8s %9s %10s %8s %8s %8s  %-13s %s\n", "algorithm", "tiles", "TFLOP", "shared GB",
         "L2 GB", "DRAM GB", "least ms", "limit", "why");
  for (int i = 0; i < TRAFFIC_ALGORITHMS; i++) {
    const Entry *entry = &all->entries[all->rank[i]];
    const Traffic *t = &entry->traffic;
    const char *name = traffic_name(all->rank[i]);
    char tiles[24], text[160];
    if (!entry->modelled) {
      printf("  %-14s %s\n", name, entry->reason);
      continue;
    }
    remark(entry, spec, text, sizeof text);
    snprintf(tiles, sizeof tiles, "%dx%d", entry->tile_q, entry->tile_kv);
    printf("%s %-14s %8s %9.3f %10.2f %8.2f %8.3f %8.3f  %-13s %d products; %s%s%s\n",
           strcmp(name, chosen) == 0 ? "*" : " ", name, entry->has_kernel ? tiles : "-",
           t->flops / 1e12, t->shared_bytes / 1e9, t->l2_bytes / 1e9, t->dram_bytes / 1e9,
           1e3 * t->seconds, t->limit, t->products, text,
           t->spills ? "; sums spill from registers" : "",
           entry->has_kernel ? "" : "; no kernel here");
  }
  printf("  * chosen by lua/policy.lua or the model; the traffic model chooses nothing\n");
}

static json_t *describe_entry(const Explanation *all, const Spec *spec, int rank) {
  const Entry *entry = &all->entries[all->rank[rank]];
  const Traffic *t = &entry->traffic;
  const char *name = traffic_name(all->rank[rank]);
  if (!entry->modelled)
    return json_pack("{s:s s:n s:s}", "algorithm", name, "rank", "reason", entry->reason);
  char text[160];
  remark(entry, spec, text, sizeof text);
  return json_pack("{s:s s:i s:b s:i s:f s:f s:f s:f s:f s:i s:b s:s s:s}", "algorithm", name,
                   "rank", rank + 1, "has_kernel", entry->has_kernel, "products", t->products,
                   "flops", t->flops, "shared_bytes", t->shared_bytes, "l2_bytes", t->l2_bytes,
                   "dram_bytes", t->dram_bytes, "least_ms", 1e3 * t->seconds, "accumulators",
                   t->accumulators, "spills", t->spills, "limit", t->limit, "why", text);
}

static json_t *describe_all(const Explanation *all, const Spec *spec, const char *chosen) {
  int64_t m = traffic_fast_memory(spec, &all->target);
  int64_t crossing = (int64_t)spec->head_dim * spec->head_dim;
  json_t *entries = json_array();
  for (int i = 0; i < TRAFFIC_ALGORITHMS; i++)
    json_array_append_new(entries, describe_entry(all, spec, i));
  return json_pack("{s:s s:s s:s s:I s:I s:s s:o}", "source", "traffic model, not measured",
                   "target", all->target.name, "chosen", chosen, "fast_memory_elements",
                   (json_int_t)m, "crossing_m", (json_int_t)crossing, "side", side(m, crossing),
                   "algorithms", entries);
}

rota_status explain(const Options *options, Model *model, const Plan *chosen, json_t *object) {
  Explanation all = {.rank = {0}};
  ROTA_TRY(model_target(options, model, &all.target));
  ROTA_TRY(script_rates(model->script, &all.target, &all.rates));
  ROTA_TRY(model_all(options, model, &all));
  rank_all(&all);
  if (!object) {
    print_all(&all, &model->spec, chosen->tiling.algorithm);
    return ROTA_OK;
  }
  json_t *described = describe_all(&all, &model->spec, chosen->tiling.algorithm);
  if (json_object_set_new(object, "modelled", described) != 0)
    return status_fail(ROTA_OUT_OF_MEMORY, "memory ran out while writing JSON");
  return ROTA_OK;
}
