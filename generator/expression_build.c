/* Level 2. Construction of expression nodes: type rules, conversions, static ranges, limits.
 *
 * Whatever builds nodes (parser, derivative, combinators) comes through here, so a finished
 * Expression always satisfies: operands have the types that their operation wants, no integer
 * operation can leave 64 bits under the assumed limits, depth and size are bounded. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/expression_ast.h"

const char *const index_names[INDEX_COUNT] = {"q", "k", "h", "b", "n_q", "n_k"};

static const struct {
  const char *text;
  bool exact;
} operations[OPERATION_COUNT] = {
#define X(name, text, exact) {text, exact},
    OPERATION_LIST(X)
#undef X
};

const char *operation_text(Operation operation) {
  return operations[operation].text;
}

int build_fail(Builder *builder, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(builder->message, sizeof builder->message, format, arguments);
  va_end(arguments);
  return -1;
}

rota_status build_report(const Builder *builder, const char *text, SourcePlace place) {
  enum { SHOWN_MAX = 88, BEFORE_MAX = 60 }; /* of a long line, a window around the caret */
  const char *file = place.file ? place.file : "expression";
  if (!builder->message[0])
    return ROTA_OUT_OF_MEMORY; /* already reported */
  if (!text)
    return status_fail(ROTA_SCRIPT, "%s:%d: %s", file, place.line, builder->message);
  const char *fault = text + builder->position, *begin = fault;
  while (begin > text && begin[-1] != '\n')
    begin--;
  for (const char *c = text; c < begin; c++)
    place.line += *c == '\n';
  if (fault - begin > BEFORE_MAX)
    begin = fault - BEFORE_MAX;
  char line[SHOWN_MAX + 1], caret[SHOWN_MAX + 1];
  size_t length = 0, columns = 0;
  for (; begin[length] && begin[length] != '\n' && length < SHOWN_MAX; length++) {
    unsigned char byte = (unsigned char)begin[length];
    line[length] = byte == '\t' || byte >= ' ' ? (char)byte : '?';
    /* The caret stands after as many columns; UTF-8's continuation bytes take none. */
    if (begin + length < fault && (byte & 0xc0) != 0x80)
      caret[columns++] = byte == '\t' ? '\t' : ' ';
  }
  line[length] = '\0';
  caret[columns] = '\0';
  return status_fail(ROTA_SCRIPT, "%s:%d: %s\n    %s\n    %s^", file, place.line, builder->message,
                     line, caret);
}

static const char *type_name(uint8_t type) {
  return type == VALUE_BOOL ? "a condition" : type == VALUE_INT ? "an int" : "a float";
}

/* Fills what follows from the operands, checks the limits, appends. */
static int append(Builder *builder, Node node) {
  int depth = 0, size = 1;
  for (int i = 0; i < node.operands; i++) {
    const Node *operand = &builder->nodes[node.operand[i]];
    depth = operand->depth > depth ? operand->depth : depth;
    size += operand->size;
    node.varies |= operand->varies;
    node.uses_score |= operand->uses_score;
    node.variables |= operand->variables;
  }
  if (builder->count >= NODES_MAX || depth >= DEPTH_MAX || size > TREE_SIZE_MAX)
    return build_fail(builder, "the expression is too large (%d levels, %d nodes)", depth + 1,
                      size);
  if (builder->count == builder->capacity) {
    int capacity = builder->capacity ? builder->capacity * 2 : 16;
    Node *nodes = memory_resize(builder->nodes, (size_t)capacity, sizeof *nodes);
    if (!nodes)
      return -1;
    builder->nodes = nodes;
    builder->capacity = capacity;
  }
  node.depth = (int16_t)(depth + 1);
  node.size = size;
  node.wide = node.type == VALUE_INT && (node.low < INT32_MIN || node.high > INT32_MAX);
  builder->nodes[builder->count] = node;
  return builder->count++;
}

static Node node_of(const Builder *builder, Operation operation, ValueType type) {
  return (Node){
      .operation = (uint8_t)operation, .type = (uint8_t)type, .position = builder->position};
}

