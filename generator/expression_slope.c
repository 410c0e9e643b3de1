/* Level 2. How steep a score can be: the largest magnitude of its derivative. */
#include <math.h>

#include "generator/expression_ast.h"

/* Whether anything but s and parameters enters. */
static bool depends_on_place(const ExpressionUse *use) {
  bool found = use->q || use->k || use->h || use->b || use->n_q || use->n_k;
  for (int i = 0; i < TENSORS_MAX; i++)
    found = found || use->tensor[i];
  return found;
}

bool expression_slope_bound(const Expression *derivative, const Bindings *bindings, float *bound) {
  *bound = 1;
  if (!derivative)
    return true;
  ExpressionUse use = expression_use(derivative);
  if (depends_on_place(&use))
    return false;
  const Box box = {0};
  Interval all;
  interval_of_node(derivative->nodes, expression_root(derivative), bindings, &box, &all);
  /* A NaN, from an s that is one, is not a slope. */
  *bound = fmaxf(fabsf(all.real.low), fabsf(all.real.high));
  return isfinite(*bound);
}
