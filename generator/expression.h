/* Level 2. Masks and scores: one expression language, one AST, six uses.
 *
 *   parse + check      expression_parse.c, expression_build.c: messages with line and caret
 *   interval           expression_interval.c: is a mask all true / all false on a box?
 *   bounds             expression_bounds.c: no tensor index leaves its tensor
 *   C evaluation       expression_evaluate.c: rows of positions, for the CPU device and the tests
 *   CUDA text          expression_emit.c
 *   derivative by s    expression_derive.c
 *   bounds by column   expression_columns.c: a mask that allows an interval of keys, or of queries
 *
 * Operators are Lua's, with Lua's precedence: `or` < `and` < comparison (< > <= >= ~= ==) < `+ -`
 * < `* / // %` < unary (`not -`) < `^` (float power). `//` and `%` floor; `/` is float; comparisons
 * and `and or not` are boolean; select(c, a, b) is the conditional. `and`, `or` and `select`
 * evaluate only what they need: a tensor index guarded by a condition is not out of bounds.
 *
 * Functions: min max (two or more operands) abs floor ceil sqrt select int (toward zero,
 * saturating) float; in scores also exp log tanh sigmoid sin cos erf, and `^` with any exponent
 * (in masks only a constant from 0 to 16, which is repeated multiplication).
 *
 * Integers are exact: an operation that could leave 64 bits under the assumed ranges (see LIMIT_*)
 * is an error; where it fits 32 bits the CUDA text uses int, else long long. int op float is float.
 * Floats are fp32; in masks no contraction to fused multiply-add and only exactly rounded
 * functions, so that host, CPU device and GPU classify alike. min(a, b) is a if a < b, else b;
 * max(a, b) is a if a > b, else b (so a NaN on the left is ignored). Division (/, // and %) by
 * zero: an error where the expression shows it (a constant 0), else the result is 0.
 *
 * Index variables q k h b count within their sequence; n_q n_k are its lengths; the number of
 * heads is not known to an expression. `s` (scores only) is the scaled score. Unknown names
 * followed by `[` are tensors, declared by use. */
#ifndef ROTA_GENERATOR_EXPRESSION_H
#define ROTA_GENERATOR_EXPRESSION_H

#include "generator/text.h"

enum {
  SYMBOL_NAME_MAX = 32, /* with NUL */
  PARAMETERS_MAX = 24,  /* templates/lib/abi.h has the same two */
  TENSORS_MAX = 8,
  TENSOR_RANK_MAX = 4,
  EXPRESSION_TEXT_MAX = 1 << 20, /* bytes of source text */
};
/* Assumed ranges: lengths and indices up to 2^26, |int parameter| <= 2^30, int tensor elements any
 * int32. Plans check them. */
#define LIMIT_LENGTH    ((int64_t)1 << 26)
#define LIMIT_PARAMETER ((int64_t)1 << 30)

typedef enum ValueType { VALUE_BOOL, VALUE_INT, VALUE_FLOAT } ValueType;

typedef union Scalar {
  int32_t i;
  float f;
} Scalar;

/* A named parameter; `value` is the script's, which a plan may replace unless `constant`: then the
 * value at the time of parsing is baked in as a literal, and must be finite. */
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

typedef struct Expression Expression; /* immutable, reference counted (atomically) */

/* Where the text comes from, for messages and #line. `file` NULL: messages say "expression". */
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

/* May a parameter or tensor bear this name? A short identifier that means nothing else here. */
bool expression_name_valid(const char *name);

/* Parses and type-checks. Tensors not yet in `symbols` are added (INT32 in masks, FP32 in scores);
 * on failure `symbols` is as before. `scope` has scope_count entries; NULL: every parameter under
 * its own name. Fails with SCRIPT:
 * "model.lua:3: unknown name 'w'\n    k <= q + w\n             ^". */
rota_status expression_parse(const char *text, SourcePlace place, ExpressionKind kind,
                             Symbols *symbols, const ScopeEntry *scope, int scope_count,
                             Expression **expression);
Expression *expression_retain(Expression *expression);
void expression_release(Expression *expression); /* NULL is fine */

/* Boolean combinations of masks, for &, | and ~. They keep what they need of their operands, which
 * stay the caller's; NULL, with a message, when memory runs out or the result is too large. */