int build_constant(Builder *builder, ValueType type, int64_t integer, float real) {
  Operation operation = type == VALUE_FLOAT ? OP_FLOAT : type == VALUE_INT ? OP_INT : OP_BOOL;
  Node node = node_of(builder, operation, type);
  if (type == VALUE_FLOAT)
    node.value.f = real;
  else
    node.value.i = node.low = node.high = integer;
  return append(builder, node);
}

int build_leaf(Builder *builder, Operation operation, ValueType type, int64_t value) {
  Node node = node_of(builder, operation, type);
  node.value.i = value;
  node.uses_score = operation == OP_SCORE;
  node.varies = operation == OP_SCORE || (operation == OP_INDEX && value == INDEX_K);
  if (operation == OP_INDEX) {
    node.variables = (uint8_t)(1 << value);
    node.high = LIMIT_LENGTH;
  } else if (type == VALUE_INT) {
    node.low = -LIMIT_PARAMETER;
    node.high = LIMIT_PARAMETER;
  }
  return append(builder, node);
}

int build_tensor(Builder *builder, int tensor, ValueType type, const int *indices, int rank) {
  Node node = node_of(builder, OP_TENSOR, type);
  node.value.i = tensor;
  node.operands = (uint8_t)rank;
  node.low = INT32_MIN;
  node.high = INT32_MAX;
  for (int i = 0; i < rank; i++) {
    if (indices[i] < 0)
      return -1;
    uint8_t index_type = builder->nodes[indices[i]].type;
    if (index_type != VALUE_INT)
      return build_fail(builder, "a tensor's index must be an int, index %d is %s", i + 1,
                        type_name(index_type));
    node.operand[i] = (int16_t)indices[i];
  }
  return append(builder, node);
}

static int unary_node(Builder *builder, Operation operation, ValueType type, int a) {
  Node node = node_of(builder, operation, type);
  node.operands = 1;
  node.operand[0] = (int16_t)a;
  if (operation == OP_TO_INT) {
    node.low = INT32_MIN;
    node.high = INT32_MAX;
  } else if (type == VALUE_INT) {
    const Node *operand = &builder->nodes[a];
    IntegerRange range;
    if (!integer_range_unary(operation, (IntegerRange){operand->low, operand->high}, &range))
      return build_fail(builder, "'%s' can leave 64 bits", operation_text(operation));
    node.low = range.low;
    node.high = range.high;
  }
  return append(builder, node);
}

int build_float(Builder *builder, int a) {
  if (a < 0)
    return -1;
  const Node *node = &builder->nodes[a];
  if (node->type == VALUE_FLOAT)
    return a;
  if (node->type == VALUE_BOOL)
    return build_fail(builder, "a number is needed here, this is a condition; write select(...)");
  if (node->operation == OP_INT)
    return build_constant(builder, VALUE_FLOAT, 0, (float)node->value.i);
  return unary_node(builder, OP_TO_FLOAT, VALUE_FLOAT, a);
}

int build_unary(Builder *builder, Operation operation, int a) {
  if (a < 0)
    return -1;
  const Node *node = &builder->nodes[a];
  if ((operation == OP_NOT) != (node->type == VALUE_BOOL))
    return build_fail(builder, "'%s' needs %s, its operand is %s", operation_text(operation),
                      operation == OP_NOT ? "a condition" : "a number", type_name(node->type));
  if (!operations[operation].exact && builder->kind == EXPRESSION_MASK)
    return build_fail(builder,
                      "'%s' is not rounded alike on every device and cannot stand in a mask; "
                      "there are min, max, abs, floor, ceil and sqrt",
                      operation_text(operation));
  bool is_int = node->type == VALUE_INT;
  switch (operation) {
  case OP_NOT:
    return unary_node(builder, operation, VALUE_BOOL, a);
  case OP_NEGATE:
    if (node->operation == OP_INT && node->value.i != INT64_MIN)
      return build_constant(builder, VALUE_INT, -node->value.i, 0);
    if (node->operation == OP_FLOAT)
      return build_constant(builder, VALUE_FLOAT, 0, -node->value.f);
    return unary_node(builder, operation, (ValueType)node->type, a);
  case OP_ABS:
    return unary_node(builder, operation, (ValueType)node->type, a);
  case OP_FLOOR:
  case OP_CEIL:
    return is_int ? a : unary_node(builder, operation, VALUE_FLOAT, a);
  case OP_TO_INT:
    return is_int ? a : unary_node(builder, operation, VALUE_INT, a);
  case OP_TO_FLOAT:
    return build_float(builder, a);
  default:
    a = build_float(builder, a);
    return a < 0 ? -1 : unary_node(builder, operation, VALUE_FLOAT, a);
  }
}

