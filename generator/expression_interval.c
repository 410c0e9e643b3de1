/* Level 2. Interval evaluation: what can be said of a mask on a whole box of positions.
 *
 * Integers that are affine in q, k and h carry their coefficients, so `q - k` and comparisons of
 * such forms are exact however often a variable occurs; other integers carry bounds; floats carry
 * bounds rounded like the values themselves. A single position is simply evaluated. */
#include "generator/expression_ast.h"

static Ternary ternary(bool is_true, bool is_false) {
  return is_true ? TERNARY_TRUE : is_false ? TERNARY_FALSE : TERNARY_UNKNOWN;
}

static Ternary negation(Ternary a) {
  return a == TERNARY_UNKNOWN ? a : a == TERNARY_TRUE ? TERNARY_FALSE : TERNARY_TRUE;
}

/* ---- Affine forms ---- */

bool interval_affine_bounds(const Interval *form, const Box *box, IntegerRange *bounds) {
  const int32_t low[AFFINE_VARIABLES] = {box->q_min, box->k_min, box->h_min};
  const int32_t high[AFFINE_VARIABLES] = {box->q_max, box->k_max, box->h_max};
  *bounds = (IntegerRange){form->constant, form->constant};
  for (int v = 0; v < AFFINE_VARIABLES; v++) {
    int64_t c = form->coefficient[v], at_low, at_high;
    if (c == 0)
      continue;
    if (__builtin_mul_overflow(c, (int64_t)(c > 0 ? low[v] : high[v]), &at_low) ||
        __builtin_mul_overflow(c, (int64_t)(c > 0 ? high[v] : low[v]), &at_high) ||
        __builtin_add_overflow(bounds->low, at_low, &bounds->low) ||
        __builtin_add_overflow(bounds->high, at_high, &bounds->high))
      return false;
  }
  return true;
}

static bool affine_sum(const Interval *a, const Interval *b, Interval *sum) {
  if (!a->affine || !b->affine || __builtin_add_overflow(a->constant, b->constant, &sum->constant))
    return false;
  for (int v = 0; v < AFFINE_VARIABLES; v++)
    if (__builtin_add_overflow(a->coefficient[v], b->coefficient[v], &sum->coefficient[v]))
      return false;
  return true;
}

bool interval_affine_difference(const Interval *a, const Interval *b, Interval *difference) {
  if (!a->affine || !b->affine ||
      __builtin_sub_overflow(a->constant, b->constant, &difference->constant))
    return false;
  for (int v = 0; v < AFFINE_VARIABLES; v++)
    if (__builtin_sub_overflow(a->coefficient[v], b->coefficient[v], &difference->coefficient[v]))
      return false;
  return true;
}

static bool is_fixed(const Interval *a) {
  return a->affine && a->coefficient[0] == 0 && a->coefficient[1] == 0 && a->coefficient[2] == 0;
}

static bool affine_product(const Interval *a, const Interval *b, Interval *product) {
  if (!is_fixed(a) && !is_fixed(b))
    return false;
  const Interval *form = is_fixed(a) ? b : a;
  int64_t factor = is_fixed(a) ? a->constant : b->constant;
  if (!form->affine || __builtin_mul_overflow(form->constant, factor, &product->constant))
    return false;
  for (int v = 0; v < AFFINE_VARIABLES; v++)
    if (__builtin_mul_overflow(form->coefficient[v], factor, &product->coefficient[v]))
      return false;
  return true;
}

static void set_fixed(int64_t value, Interval *result) {
  *result = (Interval){.range = {value, value}, .affine = true, .constant = value};
}

/* An integer known by its bounds alone. */
static void set_range(IntegerRange range, Interval *result) {
  if (range.low == range.high)
    set_fixed(range.low, result);
  else
    *result = (Interval){.range = range};
}

static const IntegerRange everything = {INT64_MIN, INT64_MAX};

/* ---- Nodes ---- */

static void interval_of_index(int64_t variable, const Box *box, Interval *result) {
  switch (variable) {
  case INDEX_Q:
    *result = (Interval){.range = {box->q_min, box->q_max}, .affine = true, .coefficient = {1}};
    return;
  case INDEX_K:
    *result = (Interval){.range = {box->k_min, box->k_max}, .affine = true, .coefficient = {0, 1}};
    return;
  case INDEX_H:
    *result =
        (Interval){.range = {box->h_min, box->h_max}, .affine = true, .coefficient = {0, 0, 1}};
    return;
  case INDEX_B:
    set_fixed(box->b, result);
    return;
  case INDEX_N_Q:
    set_fixed(box->n_q, result);
    return;
  default:
    set_fixed(box->n_k, result);
  }
}

