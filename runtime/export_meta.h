/* Level 13. What an exported kernel says about itself, as JSON: spec, tiling, target.
 * Numbers that decide bits are kept as their 32 bits, so that nothing is rounded. */
#ifndef ROTA_RUNTIME_EXPORT_META_H
#define ROTA_RUNTIME_EXPORT_META_H

#include "runtime/kernel.h"

/* JSON text, one line, keys sorted; the caller frees it. */
rota_status export_meta_write(const rota_kernel *kernel, char **text);
/* Fills the kernel's spec, direction, layout, device, target, tiling and digests. FILE where
 * something is missing or out of its range. What was filled so far is freed with the kernel. */
rota_status export_meta_read(const char *text, size_t length, rota_kernel *kernel);

#endif
