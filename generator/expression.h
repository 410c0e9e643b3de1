/* Level 2. Masks and scores: one expression language, one AST, five uses.
 *
 *   parse + check      expression_parse.c, expression_check.c: messages with line, column and caret
 *   interval           expression_interval.c: is a mask all true / all false on a box of positions?
 *   C evaluation       expression_evaluate.c: rows of positions, for the CPU device and the tests
 *   CUDA text          expression_emit.c
 *   derivative by s    expression_derive.c
 *
 * Operators are Lua's, with Lua's precedence: `or` < `and` < comparison (< > <= >= ~= ==) < `|`...
 * (no bit operators) < `+ -` < `* / // %` < unary (`not -`) < `^` (float power). `//` and `%`
 * floor; `/` is float; comparisons and `and or not` are boolean; select(c, a, b) is the
 * conditional. `and`, `or` and `select` evaluate only what they need: a tensor index guarded by a
 * condition is not out of bounds.
 *
 * Integers are exact: an operation that could leave 64 bits under the assumed ranges (see LIMIT_*)
 * is an error; where it fits 32 bits the CUDA text uses int, else long long. int op float is float.
 * Floats are fp32; in masks no contraction to fused multiply-add and only exactly rounded functions
 * (min max abs floor ceil sqrt), so that host, CPU device and GPU classify alike; scores may use
 * exp log tanh sigmoid sin cos erf too. Division (/, // and %) by zero: an error where the
 * expression shows it (a constant 0), else the result is 0.
 *
 * Index variables q k h b count within their sequence; n_q n_k are its lengths; heads is not known
 * to an expression. `s` (scores only) is the scaled score. Unknown names followed by `[` are
 * tensors, declared by use.
 */
#ifndef ROTA_GENERATOR_EXPRESSION_H
#define ROTA_GENERATOR_EXPRESSION_H

#include "generator/text.h"

enum {
  SYMBOL_NAME_MAX = 32, /* with NUL */
  PARAMETERS_MAX = 24,  /* templates/lib/abi.h has the same two */
  TENSORS_MAX = 8,
  TENSOR_RANK_MAX = 4,
};
/* Assumed ranges: lengths and indices below 2^26, |int parameter| <= 2^30, int tensor elements any
 * int32. Plans check them. */
#define LIMIT_LENGTH    ((int64_t)1 << 26)
#define LIMIT_PARAMETER ((int64_t)1 << 30)

typedef enum ValueType { VALUE_BOOL, VALUE_INT, VALUE_FLOAT } ValueType;

typedef union Scalar {
  int32_t i;
  float f;
} Scalar;

/* A named parameter; `value` is the script's, which a plan may replace unless `constant` (then it
 * is baked in). */
typedef struct Parameter {
  char name[SYMBOL_NAME_MAX];
  ValueType type; /* INT or FLOAT */
  bool constant;
  Scalar value;
} Parameter;

typedef struct TensorSymbol {
  char name[SYMBOL_NAME_MAX];
  rota_dtype element; /* INT32 or FP32 */
  int rank;           /* 0 until first used */
  bool in_mask;       /* then its data is needed on the host when planning */
} TensorSymbol;

/* The parameters and tensors of one spec, shared by its mask and its score. */
typedef struct Symbols {
  Parameter parameters[PARAMETERS_MAX];
  int parameter_count;
  TensorSymbol tensors[TENSORS_MAX];
  int tensor_count;
} Symbols;

/* A tensor's data (may be NULL for a score's tensor on the device) and shape. Elements, not bytes.
 */
typedef struct TensorBinding {
  const void *data;
  int64_t size[TENSOR_RANK_MAX], stride[TENSOR_RANK_MAX];
} TensorBinding;

/* Values for a spec's symbols, index by index. */
typedef struct Bindings {
  Scalar parameters[PARAMETERS_MAX];
  TensorBinding tensors[TENSORS_MAX];
  struct TensorRanges *ranges[TENSORS_MAX]; /* for intervals: see expression_prepare_ranges */
} Bindings;

typedef struct Expression Expression; /* immutable, reference counted */

/* Where the text comes from, for messages and #line. */
typedef struct SourcePlace {
  const char *file; /* "model.lua" */
  int line;
} SourcePlace;

typedef enum ExpressionKind { EXPRESSION_MASK, EXPRESSION_SCORE } ExpressionKind;