static void interval_of_leaf(const Node *node, const Bindings *bindings, const Box *box,
                             Interval *result) {
  switch (node->operation) {
  case OP_BOOL:
    result->truth = node->value.i ? TERNARY_TRUE : TERNARY_FALSE;
    return;
  case OP_INT:
    set_fixed(node->value.i, result);
    return;
  case OP_FLOAT:
    result->real = (FloatRange){node->value.f, node->value.f, false};
    break;
  case OP_INDEX:
    interval_of_index(node->value.i, box, result);
    return;
  case OP_SCORE:
    result->real = float_range_all();
    return;
  default:
    if (node->type == VALUE_INT) {
      set_fixed(bindings->parameters[node->value.i].i, result);
      return;
    }
    result->real.low = result->real.high = bindings->parameters[node->value.i].f;
    result->real.nan = false;
  }
  if (result->real.low != result->real.low) /* a NaN by the script or the plan */
    result->real = float_range_all();
}

/* Elements read where the indices may point; 0 counts too if some may point outside. */
static void interval_of_tensor(const Node *nodes, const Node *node, const Bindings *bindings,
                               const Box *box, Interval *result) {
  const TensorBinding *tensor = &bindings->tensors[node->value.i];
  int64_t low[TENSOR_RANK_MAX] = {0}, high[TENSOR_RANK_MAX] = {0};
  bool outside = !tensor->data, nowhere = !tensor->data;
  for (int d = 0; d < node->operands; d++) {
    Interval index;
    interval_of_node(nodes, node->operand[d], bindings, box, &index);
    int64_t last = tensor->size[d] - 1;
    outside |= index.range.low < 0 || index.range.high > last;
    nowhere |= index.range.high < 0 || index.range.low > last;
    low[d] = index.range.low > 0 ? index.range.low : 0;
    high[d] = index.range.high < last ? index.range.high : last;
  }
  if (nowhere) {
    set_fixed(0, result);
    result->real = (FloatRange){0, 0, false};
    return;
  }
  if (!tensor_ranges_query(bindings->ranges[node->value.i], low, high, result)) {
    set_range((IntegerRange){INT32_MIN, INT32_MAX}, result);
    result->real = float_range_all();
    return;
  }
  if (!outside)
    return;
  FloatRange real = float_range_hull(result->real, (FloatRange){0, 0, false});
  IntegerRange range = result->range;
  set_range((IntegerRange){range.low < 0 ? range.low : 0, range.high > 0 ? range.high : 0}, result);
  result->real = real;
}

static void interval_of_unary(const Node *nodes, const Node *node, const Bindings *bindings,
                              const Box *box, Interval *result) {
  Operation operation = (Operation)node->operation;
  Interval a;
  interval_of_node(nodes, node->operand[0], bindings, box, &a);
  if (operation == OP_NOT) {
    result->truth = negation(a.truth);
  } else if (operation == OP_TO_FLOAT) {
    result->real = (FloatRange){(float)a.range.low, (float)a.range.high, false};
  } else if (operation == OP_TO_INT) {
    IntegerRange range = {float_to_integer(a.real.low), float_to_integer(a.real.high)};
    if (a.real.nan) /* converts to 0 */
      range = (IntegerRange){range.low < 0 ? range.low : 0, range.high > 0 ? range.high : 0};
    set_range(range, result);
  } else if (node->type == VALUE_FLOAT) {
    result->real = float_range_unary(operation, a.real, node->value.i);
  } else if (operation == OP_NEGATE || a.range.high <= 0) {
    Interval zero, negative;
    set_fixed(0, &zero);
    if (interval_affine_difference(&zero, &a, &negative) &&
        interval_affine_bounds(&negative, box, &negative.range)) {
      *result = negative;
      result->affine = true;
    } else {
      IntegerRange range;
      set_range(integer_range_unary(OP_NEGATE, a.range, &range) ? range : everything, result);
    }
  } else if (a.range.low >= 0) {
    *result = a;
  } else {
    IntegerRange range;
    set_range(integer_range_unary(operation, a.range, &range) ? range : everything, result);
  }
}

static void interval_of_arithmetic(Operation operation, const Interval *a, const Interval *b,
                                   const Box *box, Interval *result) {
  bool affine = operation == OP_ADD        ? affine_sum(a, b, result)
                : operation == OP_SUBTRACT ? interval_affine_difference(a, b, result)
                : operation == OP_MULTIPLY ? affine_product(a, b, result)
                                           : false;
  if (affine && interval_affine_bounds(result, box, &result->range)) {
    result->affine = true;
    return;
  }
  IntegerRange range;
  set_range(integer_range_binary(operation, a->range, b->range, &range) ? range : everything,
            result);
}

static Ternary compare_integers(Operation operation, const Interval *a, const Interval *b,
                                const Box *box) {
  IntegerRange x = a->range, y = b->range;
  Interval difference;
  IntegerRange bounds;
  if (interval_affine_difference(a, b, &difference) &&
      interval_affine_bounds(&difference, box, &bounds)) {
    x = bounds;
    y = (IntegerRange){0, 0};
  }
  if (operation == OP_LESS)
    return ternary(x.high < y.low, x.low >= y.high);
  if (operation == OP_LESS_EQUAL)
    return ternary(x.high <= y.low, x.low > y.high);
  bool disjoint = x.high < y.low || x.low > y.high;
  Ternary equal = ternary(x.low == x.high && y.low == y.high && !disjoint, disjoint);
  return operation == OP_EQUAL ? equal : negation(equal);
}

