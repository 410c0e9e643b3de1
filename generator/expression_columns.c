/* Level 2. Masks whose allowed keys are an interval for every query: causal, windows, prefixes and
 * what `and` makes of them. Kernels then test columns against two bounds instead of evaluating the
 * mask for every element.
 *
 * Comparisons of integers are solved for k where they are k + rest < 0 or rest - k < 0. Integers
 * are exact, so moving terms changes nothing; where a bound may leave 32 bits its text is computed
 * in 64. */
#include <stdlib.h>
#include <string.h>

#include "generator/expression_ast.h"

/* A bound that does not exist: below it 0, above it LIMIT_LENGTH. -1 is failure, as for the
 * builder. */
enum { NONE = -2 };

typedef struct Columns {
  bool known;     /* the condition is first <= k < end */
  int first, end; /* nodes, or NONE */
  int whole;      /* a condition free of k that stands for all of it, or NONE */
} Columns;

static const Columns unknown = {false, NONE, NONE, NONE};

static int integer(Builder *builder, int64_t value) {
  return build_constant(builder, VALUE_INT, value, 0);
}

/* Integer node = coefficient * k + rest, rest free of k (NONE: 0). */
typedef struct LinearInK {
  bool known;
  int coefficient, rest;
} LinearInK;

static int add_rest(Builder *builder, Operation operation, int a, int b) {
  if (b == NONE)
    return a;
  if (a == NONE)
    return operation == OP_ADD ? b : build_unary(builder, OP_NEGATE, b);
  return build_binary(builder, operation, a, b);
}

static LinearInK linear_of(Builder *builder, int index) {
  const Node node = builder->nodes[index]; /* a copy: the array moves as it grows */
  if (node.type != VALUE_INT)
    return (LinearInK){false, 0, NONE};
  if (!node.varies)
    return (LinearInK){true, 0, index};
  if (node.operation == OP_INDEX)
    return (LinearInK){true, 1, NONE};
  if (node.operation == OP_NEGATE) {
    LinearInK a = linear_of(builder, node.operand[0]);
    int rest = a.rest == NONE || !a.known ? NONE : build_unary(builder, OP_NEGATE, a.rest);
    return (LinearInK){a.known, -a.coefficient, rest};
  }
  if (node.operation != OP_ADD && node.operation != OP_SUBTRACT)
    return (LinearInK){false, 0, NONE};
  LinearInK a = linear_of(builder, node.operand[0]);
  LinearInK b = linear_of(builder, node.operand[1]);
  if (!a.known || !b.known)
    return (LinearInK){false, 0, NONE};
  int sign = node.operation == OP_ADD ? 1 : -1;
  return (LinearInK){true, a.coefficient + sign * b.coefficient,
                     add_rest(builder, (Operation)node.operation, a.rest, b.rest)};
}

/* All keys where a condition free of k holds, none elsewhere. */
static Columns by_condition(Builder *builder, int condition) {
  int end = build_select(builder, condition, integer(builder, LIMIT_LENGTH), integer(builder, 0));
  return (Columns){true, NONE, end, condition};
}

static Columns comparison(Builder *builder, Operation operation, int left, int right) {
  LinearInK a = linear_of(builder, left), b = linear_of(builder, right);
  int coefficient = a.coefficient - b.coefficient;
  if (!a.known || !b.known || (coefficient != 1 && coefficient != -1))
    return unknown;
  /* k or -k, + rest, compared with 0 */
  int rest = add_rest(builder, OP_SUBTRACT, a.rest, b.rest);
  rest = rest == NONE ? integer(builder, 0) : rest;
  int turned = build_unary(builder, OP_NEGATE, rest), one = integer(builder, 1);
  if (operation == OP_EQUAL) {
    int key = coefficient == 1 ? turned : rest;
    return (Columns){true, key, build_binary(builder, OP_ADD, key, one), NONE};
  }
  bool strict = operation == OP_LESS;
  if (coefficient == 1)
    return (Columns){true, NONE, strict ? turned : build_binary(builder, OP_ADD, turned, one),
                     NONE};
  return (Columns){true, strict ? build_binary(builder, OP_ADD, rest, one) : rest, NONE, NONE};
}

static int narrower(Builder *builder, Operation operation, int a, int b) {
  if (a == NONE || b == NONE)
    return a == NONE ? b : a;
  return build_binary(builder, operation, a, b);
}

static Columns intersection(Builder *builder, Columns a, Columns b) {
  if (!a.known || !b.known)
    return unknown;
  return (Columns){true, narrower(builder, OP_MAX, a.first, b.first),
                   narrower(builder, OP_MIN, a.end, b.end), NONE};
}

