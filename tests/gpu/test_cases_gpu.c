/* The cases of tests/support/cases.h on the first GPU, at full size.
 *
 * `test_cases_gpu masks` runs one group; the others are `determinism` and `shapes`. */
#include "tests/support/cases.h"

int main(int count, char **arguments) {
  Gpu gpu;
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  int failures = cases_run(&gpu, count == 2 ? arguments[1] : NULL);
  gpu_close(&gpu);
  return failures != 0;
}
