/* Values of random expressions, in fp32 and in double: see random_expression.h. */
#include <math.h>

#include "tests/support/random_expression.h"

typedef struct Value {
  int64_t i;
  float f;
  bool t;
} Value;

typedef struct Walk {
  const RandomExpression *expression;
  const World *world;
  const WorldPosition *at;
  int *outside; /* counts reads outside of tensors; or NULL */
} Walk;

static Value value_of(const Walk *walk, int node);

static ValueType type_of(const Walk *walk, int node) {
  return walk->expression->nodes[node].type;
}

/* A number as float, whatever its type. */
static float float_of(const Walk *walk, int node) {
  Value value = value_of(walk, node);
  return type_of(walk, node) == VALUE_INT ? (float)value.i : value.f;
}

static Value variable(const Walk *walk, int64_t which) {
  const WorldPosition *at = walk->at;
  const int32_t index[] = {at->q, at->k, at->h, at->b, at->n_q, at->n_k};
  if (which < V_SCORE)
    return (Value){.i = index[which]};
  if (which == V_SCORE)
    return (Value){.f = at->s};
  Scalar scalar = walk->world->bindings.parameters[which - V_WINDOW];
  return which < V_SCALE ? (Value){.i = scalar.i} : (Value){.f = scalar.f};
}

/* The language promises that no operation leaves 64 bits: an overflow fails the test. */
static int64_t integer_value(RandomKind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (kind) {
  case K_ADD:
    overflow = __builtin_add_overflow(a, b, &result);
    break;
  case K_SUB:
    overflow = __builtin_sub_overflow(a, b, &result);
    break;
  case K_MUL:
    overflow = __builtin_mul_overflow(a, b, &result);
    break;
  case K_FLOORDIV:
  case K_MOD: {
    if (b == 0)
      return 0;
    __int128 quotient = (__int128)a / b;
    while (quotient * b > a ? b > 0 : quotient * b < a && b < 0)
      quotient--;
    result = (int64_t)(kind == K_FLOORDIV ? quotient : a - quotient * b);
    break;
  }
  case K_MIN:
    return a < b ? a : b;
  case K_MAX:
    return a > b ? a : b;
  default:
    abort(); /* no integer operation */
  }
  RANDOM_REQUIRE(!overflow);
  return result;
}

static float float_value(RandomKind kind, float a, float b) {
  float rest;
  switch (kind) {
  case K_ADD:
    return a + b;
  case K_SUB:
    return a - b;
  case K_MUL:
    return a * b;
  case K_DIV:
    return b == 0 ? 0 : a / b;
  case K_FLOORDIV:
    return b == 0 ? 0 : floorf(a / b);
  case K_MOD:
    rest = b == 0 ? 0 : fmodf(a, b);
    return rest != 0 && signbit(rest) != signbit(b) ? rest + b : rest;
  case K_MIN:
    return a < b ? a : b;
  case K_MAX:
    return a > b ? a : b;
  case K_NEG:
    return -a;
  case K_ABS:
    return fabsf(a);
  case K_FLOOR:
    return floorf(a);
  case K_CEIL:
    return ceilf(a);
  case K_SQRT:
    return sqrtf(a);
  case K_EXP:
    return expf(a);
  case K_LOG:
    return logf(a);
  case K_TANH:
    return tanhf(a);
  case K_SIGMOID:
    return 1 / (1 + expf(-a));
  case K_SIN:
    return sinf(a);
  case K_COS:
    return cosf(a);
  case K_ERF:
    return erff(a);
  default:
    return a; /* float() */
  }
}

static bool compare(const Walk *walk, RandomKind kind, int a, int b) {
  Value x = value_of(walk, a), y = value_of(walk, b);
  ValueType left = type_of(walk, a), right = type_of(walk, b);
  if (left == VALUE_BOOL)
    return (kind == K_EQ) == (x.t == y.t);
  bool whole = left == VALUE_INT && right == VALUE_INT;
  float f = left == VALUE_INT ? (float)x.i : x.f, g = right == VALUE_INT ? (float)y.i : y.f;
  switch (kind) {
  case K_LT:
    return whole ? x.i < y.i : f < g;
  case K_GT:
    return whole ? x.i > y.i : f > g;
  case K_LE:
    return whole ? x.i <= y.i : f <= g;
  case K_GE:
    return whole ? x.i >= y.i : f >= g;
  case K_EQ:
    return whole ? x.i == y.i : f == g;
  default:
    return whole ? x.i != y.i : f != g;
  }
}

