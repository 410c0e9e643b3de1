/* Patterns: rules cover random maps and pass verification; damaged patterns do not. The orders
 * themselves are checked against a plain restatement of the rule, and freedom from deadlock against
 * a simulation with several workers. */
#include "tests/support/schedule_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t random_state;

static int pick(int count) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (int)((random_state >> 33) % (uint64_t)count);
}

/* A map from kinds, row by row. */
static TileMap *map_of(const TileKind *kinds, int q_tiles, int kv_tiles) {
  TileMap *map = calloc(1, sizeof(TileMap));
  map->q_tiles = q_tiles;
  map->kv_tiles = kv_tiles;
  map->row_begin = calloc((size_t)q_tiles + 1, sizeof(int64_t));
  map->runs = calloc((size_t)q_tiles * (size_t)kv_tiles + 1, sizeof(TileRun));
  int64_t count = 0;
  for (int i = 0; i < q_tiles; i++) {
    for (int j = 0; j < kv_tiles; j++) {
      TileKind kind = kinds[i * kv_tiles + j];
      if (kind == TILE_EMPTY)
        continue;
      TileRun *last = count > map->row_begin[i] ? &map->runs[count - 1] : NULL;
      if (last && last->end == j && last->kind == kind)
        last->end++;
      else
        map->runs[count++] = (TileRun){j, j + 1, kind};
    }
    map->row_begin[i + 1] = count;
  }
  return map;
}

static TileMap *random_map(int q_tiles, int kv_tiles) {
  TileKind kinds[40 * 40];
  int emptiness = pick(5);
  for (int i = 0; i < q_tiles * kv_tiles; i++)
    kinds[i] = pick(5) < emptiness ? TILE_EMPTY : pick(2) ? TILE_FULL : TILE_PARTIAL;
  return map_of(kinds, q_tiles, kv_tiles);
}

static TileMap *causal_map(int tiles) {
  TileKind kinds[40 * 40];
  for (int i = 0; i < tiles; i++)
    for (int j = 0; j < tiles; j++)
      kinds[i * tiles + j] = j < i ? TILE_FULL : j == i ? TILE_PARTIAL : TILE_EMPTY;
  return map_of(kinds, tiles, tiles);
}

static Schedule rule_number(int i) {
  return rule_schedule(i & 1 ? DOWNWARDS : UPWARDS, i & 2 ? DOWNWARDS : UPWARDS);
}

static rota_status build(const Schedule *schedule, const TileMap *const *maps, int group,
                         Pattern **pattern) {
  return pattern_build(schedule, maps, group, NULL, 0, pattern);
}

/* ---- What the rules say, restated ---- */

static int nonempty_before(const TileMap *map, int row, int chain, bool descending) {
  int count = 0;
  for (int j = 0; j < map->kv_tiles; j++)
    if (tile_map_kind(map, row, j) != TILE_EMPTY && (descending ? j > chain : j < chain))
      count++;
  return count;
}

static void check_rule(int rule, const TileMap *const *maps, const Pattern *pattern) {
  bool descending = rule & 1;
  for (int chain = 0; chain < pattern->chains; chain++) {
    int start = descending ? pattern->chains - 1 - chain : chain;
    assert_int_equal(pattern->start_order[start], chain);
    int64_t v = pattern->chain_begin[chain];
    for (int g = 0; g < pattern->group; g++)
      for (int i = 0; i < pattern->q_tiles; i++) {
        int row = rule & 2 ? pattern->q_tiles - 1 - i : i;
        TileKind kind = tile_map_kind(maps[g], row, chain);
        if (kind == TILE_EMPTY)
          continue;
        const PatternVisit *visit = &pattern->visits[v++];
        int rank = nonempty_before(maps[g], row, chain, descending);
        assert_int_equal(visit->q_tile, row);
        assert_int_equal(visit->group_head, g);
        assert_int_equal(visit->rank, rank);
        assert_int_equal(visit->partial, kind == TILE_PARTIAL);
        assert_int_equal(visit->last, nonempty_before(maps[g], row, chain, !descending) == 0);
      }
    assert_int_equal(v, pattern->chain_begin[chain + 1]);
  }
}

/* Workers take chains in start order and step in turns that a random number decides. True if all
 * end. */
