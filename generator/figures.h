/* Level 8. What the DAG model says of a plan: its tables, simulated. */
#ifndef ROTA_GENERATOR_FIGURES_H
#define ROTA_GENERATOR_FIGURES_H

#include "generator/plan_problem.h"

/* Items of problem and trace are the plan's chain items. */
typedef struct PlanFigures {
  PlanProblem problem;
  DagFigures figures;
  DagTrace trace; /* empty unless asked for */
} PlanFigures;

/* Runs a backward plan on its gang of workers. Where the algorithm adds nothing in turn, nobody
 * waits. The caller frees, in any case; the plan must outlive the figures. */
rota_status figures_of_plan(const Plan *plan, const Costs *costs, bool trace, PlanFigures *figures);
void figures_free(PlanFigures *figures);

#endif
