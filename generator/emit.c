/* The generated part of a program: see emit.h. */
#include "generator/emit.h"

#include <string.h>

#include "generator/instructions.h"

static const char *element_type(rota_dtype dtype) {
  return dtype == ROTA_BF16 ? "Bf16" : dtype == ROTA_FP16 ? "Fp16" : "Fp32";
}

static const char *truth(bool value) {
  return value ? "true" : "false";
}

/* tile_q -> TileQ */
static void append_camel(Text *out, const char *snake) {
  bool upper = true;
  for (; *snake; snake++) {
    if (*snake == '_') {
      upper = true;
      continue;
    }
    char c[2] = {*snake, 0};
    if (upper && c[0] >= 'a' && c[0] <= 'z')
      c[0] = (char)(c[0] - 'a' + 'A');
    upper = false;
    text_append(out, c);
  }
}

static ExpressionUse use_of(const Expression *expression) {
  ExpressionUse none = {0};
  return expression ? expression_use(expression) : none;
}

static bool uses_tensors(const ExpressionUse *use) {
  for (int i = 0; i < TENSORS_MAX; i++)
    if (use->tensor[i])
      return true;
  return false;
}

void emit_spec(const Spec *spec, rota_layout layout, Text *out) {
  ExpressionUse mask = use_of(spec->mask), score = use_of(spec->score);
  text_append(out, "// What is computed.\n#pragma once\n#include \"templates/lib/types.cuh\"\n\n"
                   "namespace rota {\n\n");
  text_format(out, "using Element = %s;   // spec.dtype\n", element_type(spec->dtype));
  text_format(out, "inline constexpr int kHeadDim = %d;   // spec.head_dim\n", spec->head_dim);
  text_format(out, "inline constexpr int kHeadDimV = %d;   // spec.head_dim_v\n", spec->head_dim_v);
  text_format(out, "inline constexpr int kGroup = %d;   // spec.heads / spec.kv_heads\n",
              spec_group(spec));
  const struct {
    const char *name, *source;
    bool value;
  } flags[] = {
      {"kSinkLogit", "spec.sink_logit", spec->sink_logit},
      {"kAligned", "layout: 16-byte accesses", layout == ROTA_LAYOUT_ALIGNED},
      {"kHasMask", "spec.mask is not full", spec->mask != NULL},
      {"kHasScore", "spec.score", spec->score != NULL},
      {"kMaskUsesTensors", "spec.mask", uses_tensors(&mask)},
      {"kScoreUsesTensors", "spec.score", uses_tensors(&score)},
      {"kMaskUsesHead", "spec.mask", mask.h},
      {"kScoreUsesHead", "spec.score", score.h},
  };
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
    text_format(out, "inline constexpr bool %s = %s;   // %s\n", flags[i].name,
                truth(flags[i].value), flags[i].source);
  text_append(out, "\n}  // namespace rota\n");
}

void emit_tiling(const Tiling *tiling, Text *out) {
  text_append(out, "// How large the pieces are.\n#pragma once\n\nnamespace rota {\n\n");
  for (int i = 0; i < tiling->field_count; i++) {
    text_append(out, "inline constexpr int k");
    append_camel(out, tiling->fields[i].name);
    text_format(out, " = %d;   // tiling.%s\n", tiling->fields[i].value, tiling->fields[i].name);
  }
  for (int i = 0; i < tiling->map_count; i++) {
    text_append(out, "inline constexpr int kMap");
    append_camel(out, mapped_name(tiling->maps[i].tensor));
    text_format(out, " = %d;   // tiling.tensor_maps: boxes of %d rows", i, tiling->maps[i].rows);
    if (tiling->maps[i].heads)
      text_format(out, " of %d heads", tiling->maps[i].heads);
    text_append(out, "\n");
  }
  text_append(out, "\n}  // namespace rota\n");
}

/* Local names for what an expression uses: parameters and tensor accesses, `clamped` to the
 * tensors' sizes. */
static void declare_symbols(const Symbols *symbols, const ExpressionUse *use, bool clamped,
                            Text *out) {
  for (int i = 0; i < symbols->parameter_count; i++) {
    if (!use->parameter[i])
      continue;
    const Parameter *parameter = &symbols->parameters[i];
    bool is_int = parameter->type == VALUE_INT;
    text_format(out, "  const%s %s p_%s = ", parameter->constant ? "expr" : "",
                is_int ? "int" : "float", parameter->name);
    if (!parameter->constant) {
      text_format(out, "arguments.parameters[%d].%s;\n", i, is_int ? "as_int" : "as_float");
    } else {
      if (is_int)
        text_format(out, "%d", parameter->value.i);
      else
        text_append_float(out, parameter->value.f);
      text_append(out, is_int ? ";\n" : "f;\n");
    }
  }
  for (int i = 0; i < symbols->tensor_count; i++) {
    if (!use->tensor[i])
      continue;
    const TensorSymbol *tensor = &symbols->tensors[i];
    text_format(out, "  const auto tensor_%s = [&](", tensor->name);
    for (int d = 0; d < tensor->rank; d++)
      text_format(out, "%sauto i%d", d ? ", " : "", d);
    text_format(out, ") {\n    return static_cast<const %s *>(arguments.tensors[%d].data)[",
                tensor->element == ROTA_INT32 ? "int" : "float", i);
    for (int d = 0; d < tensor->rank; d++) {
      text_format(out, clamped ? "%srota_within(i%d, " : "%si%d", d ? " + " : "", d);
      if (clamped)
        text_format(out, "arguments.tensors[%d].size[%d])", i, d);
      text_format(out, " * arguments.tensors[%d].stride[%d]", i, d);
    }
    text_append(out, "];\n  };\n");
  }
}

