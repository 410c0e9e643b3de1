/* The cases of tests/support/cases.h on the CPU device. */
#include "tests/support/cases.h"

int main(void) {
  return cases_run(NULL, NULL) != 0;
}
