/* Level 5. From a program to a cubin: memory, disk, or NVRTC, whichever has it first.
 *
 *     program -> program digest -> memory -> disk -> NVRTC -> disk, memory
 *                   + NVRTC build = key ------^
 *
 * One compile per key: threads wait for each other here, processes at the key's lock file. The key
 * covers every byte that NVRTC sees (without #line lines unless line information is embedded), the
 * options, the architecture and the build of NVRTC. */
#ifndef ROTA_RUNTIME_COMPILE_H
#define ROTA_RUNTIME_COMPILE_H

#include "generator/program.h"
#include "runtime/cubin.h"
#include "runtime/cubin_cache.h"
#include "runtime/log.h"
#include "runtime/nvrtc.h"

typedef struct CompilerOptions {
  const char *cache_dir;   /* as in rota_context_options */
  int64_t cache_max_bytes; /* 0: 1 GiB */
  const char *nvrtc_path;  /* NULL: ROTA_NVRTC, else searched */
  size_t memory_bytes;     /* of cubins kept in memory; 0: 64 MiB */
  bool line_info;          /* embed source lines; for profilers */
  double lock_seconds;     /* longest wait for another process's compile; 0: 120 */
  Log *log;                /* outlives the compiler; NULL: silent */
} CompilerOptions;

/* May be used by several threads at once. A child may go on using it after a fork, unless a thread
 * was loading NVRTC at that moment. */
typedef struct Compiler Compiler;

rota_status compiler_create(const CompilerOptions *options, Compiler **compiler);
void compiler_destroy(Compiler *compiler); /* NULL is fine */
CubinCache *compiler_cache(const Compiler *compiler);
Nvrtc *compiler_nvrtc(const Compiler *compiler);

/* What compile_program calls came to, since creation. */
typedef struct CompilerCounts {
  int compiled, from_memory, from_disk, failed;
} CompilerCounts;
CompilerCounts compiler_counts(Compiler *compiler);

/* The program for an architecture ("sm_90", "sm_90a"); on OK the cubin is the caller's. COMPILE:
 * the message quotes the log from its first error on. NO_COMPILER: not in the cache, and no NVRTC:
 * the message says where it was looked for. UNSUPPORTED: that NVRTC does not know the architecture.
 */
rota_status compile_program(Compiler *compiler, const Program *program, const char *architecture,
                            Cubin **cubin);

#endif
