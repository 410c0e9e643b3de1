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
 * from registers; the first product of a sum writes its accumulators without reading them. */
typedef struct WgmmaForm {
  const char *name;
  bool registers; /* A; else shared memory */
  bool first;
} WgmmaForm;

enum { WGMMA_ACCUMULATE = 3 }; /* A from registers */
static const WgmmaForm wgmma_forms[] = {
    {"multiply", false, true},
    {"accumulate", false, false},
    {"multiply", true, true},
    {"accumulate", true, false},
};

static void emit_wgmma_name(int n, const char *type, Text *out) {
  text_format(out, "\"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s \"\n                 \"", n,
              type, type);
}

static void emit_wgmma_form(const WgmmaForm *form, int n, const char *type, Text *out) {
  int d = n / 2, a = form->registers ? 4 : 1; /* operands */
  text_format(out, "  template <%sint kAcrossB>\n  __device__ __forceinline__ static void %s(",
              form->registers ? "" : "int kAcrossA, ", form->name);
  text_format(out, "float (&d)[%d], %s, unsigned long long b) {\n", d,
              form->registers ? "const unsigned (&a)[4]" : "unsigned long long a");
  text_format(out,
              "    asm volatile(\"{\\n.reg .pred add;\\nsetp.ne.b32 add, %d, 0;\\n\"\n"
              "                 ",
              !form->first);
  emit_wgmma_name(n, type, out);
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
  text_format(out, ", \"l\"(b), %s\"n\"(kAcrossB));\n  }\n",
              form->registers ? "" : "\"n\"(kAcrossA), ");
}

/* Sums of products in one statement: with all its operands, each in its own takes the compiler 3 ms
 * wherever it is used. Both step from k to k by what lies between rows of 128 bytes: see
 * templates/lib/warpgroup.cuh. */
static void emit_sum_along(int n, int steps, const char *type, Text *out) {
  int d = n / 2, step_a = d + 2, step_b = step_a + steps - 1; /* operands' numbers */
  text_format(out,
              "  // d = a b, k %d, both used along their rows, of which the tiles have so many.\n"
              "  template <int kRowsA, int kRowsB>\n"
              "  __device__ __forceinline__ static void sum_along(float (&d)[%d], unsigned long "
              "long a, unsigned long long b) {\n"
              "    asm volatile(\"{\\n.reg .pred add;\\n.reg .b64 a, b;\\n\"\n",
              16 * steps, d);
  for (int step = 0; step < steps; step++) {
    if (step < 2)
      text_format(out, "                 \"setp.ne.b32 add, %d, 0;\\n\"\n", step);
    if (step > 0)
      text_format(out,
                  "                 \"add.s64 a, %%%d, %%%d;\\n\"\n"
                  "                 \"add.s64 b, %%%d, %%%d;\\n\"\n",
                  d, step_a + step - 1, d + 1, step_b + step - 1);
    text_append(out, "                 ");
    emit_wgmma_name(n, type, out);
    emit_registers(out, 0, d);
    if (step > 0)
      text_append(out, ", a, b, add, 1, 1, 0, 0;\\n\"\n");
    else
      text_format(out, ", %%%d, %%%d, add, 1, 1, 0, 0;\\n\"\n", d, d + 1);
  }
  text_append(out, "                 \"}\"\n                 : ");
  emit_operands(out, "=f", "d", d);
  text_append(out, "\n                 : \"l\"(a), \"l\"(b)");
  for (int tile = 0; tile < 2; tile++)
    for (int step = 1; step < steps; step++)
      text_format(out, ", \"n\"(%d * kRows%c + %d)", step / 4 * 8, "AB"[tile], step % 4 * 2);
  text_append(out, ");\n  }\n");
}

static void emit_sum_across(int n, int steps, const char *type, Text *out) {
  int d = n / 2, b = d + 4 * steps; /* operands' numbers */
  text_format(out,
              "  // d = a b or d + a b, k %d, b used across its rows.\n"
              "  __device__ __forceinline__ static void sum_across(float (&d)[%d], const unsigned "
              "(&a)[%d][4], unsigned long long b, bool adds) {\n"
              "    asm volatile(\"{\\n.reg .pred add;\\n.reg .b64 b;\\n\"\n"
              "                 \"setp.ne.b32 add, %%%d, 0;\\n\"\n",
              16 * steps, d, steps, b + 1);
  for (int step = 0; step < steps; step++) {
    if (step == 1)
      text_append(out, "                 \"setp.ne.b32 add, 1, 0;\\n\"\n");
    if (step > 0)
      text_format(out, "                 \"add.s64 b, %%%d, %d;\\n\"\n", b, 128 * step);
    text_append(out, "                 ");
    emit_wgmma_name(n, type, out);
    emit_registers(out, 0, d);
    text_append(out, ", ");
    emit_registers(out, d + 4 * step, 4);
    if (step > 0)
      text_append(out, ", b, add, 1, 1, 1;\\n\"\n");
    else
      text_format(out, ", %%%d, add, 1, 1, 1;\\n\"\n", b);
  }
  text_append(out, "                 \"}\"\n                 : ");
  emit_operands(out, "+f", "d", d);
  text_append(out, "\n                 : ");
  for (int i = 0; i < 4 * steps; i++)
    text_format(out, "\"r\"(a[%d][%d]), ", i / 4, i % 4);
  text_append(out, "\"l\"(b), \"r\"((int)adds));\n  }\n");
}

static void emit_wgmma(const Products *products, int n, const char *type, Text *out) {
  bool along = products->along_steps > 0 && n == products->along_n;
  bool across = products->across_steps > 0 && n == products->across_n;
  text_format(out,
              "// d = or += a b over a warpgroup: a 64 x 16, b 16 x %d, d 64 x %d; kAcross: tiles "
              "used across\n// their rows (templates/lib/warpgroup.cuh).\n"
              "template <> struct Wgmma<%d> {\n",
              n, n, n);
  if (along)
    emit_sum_along(n, products->along_steps, type, out);
  if (across)
    emit_sum_across(n, products->across_steps, type, out);
  if (!along && !across)
    for (size_t i = 0; i < sizeof wgmma_forms / sizeof wgmma_forms[0]; i++)
      emit_wgmma_form(&wgmma_forms[i], n, type, out);
  text_append(out, "};\n");
}

void instructions_emit(rota_dtype dtype, const Products *products, Text *out) {
  if (dtype == ROTA_FP32)
    return;
  const char *type = dtype == ROTA_BF16 ? "bf16" : "f16";
  for (size_t i = 0; i < sizeof mma_shapes / sizeof mma_shapes[0]; i++)
    if (products->count == 0 || products->by_warp)
      emit_mma(&mma_shapes[i], type, out);
  if (products->count == 0)
    return;
  text_append(out, "template <int kN> struct Wgmma;\n\n");
  for (int i = 0; i < products->count; i++)
    emit_wgmma(products, products->n[i], type, out);
  if (products->terms_n == 0)
    return;
  text_append(out, "// The same of bf16, whose range is that of fp32.\nstruct WgmmaTerms {\n");
  emit_wgmma_form(&wgmma_forms[WGMMA_ACCUMULATE], products->terms_n, "bf16", out);
  text_append(out, "};\n");
}
