/* Level 1. The order of a launch's blocks. */
#include "generator/plan_items.h"

#include <assert.h>
#include <stdlib.h>

#include "generator/heap.h"

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

/* What a wave is sorted by, stable: the smallest key first. */
typedef struct Sorter {
  int64_t *begin; /* [largest key + 2] */
  int32_t *keys;  /* of the wave's items */
  RotaItem *copy;
  int64_t capacity;
} Sorter;

static rota_status reserve(Sorter *sorter, int64_t count) {
  if (count <= sorter->capacity)
    return ROTA_OK;
  int64_t capacity = count > 2 * sorter->capacity ? count : 2 * sorter->capacity;
  int32_t *keys = memory_resize(sorter->keys, (size_t)capacity, sizeof(int32_t));
  if (keys)
    sorter->keys = keys;
  RotaItem *copy = memory_resize(sorter->copy, (size_t)capacity, sizeof(RotaItem));
  if (copy)
    sorter->copy = copy;
  if (!keys || !copy)
    return ROTA_OUT_OF_MEMORY;
  sorter->capacity = capacity;
  return ROTA_OK;
}

/* Items of one (sequence, kv head) pair, heads slowest, with their keys; returns how many. Key:
 * place in the start order where there is one, else most work first. */
static int64_t add_pair(const ItemsRequest *request, int32_t sequence, int kv_head, int32_t longest,
                        RotaItem *items, int32_t *keys) {
  int64_t count = 0;
  int32_t tiles = request->tiles[sequence];
  for (int g = 0; g < request->heads_per_pair; g++) {
    int head = kv_head * request->heads_per_pair + g;
    int32_t base = request->first[sequence] + (request->per_head ? head * tiles : 0);
    for (int32_t i = 0; i < tiles; i++) {
      int32_t tile = request->start ? request->start[base + i] : i;
      assert(keys); /* reserved for each item */
      keys[count] = request->start ? i : longest - request->work[base + tile];
      items[count++] = (RotaItem){base + tile, head};
    }
  }
  return count;
}

/* Stable counting sort by sorter->keys, which are at most `largest`. */
static void sort_wave(Sorter *sorter, int32_t largest, RotaItem *items, int64_t count) {
  for (int32_t key = 0; key <= largest + 1; key++)
    sorter->begin[key] = 0;
  for (int64_t i = 0; i < count; i++) {
    sorter->copy[i] = items[i];
    sorter->begin[sorter->keys[i] + 1]++;
  }
  for (int32_t key = 1; key <= largest; key++)
    sorter->begin[key] += sorter->begin[key - 1];
  for (int64_t i = 0; i < count; i++)
    items[sorter->begin[sorter->keys[i]]++] = sorter->copy[i];
}

static rota_status order_waves(const ItemsRequest *request, const SequenceKey *keys,
                               int32_t largest, Sorter *sorter, RotaItem *items) {
  bool sorts = !request->start || request->turns;
  int64_t begin = 0, end = 0, bytes = 0; /* of the wave so far */
  int32_t longest = 0;                   /* of its first sequence, so of the wave */
  for (int32_t i = 0; i < request->batch; i++) {
    int32_t sequence = keys[i].sequence;
    int64_t pair = (int64_t)request->tiles[sequence] * request->heads_per_pair;
    for (int kv_head = 0; kv_head < request->kv_heads; kv_head++) {
      if (end > begin && bytes + request->bytes[sequence] > WAVE_BYTES) {
        if (sorts)
          sort_wave(sorter, largest, items + begin, end - begin);
        begin = end;
        bytes = 0;
      }
      if (end == begin)
        longest = keys[i].longest;
      ROTA_TRY(reserve(sorter, end - begin + pair));
      end += add_pair(request, sequence, kv_head, longest, items + end, sorter->keys + end - begin);
      bytes += request->bytes[sequence];
    }
  }
  if (sorts)
    sort_wave(sorter, largest, items + begin, end - begin);
  return ROTA_OK;
}

rota_status items_order(const ItemsRequest *request, RotaItem *items) {
  SequenceKey *keys = order_sequences(request);
  if (!keys)
    return ROTA_OUT_OF_MEMORY;
  /* The largest sort key: an amount of work, or a place in the start order. */
  int32_t largest = request->batch > 0 ? keys[0].longest : 0;
  for (int32_t s = 0; s < request->batch; s++)
    if (request->tiles[s] > largest)
      largest = request->tiles[s];
  Sorter sorter = {.begin = memory_allocate((size_t)largest + 2, sizeof(int64_t))};
  rota_status status =
      sorter.begin ? order_waves(request, keys, largest, &sorter, items) : ROTA_OUT_OF_MEMORY;
  free(sorter.begin);
  free(sorter.keys);
  free(sorter.copy);
  free(keys);
  return status;
}

