/* Level 2. Expressions as values: sharing, boolean combinations of masks, composition of scores,
 * and what an expression depends on. */
#include <stdlib.h>

#include "generator/expression_ast.h"

Expression *expression_retain(Expression *expression) {
  atomic_fetch_add_explicit(&expression->references, 1, memory_order_relaxed);
  return expression;
}

void expression_release(Expression *expression) {
  if (!expression ||
      atomic_fetch_sub_explicit(&expression->references, 1, memory_order_acq_rel) != 1)
    return;
  free((char *)expression->place.file);
  free(expression->text);
  free(expression);
}

/* Ends a combination: the text of one operand no longer covers the whole, so it is left out. */
static Expression *finish(Builder *builder, int root, const Expression *first) {
  if (root >= 0)
    return build_finish(builder, root, expression_place(first), NULL);
  build_report(builder, NULL, expression_place(first));
  free(builder->nodes);
  return NULL;
}

static Expression *combine(Operation operation, const Expression *a, const Expression *b) {
  if (!a || !b) {
    status_fail(ROTA_INVALID_ARGUMENT, "'%s' of masks: an operand is missing",
                operation_text(operation));
    return NULL;
  }
  Builder builder = {.kind = EXPRESSION_MASK};
  int left = build_copy(&builder, a, -1);
  int right = left < 0 ? -1 : build_copy(&builder, b, -1);
  return finish(&builder, build_binary(&builder, operation, left, right), a);
}

Expression *expression_and(const Expression *a, const Expression *b) {
  return combine(OP_AND, a, b);
}

Expression *expression_or(const Expression *a, const Expression *b) {
  return combine(OP_OR, a, b);
}

Expression *expression_not(const Expression *a) {
  if (!a) {
    status_fail(ROTA_INVALID_ARGUMENT, "'not' of a mask: the operand is missing");
    return NULL;
  }
  Builder builder = {.kind = EXPRESSION_MASK};
  int operand = build_copy(&builder, a, -1);
  return finish(&builder, build_unary(&builder, OP_NOT, operand), a);
}

Expression *expression_substitute_score(const Expression *outer, const Expression *inner) {
  if (!outer || !inner) {
    status_fail(ROTA_INVALID_ARGUMENT, "composition of scores: an operand is missing");
    return NULL;
  }
  Builder builder = {.kind = EXPRESSION_SCORE};
  int score = build_copy(&builder, inner, -1);
  int root = score < 0 ? -1 : build_copy(&builder, outer, score);
  return finish(&builder, root, outer);
}

ExpressionUse expression_use(const Expression *expression) {
  ExpressionUse use = {0};
  bool *const index[INDEX_COUNT] = {&use.q, &use.k, &use.h, &use.b, &use.n_q, &use.n_k};
  for (int i = 0; i < expression->count; i++) {
    const Node *node = &expression->nodes[i];
    if (node->operation == OP_INDEX)
      *index[node->value.i] = true;
    else if (node->operation == OP_PARAMETER)
      use.parameter[node->value.i] = true;
    else if (node->operation == OP_TENSOR)
      use.tensor[node->value.i] = true;
    else if (node->operation == OP_SCORE)
      use.s = true;
  }
  return use;
}

SourcePlace expression_place(const Expression *expression) {
  SourcePlace place = expression->place;
  if (expression->text)
    for (int32_t i = 0; i < expression->nodes[0].position && expression->text[i]; i++)
      place.line += expression->text[i] == '\n';
  return place;
}
