/* Level 2. ROTA_DUMP_DIR: each program's files and cubin, laid out so that nvcc -I can compile them
 * again.
 *
 *     DUMP_DIR/PROGRAM_ARCHITECTURE/main.cu, templates/lib/abi.h, ..., kernel.cubin, compile.log */
#ifndef ROTA_RUNTIME_COMPILE_DUMP_H
#define ROTA_RUNTIME_COMPILE_DUMP_H

#include "generator/program.h"
#include "runtime/cubin.h"
#include "runtime/log.h"

/* Both do nothing if `root` is NULL; a directory that cannot be written costs one warning. `name`
 * is the subdirectory's. */
void compile_dump_program(const char *root, const char *name, const Program *program, Log *log);
/* `cubin` may be NULL (the compiler refused the program), `text` is the compiler's log. */
void compile_dump_cubin(const char *root, const char *name, const Cubin *cubin, const char *text,
                        Log *log);

#endif