/* All keys where a condition free of k holds, else `a`. */
static Columns unless(Builder *builder, int condition, Columns a) {
  int all = integer(builder, LIMIT_LENGTH), none = integer(builder, 0);
  return (Columns){true, a.first == NONE ? NONE : build_select(builder, condition, none, a.first),
                   a.end == NONE ? NONE : build_select(builder, condition, all, a.end), NONE};
}

/* Known where both reach to the same side, or one is all or nothing. */
static Columns hull(Builder *builder, Columns a, Columns b) {
  if (!a.known || !b.known)
    return unknown;
  if (a.whole != NONE || b.whole != NONE)
    return a.whole != NONE ? unless(builder, a.whole, b) : unless(builder, b.whole, a);
  if (a.first == NONE && b.first == NONE)
    return (Columns){
        true, NONE,
        a.end == NONE || b.end == NONE ? NONE : build_binary(builder, OP_MAX, a.end, b.end), NONE};
  if (a.end == NONE && b.end == NONE)
    return (Columns){
        true,
        a.first == NONE || b.first == NONE ? NONE : build_binary(builder, OP_MIN, a.first, b.first),
        NONE, NONE};
  return unknown;
}

static Columns columns_of(Builder *builder, int index, bool negated) {
  const Node node = builder->nodes[index];
  int left = node.operand[0], right = node.operand[1];
  if (node.operation == OP_NOT)
    return columns_of(builder, left, !negated);
  if (!node.varies)
    return by_condition(builder, negated ? build_unary(builder, OP_NOT, index) : index);
  if (node.operation == OP_AND || node.operation == OP_OR) {
    Columns a = columns_of(builder, left, negated);
    Columns b = a.known ? columns_of(builder, right, negated) : unknown;
    bool both = (node.operation == OP_AND) != negated;
    return both ? intersection(builder, a, b) : hull(builder, a, b);
  }
  if (node.operation == OP_LESS || node.operation == OP_LESS_EQUAL) {
    if (!negated)
      return comparison(builder, (Operation)node.operation, left, right);
    return comparison(builder, node.operation == OP_LESS ? OP_LESS_EQUAL : OP_LESS, right, left);
  }
  if (node.operation == (negated ? OP_NOT_EQUAL : OP_EQUAL))
    return comparison(builder, OP_EQUAL, left, right);
  return unknown;
}

/* An expression of its own, clamped so that it fits 32 bits. */
static Expression *bound(const Expression *mask, bool end) {
  Builder builder = {.kind = EXPRESSION_MASK};
  int root = build_copy(&builder, mask, -1);
  Columns columns = root < 0 ? unknown : columns_of(&builder, root, false);
  int node = end ? columns.end : columns.first;
  if (columns.known && node == NONE)
    node = integer(&builder, end ? LIMIT_LENGTH : 0);
  if (columns.known && node >= 0) {
    node = build_binary(&builder, OP_MAX, node, integer(&builder, 0));
    node = build_binary(&builder, OP_MIN, node, integer(&builder, LIMIT_LENGTH));
  }
  if (!columns.known || node < 0) { /* too large for the builder's limits: not known either */
    free(builder.nodes);
    return NULL;
  }
  return build_finish(&builder, node, expression_place(mask), NULL);
}

/* A tensor's index may be within bounds only thanks to a condition on k, which bounds are computed
 * without. */
static bool guards_tensor(const Expression *mask) {
  bool tensor = false, guard = false;
  for (int i = 0; i < mask->count; i++) {
    int operation = mask->nodes[i].operation;
    tensor |= operation == OP_TENSOR;
    guard |= operation == OP_AND || operation == OP_OR || operation == OP_SELECT;
  }
  return tensor && guard;
}

bool expression_columns(const Expression *mask, Expression **first, Expression **end) {
  *first = guards_tensor(mask) ? NULL : bound(mask, false);
  *end = *first ? bound(mask, true) : NULL;
  if (*end)
    return true;
  expression_release(*first);
  *first = NULL;
  return false;
}

/* ---- Of some conditions ---- */

static bool has_tensor(const Builder *builder, int index) {
  const Node *node = &builder->nodes[index];
  bool found = node->operation == OP_TENSOR;
  for (int i = 0; i < node->operands && !found; i++)
    found = has_tensor(builder, node->operand[i]);
  return found;
}

