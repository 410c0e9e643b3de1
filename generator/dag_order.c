/* Level 3. Reduction order by time: see dag.h. */
#include "generator/dag.h"

#include <stdlib.h>

#include "generator/heap.h"

/* A visit and the tick at which its partial is ready. */
typedef struct Timed {
  int64_t time;
  int64_t visit;
} Timed;

/* Writes the visits in start order with their times; the latest time. `heap`: the gang's workers by
 * the tick at which they are free; all start at 0. */
static int64_t run_gang(const DagOrderRequest *request, const Costs *costs, const DagVisit *visits,
                        HeapEntry *heap, int32_t gang, Timed *timed) {
  int64_t count = 0, latest = 0;
  for (int32_t i = 0; i < request->chains; i++) {
    int32_t chain = request->start_order[i];
    int64_t now = heap[0].time + costs->start;
    for (int64_t v = request->chain_begin[chain]; v < request->chain_begin[chain + 1]; v++) {
      now += visits[v].partial ? costs->partial : costs->visit;
      timed[count++] = (Timed){now, v};
      now += costs->staging ? 0 : costs->reduce;
    }
    if (request->chain_begin[chain] < request->chain_begin[chain + 1])
      heap[0].time = now;
    heap_sink(heap, gang, 0);
    latest = now > latest ? now : latest;
  }
  return latest;
}

/* Stable sort by time, DIGIT bits a pass; the result is in `timed`. */
static void sort_by_time(Timed *timed, Timed *spare, int64_t count, int64_t latest) {
  enum { DIGIT = 11, DIGITS = 1 << DIGIT };
  Timed *from = timed, *to = spare;
  for (int shift = 0; shift < 63 && latest >> shift > 0; shift += DIGIT) {
    int64_t begin[DIGITS + 1] = {0};
    for (int64_t i = 0; i < count; i++)
      begin[(from[i].time >> shift & (DIGITS - 1)) + 1]++;
    for (int d = 0; d < DIGITS; d++)
      begin[d + 1] += begin[d];
    for (int64_t i = 0; i < count; i++)
      to[begin[from[i].time >> shift & (DIGITS - 1)]++] = from[i];
    Timed *swap = from;
    from = to;
    to = swap;
  }
  for (int64_t i = 0; from != timed && i < count; i++)
    timed[i] = from[i];
}

rota_status dag_order_by_time(const DagOrderRequest *request, const Costs *costs,
                              DagVisit *visits) {
  ROTA_TRY(costs_check(costs));
  if (request->gang < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "a gang of %d: at least one is needed",
                       request->gang);
  size_t count = (size_t)request->chain_begin[request->chains];
  int32_t gang = request->gang < request->chains ? request->gang : request->chains;
  HeapEntry *heap = memory_allocate((size_t)gang + 1, sizeof(HeapEntry));
  int32_t *added = memory_allocate((size_t)request->tiles + 1, sizeof(int32_t));
  Timed *timed = memory_allocate(count + 1, sizeof(Timed));
  Timed *spare = memory_allocate(count + 1, sizeof(Timed));
  rota_status status = heap && added && timed && spare ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK) {
    int64_t latest = run_gang(request, costs, visits, heap, gang, timed);
    sort_by_time(timed, spare, (int64_t)count, latest);
    for (size_t i = 0; i < count; i++) {
      DagVisit *visit = &visits[timed[i].visit];
      visit->rank = added[visit->tile]++;
    }
  }
  free(heap);
  free(added);
  free(timed);
  free(spare);
  return status;
}
