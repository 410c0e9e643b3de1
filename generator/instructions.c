/* Tensor-core instructions, emitted from a table: see instructions.h. */
#include "generator/instructions.h"

#include <stdbool.h>
#include <stdio.h>

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

/* One product of a warpgroup: D[64][n] = or += A[64][16] B[16][n]. A comes from shared memory or
 * from registers; the first product of a sum writes its accumulators without reading them. Which of
 * the two may also be asked when the product is issued. */
typedef struct WgmmaForm {
  const char *name;
  bool registers; /* A; else shared memory */
  bool first;
  bool asked; /* whether to add, else `first` says so */
} WgmmaForm;

static const WgmmaForm wgmma_forms[] = {
    {"multiply", false, true, false},     {"accumulate", false, false, false},
    {"multiply", true, true, false},      {"accumulate", true, false, false},
    {"accumulate_if", true, false, true},
};

static void emit_wgmma_form(const WgmmaForm *form, int n, const char *type, Text *out) {
  int d = n / 2, a = form->registers ? 4 : 1; /* operands */
  char adds[16];
  snprintf(adds, sizeof adds, form->asked ? "%%%d" : "%d", form->asked ? d + a + 2 : !form->first);
  text_format(out, "  template <%sint kAcrossB>\n  __device__ __forceinline__ static void %s(",
              form->registers ? "" : "int kAcrossA, ", form->name);
  text_format(out, "float (&d)[%d], %s, unsigned long long b%s) {\n", d,
              form->registers ? "const unsigned (&a)[4]" : "unsigned long long a",
              form->asked ? ", bool adds" : "");
  text_format(out,
              "    asm volatile(\"{\\n.reg .pred add;\\nsetp.ne.b32 add, %s, 0;\\n\"\n"
              "                 \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s \"\n"
              "                 \"",
              adds, n, type, type);
  emit_registers(out, 0, d);
  text_append(out, ", ");
  if (form->registers)
    emit_registers(out, d, a);
  else
    text_format(out, "%%%d", d);
  text_format(out, ", %%%d, add, 1, 1%s", d + a, form->registers ? "" : ", ");
  if (!form->registers)
    text_format(out, "%%%d", d + a + 1);
  text_format(out, ", %%%d;\\n}\"\n                 : ", d + a + (form->registers ? 1 : 2));
  emit_operands(out, form->first ? "=f" : "+f", "d", d);
  text_append(out, "\n                 : ");
  if (form->registers)
    emit_operands(out, "r", "a", 4);
  else
    text_append(out, "\"l\"(a)");
  text_format(out, ", \"l\"(b), %s\"n\"(kAcrossB)%s);\n  }\n",
              form->registers ? "" : "\"n\"(kAcrossA), ", form->asked ? ", \"r\"((int)adds)" : "");
}

static void emit_wgmma(int n, const char *type, bool restarts, Text *out) {
  text_format(out,
              "// d = or += a b over a warpgroup: a 64 x 16, b 16 x %d, d 64 x %d; kAcross: tiles "
              "used across\n// their rows (templates/lib/warpgroup.cuh).\n"
              "template <> struct Wgmma<%d> {\n",
              n, n, n);
  for (size_t i = 0; i < sizeof wgmma_forms / sizeof wgmma_forms[0]; i++)
    if (restarts || !wgmma_forms[i].asked)
      emit_wgmma_form(&wgmma_forms[i], n, type, out);
  text_append(out, "};\n");
}

void instructions_emit(rota_dtype dtype, const int *wgmma_n, int wgmma_count, bool restarts,
                       Text *out) {
  if (dtype == ROTA_FP32)
    return;
  const char *type = dtype == ROTA_BF16 ? "bf16" : "f16";
  if (wgmma_count == 0) {
    for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i++)
      emit_mma(&mma_shapes[i], type, out);
    return;
  }
  text_append(out, "template <int kN> struct Wgmma;\n\n");
  for (int i = 0; i < wgmma_count; i++)
    emit_wgmma(wgmma_n[i], type, restarts, out);
}
