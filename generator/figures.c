/* Level 8. A plan's tables in the DAG model. */
#include "generator/figures.h"

rota_status figures_of_plan(const Plan *plan, const Costs *costs, bool trace,
                            PlanFigures *figures) {
  *figures = (PlanFigures){.figures = {0}};
  ROTA_TRY(plan_problem_build(plan, &figures->problem));
  DagProblem *problem = &figures->problem.problem;
  problem->unordered = !plan_is_ordered(plan);
  return dag_simulate(problem, costs, &figures->figures, trace ? &figures->trace : NULL);
}

void figures_free(PlanFigures *figures) {
  plan_problem_free(&figures->problem);
  dag_trace_free(&figures->trace);
}
