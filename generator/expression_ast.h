/* Level 2. The inside of Expression, for expression_*.c alone.
 *
 * An expression is an array of nodes in topological order: operands stand before their users and
 * the root is the last one. Passes over all nodes are plain loops; nodes may be shared (a
 * derivative uses the parts of its original again), so `size` counts the tree that a recursive
 * walk would see, and is bounded. */
#ifndef ROTA_GENERATOR_EXPRESSION_AST_H
#define ROTA_GENERATOR_EXPRESSION_AST_H

#include <stdatomic.h>

#include "generator/expression.h"

enum {
  DEPTH_MAX = 400,       /* of a tree: the recursive walks take up to 1 KB of stack per level */
  NESTING_MAX = 820,     /* of parse(): twice per level, so that whatever is printed parses again */
  TREE_SIZE_MAX = 16384, /* nodes of the tree, shared ones counted at each use */
  NODES_MAX = 32767,     /* under construction: indices are 16 bits */
  POWER_MAX = 16,        /* largest constant exponent that becomes multiplications */
};

/* Operations: name, text in Lua syntax, allowed in masks (exactly rounded on every device). */
#define OPERATION_LIST(X)                                                                          \
  X(BOOL, "", true)      /* value.i: 0 or 1 */                                                     \
  X(INT, "", true)       /* value.i */                                                             \
  X(FLOAT, "", true)     /* value.f */                                                             \
  X(INDEX, "", true)     /* value.i: an IndexVariable */                                           \
  X(SCORE, "s", false)   /* the scaled score */                                                    \
  X(PARAMETER, "", true) /* value.i: index in Symbols */                                           \
  X(TENSOR, "", true)    /* value.i: index in Symbols; operands are the indices */                 \
  X(NOT, "not", true)                                                                              \
  X(NEGATE, "-", true)                                                                             \
  X(ADD, "+", true)                                                                                \
  X(SUBTRACT, "-", true)                                                                           \
  X(MULTIPLY, "*", true)                                                                           \
  X(DIVIDE, "/", true)                                                                             \
  X(FLOOR_DIVIDE, "//", true)                                                                      \
  X(MODULO, "%", true)                                                                             \
  X(POWER, "^", false)                                                                             \
  X(INTEGER_POWER, "^", true) /* value.i: the exponent, 0 .. POWER_MAX */                          \
  X(LESS, "<", true)                                                                               \
  X(LESS_EQUAL, "<=", true)                                                                        \
  X(EQUAL, "==", true)                                                                             \
  X(NOT_EQUAL, "~=", true)                                                                         \
  X(AND, "and", true)                                                                              \
  X(OR, "or", true)                                                                                \
  X(SELECT, "select", true)                                                                        \
  X(MIN, "min", true)                                                                              \
  X(MAX, "max", true)                                                                              \
  X(ABS, "abs", true)                                                                              \
  X(FLOOR, "floor", true)                                                                          \
  X(CEIL, "ceil", true)                                                                            \
  X(SQRT, "sqrt", true)                                                                            \
  X(TO_INT, "int", true)                                                                           \
  X(TO_FLOAT, "float", true)                                                                       \
  X(EXP, "exp", false)                                                                             \
  X(LOG, "log", false)                                                                             \
  X(TANH, "tanh", false)                                                                           \
  X(SIGMOID, "sigmoid", false)                                                                     \
  X(SIN, "sin", false)                                                                             \
  X(COS, "cos", false)                                                                             \
  X(ERF, "erf", false)

typedef enum Operation {
#define X(name, text, exact) OP_##name,
  OPERATION_LIST(X)
#undef X
      OPERATION_COUNT
} Operation;

typedef enum IndexVariable {
  INDEX_Q,
  INDEX_K,
  INDEX_H,
  INDEX_B,
  INDEX_N_Q,
  INDEX_N_K,
  INDEX_COUNT
} IndexVariable;
extern const char *const index_names[INDEX_COUNT];

typedef struct Node {
  uint8_t operation;
  uint8_t type;     /* ValueType */
  uint8_t operands; /* how many of `operand` are in use */
  bool wide;        /* INT: its range does not fit 32 bits */
  bool varies;      /* differs along a row: depends on k or s */
  bool uses_score;
  uint8_t variables; /* bit v: depends on IndexVariable v */
  int16_t depth;
  int16_t operand[TENSOR_RANK_MAX]; /* indices of earlier nodes */
  int32_t position;                 /* byte in the source text */
  int32_t size;                     /* nodes of the tree below, itself included */
  union {
    int64_t i;
    float f;
  } value;
  int64_t low, high; /* INT: static range under the assumed limits */
} Node;

struct Expression {
  atomic_int references;
  SourcePlace place; /* file is owned */
  char *text;        /* source, owned; NULL when combined from several texts */
  int count;
  Node nodes[]; /* the root is nodes[count - 1] */
};

static inline int expression_root(const Expression *expression) {
  return expression->count - 1;
}
const char *operation_text(Operation operation);

