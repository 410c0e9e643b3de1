/* The cases of tests/support/cases.h on the first GPU, at full size.
 *
 * `test_cases_gpu masks` runs one group; the others are `determinism`, `shapes`, `pieces` and
 * `scores`. A second argument is a pattern of names: `test_cases_gpu determinism "test_a5*"`. */
#include "tests/support/cases.h"

int main(int count, char **arguments) {
  Gpu gpu;
  if (!gpu_open(&gpu))
    return TEST_SKIP;
  if (count > 2)
    cmocka_set_test_filter(arguments[2]);
  int failures = cases_run(&gpu, count > 1 ? arguments[1] : NULL);
  gpu_close(&gpu);
  return failures != 0;
}
