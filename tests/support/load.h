/* Work from another stream, so that a test's own runs meet a busy GPU: blocks come and go in
 * another order each time. */
#ifndef ROTA_TESTS_LOAD_H
#define ROTA_TESTS_LOAD_H

#include "tests/support/trial.h"

typedef struct Load {
  Trial *trial; /* NULL: no load (the CPU device) */
  CUstream stream;
} Load;

/* A failure of the library ends the test. */
Load load_start(rota_context *context, const Gpu *gpu);
/* Puts launches on the load's stream; returns at once. */
void load_push(const Load *load, int launches);
void load_stop(Load *load);

#endif
