/* Level 2. Proof that no tensor index leaves its tensor, honouring guards.
 *
 * An access inside `a and t[i]` is only reached where `a` holds. What the guards on the way to an
 * access say as affine inequalities (f >= 0) is used twice: to shrink the box, and to bound an
 * index e by e - f >= 0. Where that is not enough the box is halved, up to BUDGET boxes per index.
 */
#include "generator/expression_ast.h"

enum { BUDGET = 4096, FACTS_MAX = 32 };

/* The conditions under which a node is reached, innermost first. */
typedef struct Guard {
  const struct Guard *outer;
  int node;
  bool value;
} Guard;

typedef struct Proof {
  const Node *nodes;
  const Symbols *symbols;
  const Bindings *bindings;
  const Box *box; /* the whole */
  int budget;
} Proof;

/* What holds wherever the guards do. */
typedef struct Facts {
  int count;
  Interval form[FACTS_MAX]; /* affine, not negative */
  int index;                /* the node to be bounded */
  IntegerRange known;       /* by comparisons of this very index */
} Facts;

/* ---- What guards say ---- */

static bool same_tree(const Node *nodes, int a, int b) {
  const Node *x = &nodes[a], *y = &nodes[b];
  if (a == b)
    return true;
  if (x->operation != y->operation || x->size != y->size || x->value.i != y->value.i)
    return false;
  for (int i = 0; i < x->operands; i++)
    if (!same_tree(nodes, x->operand[i], y->operand[i]))
      return false;
  return true;
}

/* Adds low + gap <= high, given as nodes and their values. */
static void add_fact(const Proof *proof, const int16_t node[2], const Interval *low,
                     const Interval *high, int64_t gap, Facts *facts) {
  int64_t bound;
  if (same_tree(proof->nodes, node[0], facts->index) &&
      !__builtin_sub_overflow(high->range.high, gap, &bound) && bound < facts->known.high)
    facts->known.high = bound;
  if (same_tree(proof->nodes, node[1], facts->index) &&
      !__builtin_add_overflow(low->range.low, gap, &bound) && bound > facts->known.low)
    facts->known.low = bound;
  if (facts->count == FACTS_MAX)
    return;
  Interval *form = &facts->form[facts->count];
  if (!interval_affine_difference(high, low, form) ||
      __builtin_sub_overflow(form->constant, gap, &form->constant))
    return;
  form->affine = true;
  facts->count++;
}

static void collect_facts(const Proof *proof, int index, bool value, const Box *box, Facts *facts) {
  const Node *node = &proof->nodes[index];
  const int16_t *operand = node->operand;
  Operation operation = (Operation)node->operation;
  if (operation == OP_NOT) {
    collect_facts(proof, operand[0], !value, box, facts);
  } else if ((operation == OP_AND && value) || (operation == OP_OR && !value)) {
    collect_facts(proof, operand[0], value, box, facts);
    collect_facts(proof, operand[1], value, box, facts);
  }
  bool comparison = operation >= OP_LESS && operation <= OP_NOT_EQUAL;
  if (!comparison || proof->nodes[operand[0]].type != VALUE_INT)
    return;
  const int16_t swapped[2] = {operand[1], operand[0]};
  Interval a, b;
  interval_of_node(proof->nodes, operand[0], proof->bindings, box, &a);
  interval_of_node(proof->nodes, operand[1], proof->bindings, box, &b);
  if (operation == OP_LESS || operation == OP_LESS_EQUAL) {
    bool strict = (operation == OP_LESS) == value; /* not (a < b) is b <= a */
    add_fact(proof, value ? operand : swapped, value ? &a : &b, value ? &b : &a, strict, facts);
  } else if ((operation == OP_EQUAL) == value) {
    add_fact(proof, operand, &a, &b, 0, facts);
    add_fact(proof, swapped, &b, &a, 0, facts);
  }
}

