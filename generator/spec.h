/* Level 3. What is computed (Spec), apart from how (Choice). No lengths. */
#ifndef ROTA_GENERATOR_SPEC_H
#define ROTA_GENERATOR_SPEC_H

#include "generator/digest.h"
#include "generator/expression.h"

enum { HEAD_DIM_MAX = 1024, GROUP_MAX = 1024, TILING_CHOICE_MAX = 24 };

/* Backward algorithms: name, deterministic, served by the portable kernels. */
#define BACKWARD_LIST(X)                                                                           \
  X(AUTO, "auto", true)                                                                            \
  X(ORDERED, "ordered", true)                                                                      \
  X(TWO_PASS, "two_pass", true)                                                                    \
  X(MATERIALISED, "materialised", true)                                                            \
  X(EXACT, "exact", true)                                                                          \
  X(ATOMIC, "atomic", false)
typedef enum Backward {
#define X(name, text, deterministic) BACKWARD_##name,
  BACKWARD_LIST(X)
#undef X
} Backward;
const char *backward_name(Backward backward);
bool backward_from_name(const char *name, Backward *backward);
bool backward_is_deterministic(Backward backward);
const char *bound_name(bool spread); /* "spread", "norm" */

const char *dtype_name(rota_dtype dtype); /* "bf16", "fp16", "fp32", "int32" */
bool dtype_from_name(const char *name, rota_dtype *dtype);
int dtype_size(rota_dtype dtype); /* bytes */

/* A model script that defines a schedule of its own: functions cannot be kept, texts can. */
typedef struct SpecScript {
  int references;
  char *text, *name; /* owned */
} SpecScript;
rota_status spec_script_create(const char *text, const char *name, SpecScript **script);

typedef struct Spec {
  rota_dtype dtype;
  int head_dim, head_dim_v;
  int heads, kv_heads; /* programs depend on heads / kv_heads alone */
  float scale;         /* softmax scale, already defaulted */
  bool sink_logit;
  Expression *mask;             /* NULL: full */
  Expression *score;            /* NULL: the scaled score itself */
  Expression *score_derivative; /* NULL where score is */
  Symbols symbols;
  /* how */
  bool deterministic;
  Backward backward;
  bool spread; /* `exact` scales by the spread bound, for which the forward pass gives mean_square;
                  else by the norm bound */
  char schedule[SYMBOL_NAME_MAX]; /* "auto", a name of lua/schedules.lua with its options, or a name
                                   * that `script` defines */
  SpecScript *script;             /* NULL: no schedule of its own */
  char tiling[2][TILING_CHOICE_MAX]; /* by rota_direction: "auto", or one of the architecture's
                                      * tilings by its tiles, "128x64" */
} Spec;

/* Checks ranges and combinations and fills derived fields (score_derivative, default scale and
 * head_dim_v). Messages name field, value and what would be served: INVALID_ARGUMENT, UNSUPPORTED,
 * NONDETERMINISTIC (deterministic with backward = "atomic"). */
rota_status spec_finish(Spec *spec);
void spec_copy(Spec *to, const Spec *from); /* shares expressions and script */
void spec_free(Spec *spec);                 /* releases what it holds, not the struct */
int spec_group(const Spec *spec);           /* query heads per kv head */

#endif
