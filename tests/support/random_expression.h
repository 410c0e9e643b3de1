/* Random masks and scores for tests: a tree of its own, printed with as few parentheses as Lua's
 * precedence allows, and evaluated by the plainest recursion, independent of the generator's. */
#ifndef ROTA_TESTS_RANDOM_EXPRESSION_H
#define ROTA_TESTS_RANDOM_EXPRESSION_H

#include <stdlib.h>

#include "generator/expression.h"

/* Positions and tensor sizes go up to here; small, so that boxes can be tried out entirely. */
enum { WORLD_SIZE = 24, RANDOM_NODES = 256, RANDOM_TEXT = 8192 };

/* Parameters window = 7, zero = 0, big = 2^30 (int), scale = 0.75, nothing = 0 (float); tensors
 * doc[24], grid[24, 24] (int), bias[24] (float). Not to be moved: bindings point into it. */
typedef struct World {
  Symbols symbols;
  Bindings bindings;
  int32_t doc[WORLD_SIZE], grid[WORLD_SIZE][WORLD_SIZE];
  float bias[WORLD_SIZE];
} World;
void world_create(World *world, uint64_t seed);
void world_free(World *world);

/* Kinds of nodes: name, text, Lua's priority (0: an atom or a function call). */
#define RANDOM_KIND_LIST(X)                                                                        \
  X(TRUTH, "", 0)                                                                                  \
  X(INTEGER, "", 0)                                                                                \
  X(REAL, "", 0)                                                                                   \
  X(VARIABLE, "", 0)                                                                               \
  X(OR, "or", 1)                                                                                   \
  X(AND, "and", 2)                                                                                 \
  X(LT, "<", 3)                                                                                    \
  X(GT, ">", 3)                                                                                    \
  X(LE, "<=", 3)                                                                                   \
  X(GE, ">=", 3)                                                                                   \
  X(EQ, "==", 3)                                                                                   \
  X(NE, "~=", 3)                                                                                   \
  X(ADD, "+", 10)                                                                                  \
  X(SUB, "-", 10)                                                                                  \
  X(MUL, "*", 11)                                                                                  \
  X(DIV, "/", 11)                                                                                  \
  X(FLOORDIV, "//", 11)                                                                            \
  X(MOD, "%", 11)                                                                                  \
  X(NOT, "not ", 12)                                                                               \
  X(NEG, "-", 12)                                                                                  \
  X(POW, "^", 14)                                                                                  \
  X(SELECT, "select", 0)                                                                           \
  X(MIN, "min", 0)                                                                                 \
  X(MAX, "max", 0)                                                                                 \
  X(ABS, "abs", 0)                                                                                 \
  X(FLOOR, "floor", 0)                                                                             \
  X(CEIL, "ceil", 0)                                                                               \
  X(SQRT, "sqrt", 0)                                                                               \
  X(INT, "int", 0)                                                                                 \
  X(FLOAT, "float", 0)                                                                             \
  X(EXP, "exp", 0)                                                                                 \
  X(LOG, "log", 0)                                                                                 \
  X(TANH, "tanh", 0)                                                                               \
  X(SIGMOID, "sigmoid", 0)                                                                         \
  X(SIN, "sin", 0)                                                                                 \
  X(COS, "cos", 0)                                                                                 \
  X(ERF, "erf", 0)                                                                                 \
  X(DOC, "doc", 0)                                                                                 \
  X(GRID, "grid", 0)                                                                               \
  X(BIAS, "bias", 0)

typedef enum RandomKind {
#define X(name, text, priority) K_##name,
  RANDOM_KIND_LIST(X)
#undef X
} RandomKind;

/* Names of variables: six indices, the score, five parameters. */
enum { V_Q, V_K, V_H, V_B, V_N_Q, V_N_K, V_SCORE, V_WINDOW, V_ZERO, V_BIG, V_SCALE, V_NOTHING };

typedef struct RandomNode {
  RandomKind kind;
  ValueType type;
  int child[3]; /* -1: none */
  int64_t integer;
  float real;
} RandomNode;

typedef struct RandomExpression {
  uint64_t state; /* of the random numbers */
  ExpressionKind kind;
  bool smooth; /* no corners or steps, for derivatives */
  int count, root;
  RandomNode nodes[RANDOM_NODES];
  char text[RANDOM_TEXT];
} RandomExpression;

/* Like assert, in every build. */
#define RANDOM_REQUIRE(condition)                                                                  \
  do {                                                                                             \
    if (!(condition))                                                                              \
      abort();                                                                                     \
  } while (0)

uint64_t random_next(uint64_t *state);
/* Uniform in 0 .. bound - 1. */
int random_below(uint64_t *state, int bound);

/* Draws an expression of about `depth` levels; may be one that the type check refuses (64 bits, a
 * constant divisor 0). */
void random_expression(RandomExpression *expression, uint64_t seed, ExpressionKind kind,
                       bool smooth, int depth);

typedef struct WorldPosition {
  int32_t q, k, h, b, n_q, n_k;
  float s;
} WorldPosition;
bool random_expression_truth(const RandomExpression *expression, const World *world,
                             const WorldPosition *at);
float random_expression_score(const RandomExpression *expression, const World *world,
                              const WorldPosition *at);
/* How many tensor elements outside their tensor the evaluation of a mask at this position reads. */
int random_expression_outside(const RandomExpression *expression, const World *world,
                              const WorldPosition *at);
/* A smooth score in double, at another s. */
double random_expression_real(const RandomExpression *expression, const World *world,
                              const WorldPosition *at, double s);

#endif