/* Those below a node that can be solved, or those that cannot; NONE: there are none. */
static int conditions(Builder *builder, int index, bool solved) {
  const Node node = builder->nodes[index];
  if (node.operation != OP_AND) {
    bool known = !has_tensor(builder, index) && columns_of(builder, index, false).known;
    return known == solved ? index : NONE;
  }
  int a = conditions(builder, node.operand[0], solved);
  int b = conditions(builder, node.operand[1], solved);
  if (a == NONE || b == NONE)
    return a == NONE ? b : a;
  return build_binary(builder, OP_AND, a, b);
}

static Expression *part(const Expression *mask, bool solved) {
  Builder builder = {.kind = EXPRESSION_MASK};
  int root = build_copy(&builder, mask, -1);
  int node = root < 0 ? root : conditions(&builder, root, solved);
  if (node >= 0)
    return build_finish(&builder, node, expression_place(mask), NULL);
  free(builder.nodes);
  return NULL;
}

bool expression_columns_part(const Expression *mask, Expression **first, Expression **end,
                             Expression **rest) {
  Expression *solved = part(mask, true);
  *rest = part(mask, false);
  bool known = solved && *rest && expression_columns(solved, first, end);
  expression_release(solved);
  if (known)
    return true;
  expression_release(*rest);
  *first = *end = *rest = NULL;
  return false;
}

/* ---- Numbers that match ---- */

/* The integer below a node, which fits 32 bits and does not depend on a variable. */
static Expression *number_without(const Expression *expression, int index, IndexVariable variable) {
  const Node *node = &expression->nodes[index];
  Builder builder = {.kind = EXPRESSION_MASK};
  if (node->type != VALUE_INT || node->wide || (node->variables >> variable & 1))
    return NULL;
  if (build_copy(&builder, expression, -1) >= 0)
    return build_finish(&builder, index, expression_place(expression), NULL);
  free(builder.nodes);
  return NULL;
}

bool expression_match(const Expression *mask, Expression **of_query, Expression **of_key) {
  *of_query = *of_key = NULL;
  Expression *rest = part(mask, false);
  const Node *root = rest ? &rest->nodes[expression_root(rest)] : NULL;
  for (int turn = 0; root && root->operation == OP_EQUAL && turn < 2 && !*of_key; turn++) {
    expression_release(*of_query);
    *of_query = number_without(rest, root->operand[turn], INDEX_K);
    *of_key = *of_query ? number_without(rest, root->operand[1 - turn], INDEX_Q) : NULL;
  }
  expression_release(rest);
  if (*of_key)
    return true;
  expression_release(*of_query);
  *of_query = NULL;
  return false;
}

/* ---- Queries in place of keys ---- */

/* q and k have changed places. */
static int copy_turned(Builder *builder, const Expression *expression) {
  size_t bytes = sizeof(Expression) + (size_t)expression->count * sizeof(Node);
  Expression *turned = memory_allocate(1, bytes);
  if (!turned)
    return -1;
  turned->count = expression->count;
  memcpy(turned->nodes, expression->nodes, (size_t)expression->count * sizeof(Node));
  for (int i = 0; i < turned->count; i++) {
    Node *node = &turned->nodes[i];
    if (node->operation != OP_INDEX || (node->value.i != INDEX_Q && node->value.i != INDEX_K))
      continue;
    node->value.i = node->value.i == INDEX_Q ? INDEX_K : INDEX_Q;
    node->variables = (uint8_t)(1 << node->value.i);
    node->varies = node->value.i == INDEX_K;
  }
  int root = build_copy(builder, turned, -1);
  free(turned);
  return root;
}

static Expression *turn(const Expression *expression) {
  Builder builder = {.kind = EXPRESSION_MASK};
  int root = copy_turned(&builder, expression);
  if (root >= 0)
    return build_finish(&builder, root, expression_place(expression), NULL);
  free(builder.nodes);
  return NULL;
}

static void turn_in_place(Expression **expression) {
  Expression *turned = turn(*expression);
  expression_release(*expression);
  *expression = turned;
}

bool expression_rows(const Expression *mask, Expression **first, Expression **end) {
  bool whole = expression_columns(mask, first, end);
  expression_release(*first);
  expression_release(*end);
  *first = *end = NULL;
  Expression *solved = whole ? turn(mask) : part(mask, true);
  if (solved && !whole)
    turn_in_place(&solved);
  bool known = solved && expression_columns(solved, first, end);
  expression_release(solved);
  if (!known)
    return false;
  turn_in_place(first);
  turn_in_place(end);
  if (*first && *end)
    return true;
  expression_release(*first);
  expression_release(*end);
  *first = *end = NULL;
  return false;
}
