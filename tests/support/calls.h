/* Calls of the public interface for tests: what must succeed, what must fail and how, and the usual
 * path from a script to a plan. A surprise ends the test with the library's message. */
#ifndef ROTA_TESTS_CALLS_H
#define ROTA_TESTS_CALLS_H

#include "tests/support/problem.h"

void must_at(const char *file, int line, rota_status status);
#define must(call) must_at(__FILE__, __LINE__, call)

/* The status, and each of the words (separated by '|') in the message. */
void must_fail_at(const char *file, int line, rota_status status, rota_status expected,
                  const char *words);
#define must_fail(call, expected, words) must_fail_at(__FILE__, __LINE__, call, expected, words)

/* Without a disk cache, unless ROTA_CACHE_DIR names one (for GPUs without NVRTC: a warm one). */
rota_context *calls_context(void);
rota_kernel *calls_kernel(rota_context *context, const char *script, rota_direction direction,
                          rota_device_kind device, rota_layout layout);
/* The problem's lengths, dense. Tensors may be NULL. */
rota_plan *calls_plan(const rota_kernel *kernel, const Problem *problem,
                      const rota_named_tensor *tensors, int count);
/* Script to plan. */
rota_plan *calls_prepare(rota_context *context, const char *script, rota_direction direction,
                         rota_device_kind device, const Problem *problem);
/* On the host, with a workspace of exactly the size asked for, filled with 0xff, between guards
 * that must stay whole. */
rota_status calls_run_host(const rota_plan *plan, const rota_arguments *arguments);

#endif
