/* Level 2. Derivative of a score by s, simplified: terms with factor 0 vanish, factors 1 too.
 *
 * New nodes use the original's nodes as operands; nothing is copied. Where a function has a corner
 * (abs, min, max, select) the derivative is that of the branch taken. */
#include <stdlib.h>

#include "generator/expression_ast.h"

/* Stands for a derivative that is zero everywhere; -1 is failure, as for the builder. */
enum { ZERO = -2 };

static int constant(Builder *builder, float value) {
  return build_constant(builder, VALUE_FLOAT, 0, value);
}

static bool is_constant(const Builder *builder, int a, float value) {
  return a >= 0 && builder->nodes[a].operation == OP_FLOAT && builder->nodes[a].value.f == value;
}

static int negated(Builder *builder, int a) {
  return a == ZERO ? ZERO : build_unary(builder, OP_NEGATE, a);
}

static int sum(Builder *builder, int a, int b) {
  if (a == ZERO || b == ZERO)
    return a == ZERO ? b : a;
  return build_binary(builder, OP_ADD, a, b);
}

static int difference(Builder *builder, int a, int b) {
  if (a == ZERO || b == ZERO)
    return b == ZERO ? a : negated(builder, b);
  return build_binary(builder, OP_SUBTRACT, a, b);
}

static int product(Builder *builder, int a, int b) {
  if (a == ZERO || b == ZERO)
    return ZERO;
  if (is_constant(builder, a, 1))
    return b;
  if (is_constant(builder, b, 1))
    return a;
  if (is_constant(builder, b, -1))
    return negated(builder, a);
  return build_binary(builder, OP_MULTIPLY, a, b);
}

static int quotient(Builder *builder, int a, int b) {
  if (a == ZERO)
    return ZERO;
  return is_constant(builder, b, 1) ? a : build_binary(builder, OP_DIVIDE, a, b);
}

static int choice(Builder *builder, int condition, int a, int b) {
  if (a == ZERO && b == ZERO)
    return ZERO;
  a = a == ZERO ? constant(builder, 0) : a;
  b = b == ZERO ? constant(builder, 0) : b;
  if (a >= 0 && b >= 0 && builder->nodes[a].operation == OP_FLOAT &&
      is_constant(builder, b, builder->nodes[a].value.f))
    return a;
  return build_select(builder, condition, a, b);
}

/* Derivative of a function of one operand `a` (its value: `self`), before the chain rule. */
static int slope(Builder *builder, const Node *node, int self, int a) {
  switch (node->operation) {
  case OP_EXP:
    return self;
  case OP_LOG:
    return quotient(builder, constant(builder, 1), a);
  case OP_SQRT:
    return quotient(builder, constant(builder, 0.5f), self);
  case OP_TANH:
    return difference(builder, constant(builder, 1), product(builder, self, self));
  case OP_SIGMOID:
    return product(builder, self, difference(builder, constant(builder, 1), self));
  case OP_SIN:
    return build_unary(builder, OP_COS, a);
  case OP_COS:
    return negated(builder, build_unary(builder, OP_SIN, a));
  case OP_ERF: { /* 2 / sqrt(pi) * exp(-a^2) */
    int square = product(builder, a, a);
    int bell = build_unary(builder, OP_EXP, negated(builder, square));
    return product(builder, constant(builder, 1.1283791671f), bell);
  }
  case OP_ABS: {
    int below = build_binary(builder, OP_LESS, a, constant(builder, 0));
    return choice(builder, below, constant(builder, -1), constant(builder, 1));
  }
  default:
    return build_fail(builder, "'%s' of s has no derivative",
                      operation_text((Operation)node->operation));
  }
}

/* n x^(n-1) */
static int integer_power_slope(Builder *builder, const Node *node, int a) {
  int exponent = build_constant(builder, VALUE_INT, node->value.i - 1, 0);
  if (node->value.i <= 1)
    return node->value.i == 0 ? ZERO : constant(builder, 1);
  int power = node->value.i == 2 ? a : build_binary(builder, OP_POWER, a, exponent);
  return product(builder, constant(builder, (float)node->value.i), power);
}

