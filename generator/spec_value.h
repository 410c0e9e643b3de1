/* Level 4. The spec from a model as lua/model.lua lays it out: plain fields, and mask and score as
 * lists of nodes.
 *
 *   mask = { {op = "leaf", text = "k <= q", file, line, parameters = {{name, value, constant},
 * ...}}, {op = "not", left = 1}, {op = "and", left = 1, right = 2} }        the last node is the
 * root
 *
 * A node refers to earlier ones by number, so what a script uses twice is built once. */
#ifndef ROTA_GENERATOR_SPEC_VALUE_H
#define ROTA_GENERATOR_SPEC_VALUE_H

#include "generator/spec.h"
#include "generator/value.h"

/* Builds and finishes the spec. Each leaf has its own names; when two leaves use one name for a
 * parameter, the later becomes name_2, then name_3. Errors carry file and line: SCRIPT, and those
 * of spec_finish. */
rota_status spec_from_value(const Value *model, Spec *spec);

/* The other way, for the policy in lua/: what tilings depend on, as plain fields. */
rota_status spec_to_value(const Spec *spec, Value *record);
/* The public struct as the table that lua/main.lua's `fields` takes. */
rota_status fields_to_value(const rota_spec_fields *fields, Value *record);

#endif