/* Local names of a piece of text for the spec's parameters: `name` means parameters[index]. */
typedef struct ScopeEntry {
  char name[SYMBOL_NAME_MAX];
  int index;
} ScopeEntry;

/* Parses and type-checks. Tensors not yet in `symbols` are added (INT32 in masks, FP32 in scores).
 * `scope` has scope_count entries. Fails with SCRIPT: "model.lua:3: unknown name 'w'\n    k <= q +
 * w\n             ^". */
rota_status expression_parse(const char *text, SourcePlace place, ExpressionKind kind,
                             Symbols *symbols, const ScopeEntry *scope, int scope_count,
                             Expression **expression);
Expression *expression_retain(Expression *expression);
void expression_release(Expression *expression); /* NULL is fine */

/* Boolean combinations of masks, for &, | and ~. They retain their operands; NULL on out-of-memory.
 */
Expression *expression_and(Expression *a, Expression *b);
Expression *expression_or(Expression *a, Expression *b);
Expression *expression_not(Expression *a);
/* Replaces s in `outer` by `inner` (scores compose): outer(inner(s)). */
Expression *expression_substitute_score(Expression *outer, Expression *inner);
/* d expression / d s, simplified. SCRIPT if it has none (floor of s). */
rota_status expression_derivative(const Expression *expression, Expression **derivative);

/* What an expression depends on. */
typedef struct ExpressionUse {
  bool q, k, h, b, n_q, n_k, s;
  bool parameter[PARAMETERS_MAX], tensor[TENSORS_MAX];
} ExpressionUse;
ExpressionUse expression_use(const Expression *expression);

/* A box of positions, all bounds inclusive; b, n_q and n_k are fixed. */
typedef struct Box {
  int32_t q_min, q_max, k_min, k_max, h_min, h_max;
  int32_t b, n_q, n_k;
} Box;

typedef enum Ternary { TERNARY_FALSE, TERNARY_TRUE, TERNARY_UNKNOWN } Ternary;

/* FALSE and TRUE are proofs for every position of the box; UNKNOWN is always allowed, but on a
 * single position the answer is exact. */
Ternary expression_interval(const Expression *mask, const Bindings *bindings, const Box *box);

/* Builds the range-minimum structures of the int tensors of masks, so that intervals over tensors
 * are quick. */
rota_status expression_prepare_ranges(const Symbols *symbols, Bindings *bindings);
void expression_release_ranges(Bindings *bindings);

/* Proves that no tensor index leaves its tensor for any position of the sequence box; else
 * INVALID_ARGUMENT naming tensor, dimension, index range and size. Guards by `and`, `or` and
 * `select` are honoured where intervals can see them. */
rota_status expression_check_bounds(const Expression *expression, const Symbols *symbols,
                                    const Bindings *bindings, const Box *box);

/* One row of positions: q h b fixed, k = k_begin .. k_begin + count - 1. */
typedef struct RowPosition {
  int32_t q, h, b, n_q, n_k;
} RowPosition;
/* out[i] = mask at k_begin + i. Thread-safe, allocates nothing (works in blocks on the stack). */
void expression_evaluate_mask(const Expression *mask, const Bindings *bindings,
                              const RowPosition *row, int32_t k_begin, int32_t count, bool *out);
/* out[i] = score or derivative at k_begin + i for scaled score s[i]; out may be s. */
void expression_evaluate_score(const Expression *score, const Bindings *bindings,
                               const RowPosition *row, int32_t k_begin, int32_t count,
                               const float *s, float *out);

/* CUDA text of the expression, one line without newline. In it stand: at.q at.k at.h at.b at.n_q
 * at.n_k (int), s (float), `name` for each parameter, and tensor_NAME(i, j) for each element access
 * (long long indices); helpers rota_floor_div, rota_floor_mod, rota_float_div, rota_select... from
 * templates/lib/expression.cuh. `exact` (masks): __fadd_rn and friends. */
void expression_emit(const Expression *expression, const Symbols *symbols, bool exact, Text *out);
/* Place of the first leaf, for #line. */
SourcePlace expression_place(const Expression *expression);
/* Lua-syntax text, fully parenthesised, for messages, digests and tests. */
void expression_print(const Expression *expression, const Symbols *symbols, Text *out);

#endif
