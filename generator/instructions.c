/* Tensor-core instructions, emitted from a table: see instructions.h. */
#include "generator/instructions.h"

/* One mma.sync shape: registers of 32 bits that a thread holds of each operand. */
typedef struct MmaShape {
  int m, n, k;
  int d, a, b; /* accumulator floats, packed A words, packed B words */
} MmaShape;

static const MmaShape mma_shapes[] = {
    {16, 8, 16, 4, 4, 2},
};

/* " %4, %5" with braces: a PTX register list of `count` operands from number `first` on. */
static void emit_registers(Text *out, int first, int count) {
  text_append(out, "{");
  for (int i = 0; i < count; i++)
    text_format(out, "%s%%%d", i ? ", " : "", first + i);
  text_append(out, "}");
}

static void emit_operands(Text *out, const char *constraint, const char *name, int count) {
  for (int i = 0; i < count; i++)
    text_format(out, "%s\"%s\"(%s[%d])", i ? ", " : "", constraint, name, i);
}

static void emit_mma(const MmaShape *shape, const char *type, Text *out) {
  text_format(
      out,
      "// d += a b: a %d x %d, b %d x %d, d %d x %d over a warp.\n"
      "__device__ __forceinline__ void mma_m%dn%dk%d(float (&d)[%d], const unsigned (&a)[%d],\n"
      "                                              const unsigned (&b)[%d]) {\n",
      shape->m, shape->k, shape->k, shape->n, shape->m, shape->n, shape->m, shape->n, shape->k,
      shape->d, shape->a, shape->b);
  text_format(
      out,
      "  asm volatile(\"mma.sync.aligned.m%dn%dk%d.row.col.f32.%s.%s.f32 \"\n               \"",
      shape->m, shape->n, shape->k, type, type);
  emit_registers(out, 0, shape->d);
  text_append(out, ", ");
  emit_registers(out, shape->d, shape->a);
  text_append(out, ", ");
  emit_registers(out, shape->d + shape->a, shape->b);
  text_append(out, ", ");
  emit_registers(out, 0, shape->d);
  text_append(out, ";\"\n               : ");
  emit_operands(out, "+f", "d", shape->d);
  text_append(out, "\n               : ");
  emit_operands(out, "r", "a", shape->a);
  text_append(out, ", ");
  emit_operands(out, "r", "b", shape->b);
  text_append(out, ");\n}\n");
}

void instructions_emit(rota_dtype dtype, Text *out) {
  if (dtype == ROTA_FP32)
    return;
  const char *type = dtype == ROTA_BF16 ? "bf16" : "f16";
  for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i++)
    emit_mma(&mma_shapes[i], type, out);
}