/* Appends #line for the user's file, so that a compiler's complaint names it. */
static void append_line_directive(Text *out, SourcePlace place) {
  if (!place.file || place.line <= 0)
    return;
  text_format(out, "#line %d \"", place.line);
  for (const char *c = place.file; *c; c++) {
    char one[3] = {*c, 0, 0};
    if (*c == '"' || *c == '\\')
      one[0] = '\\', one[1] = *c;
    if ((unsigned char)*c >= ' ')
      text_append(out, one);
  }
  text_append(out, "\"\n");
}

/* After the user's line the numbers are the header's own again. */
static void append_line_return(Text *out, SourcePlace place, const char *header) {
  if (!place.file || place.line <= 0)
    return;
  int lines = 1;
  for (size_t i = 0; i < out->length; i++)
    lines += out->data[i] == '\n';
  text_format(out, "#line %d \"%s\"\n", lines + 1, header);
}

static void emit_function(const char *header, const char *signature, const Expression *expression,
                          const Symbols *symbols, bool exact, const char *otherwise, Text *out) {
  text_append(out, "// ");
  if (expression)
    expression_print(expression, symbols, out);
  else
    text_append(out, "nothing in the spec");
  text_format(out, "\n__device__ __forceinline__ %s {\n", signature);
  if (!expression) {
    text_format(out, "  return %s;\n}\n", otherwise);
    return;
  }
  ExpressionUse use = expression_use(expression);
  declare_symbols(symbols, &use, exact, out);
  SourcePlace place = expression_place(expression);
  append_line_directive(out, place);
  text_append(out, "  return ");
  expression_emit(expression, symbols, exact, out);
  text_append(out, ";\n");
  append_line_return(out, place, header);
  text_append(out, "}\n");
}

static void begin_expression_header(const char *what, Text *out) {
  text_format(out,
              "// %s\n#pragma once\n#include \"templates/lib/abi.h\"\n"
              "#include \"templates/lib/expression.cuh\"\n#include \"templates/lib/types.cuh\"\n\n"
              "namespace rota {\n\n",
              what);
}

/* `bounds`: of queries are known, too. */
static void emit_match(const Spec *spec, bool bounds, Text *out) {
  Expression *of_query = NULL, *of_key = NULL, *first, *end, *rest;
  bool matches = spec->mask && expression_match(spec->mask, &of_query, &of_key);
  if (matches && !bounds && expression_columns_part(spec->mask, &first, &end, &rest)) {
    matches = false;
    expression_release(first);
    expression_release(end);
    expression_release(rest);
  }
  text_format(out,
              "\n// Is the rest of the mask that mask_of_query(at), whatever at.k, is "
              "mask_of_key(at), whatever at.q?\ninline constexpr bool kMaskIsMatch = %s;\n",
              truth(matches));
  emit_function("mask.cuh", "int mask_of_query(const Position &at, const RotaArguments &arguments)",
                matches ? of_query : NULL, &spec->symbols, true, "0", out);
  emit_function("mask.cuh", "int mask_of_key(const Position &at, const RotaArguments &arguments)",
                matches ? of_key : NULL, &spec->symbols, true, "0", out);
  expression_release(of_query);
  expression_release(of_key);
}

/* Bounds of the queries that may attend a key, where they are known. */
static void emit_rows(const Spec *spec, Text *out) {
  Expression *first = NULL, *end = NULL;
  bool known = !spec->mask || expression_rows(spec->mask, &first, &end);
  text_format(out,
              "\n// Are there bounds of queries, too, which hold wherever those of keys do:\n"
              "// mask_query_first(at) <= q < mask_query_end(at), whatever at.q?\n"
              "inline constexpr bool kMaskIsByQuery = %s;\n",
              truth(known));
  emit_function("mask.cuh",
                "int mask_query_first(const Position &at, const RotaArguments &arguments)", first,
                &spec->symbols, true, "0", out);
  emit_function("mask.cuh",
                "int mask_query_end(const Position &at, const RotaArguments &arguments)", end,
                &spec->symbols, true, "at.n_q", out);
  expression_release(first);
  expression_release(end);
  emit_match(spec, known, out);
}