static bool finishes(const Pattern *pattern, int workers) {
  int32_t *added = calloc((size_t)pattern->group * (size_t)pattern->q_tiles + 1, sizeof(int32_t));
  int64_t at[8], end[8];
  for (int w = 0; w < workers; w++)
    at[w] = end[w] = 0;
  int next = 0;
  bool moved = true, busy = true;
  while (moved) {
    moved = busy = false;
    for (int step = 0, first = pick(workers); step < workers; step++) {
      int w = (first + step) % workers;
      while (at[w] == end[w] && next < pattern->chains) {
        int chain = pattern->start_order[next++];
        at[w] = pattern->chain_begin[chain];
        end[w] = pattern->chain_begin[chain + 1];
        moved = true;
      }
      if (at[w] == end[w])
        continue;
      busy = true;
      const PatternVisit *visit = &pattern->visits[at[w]];
      int32_t *turn = &added[visit->group_head * pattern->q_tiles + visit->q_tile];
      if (*turn != visit->rank)
        continue;
      ++*turn;
      at[w]++;
      moved = true;
    }
  }
  free(added);
  return !busy && next == pattern->chains;
}

static void test_rules_on_random_maps(void **state) {
  (void)state;
  random_state = 7;
  for (int round = 0; round < 300; round++) {
    int group = 1 + pick(3), q_tiles = pick(20), kv_tiles = pick(20);
    TileMap *owned[3];
    const TileMap *maps[3];
    for (int g = 0; g < group; g++)
      maps[g] = owned[g] = random_map(q_tiles, kv_tiles);
    for (int r = 0; r < 4; r++) {
      Schedule rule = rule_number(r);
      Pattern *pattern;
      assert_int_equal(build(&rule, maps, group, &pattern), ROTA_OK);
      check_rule(r, maps, pattern);
      if (pattern_verify(pattern, maps, true) != ROTA_OK)
        fail_msg("%s", status_message());
      for (int workers = 1; workers <= 8; workers += 1 + pick(3))
        assert_true(finishes(pattern, workers));
      pattern_destroy(pattern);
    }
    for (int g = 0; g < group; g++)
      tile_map_destroy(owned[g]);
  }
}

/* ---- Verification rejects ---- */

enum { TILES = 6, GROUP = 2 };

/* Each edit makes one thing wrong in the pattern of a causal map, ascending chains and visits. */
static void edit_missing(Pattern *p) { /* chain 5 loses its last visit; it has one per head */
  p->chain_begin[p->chains]--;
}
static void edit_duplicate(Pattern *p) {
  p->visits[1] = p->visits[0];
}
static void edit_rank_taken(Pattern *p) {
  p->visits[p->chain_begin[2]].rank--;
}
static void edit_rank_beyond(Pattern *p) {
  p->visits[p->chain_begin[2]].rank += 40;
}
static void edit_rank_negative(Pattern *p) {
  p->visits[0].rank = -1;
}
static void edit_kind(Pattern *p) {
  p->visits[2].partial = !p->visits[2].partial;
}
static void edit_last_missing(Pattern *p) {
  p->visits[p->chain_begin[5]].last = false;
}
static void edit_last_early(Pattern *p) {
  p->visits[1].last = true;
}
static void edit_empty_tile(Pattern *p) {
  p->visits[p->chain_begin[3]].q_tile = 0;
}
static void edit_tile_beyond(Pattern *p) {
  p->visits[3].q_tile = TILES;
}
static void edit_tile_negative(Pattern *p) {
  p->visits[3].q_tile = -1;
}
static void edit_head_beyond(Pattern *p) {
  p->visits[3].group_head = GROUP;
}
static void edit_start_twice(Pattern *p) {
  p->start_order[1] = p->start_order[0];
}
static void edit_start_beyond(Pattern *p) {
  p->start_order[1] = p->chains;
}
static void edit_negative_chain(Pattern *p) {
  p->chain_begin[2] = p->chain_begin[4];
}
static void edit_first_begin(Pattern *p) {
  p->chain_begin[0] = 1;
}
static void edit_shape(Pattern *p) {
  p->q_tiles--;
}
/* Chain 1 starts before chain 0, on whose partials it waits. */
static void edit_late_start(Pattern *p) {
  p->start_order[0] = 1;
  p->start_order[1] = 0;
}
/* Rows 3 and 4: chain 0 waits for chain 1 in one and chain 1 for chain 0 in the other. */
static void edit_cycle(Pattern *p) {
  PatternVisit *in_0 = &p->visits[3], *in_1 = &p->visits[p->chain_begin[1] + 2];
  assert_true(in_0->q_tile == 3 && in_1->q_tile == 3 && in_0->group_head == in_1->group_head);
  int32_t rank = in_0->rank;
  in_0->rank = in_1->rank;
  in_1->rank = rank;
}

