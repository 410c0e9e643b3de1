/* Level 2. CUDA text of an expression.
 *
 * Widths: a node that may leave 32 bits is long long. An operation is carried out in long long when
 * its result or an operand is wide; a narrow result of it is cast back. Conditions emit && || ?:,
 * so a guarded tensor access is not executed where its guard is false; but in masks, whose accesses
 * are clamped, & and | where tensors follow, so that loads do not wait for one another and what
 * many elements share is loaded once. */
#include <math.h>

#include "generator/expression_ast.h"

typedef struct Emitter {
  const Node *nodes;
  const Symbols *symbols;
  bool exact;
  Text *out;
} Emitter;

static void emit(const Emitter *emitter, int index);

static void emit_float(float value, Text *out) {
  if (isnan(value)) {
    text_append(out, "rota_nan()");
  } else if (isinf(value)) {
    text_append(out, value < 0 ? "(-rota_infinity())" : "rota_infinity()");
  } else {
    text_append(out, signbit(value) ? "(" : "");
    text_append_float(out, value);
    text_append(out, signbit(value) ? "f)" : "f");
  }
}

static void emit_integer(int64_t value, bool wide, Text *out) {
  if (value == INT64_MIN)
    text_append(out, "(-9223372036854775807LL - 1)");
  else if (value == INT32_MIN)
    text_append(out, "(-2147483647 - 1)");
  else
    text_format(out, value < 0 ? "(%lld%s)" : "%lld%s", (long long)value, wide ? "LL" : "");
}

static void emit_leaf(const Emitter *emitter, const Node *node) {
  Text *out = emitter->out;
  switch (node->operation) {
  case OP_BOOL:
    text_append(out, node->value.i ? "true" : "false");
    return;
  case OP_INT:
    emit_integer(node->value.i, node->wide, out);
    return;
  case OP_FLOAT:
    emit_float(node->value.f, out);
    return;
  case OP_INDEX:
    text_format(out, "at.%s", index_names[node->value.i]);
    return;
  case OP_PARAMETER:
    text_format(out, "p_%s", emitter->symbols->parameters[node->value.i].name);
    return;
  default:
    text_append(out, "s");
  }
}

/* An integer operand, as long long if the operation is carried out so. */
static void emit_operand(const Emitter *emitter, int index, bool wide) {
  const Node *node = &emitter->nodes[index];
  if (wide && node->type == VALUE_INT && !node->wide)
    text_append(emitter->out, "(long long)");
  emit(emitter, index);
}

static bool is_wide_operation(const Emitter *emitter, const Node *node) {
  bool wide = node->wide;
  for (int i = 0; i < node->operands; i++)
    wide |= emitter->nodes[node->operand[i]].wide;
  return wide;
}

/* `name(a, b)` for any number of operands. */
static void emit_call(const Emitter *emitter, const Node *node, const char *name) {
  bool wide = node->type == VALUE_INT && is_wide_operation(emitter, node);
  text_format(emitter->out, "%s%s(", wide && !node->wide ? "(int)" : "", name);
  for (int i = 0; i < node->operands; i++) {
    if (i > 0)
      text_append(emitter->out, ", ");
    emit_operand(emitter, node->operand[i], wide);
  }
  text_append(emitter->out, ")");
}

/* `(a text b)` */
static void emit_infix(const Emitter *emitter, const Node *node, const char *text) {
  bool wide = node->type == VALUE_INT && is_wide_operation(emitter, node);
  text_append(emitter->out, wide && !node->wide ? "(int)(" : "(");
  emit_operand(emitter, node->operand[0], wide);
  text_format(emitter->out, " %s ", text);
  emit_operand(emitter, node->operand[1], wide);
  text_append(emitter->out, ")");
}

/* Function names of operations, float and integer alike; CUDA's own or expression.cuh's. */
static const char *call_name(Operation operation, bool exact) {
  switch (operation) {
  case OP_FLOOR_DIVIDE:
    return "rota_floor_divide";
  case OP_MODULO:
    return "rota_modulo";
  case OP_MIN:
    return "rota_min";
  case OP_MAX:
    return "rota_max";
  case OP_ABS:
    return "rota_abs";
  case OP_FLOOR:
    return "floorf";
  case OP_CEIL:
    return "ceilf";
  case OP_SQRT:
    return exact ? "__fsqrt_rn" : "sqrtf";
  case OP_TO_INT:
    return "rota_to_int";
  case OP_EXP:
    return "rota_exp";
  case OP_LOG:
    return "rota_log";
  case OP_TANH:
    return "rota_tanh";
  case OP_SIGMOID:
    return "rota_sigmoid";
  case OP_SIN:
    return "sinf";
  case OP_COS:
    return "cosf";
  case OP_ERF:
    return "erff";
  default:
    return "powf";
  }
}

/* Divisions of dividends >= 0 by divisors > 0, which need no floor and no test for 0. */
static bool emit_plain_division(const Emitter *emitter, const Node *node) {
  const Node *a = &emitter->nodes[node->operand[0]], *b = &emitter->nodes[node->operand[1]];
  if (node->type != VALUE_INT || a->low < 0 || b->low < 1)
    return false;
  emit_infix(emitter, node, node->operation == OP_MODULO ? "%" : "/");
  return true;
}