/* Bounds of the keys that a query may attend, where the mask is such an interval. */
static void emit_columns(const Spec *spec, Text *out) {
  Expression *first = NULL, *end = NULL, *rest = NULL;
  bool interval = !spec->mask || expression_columns(spec->mask, &first, &end);
  bool bounded = interval || expression_columns_part(spec->mask, &first, &end, &rest);
  text_format(out,
              "\n// Does the mask allow the keys mask_first(at) <= k < mask_end(at) and no other, "
              "whatever at.k?\ninline constexpr bool kMaskIsInterval = %s;\n"
              "// At least where a run says that it is bounded (ROTA_RUN_BOUNDED)?\n"
              "inline constexpr bool kMaskIsBounded = %s;\n",
              truth(interval), truth(bounded));
  emit_function("mask.cuh", "int mask_first(const Position &at, const RotaArguments &arguments)",
                first, &spec->symbols, true, "0", out);
  emit_function("mask.cuh", "int mask_end(const Position &at, const RotaArguments &arguments)", end,
                &spec->symbols, true, "at.n_k", out);
  expression_release(first);
  expression_release(end);
  expression_release(rest);
}

void emit_mask(const Spec *spec, Text *out) {
  begin_expression_header("May this query attend this key? The caller checks k < n_k.", out);
  emit_function("mask.cuh", "bool mask_allows(const Position &at, const RotaArguments &arguments)",
                spec->mask, &spec->symbols, true, "true", out);
  emit_columns(spec, out);
  emit_rows(spec, out);
  text_append(out, "\n}  // namespace rota\n");
}

/* A score that a softcap ends, in parts. */
static void emit_cap(const Spec *spec, Text *out) {
  Expression *size = NULL, *inner = NULL;
  bool capped = spec->score && expression_cap(spec->score, &size, &inner);
  text_format(out,
              "\n// Is the score score_cap() * tanh(score_inner(s) / score_cap()), the cap not "
              "negative?\n"
              "inline constexpr bool kScoreIsCapped = %s;\n",
              truth(capped));
  emit_function("score.cuh", "float score_cap(const RotaArguments &arguments)", size,
                &spec->symbols, false, "0.0f", out);
  emit_function("score.cuh",
                "auto score_inner(ScaledScore s, const Position &at, const RotaArguments "
                "&arguments)",
                inner, &spec->symbols, false, "s", out);
  expression_release(size);
  expression_release(inner);
}

void emit_score(const Spec *spec, Text *out) {
  begin_expression_header("The score function of the scaled score s, and its derivative.", out);
  emit_function("score.cuh",
                "float score_value(float s, const Position &at, const RotaArguments &arguments)",
                spec->score, &spec->symbols, false, "s", out);
  text_append(out, "\n");
  emit_function("score.cuh",
                "float score_slope(float s, const Position &at, const RotaArguments &arguments)",
                spec->score_derivative, &spec->symbols, false, "1.0f", out);
  emit_cap(spec, out);
  text_append(out, "\n}  // namespace rota\n");
}

void emit_instructions(const Spec *spec, const Tiling *tiling, Text *out) {
  text_append(out, "// Tensor-core instructions in use.\n#pragma once\n\nnamespace rota {\n\n");
  const Products products = {.n = tiling->wgmma,
                             .count = tiling->wgmma_count,
                             .along_n = tiling->tile_kv,
                             .along_steps = tiling_get(tiling, "sum_along", 0),
                             .across_n = spec->head_dim_v,
                             .across_steps = tiling_get(tiling, "sum_across", 0),
                             .terms_n =
                                 tiling_get(tiling, "row_terms", -1) < 0 ? 0 : tiling->tile_q,
                             .by_warp = tiling_get(tiling, "row_terms", -1) >= 0};
  instructions_emit(spec->dtype, &products, out);
  text_append(out, "\n}  // namespace rota\n");
}

void emit_main(const Spec *spec, rota_layout layout, const Tiling *tiling, Text *out) {
  text_format(out, "// %s %dx%d %s d%d", tiling->architecture, tiling->tile_q, tiling->tile_kv,
              dtype_name(spec->dtype), spec->head_dim);
  if (spec->head_dim_v != spec->head_dim)
    text_format(out, "/%d", spec->head_dim_v);
  text_format(out, " group %d %s%s | rota %s | %s\n", spec_group(spec), tiling->algorithm,
              layout == ROTA_LAYOUT_ANY ? " any layout" : "", rota_version(),
              tiling->template_path);
  text_format(out,
              "#include \"spec.cuh\"\n#include \"tiling.cuh\"\n#include \"mask.cuh\"\n"
              "#include \"score.cuh\"\n#include \"instructions.cuh\"\n#include \"%s\"\n",
              tiling->template_path);
  int blocks_per_sm = tiling_get(tiling, "blocks_per_sm", 1);
  for (int i = 0; i < tiling->launch_count; i++) {
    const char *entry = tiling->launches[i].entry;
    const char *name = strncmp(entry, "rota_", 5) == 0 ? entry + 5 : entry;
    text_format(out,
                "\nextern \"C\" __global__ void __launch_bounds__(%d, %d)\n"
                "%s(const __grid_constant__ RotaArguments arguments%s) {\n"
                "  rota::%s(arguments%s);\n}\n",
                tiling->launches[i].threads, blocks_per_sm, entry,
                tiling->map_count ? ",\n    const __grid_constant__ RotaTensorMaps maps" : "", name,
                tiling->map_count ? ", maps" : "");
  }
}
