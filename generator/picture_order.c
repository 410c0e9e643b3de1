/* Level 5. The visiting order as shades: a column per chain, joined downwards where tiles share a
 * shade, so that a rule's order is a few rectangles a chain. */
#include "generator/picture_order.h"

#include <stdlib.h>

enum { STEPS = 8, SAMPLES_MAX = 256 }; /* shades with the plain one; columns and rows drawn */

void order_style(Text *svg) {
  for (int i = 1; i < STEPS; i++)
    text_format(svg, ".late%d{fill:#001;fill-opacity:.%02d}", i, 7 * i);
}

/* step[q_tile]: -1 where the chain has no visit of the head. */
static void find_steps(const Pattern *pattern, int32_t chain, int group_head, int *step) {
  int64_t begin = pattern->chain_begin[chain], end = pattern->chain_begin[chain + 1], count = 0;
  for (int32_t q = 0; q < pattern->q_tiles; q++)
    step[q] = -1;
  for (int64_t v = begin; v < end; v++)
    count += pattern->visits[v].group_head == group_head;
  int64_t at = 0;
  for (int64_t v = begin; v < end; v++)
    if (pattern->visits[v].group_head == group_head)
      step[pattern->visits[v].q_tile] = (int)(at++ * STEPS / count);
}

/* Rows are looked at every `height`; a column is `width` chains wide. */
static void draw_chain(const Pattern *pattern, int32_t chain, int32_t width, int32_t height,
                       const int *step, Text *shades) {
  for (int32_t q = 0; q < pattern->q_tiles;) {
    int32_t end = q + height;
    while (end < pattern->q_tiles && step[end] == step[q])
      end += height;
    int32_t last = end < pattern->q_tiles ? end : pattern->q_tiles;
    if (step[q] > 0)
      rectangle_append(&shades[step[q]], chain, q, width, last - q);
    q = end;
  }
}

rota_status order_draw(const Pattern *pattern, int group_head, Text *svg) {
  int *step = memory_allocate((size_t)pattern->q_tiles + 1, sizeof(int));
  if (!step)
    return ROTA_OUT_OF_MEMORY;
  Text shades[STEPS] = {{0}};
  int32_t width = 1 + (pattern->chains - 1) / SAMPLES_MAX;
  int32_t height = 1 + (pattern->q_tiles - 1) / SAMPLES_MAX;
  for (int32_t chain = 0; chain < pattern->chains; chain += width) {
    int32_t columns = pattern->chains - chain < width ? pattern->chains - chain : width;
    find_steps(pattern, chain, group_head, step);
    draw_chain(pattern, chain, columns, height, step, shades);
  }
  rota_status status = ROTA_OK;
  for (int i = 1; i < STEPS; i++) {
    char class[] = {'l', 'a', 't', 'e', (char)('0' + i), 0};
    path_append(svg, class, &shades[i]);
    if (status == ROTA_OK)
      status = text_status(&shades[i]);
    text_free(&shades[i]);
  }
  free(step);
  return status;
}
