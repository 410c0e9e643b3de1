/* Plans for tests, made without Lua. */
#include "tests/support/plan_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void add_parameter(Symbols *symbols, const char *name, ValueType type, bool constant,
                          Scalar value) {
  Parameter *parameter = &symbols->parameters[symbols->parameter_count++];
  snprintf(parameter->name, sizeof parameter->name, "%s", name);
  parameter->type = type;
  parameter->constant = constant;
  parameter->value = value;
}

static Expression *parse(const char *text, ExpressionKind kind, Symbols *symbols) {
  Expression *expression = NULL;
  if (text && expression_parse(text, (SourcePlace){"test", 1}, kind, symbols, NULL, 0,
                               &expression) != ROTA_OK)
    fail_msg("%s: %s", text, status_message());
  return expression;
}

void plan_case_create(PlanCase *at, const char *algorithm, const char *mask, const char *score,
                      int heads, int kv_heads) {
  memset(at, 0, sizeof *at);
  Spec *spec = &at->spec;
  *spec = (Spec){.dtype = ROTA_BF16,
                 .head_dim = 72,
                 .head_dim_v = 64,
                 .heads = heads,
                 .kv_heads = kv_heads,
                 .scale = 0.125f,
                 .deterministic = true};
  add_parameter(&spec->symbols, "w", VALUE_INT, false, (Scalar){.i = 5});
  add_parameter(&spec->symbols, "f", VALUE_FLOAT, false, (Scalar){.f = 0.5f});
  add_parameter(&spec->symbols, "const_w", VALUE_INT, true, (Scalar){.i = 7});
  spec->mask = parse(mask, EXPRESSION_MASK, &spec->symbols);
  spec->score = parse(score, EXPRESSION_SCORE, &spec->symbols);
  at->direction = strcmp(algorithm, "forward") == 0 ? ROTA_FORWARD : ROTA_BACKWARD;
  snprintf(at->tiling.architecture, sizeof at->tiling.architecture, "portable");
  snprintf(at->tiling.algorithm, sizeof at->tiling.algorithm, "%s", algorithm);
  at->tiling.tile_q = 64;
  at->tiling.tile_kv = 32;
  at->tiling.launch_count = 1;
  at->tiling.launches[0] = (Launch){.entry = "rota_test", .grid = GRID_ROW_ITEMS, .threads = 128};
  at->tiling.field_count = 1;
  at->tiling.fields[0] = (TilingField){.name = "stages", .value = 2};
  at->schedule = rule_schedule(DOWNWARDS, UPWARDS);
}

void plan_case_free(PlanCase *at) {
  spec_free(&at->spec);
}

rota_status plan_case_build(const PlanCase *at, Plan **plan) {
  return plan_build(&at->spec, at->direction, &at->tiling, &at->schedule, &at->request, plan);
}

Plan *plan_case_good(const PlanCase *at) {
  Plan *plan;
  if (plan_case_build(at, &plan) != ROTA_OK)
    fail_msg("%s", status_message());
  if (plan_check(plan) != ROTA_OK)
    fail_msg("%s", status_message());
  return plan;
}

int case_random(uint64_t *state, int count) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (int)((*state >> 33) % (uint64_t)count);
}

bool patterns_equal(const Pattern *a, const Pattern *b) {
  if (a->chains != b->chains || a->group != b->group || a->q_tiles != b->q_tiles)
    return false;
  for (int32_t i = 0; i < a->chains; i++)
    if (a->start_order[i] != b->start_order[i] || a->chain_begin[i + 1] != b->chain_begin[i + 1])
      return false;
  for (int64_t v = 0; v < a->chain_begin[a->chains]; v++) {
    const PatternVisit *x = &a->visits[v], *y = &b->visits[v];
    if (x->q_tile != y->q_tile || x->group_head != y->group_head || x->rank != y->rank ||
        x->partial != y->partial || x->last != y->last)
      return false;
  }
  return true;
}