/* d a^b = b a^(b-1) da + a^b log(a) db */
static int power(Builder *builder, int self, int a, int b, int da, int db) {
  int by_base = ZERO, by_exponent = ZERO;
  if (da != ZERO) {
    int lower = build_binary(builder, OP_SUBTRACT, b, constant(builder, 1));
    by_base = product(builder, b, build_binary(builder, OP_POWER, a, lower));
  }
  if (db != ZERO)
    by_exponent = product(builder, self, build_unary(builder, OP_LOG, a));
  return sum(builder, product(builder, by_base, da), product(builder, by_exponent, db));
}

static int derive(Builder *builder, int self);

static int derive_binary(Builder *builder, const Node *node, int self) {
  int a = node->operand[0], b = node->operand[1];
  int da = derive(builder, a);
  int db = da == -1 ? -1 : derive(builder, b);
  if (da == -1 || db == -1)
    return -1;
  builder->position = node->position;
  switch (node->operation) {
  case OP_ADD:
    return sum(builder, da, db);
  case OP_SUBTRACT:
    return difference(builder, da, db);
  case OP_MULTIPLY:
    return sum(builder, product(builder, da, b), product(builder, a, db));
  case OP_DIVIDE: { /* da / b - (a / b) db / b; where b is 0 all terms are 0, as the quotient is */
    int rest = product(builder, self, db);
    return difference(builder, quotient(builder, da, b), quotient(builder, rest, b));
  }
  case OP_POWER:
    return power(builder, self, a, b, da, db);
  case OP_MIN:
    return choice(builder, build_binary(builder, OP_LESS, a, b), da, db);
  case OP_MAX:
    return choice(builder, build_binary(builder, OP_LESS, b, a), da, db);
  default:
    if (da == ZERO && db == ZERO) /* s only stands in conditions */
      return ZERO;
    return build_fail(builder, "'%s' of s has no derivative",
                      operation_text((Operation)node->operation));
  }
}

/* Index of the derivative's node, ZERO, or -1 with the builder's message. */
static int derive(Builder *builder, int self) {
  const Node node = builder->nodes[self]; /* a copy: the array moves as it grows */
  if (!node.uses_score)
    return ZERO;
  builder->position = node.position;
  if (node.operation == OP_SCORE)
    return constant(builder, 1);
  if (node.operation == OP_SELECT) {
    int a = derive(builder, node.operand[1]);
    int b = a == -1 ? -1 : derive(builder, node.operand[2]);
    return a == -1 || b == -1 ? -1 : choice(builder, node.operand[0], a, b);
  }
  if (node.operation == OP_TENSOR)
    return build_fail(builder, "a tensor indexed by s has no derivative");
  if (node.operands == 2)
    return derive_binary(builder, &node, self);
  if (node.operation == OP_TO_FLOAT)
    return derive(builder, node.operand[0]);
  /* What has no slope is refused before its operand is looked at. */
  int outer = node.operation == OP_NEGATE ? ZERO
              : node.operation == OP_INTEGER_POWER
                  ? integer_power_slope(builder, &node, node.operand[0])
                  : slope(builder, &node, self, node.operand[0]);
  int inner = outer == -1 ? -1 : derive(builder, node.operand[0]);
  if (inner == -1)
    return -1;
  return node.operation == OP_NEGATE ? negated(builder, inner) : product(builder, outer, inner);
}

rota_status expression_derivative(const Expression *expression, Expression **derivative) {
  *derivative = NULL;
  Builder builder = {.kind = EXPRESSION_SCORE};
  int root = build_copy(&builder, expression, -1);
  if (root >= 0)
    root = derive(&builder, root);
  if (root == ZERO)
    root = constant(&builder, 0);
  if (root >= 0) {
    *derivative = build_finish(&builder, root, expression_place(expression), NULL);
    return *derivative ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  }
  rota_status status = build_report(&builder, expression->text, expression->place);
  free(builder.nodes);
  return status;
}
