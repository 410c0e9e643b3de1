/* Cases that users of comparable libraries stumbled over, as tests that run on any device:
 * determinism (A), masks (B), shapes (C), pieces (D), scores (E). tests/host/test_cases.c runs them
 * on the CPU device, tests/gpu/test_cases_gpu.c on CUDA, there at full size. */
#ifndef ROTA_TESTS_CASES_H
#define ROTA_TESTS_CASES_H

#include "tests/support/trial.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The cases of a group ("determinism", "masks", "shapes", "pieces", "scores"; NULL: of all); gpu
 * NULL: on the CPU device, small. Kernels are cached where ROTA_CACHE_DIR is set. Returns the
 * number of failures. */
int cases_run(const Gpu *gpu, const char *group);
int cases_determinism(void);
int cases_masks(void);
int cases_shapes(void);
int cases_pieces(void);
int cases_scores(void);

/* Where the cases run; set by cases_run. */
typedef struct CaseDevice {
  rota_context *context;
  const Gpu *gpu;
} CaseDevice;
extern CaseDevice case_device;
/* The full size on a GPU, the small one on the CPU. */
int case_size(int full, int small);

/* A trial ready to run; a failure of the library fails the test with its message. */
Trial *case_prepare(const TrialShape *shape);
void case_run(Trial *trial);
/* The shape with every backward algorithm that serves it (with its own alone where it names
 * one), twice each: within tolerance of fp64, the same bits again (but for `atomic`), nothing
 * written where it must not. Prints the errors of the first, and who does not serve it. */
void case_check(const char *name, const TrialShape *shape);
/* Bits of all outputs after a run. */
Digest case_bits(Trial *trial);

#endif
