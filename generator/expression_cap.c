/* Level 2. Scores that a softcap ends: cap * tanh(x / cap). */
#include <stdlib.h>

#include "generator/expression_ast.h"

/* Whether two nodes are the same parameter or the same number. */
static bool same_leaf(const Node *a, const Node *b) {
  if (a->operation != b->operation || a->type != VALUE_FLOAT)
    return false;
  if (a->operation == OP_FLOAT)
    return a->value.f == b->value.f;
  return a->operation == OP_PARAMETER && a->value.i == b->value.i;
}

/* What stands at a node; `size`: its magnitude. */
static Expression *below(const Expression *score, int node, bool size) {
  Builder builder = {.kind = EXPRESSION_SCORE};
  int root = build_copy(&builder, score, -1) < 0 ? -1 : node;
  if (size)
    root = build_unary(&builder, OP_ABS, root);
  if (root >= 0)
    return build_finish(&builder, root, expression_place(score), NULL);
  free(builder.nodes);
  return NULL;
}

bool expression_cap(const Expression *score, Expression **size, Expression **inner) {
  *size = *inner = NULL;
  const Node *root = &score->nodes[expression_root(score)];
  for (int turn = 0; root->operation == OP_MULTIPLY && turn < 2; turn++) {
    int cap = root->operand[turn];
    const Node *tanh = &score->nodes[root->operand[1 - turn]];
    const Node *quotient = tanh->operation == OP_TANH ? &score->nodes[tanh->operand[0]] : NULL;
    if (!quotient || quotient->operation != OP_DIVIDE ||
        !same_leaf(&score->nodes[cap], &score->nodes[quotient->operand[1]]))
      continue;
    *inner = below(score, quotient->operand[0], false);
    *size = *inner ? below(score, cap, true) : NULL;
    if (*size)
      return true;
    expression_release(*inner);
    *inner = NULL;
  }
  return false;
}
