/* Compiles every kernel of tests/kernels.txt with NVRTC and prints registers, spills and shared
 * memory. Fails on a kernel that does not compile, spills, whose wgmma is serialised, or that would
 * not fit the architecture it is for. Skips, loudly, where no NVRTC is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/compile.h"
#include "tests/support/model_list.h"
#include "tests/support/workbench.h"

typedef struct Workshop {
  Store *store;
  Script *script;
  Compiler *compiler;
} Workshop;

/* What the kernels of an architecture may keep in local memory, in bytes per thread, and how large
 * their cubins may be. */
typedef struct Budget {
  const char *architecture;
  int narrow, wide; /* head dims up to 128, and above */
  int scored;       /* above, with a score function */
  int ordered;      /* the backward pass in five products; 0: as the others */
  size_t forward;   /* bytes of a forward cubin up to head dim 256; 0: any number */
  size_t forward_scored;
} Budget;
static const Budget budgets[] = {
    /* A few loop invariants may spill where the accumulators leave no room (forward at head dim
     * 128: 20 bytes, and versions without them were slower); above it more. */
    {"portable", 48, 256, 256, 0, 0, 0},
    /* The common ones spill nothing; under masks that take registers, what is read once a chain
     * may. Compiling is to take 1.5 s at most, 14 us a byte: a test can rely on bytes. A
     * softcap has two forms of a softmax, in plain code: 12 us a byte. */
    {"hopper", 0, 0, 0, 80, 100 << 10, 130 << 10},
};

static bool is_ordered(const Tiling *tiling) {
  return strcmp(tiling->algorithm, "ordered") == 0 || strcmp(tiling->algorithm, "atomic") == 0 ||
         strcmp(tiling->algorithm, "exact") == 0;
}

static const Budget *budget_of(const Tiling *tiling) {
  static const Budget none = {"", 0, 0, 0, 0, 0, 0};
  for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++)
    if (strcmp(budgets[i].architecture, tiling->architecture) == 0)
      return &budgets[i];
  return &none;
}

static int spills_allowed(const Spec *spec, const Tiling *tiling) {
  bool wide = spec->head_dim > 128 || spec->head_dim_v > 128;
  const Budget *budget = budget_of(tiling);
  return budget->ordered && is_ordered(tiling) ? budget->ordered
         : wide && spec->score                 ? budget->scored
         : wide                                ? budget->wide
                                               : budget->narrow;
}

/* 0: any number. */
static size_t bytes_allowed(const Spec *spec, const ModelLine *line, const Tiling *tiling) {
  if (line->direction != ROTA_FORWARD || spec->head_dim > 256 || spec->head_dim_v > 256)
    return 0;
  return spec->score ? budget_of(tiling)->forward_scored : budget_of(tiling)->forward;
}

/* What is wrong with a compiled kernel; NULL: nothing. */
static const char *fault(const Cubin *cubin, int spills, int shared, const Target *target) {
  if (cubin->spill_bytes > spills)
    return "spills, or has arrays in local memory";
  if (shared > target->shared_per_block)
    return "does not fit shared memory";
  return cubin_log_serialised(cubin->log);
}

/* 1 if the kernel is as it should be. */
static int compile_line(const Workshop *shop, const ModelLine *line) {
  Spec spec;
  Tiling tiling;
  Program *program;
  Cubin *cubin;
  Target target;
  if (script_target(shop->script, line->architecture, &target) != ROTA_OK ||
      model_line_build(shop->script, shop->store, line, &spec, &tiling, &program) != ROTA_OK) {
    printf("FAILED %s: %s\n", line->name, status_message());
    return 0;
  }
  const char *code = tiling_code(&tiling, &target);
  rota_status status = compile_program(shop->compiler, program, code, &cubin);
  int spills = spills_allowed(&spec, &tiling);
  size_t most = bytes_allowed(&spec, line, &tiling);
  program_destroy(program);
  spec_free(&spec);
  if (status != ROTA_OK) {
    printf("FAILED %s: %s\n", line->name, status_message());
    return 0;
  }
  int shared = cubin->shared_bytes + tiling_shared_bytes(&tiling);
  const char *wrong = fault(cubin, spills, shared, &target);
  if (!wrong && most && cubin->bytes > most)
    wrong = "is larger than forward kernels are to be, and takes longer to compile";
  printf("%s %-16s %-8s %-9s %-7s %3d x %-3d %4d %6d %8d %8zu %6.2f\n", wrong ? "FAILED" : "ok    ",
         line->name, line->direction == ROTA_BACKWARD ? "backward" : "forward", tiling.algorithm,
         code, tiling.tile_q, tiling.tile_kv, cubin->registers, cubin->spill_bytes, shared,
         cubin->bytes, cubin->seconds);
  if (wrong)
    printf("       %.*s\n", (int)strcspn(wrong, "\n"), wrong);
  /* Right, but a wait or a fence is missing in the source. */
  if (strstr(cubin->log, "is injected"))
    printf("       ptxas injected warpgroup.wait or warpgroup.arrive\n");
  fflush(stdout);
  cubin_destroy(cubin);
  return !wrong;
}

