/* Level 5. In which order chains visit their tiles, as shades over a map. */
#ifndef ROTA_GENERATOR_PICTURE_ORDER_H
#define ROTA_GENERATOR_PICTURE_ORDER_H

#include "generator/picture_parts.h"
#include "generator/schedule.h"

/* Within a view whose units are tiles: the later a chain visits a tile of the head, the darker,
 * classes "late1" .. "late7". Large maps are sampled. OUT_OF_MEMORY. */
rota_status order_draw(const Pattern *pattern, int group_head, Text *svg);
/* The shades, for a style sheet. */
void order_style(Text *svg);

#endif
