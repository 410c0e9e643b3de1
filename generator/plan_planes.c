/* Level 5. Distinct mask planes of a batch. */
#include "generator/plan_planes.h"

#include <stdlib.h>

/* b is 0 in all classes unless the mask uses it. */
static bool same_class(const PlaneClass *a, const PlaneClass *b) {
  return a->n_q == b->n_q && a->n_k == b->n_k && a->b == b->b;
}

/* Multiplicative hashing; its low bits pick the slot, so the high ones are folded in. */
static uint64_t class_hash(const PlaneClass *class) {
  uint64_t hash = (uint64_t)(uint32_t) class->n_q;
  hash = hash * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t) class->n_k;
  hash = hash * 0x9e3779b97f4a7c15u + (uint64_t)(uint32_t) class->b;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

/* Numbers the classes in order of first appearance, by an open-addressed table that is at most half
 * full. */
static rota_status classify(const Lengths *lengths, bool by_sequence, Planes *planes) {
  size_t batch = (size_t)lengths->batch, slots = 2;
  while (slots < 2 * batch)
    slots *= 2;
  int32_t *table = memory_allocate(slots, sizeof(int32_t)); /* class + 1; 0: free */
  planes->class_of = memory_allocate(batch + 1, sizeof(int32_t));
  planes->classes = memory_allocate(batch + 1, sizeof(PlaneClass));
  if (!table || !planes->class_of || !planes->classes) {
    free(table);
    return ROTA_OUT_OF_MEMORY;
  }
  for (int32_t s = 0; s < lengths->batch; s++) {
    PlaneClass class = {lengths->n_q[s], lengths->n_k[s], by_sequence ? s : 0, s};
    size_t slot = (size_t)class_hash(&class) & (slots - 1);
    while (table[slot] && !same_class(&planes->classes[table[slot] - 1], &class))
      slot = (slot + 1) & (slots - 1);
    if (!table[slot]) {
      planes->classes[planes->class_count++] = class;
      table[slot] = planes->class_count;
    }
    planes->class_of[s] = table[slot] - 1;
  }
  free(table);
  return ROTA_OK;
}

/* Nothing to prove for most expressions. */
static bool uses_tensors(const Expression *expression) {
  ExpressionUse use = expression_use(expression);
  for (int i = 0; i < TENSORS_MAX; i++)
    if (use.tensor[i])
      return true;
  return false;
}

/* Tensor indices of one expression over every class; b is the class's own only where the expression
 * uses it. */
static rota_status check_bounds(const PlanesRequest *request, const Expression *expression,
                                const Planes *planes) {
  if (!expression || !uses_tensors(expression))
    return ROTA_OK;
  /* A score may use b where the mask does not: then classes stand for several sequences. */
  bool each = expression_use(expression).b;
  int32_t count = each ? request->lengths->batch : planes->class_count;
  for (int32_t i = 0; i < count; i++) {
    PlaneClass class = planes->classes[each ? planes->class_of[i] : i];
    if (class.n_q == 0 || class.n_k == 0)
      continue; /* no position, no index */
    Box box = {.q_max = class.n_q - 1,
               .k_max = class.n_k - 1,
               .h_max = request->heads - 1,
               .b = each ? i : class.b,
               .n_q = class.n_q,
               .n_k = class.n_k};
    ROTA_TRY(expression_check_bounds(expression, request->symbols, request->bindings, &box));
  }
  return ROTA_OK;
}

/* Class by class, heads within. */
static rota_status build_maps(const PlanesRequest *request, Planes *planes) {
  size_t count = (size_t)planes->class_count * (size_t)planes->map_heads;
  planes->maps = memory_allocate(count + 1, sizeof(TileMap *));
  if (!planes->maps)
    return ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < count; i++) {
    PlaneClass class = planes->classes[i / (size_t)planes->map_heads];
    TileMapRequest map = {.n_q = class.n_q,
                          .n_k = class.n_k,
                          .tile_q = request->tile_q,
                          .tile_kv = request->tile_kv,
                          .b = class.b,
                          .h = (int32_t)(i % (size_t)planes->map_heads)};
    ROTA_TRY(tile_map_build_bounded(request->mask, request->rest, request->bindings, &map,
                                    &planes->maps[i]));
  }
  return ROTA_OK;
}

/* One pattern per class, or per class and kv head; each is verified as soon as it exists. */
static rota_status build_patterns(const PlanesRequest *request, Planes *planes) {
  if (!request->schedule)
    return ROTA_OK;
  int group = request->heads / request->kv_heads;
  size_t count = (size_t)planes->class_count * (size_t)planes->pattern_heads;
  const TileMap **maps = memory_allocate((size_t)group, sizeof(TileMap *));
  planes->patterns = memory_allocate(count + 1, sizeof(Pattern *));
  rota_status status = maps && planes->patterns ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < count && status == ROTA_OK; i++) {
    size_t class = i / (size_t)planes->pattern_heads, kv_head = i % (size_t)planes->pattern_heads;
    for (int g = 0; g < group; g++) {
      size_t head = planes->map_heads > 1 ? kv_head * (size_t)group + (size_t)g : 0;
      maps[g] = planes->maps[class * (size_t)planes->map_heads + head];
    }
    status = pattern_build(request->schedule, maps, group, request->lengths,
                           planes->classes[class].sequence, &planes->patterns[i]);
    if (status == ROTA_OK)
      status = pattern_verify(planes->patterns[i], maps, request->schedule->portable);
  }
  free(maps);
  return status;
}

rota_status planes_build(const PlanesRequest *request, Planes **planes) {
  *planes = NULL;
  Planes *result = memory_allocate(1, sizeof(Planes));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  ExpressionUse use = {.q = false};
  if (request->mask)
    use = expression_use(request->mask);
  result->map_heads = use.h ? request->heads : 1;
  result->pattern_heads = use.h ? request->kv_heads : 1;
  bool variant = request->schedule && request->schedule->batch_variant;
  rota_status status = classify(request->lengths, use.b || variant, result);
  if (status == ROTA_OK)
    status = check_bounds(request, request->mask, result);
  if (status == ROTA_OK)
    status = check_bounds(request, request->score, result);
  if (status == ROTA_OK)
    status = build_maps(request, result);
  if (status == ROTA_OK)
    status = build_patterns(request, result);
  if (status == ROTA_OK)
    *planes = result;
  else
    planes_destroy(result);
  return status;
}

void planes_destroy(Planes *planes) {
  if (!planes)
    return;
  size_t maps = (size_t)planes->class_count * (size_t)planes->map_heads;
  size_t patterns = (size_t)planes->class_count * (size_t)planes->pattern_heads;
  for (size_t i = 0; planes->maps && i < maps; i++)
    tile_map_destroy(planes->maps[i]);
  for (size_t i = 0; planes->patterns && i < patterns; i++)
    pattern_destroy(planes->patterns[i]);
  free(planes->maps);
  free(planes->patterns);
  free(planes->classes);
  free(planes->class_of);
  free(planes);
}

const TileMap *planes_map(const Planes *planes, int32_t sequence, int head) {
  size_t class = (size_t)planes->class_of[sequence] * (size_t)planes->map_heads;
  return planes->maps[class + (size_t)(planes->map_heads > 1 ? head : 0)];
}

const Pattern *planes_pattern(const Planes *planes, int32_t sequence, int kv_head) {
  size_t class = (size_t)planes->class_of[sequence] * (size_t)planes->pattern_heads;
  return planes->patterns[class + (size_t)(planes->pattern_heads > 1 ? kv_head : 0)];
}