/* Brings two operands to one type; false with a message if there is none. */
static bool unify(Builder *builder, const char *what, bool conditions_too, int *a, int *b) {
  uint8_t left = builder->nodes[*a].type, right = builder->nodes[*b].type;
  if (left == VALUE_BOOL || right == VALUE_BOOL) {
    if (conditions_too && left == right)
      return true;
    build_fail(builder, "'%s' needs %s, its operands are %s and %s", what,
               conditions_too ? "two numbers or two conditions" : "two numbers", type_name(left),
               type_name(right));
    return false;
  }
  if (left == right)
    return true;
  *a = build_float(builder, *a);
  *b = build_float(builder, *b);
  return *a >= 0 && *b >= 0;
}

static bool is_zero(const Builder *builder, int a) {
  const Node *node = &builder->nodes[a];
  if (node->operation == OP_TO_FLOAT)
    node = &builder->nodes[node->operand[0]];
  if (node->type == VALUE_FLOAT)
    return node->operation == OP_FLOAT && node->value.f == 0;
  return node->low == 0 && node->high == 0;
}

/* A node whose operands have already one type. */
static int binary_node(Builder *builder, Operation operation, ValueType type, int a, int b) {
  Node node = node_of(builder, operation, type);
  node.operands = 2;
  node.operand[0] = (int16_t)a;
  node.operand[1] = (int16_t)b;
  if (type == VALUE_INT) {
    const Node *left = &builder->nodes[a], *right = &builder->nodes[b];
    IntegerRange range;
    if (!integer_range_binary(operation, (IntegerRange){left->low, left->high},
                              (IntegerRange){right->low, right->high}, &range))
      return build_fail(builder,
                        "'%s' can leave 64 bits: its operands are in [%lld, %lld] and [%lld, %lld]",
                        operation_text(operation), (long long)left->low, (long long)left->high,
                        (long long)right->low, (long long)right->high);
    node.low = range.low;
    node.high = range.high;
  }
  return append(builder, node);
}

/* A constant whole exponent becomes multiplications, which every device rounds alike. */
static int build_power(Builder *builder, int base, int exponent) {
  base = build_float(builder, base);
  if (base < 0)
    return -1;
  const Node *node = &builder->nodes[exponent];
  float value = node->operation == OP_INT     ? (float)node->value.i
                : node->operation == OP_FLOAT ? node->value.f
                                              : -1;
  if (value >= 0 && value <= POWER_MAX && value == floorf(value)) {
    Node power = node_of(builder, OP_INTEGER_POWER, VALUE_FLOAT);
    power.operands = 1;
    power.operand[0] = (int16_t)base;
    power.value.i = (int64_t)value;
    return append(builder, power);
  }
  if (builder->kind == EXPRESSION_MASK)
    return build_fail(builder, "'^' in a mask needs a constant whole exponent from 0 to %d",
                      POWER_MAX);
  exponent = build_float(builder, exponent);
  return exponent < 0 ? -1 : binary_node(builder, OP_POWER, VALUE_FLOAT, base, exponent);
}

