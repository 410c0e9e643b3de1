/* The environment's one door: see environment.h. */
#include "runtime/environment.h"

#include <stdlib.h>

static const struct {
  const char *name;
  bool empty_counts;
  const char *meaning;
} variables[] = {
#define X(id, name, empty, meaning) {name, empty, meaning},
    ENVIRONMENT_LIST(X)
#undef X
};

const char *environment_get(Environment variable) {
  const char *value = getenv(variables[variable].name);
  return value && !*value && !variables[variable].empty_counts ? NULL : value;
}

const char *environment_name(Environment variable) {
  return variables[variable].name;
}

const char *environment_meaning(Environment variable) {
  return variables[variable].meaning;
}
