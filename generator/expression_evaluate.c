/* Level 2. Evaluation in C, a block of a row at a time: one dispatch per node and block, then a
 * plain loop over lanes. What does not change along the row is computed once and spread.
 *
 * A node is computed in one lane or in all: loops of constant length become vector code. A block
 * at the end of a row computes lanes that nobody reads.
 *
 * Both sides of `and`, `or` and `select` are computed where lanes differ, since reads are checked:
 * an index outside its tensor reads 0, in a lane whose value the guard then drops. */
#include <string.h>

#include "generator/expression_ast.h"

enum { LANES = 64 };

/* Values of one node, one per position; the node's type and width say which member. */
typedef union Lanes {
  int32_t i[LANES];
  int64_t wide[LANES];
  float f[LANES];
  uint8_t t[LANES]; /* 0 or 1 */
} Lanes;

typedef struct Block {
  const Node *nodes;
  const Bindings *bindings;
  const RowPosition *row;
  const float *score; /* LANES of them */
  int32_t k;          /* of lane 0 */
} Block;

/* Runs a statement for lane i of `count`, which is 1 or LANES. */
#define EACH_LANE(statement)                                                                       \
  do {                                                                                             \
    if (count == 1) {                                                                              \
      const int i = 0;                                                                             \
      statement;                                                                                   \
    } else {                                                                                       \
      for (int i = 0; i < LANES; i++)                                                              \
        statement;                                                                                 \
    }                                                                                              \
  } while (0)

static void evaluate(const Block *block, int index, int count, Lanes *out);

/* An integer node in 64 bits. */
static void evaluate_wide(const Block *block, int index, int count, Lanes *out) {
  evaluate(block, index, count, out);
  if (block->nodes[index].wide)
    return;
  for (int i = count - 1; i >= 0; i--) { /* in place, hence from the end */
    int32_t value = out->i[i];
    out->wide[i] = value;
  }
}

/* Integer arithmetic wraps: only values beyond the assumed limits can get there. */
static int32_t wrapping(Operation operation, int32_t a, int32_t b) {
  uint32_t x = (uint32_t)a, y = (uint32_t)b;
  return (int32_t)(operation == OP_ADD ? x + y : operation == OP_SUBTRACT ? x - y : x * y);
}

static int64_t wrapping_wide(Operation operation, int64_t a, int64_t b) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  return (int64_t)(operation == OP_ADD ? x + y : operation == OP_SUBTRACT ? x - y : x * y);
}

/* ---- Leaves ---- */

static int32_t index_value(const Block *block, int64_t variable) {
  const RowPosition *row = block->row;
  switch (variable) {
  case INDEX_Q:
    return row->q;
  case INDEX_K:
    return block->k;
  case INDEX_H:
    return row->h;
  case INDEX_B:
    return row->b;
  case INDEX_N_Q:
    return row->n_q;
  default:
    return row->n_k;
  }
}

static void evaluate_leaf(const Block *block, const Node *node, int count, Lanes *out) {
  switch (node->operation) {
  case OP_BOOL:
    out->t[0] = (uint8_t)node->value.i;
    return;
  case OP_INT:
    if (node->wide)
      out->wide[0] = node->value.i;
    else
      out->i[0] = (int32_t)node->value.i;
    return;
  case OP_FLOAT:
    out->f[0] = node->value.f;
    return;
  case OP_INDEX: { /* only k has more than one lane */
    int32_t first = index_value(block, node->value.i);
    EACH_LANE(out->i[i] = wrapping(OP_ADD, first, i));
    return;
  }
  case OP_SCORE:
    memcpy(out->f, block->score, (size_t)count * sizeof(float));
    return;
  default: /* a parameter */
    if (node->type == VALUE_INT)
      out->i[0] = block->bindings->parameters[node->value.i].i;
    else
      out->f[0] = block->bindings->parameters[node->value.i].f;
  }
}

__attribute__((noinline)) static void evaluate_tensor(const Block *block, const Node *node,
                                                      int count, Lanes *out) {
  const TensorBinding *tensor = &block->bindings->tensors[node->value.i];
  if (!tensor->data) { /* reads as 0 */
    memset(out, 0, sizeof *out);
    return;
  }
  int64_t offset[LANES] = {0}; /* elements; INT64_MIN outside the tensor */
  for (int d = 0; d < node->operands; d++) {
    Lanes index;
    evaluate_wide(block, node->operand[d], count, &index);
    uint64_t size = tensor->size[d] > 0 ? (uint64_t)tensor->size[d] : 0;
    int64_t stride = tensor->stride[d];
    for (int i = 0; i < count; i++) {
      bool inside = offset[i] != INT64_MIN && (uint64_t)index.wide[i] < size;
      offset[i] = inside ? offset[i] + index.wide[i] * stride : INT64_MIN;
    }
  }
  const int32_t *integers = tensor->data;
  const float *reals = tensor->data;
  if (node->type == VALUE_INT)
    for (int i = 0; i < count; i++)
      out->i[i] = offset[i] != INT64_MIN ? integers[offset[i]] : 0;
  else
    for (int i = 0; i < count; i++)
      out->f[i] = offset[i] != INT64_MIN ? reals[offset[i]] : 0;
}

