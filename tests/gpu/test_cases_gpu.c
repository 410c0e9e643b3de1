/* The cases of tests/support/cases.h on the first GPU, at full size. */
#include "tests/support/cases.h"

int main(void) {
  Gpu gpu;
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  int failures = cases_run(&gpu);
  gpu_close(&gpu);
  return failures != 0;
}
