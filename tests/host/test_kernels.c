/* Compiles every kernel of tests/kernels.txt with NVRTC and prints registers, spills and shared
 * memory. Fails on a kernel that does not compile, spills, or would not fit the architecture it is
 * for. Skips, loudly, where no NVRTC is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/compile.h"
#include "tests/support/model_list.h"

typedef struct Workshop {
  Store *store;
  Script *script;
  Compiler *compiler;
} Workshop;

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
  rota_status status = compile_program(shop->compiler, program, line->architecture, &cubin);
  program_destroy(program);
  spec_free(&spec);
  if (status != ROTA_OK) {
    printf("FAILED %s: %s\n", line->name, status_message());
    return 0;
  }
  int dynamic = 0;
  for (int i = 0; i < tiling.launch_count; i++)
    if (tiling.launches[i].shared_bytes > dynamic)
      dynamic = tiling.launches[i].shared_bytes;
  int shared = cubin->shared_bytes + dynamic;
  /* A few loop invariants may spill where the accumulators leave no room (forward at head dim 128:
   * 20 bytes, and versions without them were slower); above it more. */
  int budget = spec.head_dim > 128 || spec.head_dim_v > 128 ? 256 : 48;
  bool good = cubin->spill_bytes <= budget && shared <= target.shared_per_block;
  printf("%s %-16s %-8s %-9s %-6s %3d x %-3d %4d %6d %8d %8zu %6.2f\n", good ? "ok    " : "FAILED",
         line->name, line->direction == ROTA_BACKWARD ? "backward" : "forward", tiling.algorithm,
         line->architecture, tiling.tile_q, tiling.tile_kv, cubin->registers, cubin->spill_bytes,
         shared, cubin->bytes, cubin->seconds);
  fflush(stdout);
  cubin_destroy(cubin);
  return good;
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
  printf("       name             pass     algorithm arch      tile  regs spills   shared    cubin "
         "seconds\n");
  for (int i = 0; i < count; i++)
    passed += compile_line(&shop, &lines[i]);
  printf("%d passed, %d failed\n", passed, count - passed);
  free(lines);
  compiler_destroy(shop.compiler);
  script_destroy(shop.script);
  store_destroy(shop.store);
  return passed == count ? EXIT_SUCCESS : EXIT_FAILURE;
}