/* ---- One operand ---- */

static void evaluate_integer_unary(const Block *block, const Node *node, int count, Lanes *out) {
  bool is_abs = node->operation == OP_ABS;
  if (!node->wide && !block->nodes[node->operand[0]].wide) {
    evaluate(block, node->operand[0], count, out);
    EACH_LANE(out->i[i] =
                  is_abs && out->i[i] >= 0 ? out->i[i] : wrapping(OP_SUBTRACT, 0, out->i[i]));
    return;
  }
  evaluate_wide(block, node->operand[0], count, out);
  EACH_LANE(out->wide[i] = is_abs && out->wide[i] >= 0
                               ? out->wide[i]
                               : wrapping_wide(OP_SUBTRACT, 0, out->wide[i]));
  if (!node->wide)
    for (int i = 0; i < count; i++) {
      int64_t value = out->wide[i];
      out->i[i] = (int32_t)value;
    }
}

static void evaluate_unary(const Block *block, const Node *node, int count, Lanes *out) {
  Operation operation = (Operation)node->operation;
  if (node->type == VALUE_INT && operation != OP_TO_INT) {
    evaluate_integer_unary(block, node, count, out);
    return;
  }
  evaluate(block, node->operand[0], count, out);
  if (operation == OP_NOT) {
    EACH_LANE(out->t[i] ^= 1);
  } else if (operation == OP_TO_FLOAT && block->nodes[node->operand[0]].wide) {
    for (int i = 0; i < count; i++) {
      int64_t value = out->wide[i];
      out->f[i] = (float)value;
    }
  } else if (operation == OP_TO_FLOAT) {
    EACH_LANE(out->f[i] = (float)out->i[i]);
  } else if (operation == OP_TO_INT) {
    EACH_LANE(out->i[i] = float_to_integer(out->f[i]));
  } else if (operation == OP_INTEGER_POWER) {
    EACH_LANE(out->f[i] = float_integer_power(out->f[i], node->value.i));
  } else if (operation == OP_NEGATE) {
    EACH_LANE(out->f[i] = -out->f[i]);
  } else {
    EACH_LANE(out->f[i] = float_unary(operation, out->f[i]));
  }
}

/* ---- Two operands ---- */

/* a = a operation b, in 32 or in 64 bits. */
#define INTEGER_LANES(member, wrap)                                                                \
  switch (operation) {                                                                             \
  case OP_ADD:                                                                                     \
    EACH_LANE(a->member[i] = wrap(OP_ADD, a->member[i], b->member[i]));                            \
    return;                                                                                        \
  case OP_SUBTRACT:                                                                                \
    EACH_LANE(a->member[i] = wrap(OP_SUBTRACT, a->member[i], b->member[i]));                       \
    return;                                                                                        \
  case OP_MULTIPLY:                                                                                \
    EACH_LANE(a->member[i] = wrap(OP_MULTIPLY, a->member[i], b->member[i]));                       \
    return;                                                                                        \
  case OP_MIN:                                                                                     \
    EACH_LANE(a->member[i] = a->member[i] < b->member[i] ? a->member[i] : b->member[i]);           \
    return;                                                                                        \
  case OP_MAX:                                                                                     \
    EACH_LANE(a->member[i] = a->member[i] > b->member[i] ? a->member[i] : b->member[i]);           \
    return;                                                                                        \
  default:                                                                                         \
    break;                                                                                         \
  }

static void integer_lanes(Operation operation, int count, Lanes *restrict a,
                          const Lanes *restrict b) {
  INTEGER_LANES(i, wrapping)
  if (operation == OP_FLOOR_DIVIDE)
    EACH_LANE(a->i[i] = (int32_t)integer_floor_divide(a->i[i], b->i[i]));
  else
    EACH_LANE(a->i[i] = (int32_t)integer_modulo(a->i[i], b->i[i]));
}

static void wide_lanes(Operation operation, int count, Lanes *restrict a, const Lanes *restrict b) {
  INTEGER_LANES(wide, wrapping_wide)
  if (operation == OP_FLOOR_DIVIDE)
    EACH_LANE(a->wide[i] = integer_floor_divide(a->wide[i], b->wide[i]));
  else
    EACH_LANE(a->wide[i] = integer_modulo(a->wide[i], b->wide[i]));
}

