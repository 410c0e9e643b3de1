/* Level 6. Lua, behind one door: the only file that includes lua.h is script.c. Runs the shipped
 * policy (lua/) and, in the sandbox, users' model scripts. A Script is confined to one thread at a
 * time (the runtime locks it). */
#ifndef ROTA_GENERATOR_SCRIPT_H
#define ROTA_GENERATOR_SCRIPT_H

#include "generator/costs.h"
#include "generator/schedule.h"
#include "generator/spec.h"
#include "generator/store.h"
#include "generator/tiling.h"

typedef struct Script Script;

/* Loads lua/ from the store. The store must outlive the script. */
rota_status script_create(const Store *store, Script **script);
void script_destroy(Script *script);

/* Runs `return rota.attention{...}`; the finished spec is the caller's (spec_free). Limits: 10^8
 * instructions, 64 MB, 10 s of processor time. Errors: SCRIPT as `file:line: message`, those of
 * spec_finish, OUT_OF_MEMORY. */
rota_status script_spec(Script *script, const char *text, const char *chunk_name, Spec *spec);
/* The spec from plain fields: mask and score strings are Lua expressions in the same vocabulary. */
rota_status script_spec_from_fields(Script *script, const rota_spec_fields *fields, Spec *spec);

/* Limits of a named architecture ("sm_90"), from lua/architectures. UNSUPPORTED names the known
 * ones. */
rota_status script_target(Script *script, const char *name, Target *target);
/* Tiling for a spec, direction and layout on a target; chooses the backward algorithm where the
 * spec says auto. UNSUPPORTED with the reason where nothing serves. */
rota_status script_tiling(Script *script, const Spec *spec, rota_direction direction,
                          rota_layout layout, const Target *target, Tiling *tiling);
/* The spec's schedule for a tiling; "auto" lets Lua choose from the algorithm. `device` tells the
 * multiprocessors: workers are the blocks that should be resident on them. Costs are the shipped
 * ones. The schedule's functions run the script, so it must be locked meanwhile; its texts are the
 * spec's. SCHEDULE names the known schedules. In script_schedule.c. */
rota_status script_schedule(Script *script, const Spec *spec, const Tiling *tiling,
                            const Target *device, Schedule *schedule);

/* What the DAG model charges on `target` for the spec's tiling: lua/costs.lua. `device` NULL, or
 * the text of a cost file that `rota calibrate` wrote; `name` stands for it in messages. FILE names
 * a mistake in it. In script_costs.c. */
rota_status script_costs(Script *script, const Spec *spec, const Tiling *tiling, const char *device,
                         const char *name, Costs *costs);

/* Answers host.ask while a call runs: fills `out` and returns how many, -1 if there is no such
 * thing. */
typedef int ScriptAsk(void *asked, const char *what, const int64_t in[3], int64_t out[5]);

/* Calls a function of lua/main.lua. The result is the caller's (value_free), also on failure;
 * `status` is what an error in Lua becomes. */
rota_status script_call(Script *script, const char *function, const Value *argument,
                        rota_status status, Value *result);
rota_status script_call_asking(Script *script, const char *function, const Value *argument,
                               rota_status status, ScriptAsk *ask, void *asked, Value *result);

/* Names in a vocabulary table ("masks", "scores", "schedules"), sorted, NULL at the end; owned by
 * the script. For tests and help. "mask_examples", "mask_abouts", "schedule_sources" and the like:
 * each name's example or description, in the order of the names. NULL if there is no such table, or
 * on out-of-memory. */
const char *const *script_names(Script *script, const char *table);

#endif