static void emit_float_division(const Emitter *emitter, const Node *node) {
  const Node *divisor = &emitter->nodes[node->operand[1]];
  bool constant = divisor->operation == OP_FLOAT; /* never 0: the type check saw to it */
  float reciprocal = constant ? 1 / divisor->value.f : 0;
  if (emitter->exact || !constant) {
    emit_call(emitter, node, emitter->exact ? "rota_divide_exactly" : "rota_divide");
  } else if (isnormal(reciprocal)) {
    text_append(emitter->out, "(");
    emit(emitter, node->operand[0]);
    text_append(emitter->out, " * ");
    emit_float(reciprocal, emitter->out);
    text_append(emitter->out, ")");
  } else {
    emit_infix(emitter, node, "/");
  }
}

static void emit_arithmetic(const Emitter *emitter, const Node *node) {
  Operation operation = (Operation)node->operation;
  if (operation == OP_DIVIDE) {
    emit_float_division(emitter, node);
  } else if (operation >= OP_FLOOR_DIVIDE) {
    if (operation == OP_POWER || !emit_plain_division(emitter, node))
      emit_call(emitter, node, call_name(operation, emitter->exact));
  } else if (node->type == VALUE_FLOAT && emitter->exact) {
    emit_call(emitter, node,
              operation == OP_ADD        ? "__fadd_rn"
              : operation == OP_SUBTRACT ? "__fsub_rn"
                                         : "__fmul_rn");
  } else {
    emit_infix(emitter, node, operation_text(operation));
  }
}

static void emit_unary(const Emitter *emitter, const Node *node) {
  Text *out = emitter->out;
  switch (node->operation) {
  case OP_NOT:
    text_append(out, "(!");
    emit(emitter, node->operand[0]);
    text_append(out, ")");
    return;
  case OP_NEGATE: {
    bool wide = node->type == VALUE_INT && is_wide_operation(emitter, node);
    text_append(out, wide && !node->wide ? "(int)(-" : "(-");
    emit_operand(emitter, node->operand[0], wide);
    text_append(out, ")");
    return;
  }
  case OP_TO_FLOAT:
    text_append(out, "(float)");
    emit(emitter, node->operand[0]);
    return;
  case OP_INTEGER_POWER:
    text_format(out, "rota_power<%lld>(", (long long)node->value.i);
    emit(emitter, node->operand[0]);
    text_append(out, ")");
    return;
  default:
    emit_call(emitter, node, call_name((Operation)node->operation, emitter->exact));
  }
}

static void emit_select(const Emitter *emitter, const Node *node) {
  Text *out = emitter->out;
  text_append(out, "(");
  emit(emitter, node->operand[0]);
  text_append(out, " ? ");
  emit_operand(emitter, node->operand[1], node->wide);
  text_append(out, " : ");
  emit_operand(emitter, node->operand[2], node->wide);
  text_append(out, ")");
}

static bool has_tensor(const Emitter *emitter, int index) {
  const Node *node = &emitter->nodes[index];
  bool found = node->operation == OP_TENSOR;
  for (int i = 0; i < node->operands && !found; i++)
    found = has_tensor(emitter, node->operand[i]);
  return found;
}

/* `and`, `or`: one letter of C for operands that are both to be evaluated, else two. */
static void emit_condition(const Emitter *emitter, const Node *node, const char *text) {
  bool both = emitter->exact && has_tensor(emitter, node->operand[1]);
  emit_infix(emitter, node, both ? text + 1 : text);
}

static void emit_tensor(const Emitter *emitter, const Node *node) {
  text_format(emitter->out, "tensor_%s(", emitter->symbols->tensors[node->value.i].name);
  for (int i = 0; i < node->operands; i++) {
    if (i > 0)
      text_append(emitter->out, ", ");
    emit(emitter, node->operand[i]);
  }
  text_append(emitter->out, ")");
}

static void emit(const Emitter *emitter, int index) {
  const Node *node = &emitter->nodes[index];
  switch (node->operation) {
  case OP_TENSOR:
    emit_tensor(emitter, node);
    return;
  case OP_SELECT:
    emit_select(emitter, node);
    return;
  case OP_AND:
    emit_condition(emitter, node, "&&");
    return;
  case OP_OR:
    emit_condition(emitter, node, "||");
    return;
  case OP_NOT_EQUAL:
    emit_infix(emitter, node, "!=");
    return;
  case OP_LESS:
  case OP_LESS_EQUAL:
  case OP_EQUAL:
    emit_infix(emitter, node, operation_text((Operation)node->operation));
    return;
  case OP_MIN:
  case OP_MAX:
    emit_call(emitter, node, call_name((Operation)node->operation, emitter->exact));
    return;
  default:
    break;
  }
  if (node->operands == 0)
    emit_leaf(emitter, node);
  else if (node->operands == 1)
    emit_unary(emitter, node);
  else
    emit_arithmetic(emitter, node);
}

void expression_emit(const Expression *expression, const Symbols *symbols, bool exact, Text *out) {
  Emitter emitter = {expression->nodes, symbols, exact, out};
  emit(&emitter, expression_root(expression));
}