Expression *expression_and(const Expression *a, const Expression *b);
Expression *expression_or(const Expression *a, const Expression *b);
Expression *expression_not(const Expression *a);
/* Replaces s in `outer` by `inner` (scores compose): outer(inner(s)). NULL as above. */
Expression *expression_substitute_score(const Expression *outer, const Expression *inner);
/* d expression / d s, simplified. SCRIPT if it has none (floor of s). */
rota_status expression_derivative(const Expression *expression, Expression **derivative);

/* The largest magnitude of a score's derivative, whatever s, where that depends on s and parameters
 * alone and has a bound; else false. NULL, the derivative of no score: 1. Allocates nothing. */
bool expression_slope_bound(const Expression *derivative, const Bindings *bindings, float *bound);

/* Of a score cap * tanh(x / cap), with a parameter or number `cap`: |cap| and x. Else false, and
 * both are NULL: then, too, where memory ran out. */
bool expression_cap(const Expression *score, Expression **size, Expression **inner);

/* For a mask that allows every query an interval of keys and that can be solved for k: the first
 * key and the one after the last, as integer expressions in 0 .. LIMIT_LENGTH (first >= end: no
 * key). Else false, and both are NULL: then, too, where memory ran out. */
bool expression_columns(const Expression *mask, Expression **first, Expression **end);
/* The same for those of a mask's conditions, joined by `and`, that can be solved so; the others are
 * `rest`. False where there are none of either kind. */
bool expression_columns_part(const Expression *mask, Expression **first, Expression **end,
                             Expression **rest);
/* Of what one of these two solves, where that allows every key an interval of queries, too: the
 * first query and the one after the last, as expressions in which q does not occur. */
bool expression_rows(const Expression *mask, Expression **first, Expression **end);
/* Where those of a mask's conditions that cannot be solved are one, that an integer of the query is
 * the same as one of the key, as `document` has it: both. */
bool expression_match(const Expression *mask, Expression **of_query, Expression **of_key);

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
 * single position the answer is exact. Thread-safe, allocates nothing. */
Ternary expression_interval(const Expression *mask, const Bindings *bindings, const Box *box);

/* Builds the range-minimum structures of the masks' tensors that have data, so that intervals over
 * tensors are quick (without them, tensor elements count as unknown). They borrow the data. */
rota_status expression_prepare_ranges(const Symbols *symbols, Bindings *bindings);
void expression_release_ranges(Bindings *bindings);

/* Proves that no tensor index leaves its tensor for any position of the box; else INVALID_ARGUMENT
 * naming tensor, dimension, index range and size. Guards by `and`, `or` and `select` are honoured
 * where intervals, affine inequalities or a bounded subdivision can see them. */
rota_status expression_check_bounds(const Expression *expression, const Symbols *symbols,
                                    const Bindings *bindings, const Box *box);

/* One row of positions: q h b fixed, k = k_begin .. k_begin + count - 1. */
typedef struct RowPosition {
  int32_t q, h, b, n_q, n_k;
} RowPosition;
/* out[i] = mask at k_begin + i. Thread-safe, allocates nothing (works in blocks on the stack). An
 * index outside its tensor, or a tensor without data, reads as 0. */
void expression_evaluate_mask(const Expression *mask, const Bindings *bindings,
                              const RowPosition *row, int32_t k_begin, int32_t count, bool *out);
/* out[i] = score or derivative at k_begin + i for scaled score s[i]; out may be s. */
void expression_evaluate_score(const Expression *score, const Bindings *bindings,
                               const RowPosition *row, int32_t k_begin, int32_t count,
                               const float *s, float *out);

/* CUDA text of the expression, one line without newline. In it stand: at.q at.k at.h at.b at.n_q
 * at.n_k (int), s (float), p_NAME for each parameter, and tensor_NAME(i, j) for each element
 * access (long long indices); helpers rota_* of namespace rota from templates/lib/expression.cuh.
 * `exact` (masks): __fadd_rn and friends. The text checks no index: kernels evaluate it only at
 * positions of the sequence, for which expression_check_bounds has vouched. */
void expression_emit(const Expression *expression, const Symbols *symbols, bool exact, Text *out);
/* Place of the first leaf, for #line. */
SourcePlace expression_place(const Expression *expression);
/* Lua-syntax text, fully parenthesised, for messages, digests and tests; parsing it with the same
 * symbols gives an equal expression. */
void expression_print(const Expression *expression, const Symbols *symbols, Text *out);

#endif