/* Shrinks the box to where a form can still be >= 0; false if nowhere. */
static bool shrink(const Interval *form, Box *box) {
  int32_t *const low[AFFINE_VARIABLES] = {&box->q_min, &box->k_min, &box->h_min};
  int32_t *const high[AFFINE_VARIABLES] = {&box->q_max, &box->k_max, &box->h_max};
  for (int v = 0; v < AFFINE_VARIABLES; v++) {
    int64_t c = form->coefficient[v], rest;
    IntegerRange bounds;
    if (c == 0 || c == INT64_MIN || !interval_affine_bounds(form, box, &bounds))
      continue;
    /* The others contribute at most `rest`: c x >= -rest. */
    if (__builtin_sub_overflow(bounds.high, c * (c > 0 ? *high[v] : *low[v]), &rest) ||
        rest == INT64_MIN)
      continue;
    int64_t limit = integer_floor_divide(rest, c > 0 ? c : -c);
    if (c > 0 && -limit > *low[v])
      *low[v] = -limit > *high[v] ? *high[v] + 1 : (int32_t)-limit;
    if (c < 0 && limit < *high[v])
      *high[v] = limit < *low[v] ? *low[v] - 1 : (int32_t)limit;
    if (*low[v] > *high[v])
      return false;
  }
  return true;
}

/* True if no position of the box, shrunk on the way, is reached. */
static bool is_unreached(const Proof *proof, const Guard *guard, Box *box, Facts *facts) {
  facts->count = 0;
  facts->known = (IntegerRange){INT64_MIN, INT64_MAX};
  for (const Guard *g = guard; g; g = g->outer) {
    Interval truth;
    interval_of_node(proof->nodes, g->node, proof->bindings, box, &truth);
    if (truth.truth == (g->value ? TERNARY_FALSE : TERNARY_TRUE))
      return true;
    collect_facts(proof, g->node, g->value, box, facts);
  }
  for (int i = 0; i < 2 * facts->count; i++) /* twice: one fact's gain helps another */
    if (!shrink(&facts->form[i % facts->count], box))
      return true;
  return false;
}

/* ---- Proving one index ---- */

/* a - b >= 0 on the box, directly or because it is at least one of the facts. */
static bool not_negative(const Interval *a, const Interval *b, const Facts *facts, const Box *box) {
  Interval form, rest;
  IntegerRange bounds;
  if (!interval_affine_difference(a, b, &form))
    return false;
  form.affine = true;
  for (int i = 0; i < facts->count; i++)
    if (interval_affine_difference(&form, &facts->form[i], &rest) &&
        interval_affine_bounds(&rest, box, &bounds) && bounds.low >= 0)
      return true;
  return false;
}

/* Halves the box along its longest side among `variables`; false if it has but one place left. */
static bool halve(const Box *box, int variables, Box *lower, Box *upper) {
  int64_t q = variables & 1 << INDEX_Q ? (int64_t)box->q_max - box->q_min : 0;
  int64_t k = variables & 1 << INDEX_K ? (int64_t)box->k_max - box->k_min : 0;
  int64_t h = variables & 1 << INDEX_H ? (int64_t)box->h_max - box->h_min : 0;
  *lower = *upper = *box;
  if (q == 0 && k == 0 && h == 0)
    return false;
  if (q >= k && q >= h) {
    lower->q_max = (int32_t)(box->q_min + q / 2);
    upper->q_min = lower->q_max + 1;
  } else if (k >= h) {
    lower->k_max = (int32_t)(box->k_min + k / 2);
    upper->k_min = lower->k_max + 1;
  } else {
    lower->h_max = (int32_t)(box->h_min + h / 2);
    upper->h_min = lower->h_max + 1;
  }
  return true;
}

/* At one place the guards' exact values decide. */
static bool is_guarded_at(const Proof *proof, const Guard *guard, const Box *box) {
  RowPosition row = {box->q_min, box->h_min, box->b, box->n_q, box->n_k};
  for (const Guard *g = guard; g; g = g->outer)
    if (evaluate_truth(proof->nodes, g->node, proof->bindings, &row, box->k_min) != g->value)
      return true;
  return false;
}

