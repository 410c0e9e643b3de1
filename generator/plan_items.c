/* Level 1. The order of a launch's blocks. */
#include "generator/plan_items.h"

#include <stdlib.h>

/* Bytes of a wave's common reads: with what streams past, within the L2 of every target (40 MB and
 * more). */
#define WAVE_BYTES ((int64_t)16 << 20)

typedef struct SequenceKey {
  int32_t sequence, longest;
} SequenceKey;

static int compare_keys(const void *a, const void *b) {
  const SequenceKey *x = a, *y = b;
  if (x->longest != y->longest)
    return x->longest > y->longest ? -1 : 1;
  return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Sequences by their longest item, descending; equals keep their order. */
static SequenceKey *order_sequences(const ItemsRequest *request) {
  SequenceKey *keys = memory_allocate((size_t)request->batch + 1, sizeof(SequenceKey));
  if (!keys)
    return NULL;
  int64_t planes = request->per_head ? (int64_t)request->kv_heads * request->heads_per_pair : 1;
  for (int32_t s = 0; s < request->batch; s++) {
    keys[s].sequence = s;
    int64_t entries = planes * request->tiles[s];
    for (int64_t i = 0; i < entries; i++) {
      int32_t work = request->work[request->first[s] + i];
      if (work > keys[s].longest)
        keys[s].longest = work;
    }
  }
  qsort(keys, (size_t)request->batch, sizeof(SequenceKey), compare_keys);
  return keys;
}

/* Items of one (sequence, kv head) pair, heads slowest; returns how many. */
static int64_t add_pair(const ItemsRequest *request, int32_t sequence, int kv_head,
                        RotaItem *items) {
  int64_t count = 0;
  int32_t tiles = request->tiles[sequence];
  for (int g = 0; g < request->heads_per_pair; g++) {
    int head = kv_head * request->heads_per_pair + g;
    int32_t base = request->first[sequence] + (request->per_head ? head * tiles : 0);
    for (int32_t i = 0; i < tiles; i++) {
      int32_t tile = request->start ? request->start[base + i] : i;
      items[count++] = (RotaItem){base + tile, head};
    }
  }
  return count;
}

/* Scratch of the sort: a count per amount of work, and a copy of the wave. */
typedef struct Sorter {
  int64_t *begin; /* [longest + 2] */
  RotaItem *copy;
  int64_t capacity;
} Sorter;

/* Stable counting sort, most work first. `longest` bounds the wave's work. */
static rota_status sort_wave(Sorter *sorter, const int32_t *work, int32_t longest, RotaItem *items,
                             int64_t count) {
  if (count > sorter->capacity) {
    RotaItem *copy = memory_resize(sorter->copy, (size_t)count, sizeof(RotaItem));
    if (!copy)
      return ROTA_OUT_OF_MEMORY;
    sorter->copy = copy;
    sorter->capacity = count;
  }
  for (int32_t w = 0; w <= longest + 1; w++)
    sorter->begin[w] = 0;
  for (int64_t i = 0; i < count; i++) {
    sorter->copy[i] = items[i];
    sorter->begin[longest - work[items[i].index] + 1]++;
  }
  for (int32_t w = 1; w <= longest; w++)
    sorter->begin[w] += sorter->begin[w - 1];
  for (int64_t i = 0; i < count; i++)
    items[sorter->begin[longest - work[sorter->copy[i].index]]++] = sorter->copy[i];
  return ROTA_OK;
}

static rota_status order_waves(const ItemsRequest *request, const SequenceKey *keys, Sorter *sorter,
                               RotaItem *items) {
  int64_t begin = 0, end = 0, bytes = 0; /* of the wave so far */
  int32_t longest = 0;                   /* of its first sequence, so of the wave */
  for (int32_t i = 0; i < request->batch; i++) {
    int32_t sequence = keys[i].sequence;
    for (int kv_head = 0; kv_head < request->kv_heads; kv_head++) {
      if (end > begin && bytes + request->bytes[sequence] > WAVE_BYTES) {
        if (!request->start)
          ROTA_TRY(sort_wave(sorter, request->work, longest, items + begin, end - begin));
        begin = end;
        bytes = 0;
      }
      if (end == begin)
        longest = keys[i].longest;
      end += add_pair(request, sequence, kv_head, items + end);
      bytes += request->bytes[sequence];
    }
  }
  if (request->start)
    return ROTA_OK;
  return sort_wave(sorter, request->work, longest, items + begin, end - begin);
}

rota_status items_order(const ItemsRequest *request, RotaItem *items) {
  SequenceKey *keys = order_sequences(request);
  if (!keys)
    return ROTA_OUT_OF_MEMORY;
  size_t longest = request->batch > 0 ? (size_t)keys[0].longest : 0;
  Sorter sorter = {.begin = memory_allocate(longest + 2, sizeof(int64_t))};
  rota_status status =
      sorter.begin ? order_waves(request, keys, &sorter, items) : ROTA_OUT_OF_MEMORY;
  free(sorter.begin);
  free(sorter.copy);
  free(keys);
  return status;
}
