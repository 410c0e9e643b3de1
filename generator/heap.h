/* Level 0. Who is free first: a binary heap by (time, index), so that ties are broken alike
 * everywhere. */
#ifndef ROTA_GENERATOR_HEAP_H
#define ROTA_GENERATOR_HEAP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct HeapEntry {
  int64_t time; /* ticks */
  int32_t index;
} HeapEntry;

static inline bool heap_is_before(const HeapEntry *a, const HeapEntry *b) {
  return a->time != b->time ? a->time < b->time : a->index < b->index;
}

/* Restores the order after heap[at], and nothing else, may have become later. The first is on
 * top; entries of one time in the order of their indices are a heap. */
static inline void heap_sink(HeapEntry *heap, int32_t count, int32_t at) {
  HeapEntry moved = heap[at];
  for (int32_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && heap_is_before(&heap[child + 1], &heap[child]))
      child++;
    if (!heap_is_before(&heap[child], &moved))
      break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/* The same after heap[at], the last one, has been put there. */
static inline void heap_rise(HeapEntry *heap, int32_t at) {
  HeapEntry moved = heap[at];
  for (; at > 0 && heap_is_before(&moved, &heap[(at - 1) / 2]); at = (at - 1) / 2)
    heap[at] = heap[(at - 1) / 2];
  heap[at] = moved;
}

#endif