static void float_lanes(Operation operation, int count, Lanes *restrict a,
                        const Lanes *restrict b) {
  switch (operation) {
  case OP_ADD:
    EACH_LANE(a->f[i] = a->f[i] + b->f[i]);
    return;
  case OP_SUBTRACT:
    EACH_LANE(a->f[i] = a->f[i] - b->f[i]);
    return;
  case OP_MULTIPLY:
    EACH_LANE(a->f[i] = a->f[i] * b->f[i]);
    return;
  case OP_DIVIDE:
    EACH_LANE(a->f[i] = float_divide(a->f[i], b->f[i]));
    return;
  default:
    EACH_LANE(a->f[i] = float_binary(operation, a->f[i], b->f[i]));
  }
}

/* One loop per comparison and type of operand. */
#define COMPARE_LANES(member)                                                                      \
  switch (operation) {                                                                             \
  case OP_LESS:                                                                                    \
    EACH_LANE(truth[i] = a->member[i] < b->member[i]);                                             \
    return;                                                                                        \
  case OP_LESS_EQUAL:                                                                              \
    EACH_LANE(truth[i] = a->member[i] <= b->member[i]);                                            \
    return;                                                                                        \
  case OP_EQUAL:                                                                                   \
    EACH_LANE(truth[i] = a->member[i] == b->member[i]);                                            \
    return;                                                                                        \
  default:                                                                                         \
    EACH_LANE(truth[i] = a->member[i] != b->member[i]);                                            \
    return;                                                                                        \
  }

static void compare_integers(Operation operation, int count, const Lanes *a, const Lanes *b,
                             uint8_t *restrict truth) {
  COMPARE_LANES(i)
}

static void compare_wide(Operation operation, int count, const Lanes *a, const Lanes *b,
                         uint8_t *restrict truth) {
  COMPARE_LANES(wide)
}

static void compare_floats(Operation operation, int count, const Lanes *a, const Lanes *b,
                           uint8_t *restrict truth) {
  COMPARE_LANES(f)
}

static void compare_conditions(Operation operation, int count, const Lanes *a, const Lanes *b,
                               uint8_t *restrict truth) {
  COMPARE_LANES(t)
}

static void evaluate_comparison(const Block *block, const Node *node, int count, Lanes *out) {
  const Node *a = &block->nodes[node->operand[0]], *b = &block->nodes[node->operand[1]];
  Operation operation = (Operation)node->operation;
  uint8_t truth[LANES];
  Lanes right;
  bool wide = a->wide || b->wide;
  (wide ? evaluate_wide : evaluate)(block, node->operand[0], count, out);
  (wide ? evaluate_wide : evaluate)(block, node->operand[1], count, &right);
  if (wide)
    compare_wide(operation, count, out, &right, truth);
  else if (a->type == VALUE_INT)
    compare_integers(operation, count, out, &right, truth);
  else if (a->type == VALUE_FLOAT)
    compare_floats(operation, count, out, &right, truth);
  else
    compare_conditions(operation, count, out, &right, truth);
  memcpy(out->t, truth, (size_t)count);
}

static void evaluate_binary(const Block *block, const Node *node, int count, Lanes *out) {
  Operation operation = (Operation)node->operation;
  bool wide =
      node->wide || block->nodes[node->operand[0]].wide || block->nodes[node->operand[1]].wide;
  Lanes right;
  if (!wide) {
    evaluate(block, node->operand[0], count, out);
    evaluate(block, node->operand[1], count, &right);
    if (node->type == VALUE_INT)
      integer_lanes(operation, count, out, &right);
    else
      float_lanes(operation, count, out, &right);
    return;
  }
  evaluate_wide(block, node->operand[0], count, out);
  evaluate_wide(block, node->operand[1], count, &right);
  wide_lanes(operation, count, out, &right);
  if (!node->wide)
    for (int i = 0; i < count; i++) {
      int64_t value = out->wide[i];
      out->i[i] = (int32_t)value;
    }
}

/* ---- Conditions ---- */

/* True if all lanes hold `value`. */
static bool all_lanes(const uint8_t *truth, int count, uint8_t value) {
  uint8_t differs = 0;
  EACH_LANE(differs |= truth[i] ^ value);
  return differs == 0;
}