static bool is_inside(Proof *proof, int index, int64_t size, const Guard *guard, Box box) {
  Facts facts = {.index = index};
  if (proof->budget-- <= 0)
    return false;
  if (is_unreached(proof, guard, &box, &facts))
    return true;
  Interval value;
  interval_of_node(proof->nodes, index, proof->bindings, &box, &value);
  const Interval zero = {.affine = true}, last = {.affine = true, .constant = size - 1};
  bool from_zero = value.range.low >= 0 || facts.known.low >= 0;
  bool below_size = value.range.high < size || facts.known.high < size;
  if ((from_zero || not_negative(&value, &zero, &facts, &box)) &&
      (below_size || not_negative(&last, &value, &facts, &box)))
    return true;
  if (!guard && value.affine) /* exact bounds: halving would not help */
    return false;
  int variables = proof->nodes[index].variables;
  for (const Guard *g = guard; g; g = g->outer)
    variables |= proof->nodes[g->node].variables;
  Box lower, upper;
  if (!halve(&box, variables, &lower, &upper))
    return is_guarded_at(proof, guard, &box);
  return is_inside(proof, index, size, guard, lower) && is_inside(proof, index, size, guard, upper);
}

/* ---- All accesses ---- */

static rota_status refuse(const Proof *proof, const Node *access, int dimension) {
  const TensorSymbol *symbol = &proof->symbols->tensors[access->value.i];
  Interval value;
  interval_of_node(proof->nodes, access->operand[dimension], proof->bindings, proof->box, &value);
  Text text = {0};
  print_node(proof->nodes, access->operand[dimension], proof->symbols, &text);
  rota_status status = text_status(&text);
  if (status == ROTA_OK)
    status = status_fail(ROTA_INVALID_ARGUMENT,
                         "tensor '%s', index %d: %s may reach [%lld, %lld], but the size is %lld; "
                         "guard the access or pass a larger tensor",
                         symbol->name, dimension + 1, text.data, (long long)value.range.low,
                         (long long)value.range.high,
                         (long long)proof->bindings->tensors[access->value.i].size[dimension]);
  text_free(&text);
  return status;
}

static rota_status check_node(Proof *proof, int index, const Guard *guard) {
  const Node *node = &proof->nodes[index];
  const int16_t *operand = node->operand;
  bool guards =
      node->operation == OP_AND || node->operation == OP_OR || node->operation == OP_SELECT;
  if (guards) {
    Guard when_true = {guard, operand[0], true}, when_false = {guard, operand[0], false};
    ROTA_TRY(check_node(proof, operand[0], guard));
    ROTA_TRY(check_node(proof, operand[1], node->operation == OP_OR ? &when_false : &when_true));
    return node->operation == OP_SELECT ? check_node(proof, operand[2], &when_false) : ROTA_OK;
  }
  for (int i = 0; i < node->operands; i++)
    ROTA_TRY(check_node(proof, operand[i], guard));
  if (node->operation != OP_TENSOR)
    return ROTA_OK;
  for (int d = 0; d < node->operands; d++) {
    proof->budget = BUDGET;
    if (!is_inside(proof, operand[d], proof->bindings->tensors[node->value.i].size[d], guard,
                   *proof->box))
      return refuse(proof, node, d);
  }
  return ROTA_OK;
}

rota_status expression_check_bounds(const Expression *expression, const Symbols *symbols,
                                    const Bindings *bindings, const Box *box) {
  if (box->q_min > box->q_max || box->k_min > box->k_max || box->h_min > box->h_max)
    return ROTA_OK;
  Proof proof = {.nodes = expression->nodes, .symbols = symbols, .bindings = bindings, .box = box};
  return check_node(&proof, expression_root(expression), NULL);
}