/* ---- Dealing ---- */

/* So many of a worker's last items may change hands: enough choice, and few looks. */
#define LAST_ITEMS 16

typedef struct Hand {
  int64_t load;
  int32_t count;            /* of `last` */
  int64_t last[LAST_ITEMS]; /* items, the last one first */
} Hand;

static void deal_hands(const int64_t *time, int64_t count, int32_t workers, const int32_t *worker,
                       Hand *hands) {
  for (int32_t w = 0; w < workers; w++)
    hands[w].load = hands[w].count = 0;
  for (int64_t i = count; i-- > 0;) {
    Hand *hand = &hands[worker[i]];
    hand->load += time[i];
    if (hand->count < LAST_ITEMS)
      hand->last[hand->count++] = i;
  }
}

/* An item of the longest hand and one of the shortest, or none (NULL), that change places. */
typedef struct Trade {
  int64_t gain; /* by which the longest hand, and what was the shortest, are less than it was */
  int64_t *give, *take;
} Trade;

static Trade find_trade(const int64_t *time, Hand *longest, Hand *shortest) {
  Trade best = {0, NULL, NULL};
  int64_t gap = longest->load - shortest->load;
  for (int32_t i = 0; i < longest->count; i++)
    for (int32_t j = 0; j <= shortest->count; j++) {
      bool trades = j < shortest->count;
      if (!trades && shortest->count == LAST_ITEMS)
        continue; /* no room for one more */
      int64_t moved = time[longest->last[i]] - (trades ? time[shortest->last[j]] : 0);
      int64_t gain = moved < gap - moved ? moved : gap - moved;
      if (gain > best.gain)
        best = (Trade){gain, &longest->last[i], trades ? &shortest->last[j] : NULL};
    }
  return best;
}

static void make_trade(const int64_t *time, const Trade *trade, Hand *hands, int32_t longest,
                       int32_t shortest, int32_t *worker) {
  Hand *from = &hands[longest], *to = &hands[shortest];
  int64_t given = *trade->give, moved = time[given];
  worker[given] = shortest;
  if (trade->take) {
    int64_t taken = *trade->take;
    moved -= time[taken];
    worker[taken] = longest;
    *trade->take = given;
    *trade->give = taken;
  } else {
    to->last[to->count++] = given;
    *trade->give = from->last[--from->count];
  }
  from->load -= moved;
  to->load += moved;
}

/* Where items of about one length end up, hands differ by up to one of them; trades between the
 * longest hand and the shortest make up for most of it. */
static void level_hands(const int64_t *time, int32_t workers, Hand *hands, int32_t *worker) {
  for (int32_t round = 0; round < workers; round++) {
    int32_t longest = 0, shortest = 0;
    for (int32_t w = 1; w < workers; w++) {
      if (hands[w].load > hands[longest].load)
        longest = w;
      if (hands[w].load < hands[shortest].load)
        shortest = w;
    }
    Trade trade = find_trade(time, &hands[longest], &hands[shortest]);
    if (!trade.give)
      break;
    make_trade(time, &trade, hands, longest, shortest, worker);
  }
}

rota_status items_deal(const int64_t *time, int64_t count, int32_t workers, int32_t *worker) {
  HeapEntry *heap = memory_allocate((size_t)workers + 1, sizeof(HeapEntry));
  Hand *hands = memory_allocate((size_t)workers + 1, sizeof(Hand));
  if (heap && hands) {
    for (int32_t w = 0; w < workers; w++)
      heap[w].index = w;
    for (int64_t i = 0; i < count; i++) {
      worker[i] = heap[0].index;
      heap[0].time += time[i];
      heap_sink(heap, workers, 0);
    }
    deal_hands(time, count, workers, worker, hands);
    level_hands(time, workers, hands, worker);
  }
  rota_status status = heap && hands ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  free(heap);
  free(hands);
  return status;
}

rota_status items_gather(const int32_t *worker, RotaItem *items, int64_t count, int *queue,
                         int32_t *queues) {
  RotaItem *copy = memory_allocate((size_t)count + 1, sizeof(RotaItem));
  if (!copy)
    return ROTA_OUT_OF_MEMORY;
  int32_t used = 0;
  for (int64_t i = 0; i < count; i++) {
    copy[i] = items[i];
    queue[worker[i] + 1]++;
    used = worker[i] >= used ? worker[i] + 1 : used;
  }
  for (int32_t w = 0; w < used; w++)
    queue[w + 1] += queue[w];
  for (int64_t i = count; i-- > 0;)
    items[--queue[worker[i] + 1]] = copy[i];
  for (int32_t w = 0; w < used; w++) /* each is its own begin, one to the right */
    queue[w] = queue[w + 1];
  queue[used] = (int)count;
  *queues = used;
  free(copy);
  return ROTA_OK;
}