/* ---- Building (expression_build.c) ---- */

/* Nodes under construction. A building function returns the new node's index, or -1 with `message`
 * set (empty: memory ran out); given -1 for an operand it returns -1. */
typedef struct Builder {
  Node *nodes;
  int count, capacity;
  int32_t position; /* source byte given to new nodes, and of `message` */
  ExpressionKind kind;
  char message[256];
} Builder;

int build_constant(Builder *builder, ValueType type, int64_t integer, float real);
/* INDEX, SCORE, PARAMETER (with its type) and the like. */
int build_leaf(Builder *builder, Operation operation, ValueType type, int64_t value);
int build_tensor(Builder *builder, int tensor, ValueType type, const int *indices, int rank);
/* Checks types, inserts conversions, derives ranges. */
int build_unary(Builder *builder, Operation operation, int a);
int build_binary(Builder *builder, Operation operation, int a, int b);
int build_select(Builder *builder, int condition, int a, int b);
/* Converts to float where needed. */
int build_float(Builder *builder, int a);
int build_fail(Builder *builder, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Records "file:line: message", the source line and a caret below the byte at fault; `text` may be
 * NULL. SCRIPT, or OUT_OF_MEMORY where there is no message. */
rota_status build_report(const Builder *builder, const char *text, SourcePlace place);
/* Appends all nodes of an expression; returns its root's new index. `score` >= 0: stands for s. */
int build_copy(Builder *builder, const Expression *expression, int score);
/* The expression below `root`, without nodes that it does not reach. Frees the builder's nodes
 * whatever happens. NULL when memory runs out. */
Expression *build_finish(Builder *builder, int root, SourcePlace place, const char *text);

/* ---- Arithmetic (expression_arithmetic.c): what every evaluation agrees on ---- */

int64_t integer_floor_divide(int64_t a, int64_t b); /* 0 when b is 0; wraps at the minimum */
int64_t integer_modulo(int64_t a, int64_t b);       /* sign of b; 0 when b is 0 */
float float_divide(float a, float b);               /* 0 when b is 0 */
float float_modulo(float a, float b);               /* sign of b; 0 when b is 0 */
float float_integer_power(float base, int64_t exponent);
int32_t float_to_integer(float a); /* toward zero, saturating, NaN gives 0 */
float float_unary(Operation operation, float a);
float float_binary(Operation operation, float a, float b);

typedef struct IntegerRange {
  int64_t low, high;
} IntegerRange;
/* Bounds of an integer operation over ranges; false if it could leave 64 bits. */
bool integer_range_unary(Operation operation, IntegerRange a, IntegerRange *result);
bool integer_range_binary(Operation operation, IntegerRange a, IntegerRange b,
                          IntegerRange *result);

/* Floats of an interval: [low, high], and NaN if `nan`. */
typedef struct FloatRange {
  float low, high;
  bool nan;
} FloatRange;
FloatRange float_range_all(void);
FloatRange float_range_unary(Operation operation, FloatRange a, int64_t exponent);
FloatRange float_range_binary(Operation operation, FloatRange a, FloatRange b);
FloatRange float_range_hull(FloatRange a, FloatRange b);
FloatRange float_range_square(FloatRange a); /* of a * a, which is not negative */

/* ---- Intervals (expression_interval.c) ---- */

enum { AFFINE_VARIABLES = 3 }; /* q, k, h: those that vary within a box */

/* What is known of a node's values on a box. An affine integer equals
 * constant + sum of coefficient[v] * v, exactly; bounds are then exact too. */
typedef struct Interval {
  Ternary truth;      /* BOOL */
  IntegerRange range; /* INT */
  bool affine;
  int64_t constant, coefficient[AFFINE_VARIABLES];
  FloatRange real; /* FLOAT */
} Interval;

void interval_of_node(const Node *nodes, int node, const Bindings *bindings, const Box *box,
                      Interval *result);
/* Bounds of an affine form on a box; false if they leave 64 bits. */
bool interval_affine_bounds(const Interval *form, const Box *box, IntegerRange *bounds);
/* a - b of two affine forms; false if either is not affine or a coefficient overflows. */
bool interval_affine_difference(const Interval *a, const Interval *b, Interval *difference);

/* ---- Tensor ranges (expression_ranges.c) ---- */

/* Smallest and largest element with indices in low .. high (within the tensor) of each dimension;
 * may be wider than the truth. False if unknown. */
bool tensor_ranges_query(const struct TensorRanges *ranges, const int64_t low[TENSOR_RANK_MAX],
                         const int64_t high[TENSOR_RANK_MAX], Interval *result);

/* ---- Printing (expression_print.c) ---- */

void print_node(const Node *nodes, int node, const Symbols *symbols, Text *out);

/* ---- Evaluation (expression_evaluate.c) ---- */

bool evaluate_truth(const Node *nodes, int node, const Bindings *bindings, const RowPosition *row,
                    int32_t k);

#endif