/* Elements outside read 0. */
static Value element(const Walk *walk, const RandomNode *n) {
  int64_t i = value_of(walk, n->child[0]).i;
  int64_t j = n->kind == K_GRID ? value_of(walk, n->child[1]).i : 0;
  if (i < 0 || i >= WORLD_SIZE || j < 0 || j >= WORLD_SIZE) {
    if (walk->outside)
      ++*walk->outside;
    return (Value){0};
  }
  return (Value){.i = n->kind == K_DOC ? walk->world->doc[i] : walk->world->grid[i][j],
                 .f = walk->world->bias[i]};
}

static int64_t to_integer(float a) {
  return isnan(a) ? 0 : a >= 2147483647.0f ? INT32_MAX : a <= -2147483648.0f ? INT32_MIN : (int)a;
}

static Value integer_node(const Walk *walk, const RandomNode *n) {
  if (n->kind == K_INT)
    return (Value){.i = to_integer(float_of(walk, n->child[0]))};
  int64_t a = value_of(walk, n->child[0]).i;
  if (n->kind == K_NEG)
    return (Value){.i = integer_value(K_SUB, 0, a)};
  if (n->kind == K_ABS)
    return (Value){.i = a < 0 ? integer_value(K_SUB, 0, a) : a};
  return (Value){.i = integer_value(n->kind, a, value_of(walk, n->child[1]).i)};
}

static Value value_of(const Walk *walk, int node) {
  const RandomNode *n = &walk->expression->nodes[node];
  switch (n->kind) {
  case K_TRUTH:
    return (Value){.t = n->integer != 0};
  case K_INTEGER:
    return (Value){.i = n->integer};
  case K_REAL:
    return (Value){.f = n->real};
  case K_VARIABLE:
    return variable(walk, n->integer);
  case K_OR:
    return (Value){.t = value_of(walk, n->child[0]).t || value_of(walk, n->child[1]).t};
  case K_AND:
    return (Value){.t = value_of(walk, n->child[0]).t && value_of(walk, n->child[1]).t};
  case K_NOT:
    return (Value){.t = !value_of(walk, n->child[0]).t};
  case K_SELECT:
    return value_of(walk, n->child[value_of(walk, n->child[0]).t ? 1 : 2]);
  case K_DOC:
  case K_GRID:
  case K_BIAS:
    return element(walk, n);
  case K_POW: {
    float base = float_of(walk, n->child[0]), power = 1;
    for (int64_t i = 0; i < walk->expression->nodes[n->child[1]].integer; i++)
      power = i == 0 ? base : power * base;
    return (Value){.f = power};
  }
  default:
    if (n->type == VALUE_BOOL)
      return (Value){.t = compare(walk, n->kind, n->child[0], n->child[1])};
    if (n->type == VALUE_INT)
      return integer_node(walk, n);
    float a = float_of(walk, n->child[0]);
    return (Value){.f = float_value(n->kind, a, n->child[1] < 0 ? 0 : float_of(walk, n->child[1]))};
  }
}

bool random_expression_truth(const RandomExpression *expression, const World *world,
                             const WorldPosition *at) {
  Walk walk = {expression, world, at, NULL};
  return value_of(&walk, expression->root).t;
}

int random_expression_outside(const RandomExpression *expression, const World *world,
                              const WorldPosition *at) {
  int outside = 0;
  Walk walk = {expression, world, at, &outside};
  value_of(&walk, expression->root);
  return outside;
}

float random_expression_score(const RandomExpression *expression, const World *world,
                              const WorldPosition *at) {
  Walk walk = {expression, world, at, NULL};
  return float_of(&walk, expression->root);
}

/* ---- Smooth scores in double ---- */

static double real_of(const Walk *walk, int node, double s) {
  const RandomNode *n = &walk->expression->nodes[node];
  double a = n->child[0] >= 0 ? real_of(walk, n->child[0], s) : 0;
  double b = n->child[1] >= 0 ? real_of(walk, n->child[1], s) : 0;
  switch (n->kind) {
  case K_REAL:
    return (double)n->real;
  case K_INTEGER:
    return (double)n->integer;
  case K_VARIABLE:
    return n->integer == V_SCORE ? s : (double)variable(walk, n->integer).f;
  case K_ADD:
    return a + b;
  case K_SUB:
    return a - b;
  case K_MUL:
    return a * b;
  case K_DIV:
    return b == 0 ? 0 : a / b;
  case K_POW:
    return pow(a, b);
  case K_NEG:
    return -a;
  case K_EXP:
    return exp(a);
  case K_LOG:
    return log(a);
  case K_TANH:
    return tanh(a);
  case K_SIGMOID:
    return 1 / (1 + exp(-a));
  case K_SIN:
    return sin(a);
  case K_COS:
    return cos(a);
  case K_ERF:
    return erf(a);
  default:
    return sqrt(a);
  }
}

double random_expression_real(const RandomExpression *expression, const World *world,
                              const WorldPosition *at, double s) {
  Walk walk = {expression, world, at, NULL};
  return real_of(&walk, expression->root, s);
}
