/* The figure of `rota io`: transfers over the size of fast memory, and for a mask over the number
 * of allowed pairs too. */
#ifndef ROTA_COMMAND_IO_FIGURE_H
#define ROTA_COMMAND_IO_FIGURE_H

#include "command/io_mask.h"

/* Counts and draws; the mask is left narrowed by a window. Files may be NULL. PNG is made by the
 * program rsvg-convert: UNSUPPORTED where there is none. */
rota_status io_figure_write(const IoProblem *problem, IoMask *mask, const char *svg,
                            const char *png);

#endif
