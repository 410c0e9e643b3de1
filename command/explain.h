/* `rota plan --explain`: the backward algorithms side by side in the traffic model. */
#ifndef ROTA_COMMAND_EXPLAIN_H
#define ROTA_COMMAND_EXPLAIN_H

#include "command/planned.h"

/* Models the shape of `options` on its target, and either prints a table or, with --json, adds the
 * field "modelled" to `object`. `chosen`: the plan that is marked. Changes no choice. */
rota_status explain(const Options *options, Model *model, const Plan *chosen, json_t *object);

#endif