/* Every comparison with a NaN is false, but ~=. */
static Ternary compare_floats(Operation operation, FloatRange x, FloatRange y) {
  bool nan = x.nan || y.nan;
  if (operation == OP_LESS)
    return ternary(!nan && x.high < y.low, x.low >= y.high);
  if (operation == OP_LESS_EQUAL)
    return ternary(!nan && x.high <= y.low, x.low > y.high);
  bool disjoint = x.high < y.low || x.low > y.high;
  bool same = x.low == x.high && y.low == y.high && x.low == y.low;
  Ternary equal = ternary(!nan && same, disjoint);
  return operation == OP_EQUAL ? equal : negation(equal);
}

static Ternary compare(Operation operation, ValueType type, const Interval *a, const Interval *b,
                       const Box *box) {
  if (type == VALUE_INT)
    return compare_integers(operation, a, b, box);
  if (type == VALUE_FLOAT)
    return compare_floats(operation, a->real, b->real);
  if (a->truth == TERNARY_UNKNOWN || b->truth == TERNARY_UNKNOWN)
    return TERNARY_UNKNOWN;
  bool equal = a->truth == b->truth;
  return ternary((operation == OP_EQUAL) == equal, (operation == OP_EQUAL) != equal);
}

static void interval_of_binary(const Node *nodes, const Node *node, const Bindings *bindings,
                               const Box *box, Interval *result) {
  Operation operation = (Operation)node->operation;
  Interval a, b;
  interval_of_node(nodes, node->operand[0], bindings, box, &a);
  if (operation == OP_AND || operation == OP_OR) {
    Ternary deciding = operation == OP_AND ? TERNARY_FALSE : TERNARY_TRUE;
    result->truth = deciding;
    if (a.truth == deciding)
      return;
    interval_of_node(nodes, node->operand[1], bindings, box, &b);
    if (b.truth != deciding)
      result->truth = a.truth == TERNARY_UNKNOWN ? a.truth : b.truth;
    return;
  }
  interval_of_node(nodes, node->operand[1], bindings, box, &b);
  if (node->type == VALUE_FLOAT && operation == OP_MULTIPLY &&
      node->operand[0] == node->operand[1]) {
    result->real = float_range_square(a.real);
    return;
  }
  if (node->type == VALUE_INT)
    interval_of_arithmetic(operation, &a, &b, box, result);
  else if (node->type == VALUE_FLOAT)
    result->real = float_range_binary(operation, a.real, b.real);
  else
    result->truth = compare(operation, (ValueType)nodes[node->operand[0]].type, &a, &b, box);
}

static void interval_of_select(const Node *nodes, const Node *node, const Bindings *bindings,
                               const Box *box, Interval *result) {
  Interval condition, other;
  interval_of_node(nodes, node->operand[0], bindings, box, &condition);
  bool first = condition.truth != TERNARY_FALSE;
  interval_of_node(nodes, node->operand[first ? 1 : 2], bindings, box, result);
  if (condition.truth != TERNARY_UNKNOWN)
    return;
  interval_of_node(nodes, node->operand[2], bindings, box, &other);
  if (node->type == VALUE_BOOL) {
    result->truth = result->truth == other.truth ? other.truth : TERNARY_UNKNOWN;
  } else if (node->type == VALUE_FLOAT) {
    result->real = float_range_hull(result->real, other.real);
  } else {
    IntegerRange a = result->range, b = other.range;
    set_range((IntegerRange){a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high},
              result);
  }
}

void interval_of_node(const Node *nodes, int index, const Bindings *bindings, const Box *box,
                      Interval *result) {
  const Node *node = &nodes[index];
  *result = (Interval){.affine = false}; /* what a type does not speak of is zero */
  if (node->operation == OP_TENSOR)
    interval_of_tensor(nodes, node, bindings, box, result);
  else if (node->operands == 0)
    interval_of_leaf(node, bindings, box, result);
  else if (node->operands == 1)
    interval_of_unary(nodes, node, bindings, box, result);
  else if (node->operands == 2)
    interval_of_binary(nodes, node, bindings, box, result);
  else
    interval_of_select(nodes, node, bindings, box, result);
}

Ternary expression_interval(const Expression *mask, const Bindings *bindings, const Box *box) {
  int root = expression_root(mask);
  if (box->q_min == box->q_max && box->k_min == box->k_max && box->h_min == box->h_max) {
    RowPosition row = {box->q_min, box->h_min, box->b, box->n_q, box->n_k};
    return evaluate_truth(mask->nodes, root, bindings, &row, box->k_min) ? TERNARY_TRUE
                                                                         : TERNARY_FALSE;
  }
  Interval result;
  interval_of_node(mask->nodes, root, bindings, box, &result);
  return result.truth;
}
