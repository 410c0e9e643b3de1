/* See random_expression.h. */
#include "tests/support/random_expression.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *text;
  int priority;
} kinds[] = {
#define X(name, text, priority) {text, priority},
    RANDOM_KIND_LIST(X)
#undef X
};

static const char *const variables[] = {"q", "k",      "h",    "b",   "n_q",   "n_k",
                                        "s", "window", "zero", "big", "scale", "nothing"};

uint64_t random_next(uint64_t *state) { /* splitmix64 */
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int random_below(uint64_t *state, int bound) {
  return (int)(random_next(state) % (uint64_t)bound);
}

/* ---- The world ---- */

static void add_parameter(World *world, const char *name, ValueType type, Scalar value) {
  Parameter *parameter = &world->symbols.parameters[world->symbols.parameter_count];
  snprintf(parameter->name, sizeof parameter->name, "%s", name);
  parameter->type = type;
  parameter->value = value;
  world->bindings.parameters[world->symbols.parameter_count++] = value;
}

static void add_tensor(World *world, const char *name, rota_dtype element, int rank,
                       const void *data) {
  int index = world->symbols.tensor_count++;
  TensorSymbol *tensor = &world->symbols.tensors[index];
  snprintf(tensor->name, sizeof tensor->name, "%s", name);
  tensor->element = element;
  tensor->rank = rank;
  tensor->in_mask = true;
  TensorBinding *binding = &world->bindings.tensors[index];
  binding->data = data;
  for (int d = 0; d < rank; d++) {
    binding->size[d] = WORLD_SIZE;
    binding->stride[d] = d == rank - 1 ? 1 : WORLD_SIZE;
  }
}

void world_create(World *world, uint64_t seed) {
  memset(world, 0, sizeof *world);
  add_parameter(world, "window", VALUE_INT, (Scalar){.i = 7});
  add_parameter(world, "zero", VALUE_INT, (Scalar){.i = 0});
  add_parameter(world, "big", VALUE_INT, (Scalar){.i = 1 << 30});
  add_parameter(world, "scale", VALUE_FLOAT, (Scalar){.f = 0.75f});
  add_parameter(world, "nothing", VALUE_FLOAT, (Scalar){.f = 0});
  add_tensor(world, "doc", ROTA_INT32, 1, world->doc);
  add_tensor(world, "grid", ROTA_INT32, 2, world->grid);
  add_tensor(world, "bias", ROTA_FP32, 1, world->bias);
  for (int i = 0; i < WORLD_SIZE; i++) {
    world->doc[i] = i / (2 + (int)(seed % 5));
    world->bias[i] = (float)random_below(&seed, 100) * 0.25f - 10;
    for (int j = 0; j < WORLD_SIZE; j++)
      world->grid[i][j] = random_below(&seed, 50) == 0 ? INT32_MIN : random_below(&seed, 6) - 2;
  }
  if (seed % 7 == 0)
    world->bias[seed % WORLD_SIZE] = seed % 2 ? NAN : INFINITY;
  RANDOM_REQUIRE(expression_prepare_ranges(&world->symbols, &world->bindings) == ROTA_OK);
}

void world_free(World *world) {
  expression_release_ranges(&world->bindings);
}

/* ---- Drawing ---- */

static int draw(RandomExpression *e, ValueType type, int depth);

static int add(RandomExpression *e, RandomKind kind, ValueType type, int a, int b, int c) {
  RANDOM_REQUIRE(e->count < RANDOM_NODES);
  e->nodes[e->count] = (RandomNode){.kind = kind, .type = type, .child = {a, b, c}};
  return e->count++;
}

static int below(RandomExpression *e, int bound) {
  return random_below(&e->state, bound);
}

static int leaf(RandomExpression *e, ValueType type) {
  int node = add(e, K_VARIABLE, type, -1, -1, -1);
  RandomNode *n = &e->nodes[node];
  if (type == VALUE_BOOL) {
    n->kind = K_TRUTH;
    n->integer = below(e, 2);
  } else if (type == VALUE_INT) {
    static const int64_t odd[] = {0, 1, 2, 64, 2147483647, 2147483648, 5000000000};
    int choice = below(e, 12);
    n->integer = choice < 4 ? choice % 2 : choice < 6 ? choice - 2 : 4 + below(e, 2);
    if (choice >= 8)
      n->integer = below(e, 20) == 0 ? V_BIG : below(e, 8) == 0 ? V_ZERO : V_WINDOW;
    if (choice >= 10) {
      n->kind = K_INTEGER;
      n->integer = below(e, 8) == 0 ? odd[below(e, 7)] : below(e, WORLD_SIZE);
    }
  } else if (e->kind == EXPRESSION_SCORE && below(e, 2) == 0) {
    n->integer = V_SCORE;
  } else if (below(e, 3) == 0) {
    n->integer = below(e, 4) == 0 && !e->smooth ? V_NOTHING : V_SCALE;
  } else {
    n->kind = K_REAL;
    n->real = (float)below(e, 64) / (e->smooth ? 32.0f : 8.0f);
  }
  return node;
}

static int tensor_index(RandomExpression *e, int depth) {
  int index = draw(e, VALUE_INT, depth - 1);
  if (below(e, 4) == 0)
    return index; /* may be out of bounds */
  int size = add(e, K_INTEGER, VALUE_INT, -1, -1, -1);
  e->nodes[size].integer = WORLD_SIZE;
  return add(e, K_MOD, VALUE_INT, index, size, -1);
}

static int draw_truth(RandomExpression *e, int depth) {
  int choice = below(e, 12);
  if (choice < 2)
    return add(e, K_NOT, VALUE_BOOL, draw(e, VALUE_BOOL, depth - 1), -1, -1);
  if (choice < 6) {
    int a = draw(e, VALUE_BOOL, depth - 1), b = draw(e, VALUE_BOOL, depth - 1);
    RandomKind kind = choice < 4 ? K_AND : choice < 5 ? K_OR : (RandomKind)(K_EQ + below(e, 2));
    return add(e, kind, VALUE_BOOL, a, b, -1);
  }
  if (choice == 6) {
    int c = draw(e, VALUE_BOOL, depth - 1), a = draw(e, VALUE_BOOL, depth - 1);
    return add(e, K_SELECT, VALUE_BOOL, c, a, draw(e, VALUE_BOOL, depth - 1));
  }
  ValueType left = below(e, 4) == 0 ? VALUE_FLOAT : VALUE_INT;
  ValueType right = below(e, 6) == 0 ? VALUE_FLOAT : left;
  int a = draw(e, left, depth - 1), b = draw(e, right, depth - 1);
  return add(e, (RandomKind)(K_LT + below(e, 6)), VALUE_BOOL, a, b, -1);
}

static int draw_integer(RandomExpression *e, int depth) {
  static const RandomKind two[] = {K_ADD, K_SUB, K_SUB, K_MUL, K_FLOORDIV, K_MOD, K_MIN, K_MAX};
  int choice = below(e, 16);
  if (choice < 10) {
    int a = draw(e, VALUE_INT, depth - 1), b = draw(e, VALUE_INT, depth - 1);
    return add(e, two[below(e, 8)], VALUE_INT, a, b, -1);
  }
  if (choice == 10)
    return add(e, K_NEG, VALUE_INT, draw(e, VALUE_INT, depth - 1), -1, -1);
  if (choice == 11)
    return add(e, K_ABS, VALUE_INT, draw(e, VALUE_INT, depth - 1), -1, -1);
  if (choice == 12)
    return add(e, K_INT, VALUE_INT, draw(e, VALUE_FLOAT, depth - 1), -1, -1);
  if (choice == 13) {
    int c = draw(e, VALUE_BOOL, depth - 1), a = draw(e, VALUE_INT, depth - 1);
    return add(e, K_SELECT, VALUE_INT, c, a, draw(e, VALUE_INT, depth - 1));
  }
  int i = tensor_index(e, depth);
  if (choice == 14)
    return add(e, K_DOC, VALUE_INT, i, -1, -1);
  return add(e, K_GRID, VALUE_INT, i, tensor_index(e, depth), -1);
}

static int draw_smooth(RandomExpression *e, int depth) {
  static const RandomKind two[] = {K_ADD, K_SUB, K_MUL, K_DIV};
  static const RandomKind one[] = {K_NEG, K_EXP, K_TANH, K_SIGMOID, K_SIN,
                                   K_COS, K_ERF, K_LOG,  K_SQRT};
  if (below(e, 2) == 0) {
    int a = draw(e, VALUE_FLOAT, depth - 1), b = draw(e, VALUE_FLOAT, depth - 1);
    return add(e, two[below(e, 4)], VALUE_FLOAT, a, b, -1);
  }
  if (below(e, 6) == 0) {
    int a = draw(e, VALUE_FLOAT, depth - 1), b = add(e, K_INTEGER, VALUE_INT, -1, -1, -1);
    e->nodes[b].integer = below(e, 4);
    return add(e, K_POW, VALUE_FLOAT, a, b, -1);
  }
  int a = draw(e, VALUE_FLOAT, depth - 1);
  return add(e, one[below(e, 9)], VALUE_FLOAT, a, -1, -1);
}

static int draw_float(RandomExpression *e, int depth) {
  static const RandomKind two[] = {K_ADD, K_SUB, K_MUL, K_DIV, K_FLOORDIV, K_MOD, K_MIN, K_MAX};
  static const RandomKind one[] = {K_NEG, K_ABS, K_FLOOR, K_CEIL, K_SQRT};
  static const RandomKind inexact[] = {K_EXP, K_LOG, K_TANH, K_SIGMOID, K_SIN, K_COS, K_ERF};
  if (e->smooth)
    return draw_smooth(e, depth);
  int choice = below(e, 16);
  if (choice < 8) {
    ValueType right = below(e, 3) == 0 ? VALUE_INT : VALUE_FLOAT;
    int a = draw(e, VALUE_FLOAT, depth - 1), b = draw(e, right, depth - 1);
    return add(e, two[below(e, 8)], VALUE_FLOAT, a, b, -1);
  }
  if (choice < 10)
    return add(e, one[below(e, 5)], VALUE_FLOAT, draw(e, VALUE_FLOAT, depth - 1), -1, -1);
  if (choice == 10) {
    int a = draw(e, VALUE_FLOAT, depth - 1), b = add(e, K_INTEGER, VALUE_INT, -1, -1, -1);
    e->nodes[b].integer = below(e, 5);
    return add(e, K_POW, VALUE_FLOAT, a, b, -1);
  }
  if (choice == 11) {
    int c = draw(e, VALUE_BOOL, depth - 1), a = draw(e, VALUE_FLOAT, depth - 1);
    return add(e, K_SELECT, VALUE_FLOAT, c, a, draw(e, VALUE_FLOAT, depth - 1));
  }
  if (choice == 12) {
    int a = draw(e, VALUE_INT, depth - 1);
    return add(e, K_DIV, VALUE_FLOAT, a, draw(e, VALUE_INT, depth - 1), -1);
  }
  if (choice == 13)
    return add(e, K_BIAS, VALUE_FLOAT, tensor_index(e, depth), -1, -1);
  if (choice == 14 && e->kind == EXPRESSION_SCORE)
    return add(e, inexact[below(e, 7)], VALUE_FLOAT, draw(e, VALUE_FLOAT, depth - 1), -1, -1);
  return add(e, K_FLOAT, VALUE_FLOAT, draw(e, VALUE_INT, depth - 1), -1, -1);
}

static int draw(RandomExpression *e, ValueType type, int depth) {
  bool full = e->count > RANDOM_NODES - 128; /* room for what is under way */
  if (depth <= 0 || full || (depth < 3 && below(e, 4) == 0))
    return leaf(e, type);
  return type == VALUE_BOOL  ? draw_truth(e, depth)
         : type == VALUE_INT ? draw_integer(e, depth)
                             : draw_float(e, depth);
}

/* ---- Printing ---- */

static void put(RandomExpression *e, const char *text) {
  size_t at = strlen(e->text), length = strlen(text);
  RANDOM_REQUIRE(at + length + 2 < RANDOM_TEXT);
  if (at > 0 && e->text[at - 1] == '-' && text[0] == '-')
    e->text[at++] = ' '; /* "--" would begin a comment */
  memcpy(e->text + at, text, length + 1);
}

/* Prints with parentheses only if the node binds no tighter than `limit`. */
static void print(RandomExpression *e, int node, int limit) {
  const RandomNode *n = &e->nodes[node];
  int priority = kinds[n->kind].priority;
  bool parentheses = priority > 0 && priority <= limit;
  char buffer[64];
  if (parentheses)
    put(e, "(");
  if (n->kind == K_VARIABLE || n->kind == K_TRUTH) {
    put(e, n->kind == K_TRUTH ? (n->integer ? "true" : "false") : variables[n->integer]);
  } else if (n->kind == K_INTEGER || n->kind == K_REAL) {
    if (n->kind == K_INTEGER)
      snprintf(buffer, sizeof buffer, "%lld", (long long)n->integer);
    else
      snprintf(buffer, sizeof buffer, "%.9f", (double)n->real);
    put(e, buffer);
  } else if (priority == 0) {
    bool tensor = n->kind >= K_DOC;
    put(e, kinds[n->kind].text);
    put(e, tensor ? "[" : "(");
    for (int i = 0; i < 3 && n->child[i] >= 0; i++) {
      put(e, i > 0 ? ", " : "");
      print(e, n->child[i], 0);
    }
    put(e, tensor ? "]" : ")");
  } else if (n->kind == K_NOT || n->kind == K_NEG) {
    put(e, kinds[n->kind].text);
    print(e, n->child[0], 11);
  } else {
    /* Left associative: an equal priority needs parentheses on the right; ^ the other way. */
    print(e, n->child[0], n->kind == K_POW ? 14 : priority - 1);
    put(e, " ");
    put(e, kinds[n->kind].text);
    put(e, " ");
    print(e, n->child[1], n->kind == K_POW ? 11 : priority);
  }
  if (parentheses)
    put(e, ")");
}

void random_expression(RandomExpression *e, uint64_t seed, ExpressionKind kind, bool smooth,
                       int depth) {
  e->state = seed;
  e->kind = kind;
  e->smooth = smooth;
  e->count = 0;
  e->text[0] = '\0';
  e->root = draw(e, kind == EXPRESSION_MASK ? VALUE_BOOL : VALUE_FLOAT, depth);
  print(e, e->root, 0);
}