static const struct {
  const char *name;
  void (*edit)(Pattern *);
  const char *message; /* part of it */
} edits[] = {
    {"missing visit", edit_missing, "of its"},
    {"duplicate visit", edit_duplicate, "twice"},
    {"rank taken", edit_rank_taken, "which another has too"},
    {"rank too high", edit_rank_beyond, "which is none"},
    {"negative rank", edit_rank_negative, "rank -1"},
    {"wrong kind", edit_kind, "its visit says"},
    {"last not marked", edit_last_missing, "not marked as the last"},
    {"marked last too early", edit_last_early, "marked as the last"},
    {"empty tile", edit_empty_tile, "empty tile"},
    {"query tile beyond", edit_tile_beyond, "does not exist"},
    {"negative query tile", edit_tile_negative, "does not exist"},
    {"head beyond", edit_head_beyond, "does not exist"},
    {"chain started twice", edit_start_twice, "starts twice"},
    {"unknown chain started", edit_start_beyond, "does not exist"},
    {"negative chain", edit_negative_chain, "negative number"},
    {"offset", edit_first_begin, "begin at 0"},
    {"another shape", edit_shape, "for a map of"},
    {"late start", edit_late_start,
     "waits for tile (1, 0) of head 0, whose chain starts no earlier"},
    {"cycle", edit_cycle, "waits for tile (3, 1)"},
};

static void test_damaged_patterns_are_rejected(void **state) {
  (void)state;
  TileMap *map = causal_map(TILES);
  const TileMap *maps[GROUP] = {map, map};
  Schedule rule = rule_number(0);
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    Pattern *pattern;
    assert_int_equal(build(&rule, maps, GROUP, &pattern), ROTA_OK);
    assert_int_equal(pattern_verify(pattern, maps, true), ROTA_OK);
    edits[i].edit(pattern);
    rota_status status = pattern_verify(pattern, maps, true);
    if (status != ROTA_SCHEDULE || !strstr(status_message(), edits[i].message))
      fail_msg("%s: status %d, message '%s'", edits[i].name, (int)status, status_message());
    pattern_destroy(pattern);
  }
  tile_map_destroy(map);
}

/* No random edit of one number may pass, unless it changes nothing. */
static void test_random_edits_are_rejected(void **state) {
  (void)state;
  random_state = 99;
  for (int round = 0; round < 400; round++) {
    TileMap *map = random_map(1 + pick(8), 1 + pick(8));
    const TileMap *maps[1] = {map};
    Schedule rule = rule_number(pick(4));
    Pattern *pattern;
    assert_int_equal(build(&rule, maps, 1, &pattern), ROTA_OK);
    int64_t visits = pattern->chain_begin[pattern->chains];
    if (visits > 0) {
      PatternVisit *visit = &pattern->visits[pick((int)visits)], before = *visit;
      switch (pick(4)) {
      case 0:
        visit->rank = pick(10);
        break;
      case 1:
        visit->q_tile = pick(8);
        break;
      case 2:
        visit->partial = pick(2);
        break;
      default:
        visit->last = pick(2);
        break;
      }
      bool same = visit->rank == before.rank && visit->q_tile == before.q_tile &&
                  visit->partial == before.partial && visit->last == before.last;
      assert_int_equal(pattern_verify(pattern, maps, true), same ? ROTA_OK : ROTA_SCHEDULE);
    }
    pattern_destroy(pattern);
    tile_map_destroy(map);
  }
}

/* ---- Bad arguments, memory ---- */

static void test_bad_arguments(void **state) {
  (void)state;
  TileMap *small = causal_map(3), *large = causal_map(4);
  const TileMap *maps[2] = {small, large};
  Schedule rule = rule_number(0);
  Pattern *pattern;
  assert_int_equal(build(&rule, maps, 0, &pattern), ROTA_INVALID_ARGUMENT);
  assert_null(pattern);
  assert_int_equal(build(&rule, maps, 2, &pattern), ROTA_INTERNAL);
  assert_null(pattern);
  tile_map_destroy(small);
  tile_map_destroy(large);
}

static void test_memory_failures(void **state) {
  (void)state;
  TileMap *map = causal_map(5);
  const TileMap *maps[1] = {map};
  Schedule rule = rule_number(1);
  Pattern *pattern = NULL;
  for (long n = 1; !pattern; n++) {
    memory_fail_at(n);
    rota_status status = build(&rule, maps, 1, &pattern);
    memory_fail_at(0);
    assert_int_equal(status, pattern ? ROTA_OK : ROTA_OUT_OF_MEMORY);
  }
  for (long n = 1;; n++) {
    memory_fail_at(n);
    rota_status status = pattern_verify(pattern, maps, true);
    memory_fail_at(0);
    if (status == ROTA_OK)
      break;
    assert_int_equal(status, ROTA_OUT_OF_MEMORY);
    assert_true(n < 30);
  }
  pattern_destroy(pattern);
  tile_map_destroy(map);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rules_on_random_maps),
      cmocka_unit_test(test_damaged_patterns_are_rejected),
      cmocka_unit_test(test_random_edits_are_rejected),
      cmocka_unit_test(test_bad_arguments),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
