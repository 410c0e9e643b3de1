/* A script state for tests of lua/ and generator/script.c, and specs in words. Failures end the
 * test with the library's message. */
#ifndef ROTA_TESTS_SCRIPTS_H
#define ROTA_TESTS_SCRIPTS_H

#include "generator/script.h"

/* Made by script_setup, for all tests of a group. */
extern Store *test_store;
extern Script *test_script;
int script_setup(void **state);
int script_teardown(void **state);

void check_ok(rota_status status);
/* The spec of a script that is right; spec_free it. */
Spec spec_of(const char *text);
/* Everything of a spec in words, to compare specs; free it. */
char *describe(const Spec *spec);
char *describe_script(Script *script, const char *text);
/* A script fails with this status, and each of the words (separated by '|') is in the message. */
void check_fails(const char *text, rota_status expected, const char *words);

#endif
