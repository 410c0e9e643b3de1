/* Level 2. Expressions in Lua syntax again, fully parenthesised: parsing the text gives an equal
 * expression. */
#include <math.h>

#include "generator/expression_ast.h"

static void print_list(const Node *nodes, const Node *node, const Symbols *symbols, Text *out) {
  for (int i = 0; i < node->operands; i++) {
    if (i > 0)
      text_append(out, ", ");
    print_node(nodes, node->operand[i], symbols, out);
  }
}

static void print_leaf(const Node *node, const Symbols *symbols, Text *out) {
  switch (node->operation) {
  case OP_BOOL:
    text_append(out, node->value.i ? "true" : "false");
    return;
  case OP_INT:
    text_format(out, node->value.i < 0 ? "(%lld)" : "%lld", (long long)node->value.i);
    return;
  case OP_FLOAT:
    text_append(out, signbit(node->value.f) ? "(" : "");
    text_append_float(out, node->value.f);
    text_append(out, signbit(node->value.f) ? ")" : "");
    return;
  case OP_INDEX:
    text_append(out, index_names[node->value.i]);
    return;
  case OP_PARAMETER:
    text_append(out, symbols->parameters[node->value.i].name);
    return;
  default:
    text_append(out, operation_text((Operation)node->operation));
  }
}

void print_node(const Node *nodes, int index, const Symbols *symbols, Text *out) {
  const Node *node = &nodes[index];
  Operation operation = (Operation)node->operation;
  const char *text = operation_text(operation);
  if (operation == OP_TENSOR) {
    text_format(out, "%s[", symbols->tensors[node->value.i].name);
    print_list(nodes, node, symbols, out);
    text_append(out, "]");
  } else if (node->operands == 0) {
    print_leaf(node, symbols, out);
  } else if (operation >= OP_SELECT) { /* functions */
    text_format(out, "%s(", text);
    print_list(nodes, node, symbols, out);
    text_append(out, ")");
  } else if (operation == OP_INTEGER_POWER) {
    text_append(out, "(");
    print_node(nodes, node->operand[0], symbols, out);
    text_format(out, " ^ %lld)", (long long)node->value.i);
  } else if (node->operands == 1) {
    text_format(out, operation == OP_NOT ? "(%s " : "(%s", text);
    print_node(nodes, node->operand[0], symbols, out);
    text_append(out, ")");
  } else {
    text_append(out, "(");
    print_node(nodes, node->operand[0], symbols, out);
    text_format(out, " %s ", text);
    print_node(nodes, node->operand[1], symbols, out);
    text_append(out, ")");
  }
}

void expression_print(const Expression *expression, const Symbols *symbols, Text *out) {
  print_node(expression->nodes, expression_root(expression), symbols, out);
}
