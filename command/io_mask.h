/* A mask by itself, for commands that have no model: from a string in the vocabulary of
 * lua/masks.lua. */
#ifndef ROTA_COMMAND_IO_MASK_H
#define ROTA_COMMAND_IO_MASK_H

#include "generator/io_attention.h"
#include "generator/script.h"

typedef struct IoMask {
  Store *store;
  Script *script;
  const char *text; /* borrowed; NULL: full */
  Spec spec;
  Bindings bindings; /* of the script's own values */
} IoMask;

/* Opens Lua and reads the mask. Close it in any case. UNSUPPORTED: a mask that reads tensors, whose
 * data no option brings. */
rota_status io_mask_open(const char *text, IoMask *mask);
/* Another mask in the same Lua, in place of the present one. */
rota_status io_mask_replace(IoMask *mask, const char *text);
void io_mask_close(IoMask *mask);

#endif