int build_binary(Builder *builder, Operation operation, int a, int b) {
  if (a < 0 || b < 0)
    return -1;
  const char *text = operation_text(operation);
  if (operation == OP_AND || operation == OP_OR) {
    uint8_t left = builder->nodes[a].type, right = builder->nodes[b].type;
    if (left != VALUE_BOOL || right != VALUE_BOOL)
      return build_fail(builder, "'%s' needs two conditions, its operands are %s and %s", text,
                        type_name(left), type_name(right));
    return binary_node(builder, operation, VALUE_BOOL, a, b);
  }
  bool equality = operation == OP_EQUAL || operation == OP_NOT_EQUAL;
  if (!unify(builder, text, equality, &a, &b))
    return -1;
  if (equality || operation == OP_LESS || operation == OP_LESS_EQUAL)
    return binary_node(builder, operation, VALUE_BOOL, a, b);
  if (operation == OP_POWER)
    return build_power(builder, a, b);
  if (operation == OP_DIVIDE) {
    a = build_float(builder, a);
    b = build_float(builder, b);
    if (a < 0 || b < 0)
      return -1;
  }
  bool divides = operation == OP_DIVIDE || operation == OP_FLOOR_DIVIDE || operation == OP_MODULO;
  if (divides && is_zero(builder, b))
    return build_fail(builder, "'%s' divides by zero", text);
  return binary_node(builder, operation, (ValueType)builder->nodes[a].type, a, b);
}

int build_select(Builder *builder, int condition, int a, int b) {
  if (condition < 0 || a < 0 || b < 0)
    return -1;
  uint8_t type = builder->nodes[condition].type;
  if (type != VALUE_BOOL)
    return build_fail(builder, "'select' needs a condition first, this is %s", type_name(type));
  if (!unify(builder, "select", true, &a, &b))
    return -1;
  const Node *left = &builder->nodes[a], *right = &builder->nodes[b];
  Node node = node_of(builder, OP_SELECT, (ValueType)left->type);
  node.operands = 3;
  node.operand[0] = (int16_t)condition;
  node.operand[1] = (int16_t)a;
  node.operand[2] = (int16_t)b;
  node.low = left->low < right->low ? left->low : right->low;
  node.high = left->high > right->high ? left->high : right->high;
  return append(builder, node);
}

int build_copy(Builder *builder, const Expression *expression, int score) {
  int base = builder->count;
  for (int i = 0; i < expression->count; i++) {
    Node node = expression->nodes[i];
    node.varies = node.operands == 0 && node.varies;
    node.uses_score = node.operation == OP_SCORE;
    node.variables = node.operands == 0 ? node.variables : 0;
    for (int j = 0; j < node.operands; j++) {
      bool replaced = score >= 0 && expression->nodes[node.operand[j]].operation == OP_SCORE;
      node.operand[j] = (int16_t)(replaced ? score : base + node.operand[j]);
    }
    if (append(builder, node) < 0)
      return -1;
  }
  bool replaced =
      score >= 0 && expression->nodes[expression_root(expression)].operation == OP_SCORE;
  return replaced ? score : builder->count - 1;
}

/* Moves the nodes that `root` reaches to the front, in order; returns how many. */
static int compact(Builder *builder, int root, int16_t *moved) {
  moved[root] = 1;
  for (int i = root; i >= 0; i--)
    for (int j = 0; moved[i] && j < builder->nodes[i].operands; j++)
      moved[builder->nodes[i].operand[j]] = 1;
  int count = 0;
  for (int i = 0; i <= root; i++) {
    if (!moved[i])
      continue;
    Node node = builder->nodes[i];
    for (int j = 0; j < node.operands; j++)
      node.operand[j] = moved[node.operand[j]];
    moved[i] = (int16_t)count;
    builder->nodes[count++] = node;
  }
  return count;
}

Expression *build_finish(Builder *builder, int root, SourcePlace place, const char *text) {
  Expression *expression = NULL;
  int16_t *moved = memory_allocate((size_t)builder->count, sizeof *moved);
  if (moved) {
    int count = compact(builder, root, moved);
    size_t bytes = sizeof(Expression) + (size_t)count * sizeof(Node);
    expression = memory_allocate(1, bytes);
    if (expression) {
      atomic_init(&expression->references, 1);
      expression->count = count;
      memcpy(expression->nodes, builder->nodes, (size_t)count * sizeof(Node));
      expression->place.line = place.line;
      expression->place.file = place.file ? memory_copy_string(place.file) : NULL;
      expression->text = text ? memory_copy_string(text) : NULL;
      if ((place.file && !expression->place.file) || (text && !expression->text)) {
        expression_release(expression);
        expression = NULL;
      }
    }
  }
  free(moved);
  free(builder->nodes);
  builder->nodes = NULL;
  builder->count = builder->capacity = 0;
  return expression;
}