/* ---- That what is wrong is found ---- */

/* Accumulators in flight over a loop's back edge, and an array with run-time indices. */
static const char products[] =
    "__device__ void multiply(float (&d)[4], unsigned long long a) {\n"
    "  asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
    "  asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n\"\n"
    "    \"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 \"\n"
    "    \"{%0, %1, %2, %3}, %4, %4, p, 1, 1, 0, 0;\\n}\"\n"
    "    : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"l\"(a));\n"
    "  asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
    "}\n"
    "template <int n> __device__ void wait() {\n"
    "  asm volatile(\"wgmma.wait_group.sync.aligned %0;\" ::\"n\"(n) : \"memory\");\n"
    "}\n";
static const char good_kernel[] =
    "// good | test\n#include \"templates/lib/part.cuh\"\n"
    "extern \"C\" __global__ void rota_test(float *out, unsigned long long a, int n) {\n"
    "  float d[4] = {};\n"
    "  for (int k = 0; k < n; k++) { multiply(d, a); wait<0>(); }\n"
    "  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];\n"
    "}\n";
static const char serial_kernel[] =
    "// serial | test\n#include \"templates/lib/part.cuh\"\n"
    "extern \"C\" __global__ void rota_test(float *out, unsigned long long a, int n) {\n"
    "  float d[4] = {}, e[4] = {};\n"
    "  for (int k = 0; k < n; k++) {\n"
    "    multiply(d, a); wait<1>(); out[k] = e[0];\n"
    "    multiply(e, a); wait<1>(); out[k + 200] = d[0];\n"
    "  }\n"
    "  wait<0>();\n"
    "  for (int i = 0; i < 4; i++) out[128 * i + threadIdx.x] = d[i] + e[i];\n"
    "}\n";
static const char local_kernel[] = "// local | test\n#include \"templates/lib/part.cuh\"\n"
                                   "extern \"C\" __global__ void rota_test(float *out, int n) {\n"
                                   "  float kept[64];\n"
                                   "  for (int i = 0; i < 64; i++) kept[i] = out[i];\n"
                                   "  for (int i = 0; i < n; i++) out[i] = kept[i * 7 % 64];\n"
                                   "}\n";

static int check_detector(const Workshop *shop) {
  static const struct {
    const char *name, *text, *words; /* NULL: nothing is wrong */
  } cases[] = {{"good", good_kernel, NULL},
               {"serial", serial_kernel, "serialized"},
               {"local", local_kernel, "local memory"}};
  const Target target = {.shared_per_block = 1 << 17};
  int right = 0;
  for (int i = 0; i < 3; i++) {
    Program *program = workbench_program(cases[i].text, products);
    Cubin *cubin = NULL;
    if (compile_program(shop->compiler, program, "sm_90a", &cubin) == ROTA_OK) {
      const char *found = fault(cubin, 0, cubin->shared_bytes, &target);
      bool as_meant = cases[i].words ? found && strstr(found, cases[i].words) : !found;
      printf("%s detector: %s\n", as_meant ? "ok    " : "FAILED", cases[i].name);
      right += as_meant;
    } else {
      printf("FAILED detector: %s: %s\n", cases[i].name, status_message());
    }
    program_destroy(program);
    cubin_destroy(cubin);
  }
  return right;
}

int main(void) {
  Workshop shop;
  Log log;
  log_init(&log, -1);
  CompilerOptions options = {.cache_dir = "", .log = &log};
  if (store_create(NULL, &shop.store) != ROTA_OK ||
      script_create(shop.store, &shop.script) != ROTA_OK ||
      compiler_create(&options, &shop.compiler) != ROTA_OK) {
    printf("FAILED: %s\n", status_message());
    return EXIT_FAILURE;
  }
  int count, passed = 0;
  ModelLine *lines = model_list_read("tests/kernels.txt", &count);
  if (nvrtc_load(compiler_nvrtc(shop.compiler)) != ROTA_OK) {
    printf("SKIPPED: %d kernels are not compiled: %s\n", count, status_message());
    return 77;
  }
  printf(
      "       name             pass     algorithm arch       tile  regs spills   shared    cubin "
      "seconds\n");
  for (int i = 0; i < count; i++)
    passed += compile_line(&shop, &lines[i]);
  passed += check_detector(&shop);
  count += 3;
  printf("%d passed, %d failed\n", passed, count - passed);
  free(lines);
  compiler_destroy(shop.compiler);
  script_destroy(shop.script);
  store_destroy(shop.store);
  return passed == count ? EXIT_SUCCESS : EXIT_FAILURE;
}