static void evaluate_logical(const Block *block, const Node *node, int count, Lanes *out) {
  bool is_and = node->operation == OP_AND;
  evaluate(block, node->operand[0], count, out);
  if (all_lanes(out->t, count, !is_and))
    return; /* decided */
  Lanes right;
  evaluate(block, node->operand[1], count, &right);
  if (is_and)
    EACH_LANE(out->t[i] &= right.t[i]);
  else
    EACH_LANE(out->t[i] |= right.t[i]);
}

static void evaluate_branch(const Block *block, const Node *node, int branch, int count,
                            Lanes *out) {
  (node->wide ? evaluate_wide : evaluate)(block, node->operand[branch], count, out);
}

static void evaluate_select(const Block *block, const Node *node, int count, Lanes *out) {
  uint8_t condition[LANES];
  evaluate(block, node->operand[0], count, out);
  memcpy(condition, out->t, (size_t)count);
  bool only_first = all_lanes(condition, count, 1), only_second = all_lanes(condition, count, 0);
  if (only_first || only_second) {
    evaluate_branch(block, node, only_first ? 1 : 2, count, out);
    return;
  }
  Lanes other;
  evaluate_branch(block, node, 1, count, out);
  evaluate_branch(block, node, 2, count, &other);
  if (node->wide)
    EACH_LANE(out->wide[i] = condition[i] ? out->wide[i] : other.wide[i]);
  else if (node->type == VALUE_INT)
    EACH_LANE(out->i[i] = condition[i] ? out->i[i] : other.i[i]);
  else if (node->type == VALUE_FLOAT)
    EACH_LANE(out->f[i] = condition[i] ? out->f[i] : other.f[i]);
  else
    EACH_LANE(out->t[i] = condition[i] ? out->t[i] : other.t[i]);
}

/* Copies lane 0 to all. */
static void spread(const Node *node, Lanes *out) {
  if (node->type == VALUE_BOOL)
    memset(out->t, out->t[0], LANES);
  else if (node->wide)
    for (int i = 1; i < LANES; i++)
      out->wide[i] = out->wide[0];
  else /* floats are spread by their bits */
    for (int i = 1; i < LANES; i++)
      out->i[i] = out->i[0];
}

static void evaluate(const Block *block, int index, int count, Lanes *out) {
  const Node *node = &block->nodes[index];
  int lanes = node->varies ? count : 1;
  if (node->operation == OP_TENSOR)
    evaluate_tensor(block, node, lanes, out);
  else if (node->operands == 0)
    evaluate_leaf(block, node, lanes, out);
  else if (node->operands == 1)
    evaluate_unary(block, node, lanes, out);
  else if (node->operation == OP_AND || node->operation == OP_OR)
    evaluate_logical(block, node, lanes, out);
  else if (node->operation == OP_SELECT)
    evaluate_select(block, node, lanes, out);
  else if (node->type == VALUE_BOOL)
    evaluate_comparison(block, node, lanes, out);
  else
    evaluate_binary(block, node, lanes, out);
  if (lanes < count)
    spread(node, out);
}

void expression_evaluate_mask(const Expression *mask, const Bindings *bindings,
                              const RowPosition *row, int32_t k_begin, int32_t count, bool *out) {
  Block block = {.nodes = mask->nodes, .bindings = bindings, .row = row};
  Lanes lanes;
  for (int32_t done = 0; done < count; done += LANES) {
    int now = count - done < LANES ? count - done : LANES;
    block.k = k_begin + done;
    evaluate(&block, expression_root(mask), now == 1 ? 1 : LANES, &lanes);
    memcpy(out + done, lanes.t, (size_t)now); /* bytes of 0 and 1 are bools */
  }
}

void expression_evaluate_score(const Expression *score, const Bindings *bindings,
                               const RowPosition *row, int32_t k_begin, int32_t count,
                               const float *s, float *out) {
  Block block = {.nodes = score->nodes, .bindings = bindings, .row = row};
  float padded[LANES] = {0}; /* the last block's scores */
  Lanes lanes;
  for (int32_t done = 0; done < count; done += LANES) {
    int now = count - done < LANES ? count - done : LANES;
    block.k = k_begin + done;
    block.score = s + done;
    if (now < LANES) {
      memcpy(padded, s + done, (size_t)now * sizeof(float));
      block.score = padded;
    }
    evaluate(&block, expression_root(score), now == 1 ? 1 : LANES, &lanes);
    memcpy(out + done, lanes.f, (size_t)now * sizeof(float));
  }
}

bool evaluate_truth(const Node *nodes, int node, const Bindings *bindings, const RowPosition *row,
                    int32_t k) {
  static const float no_score = 0;
  Block block = {.nodes = nodes, .bindings = bindings, .row = row, .score = &no_score, .k = k};
  Lanes lanes;
  evaluate(&block, node, 1, &lanes);
  return lanes.t[0];
}
