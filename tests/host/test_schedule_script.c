/* Schedules of users: the examples of docs/write-a-schedule.md, mistakes and their messages,
 * limits, and answers of every wrong kind. */
#include "generator/text.h"
#include "tests/support/job.h"
#include "tests/support/scripts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A plan of a script's backward pass on a device of so many multiprocessors. */
static rota_status plan_script(const char *text, int workers, rota_lengths lengths, Plan **plan) {
  Spec spec;
  Tiling tiling;
  Target target, device = {.multiprocessors = workers};
  Schedule schedule;
  *plan = NULL;
  ROTA_TRY(script_spec(test_script, text, "model.lua", &spec));
  check_ok(script_target(test_script, "sm_90", &target));
  check_ok(script_tiling(test_script, &spec, ROTA_BACKWARD, ROTA_LAYOUT_ALIGNED, &target, &tiling));
  for (int i = 0; i < tiling.field_count; i++)
    if (strcmp(tiling.fields[i].name, "blocks_per_sm") == 0)
      tiling.fields[i].value = 1;
  rota_status status = script_schedule(test_script, &spec, &tiling, &device, &schedule);
  rota_plan_request request = {.lengths = lengths};
  if (status == ROTA_OK)
    status = plan_build(&spec, ROTA_BACKWARD, &tiling, &schedule, &request, plan);
  spec_free(&spec);
  return status;
}

static rota_lengths dense(int batch, int n) {
  return (rota_lengths){.batch = batch, .n_q = n, .n_k = n};
}

/* ---- The documentation ---- */

static char *read_source(const char *path) {
  char full[512], *text;
  const char *root = getenv("ROTA_TEST_SOURCE");
  snprintf(full, sizeof full, "%s/%s", root ? root : ".", path);
  size_t length;
  check_ok(text_read_file(full, &text, &length));
  return text;
}

/* The n-th block of Lua in a page; the caller frees. NULL if there are fewer. */
static char *lua_block(const char *page, int n) {
  static const char fence[] = "```lua\n";
  const char *at = page;
  for (int i = 0; i <= n; i++) {
    at = strstr(at, fence);
    if (!at)
      return NULL;
    at += strlen(fence);
  }
  const char *end = strstr(at, "```");
  assert_non_null(end);
  return strndup(at, (size_t)(end - at));
}

static void check_example(const char *text) {
  static const int workers[] = {1, 2, 3, 8, 78, 132}, lengths[] = {1, 100, 1000, 4096};
  uint64_t random = 1;
  for (size_t w = 0; w < 6; w++)
    for (size_t n = 0; n < 4; n++) {
      Plan *plan;
      check_ok(plan_script(text, workers[w], dense(2, lengths[n]), &plan));
      check_ok(plan_check(plan));
      Job job = job_of_plan(plan);
      assert_true(job_run(&job, job.queues > 0 ? job.queues : 1, &random, NULL));
      job_free(&job);
      plan_destroy(plan);
    }
}

/* Each block is an example of the source tree, word for word, and runs unchanged. */
static void test_documentation(void **state) {
  (void)state;
  static const char *const files[] = {"examples/schedules/pairs.lua",
                                      "examples/schedules/folded.lua"};
  char *page = read_source("docs/write-a-schedule.md");
  for (int i = 0; i < 2; i++) {
    char *block = lua_block(page, i), *file = read_source(files[i]);
    assert_non_null(block);
    assert_string_equal(block, file);
    check_example(block);
    free(block);
    free(file);
  }
  assert_null(lua_block(page, 2));
  free(page);
}

/* The same bits whatever the number of workers. */
static void test_portable_example(void **state) {
  (void)state;
  static const int workers[] = {1, 8, 78, 132};
  char *text = read_source("examples/schedules/folded.lua"), digest[ROTA_DIGEST_SIZE];
  for (int i = 0; i < 4; i++) {
    Plan *plan;
    check_ok(plan_script(text, workers[i], dense(3, 3000), &plan));
    assert_int_equal(plan->workers, workers[i]);
    if (i)
      assert_string_equal(plan->pattern_digest.hex, digest);
    memcpy(digest, plan->pattern_digest.hex, sizeof digest);
    plan_destroy(plan);
  }
  free(text);
}

/* ---- Mistakes ---- */

/* What the schedule is, and what the message must say (parts separated by '|'). */
static const struct {
  const char *schedule;
  rota_status status;
  const char *words;
} mistakes[] = {
    {"'sideways'", ROTA_SCRIPT, "model.lua:1|unknown name 'sideways'"},
    {"'shift:stager=2'", ROTA_SCRIPT, "unknown option 'stager'; did you mean 'stagger'?"},
    {"'shift:stagger=0'", ROTA_SCRIPT, "stagger is 0; it goes from 1 to 64"},
    {"'ascending:stagger=2'", ROTA_SCRIPT, "'ascending' has no options"},
    {"'shift:stagger'", ROTA_SCRIPT, "'stagger' is no option"},
    {"{name = 'shift', stagger = 1.5}", ROTA_SCRIPT, "an integer is expected"},
    {"{}", ROTA_SCRIPT, "{pattern = function(map, gang, costs)"},
    {"causal", ROTA_SCRIPT, "a name or a table is expected, not a mask"},
    {"{pattern = 3}", ROTA_SCRIPT, "a function is expected, not a number"},
    {"{pattern = print_}", ROTA_SCRIPT, "unknown name 'print_'"},
    {"{name = 'shift', pattern = function() end}", ROTA_SCRIPT, "belongs to a shipped schedule"},
    {"{name = 'a b', pattern = function() end}", ROTA_SCRIPT, "up to 31 letters"},
    {"{patern = 1, pattern = function() end}", ROTA_SCRIPT, "unknown field of a schedule 'patern'"},
    {"{order = 'any', pattern = function() end}", ROTA_SCRIPT, "unknown name 'any'"},
    {"{assignment = 'lane', pattern = function() end}", ROTA_SCRIPT, "did you mean 'lanes'?"},
    {"{pattern = function() end}", ROTA_SCHEDULE, "model.lua:1|returned a nil"},
    {"{pattern = function() return {visit = 1} end}", ROTA_SCHEDULE,
     "model.lua:1|unknown field of a pattern 'visit'; did you mean 'visits'?"},
    {"{pattern = function(map) return {visits = {}} end}", ROTA_SCHEDULE,
     "visits of chain 0: a list is expected, not a nil"},
    {"{pattern = function(map) return {visits = function() return {} end} end}", ROTA_SCHEDULE,
     "'own': chain 0 never visits query tile 0 of head 0"},
    {"{pattern = function(map) return {visits = function() return {{0, 99}, 3} end} end}",
     ROTA_SCHEDULE, "chain 0 visits query tile 3 of head 0 twice"},
    {"{pattern = function(map) return {visits = function() return {{0, 99, 0}} end} end}",
     ROTA_SCHEDULE, "step 0"},
    {"{pattern = function(map) return {visits = function() return {{0, 99, head = 4}} end} end}",
     ROTA_SCHEDULE, "visits head 4; the group has 1"},
    {"{pattern = function(map) return {visits = function() return {{0, 9, head = 0}, 10} end} end}",
     ROTA_SCHEDULE, "with and without a head"},
    {"{pattern = function(map) return {visits = function() return {{0, 9, head = -1}} end} end}",
     ROTA_SCHEDULE, "visits of chain 0: head -1"},
    {"{pattern = function(map) return {visits = function() return {{0, 9, head = {0, 1}}} end} "
     "end}",
     ROTA_SCHEDULE, "visits head 1; the group has 1"},
    {"{pattern = function(map) return {visits = function() return {{0, 9, head = {2, 1}}} end} "
     "end}",
     ROTA_SCHEDULE, "visits of chain 0: heads 2 to 1"},
    {"{pattern = function(map) return {visits = function() return {{0, 9, head = {0}}} end} end}",
     ROTA_SCHEDULE, "visits of chain 0: a head or {first, last} is expected, not a list of 1"},
    {"{pattern = function() return {abreast = 0} end}", ROTA_SCHEDULE,
     "abreast: at least 1 is expected, not 0"},
    {"{pattern = function() return {together = -3} end}", ROTA_SCHEDULE,
     "together: at least 1 is expected, not -3"},
    {"{pattern = function() return {abreast = 'x'} end}", ROTA_SCHEDULE,
     "abreast: an integer is expected, not string"},
    {"{pattern = function() return {visits = function() return {{0, 9, head = 'all'}, 3} end} end}",
     ROTA_SCHEDULE, "with and without a head"},
    {"{pattern = function() return {visits = function() return {{0, 9, 0, head = 'all'}} end} end}",
     ROTA_SCHEDULE, "step 0"},
    {"{pattern = function(map) return {start = {0}} end}", ROTA_SCHEDULE, "a list of all 8 chains"},
    {"{pattern = function(map) return {start = {0, 1, 2, 3, 4, 5, 6, 6}} end}", ROTA_SCHEDULE,
     "chain 6 starts twice, as number 6 and 7"},
    {"{pattern = function(map) return {start = {0, 1, 2, 3, 4, 5, 6, 1 << 40}} end}", ROTA_SCHEDULE,
     "chain 2147483647 starts as number 7"},
    {"{pattern = function(map) return {ranks = 'tme'} end}", ROTA_SCHEDULE, "did you mean 'time'?"},
    {"{pattern = function(map) return {ranks = 'time', times = function() end} end}", ROTA_SCHEDULE,
     "ranks or times, not both"},
    {"{pattern = function(map) return {times = function() return 0.5 end} end}", ROTA_SCHEDULE,
     "times: an integer is expected"},
    {"{pattern = function(map) return {lanes = function() return 99 end} end}", ROTA_SCHEDULE,
     "chain 0 is in lane 99"},
    {"{pattern = function(map) return {ranks = function(c) return -c end, start = {7, 6, 5, 4, 3, "
     "2, "
     "1, 0}, lanes = function() return 0 end, visits = function() return {{99, 0, -1}} end} end}",
     ROTA_OK, NULL},
    {"{order = 'portable', pattern = function(map) return {ranks = 'time'} end}", ROTA_SCHEDULE,
     "'own' is portable, ranks by time are not"},
    {"{order = 'portable', pattern = function(map) return {ranks = function(c) return -c end} end}",
     ROTA_SCHEDULE, "tile (2, 0) of head 0 waits for tile (2, 1) of head 0, whose chain starts"},
    {"{pattern = function(map) return map.runs(0, 7) end}", ROTA_SCHEDULE, "no such chain"},
    {"{pattern = function(map) return map.count(-1) end}", ROTA_SCHEDULE,
     "model.lua:1|no such chain"},
    {"{pattern = function(map) error('not today') end}", ROTA_SCHEDULE, "model.lua:1: not today"},
    {"{pattern = function(map) return map.x.y end}", ROTA_SCHEDULE, "model.lua:1"},
    {"{pattern = function(map) while true do end end}", ROTA_SCHEDULE,
     "model.lua:1|100 million instructions"},
    {"{pattern = function(map) local t = {} for i = 1, 1 << 30 do t[i] = i end end}", ROTA_SCHEDULE,
     "64 MB"},
    {"{order = 'portable', pattern = function(map) return {tiers = function(c) return c > 4 and 0 "
     "or 1 end} end}",
     ROTA_SCHEDULE, "chain 5 is in tier 0: tiers count up along the start order"},
    {"{order = 'portable', pattern = function(map) return {tiers = function() return -1 end} end}",
     ROTA_SCHEDULE, "chain 0 is in tier -1"},
    {"{pattern = function(map) return {tiers = function() return 0 end} end}", ROTA_SCHEDULE,
     "chain 0 is in tier 0|by which partials are ranked"},
    {"{pattern = function(map) return {ranks = 'start', tiers = function(c) return c // 3 end} "
     "end, assignment = 'mixed'}",
     ROTA_OK, NULL},
    {"{assignment = function() end, pattern = function() return {} end}", ROTA_SCHEDULE,
     "the assignment function returned a nil"},
    {"{assignment = function() return {{0, 0}} end, pattern = function() return {} end}",
     ROTA_SCHEDULE, "item 0 is assigned twice"},
    {"{assignment = function() return {{0}} end, pattern = function() return {} end}",
     ROTA_SCHEDULE, "item 1 is assigned to no worker"},
    {"{assignment = function(b) return {{b.items}} end, pattern = function() return {} end}",
     ROTA_SCHEDULE, "item 16 is assigned; there are 16"},
    {"{assignment = function(b) return {{b.item(b.items)}} end, pattern = function() return {} "
     "end}",
     ROTA_SCHEDULE, "no such chain, tile, head or item"},
    {"{assignment = function(b) local q = {} for i = 1, b.items do q[i] = i - 1 end return {q} "
     "end, "
     "pattern = function() return {} end}",
     ROTA_SCHEDULE, "would wait for ever|whose worker is held up"},
};

static void test_mistakes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    char script[768], words[256];
    snprintf(script, sizeof script,
             "return rota.attention{head_dim = 128, heads = 2, mask = causal, schedule = %s}",
             mistakes[i].schedule);
    Plan *plan;
    rota_status status = plan_script(script, 8, dense(1, 1024), &plan);
    if (status != mistakes[i].status)
      fail_msg("%s: status %d: %s", mistakes[i].schedule, (int)status, status_message());
    snprintf(words, sizeof words, "%s", mistakes[i].words ? mistakes[i].words : "");
    for (char *part = strtok(words, "|"); part && status != ROTA_OK; part = strtok(NULL, "|"))
      if (!strstr(status_message(), part))
        fail_msg("%s: '%s' is not in '%s'", mistakes[i].schedule, part, status_message());
    plan_destroy(plan);
  }
}

/* Every field with every wrong kind of value: a plan or a refusal, never an internal error. */
static void test_any_answer(void **state) {
  (void)state;
  static const char *const fields[] = {"visits", "start",    "ranks",    "times", "lanes",
                                       "gang",   "optimize", "together", "tiers", "colour"};
  static const char *const values[] = {
      "nil",
      "true",
      "false",
      "0",
      "-1",
      "1",
      "2.5",
      "1e308",
      "0/0",
      "math.huge",
      "math.mininteger",
      "math.maxinteger",
      "'time'",
      "''",
      "{}",
      "{{}}",
      "{1}",
      "{[0] = {}}",
      "{{1, 2, 0}}",
      "{{math.maxinteger, math.mininteger, -1}}",
      "causal",
      "math",
      "map",
      "math.max",
      "function() end",
      "function() return nil end",
      "function() return {{0, math.maxinteger}} end",
      "function() return {{math.maxinteger, math.mininteger, math.mininteger}} end",
      "function() return {{0, 99, 1, 5}, {}} end",
      "function() return {{}} end",
      "function(c) return c end",
      "function() return math.mininteger end",
      "function() return {0.5} end",
      "function() return causal end"};
  int planned = 0, refused = 0;
  for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      char script[512];
      snprintf(script, sizeof script,
               "return rota.attention{head_dim = 64, mask = causal, schedule = "
               "{pattern = function(map) return {%s = %s} end}}",
               fields[f], values[v]);
      Plan *plan;
      rota_status status = plan_script(script, 5, dense(1, 700), &plan);
      if (status != ROTA_OK && status != ROTA_SCHEDULE)
        fail_msg("%s = %s: status %d: %s", fields[f], values[v], (int)status, status_message());
      planned += status == ROTA_OK;
      refused += status != ROTA_OK;
      plan_destroy(plan);
    }
  print_message("%d answers planned, %d refused\n", planned, refused);
  assert_true(planned > 20 && refused > 100);
}

/* ---- What scripts may rely on ---- */

/* A function that remembers gets nothing from it: each plan runs the script anew. */
static void test_functions_start_afresh(void **state) {
  (void)state;
  const char *text = "local calls = 0\n"
                     "return rota.attention{head_dim = 64, schedule = {pattern = function(map)\n"
                     "  calls = calls + 1\n"
                     "  return {visits = function(c) return {{calls, 99}, {0, calls - 1}} end}\n"
                     "end}}";
  char digest[ROTA_DIGEST_SIZE];
  for (int i = 0; i < 3; i++) {
    Plan *plan;
    check_ok(plan_script(text, 8, dense(1, 1024), &plan));
    if (i)
      assert_string_equal(plan->pattern_digest.hex, digest);
    memcpy(digest, plan->pattern_digest.hex, sizeof digest);
    plan_destroy(plan);
  }
}

/* A map kept beyond its call answers nothing. */
static void test_a_map_ends_with_its_call(void **state) {
  (void)state;
  const char *text = "local kept\n"
                     "return rota.attention{head_dim = 64, schedule = {\n"
                     "  pattern = function(map) kept = map return {} end,\n"
                     "  assignment = function() return {{kept.count(0)}} end}}";
  Plan *plan;
  assert_int_equal(plan_script(text, 8, dense(1, 1024), &plan), ROTA_SCHEDULE);
  assert_non_null(strstr(status_message(), "kept"));
}

/* Lanes that a pattern names are kept under "mixed", too, though its ranks are by start. */
static void test_mixed_keeps_lanes(void **state) {
  (void)state;
  static const char *const lanes[] = {"", ", lanes = function() return 0 end"};
  for (int named = 0; named < 2; named++) {
    char text[256];
    snprintf(text, sizeof text,
             "return rota.attention{head_dim = 128, schedule = {assignment = 'mixed',\n"
             "  pattern = function() return {ranks = 'start'%s} end}}",
             lanes[named]);
    Plan *plan;
    check_ok(plan_script(text, 8, dense(1, 1024), &plan));
    check_ok(plan_check(plan));
    assert_int_equal(plan->workers, named ? 1 : 8);
    plan_destroy(plan);
  }
}

/* 8 lanes a head on 10 workers: equal lanes take them all, unequal ones would be upset by the two
 * that are left over. */
static void test_unequal_lanes_keep_step(void **state) {
  (void)state;
  static const char *const masks[] = {"full", "causal"};
  for (int unequal = 0; unequal < 2; unequal++) {
    char text[256];
    snprintf(text, sizeof text,
             "return rota.attention{head_dim = 128, heads = 6, mask = %s, schedule = {\n"
             "  pattern = function() return {lanes = function(chain) return chain end} end}}",
             masks[unequal]);
    Plan *plan;
    check_ok(plan_script(text, 10, dense(1, 1024), &plan));
    check_ok(plan_check(plan));
    assert_int_equal(plan->workers, unequal ? 8 : 10);
    plan_destroy(plan);
  }
}

/* head = "all": tile after tile, each for all heads; ranges may reach beyond the tiles; the same
 * with times. */
static void test_side_by_side(void **state) {
  (void)state;
  static const char *const times[] = {"", "times = function(tile, chain) return chain end, "};
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    char text[512];
    snprintf(text, sizeof text,
             "local list = {{1000, -9, -2, head = 'all'}, {-100001, 2000000000, 2, head = 'all'}}\n"
             "return rota.attention{head_dim = 64, heads = 6, kv_heads = 2, schedule = {\n"
             "pattern = function() return {%svisits = function() return list end} end}}",
             times[i]);
    Plan *plan;
    Pattern *pattern;
    check_ok(plan_script(text, 8, dense(1, 1024), &plan));
    check_ok(plan_check(plan));
    check_ok(plan_pattern(plan, 0, 0, &pattern));
    int tiles = pattern->q_tiles, even = (tiles + 1) / 2;
    assert_true(tiles > 3 && pattern->chain_begin[1] == 3 * tiles);
    for (int visit = 0; visit < 3 * tiles; visit++) {
      int place = visit / 3, last = (tiles - 1) / 2 * 2;
      int expected = place < even ? last - 2 * place : 1 + 2 * (place - even);
      assert_int_equal(pattern->visits[visit].q_tile, expected);
      assert_int_equal(pattern->visits[visit].group_head, visit % 3);
    }
    pattern_destroy(pattern);
    plan_destroy(plan);
  }
}

/* head = {1, 2}: those heads side by side, after the one before them. */
static void test_some_heads_side_by_side(void **state) {
  (void)state;
  const char *text =
      "local list = {{0, 999, head = 0}, {999, 0, -1, head = {1, 2}}, {0, 999, head = {3, 3}}}\n"
      "return rota.attention{head_dim = 64, heads = 8, kv_heads = 2, schedule = {\n"
      "pattern = function() return {visits = function() return list end} end}}";
  Plan *plan;
  Pattern *pattern;
  check_ok(plan_script(text, 8, dense(1, 1024), &plan));
  check_ok(plan_check(plan));
  check_ok(plan_pattern(plan, 0, 0, &pattern));
  int tiles = pattern->q_tiles;
  assert_true(tiles > 3 && pattern->chain_begin[1] == 4 * tiles);
  for (int i = 0; i < tiles; i++) {
    const PatternVisit *first = pattern->visits + i, *pair = pattern->visits + tiles + 2 * i;
    const PatternVisit *last = pattern->visits + 3 * tiles + i;
    assert_true(first->q_tile == i && first->group_head == 0);
    assert_true(pair[0].q_tile == tiles - 1 - i && pair[0].group_head == 1);
    assert_true(pair[1].q_tile == tiles - 1 - i && pair[1].group_head == 2);
    assert_true(last->q_tile == i && last->group_head == 3);
  }
  pattern_destroy(pattern);
  plan_destroy(plan);
}

/* `abreast` in an answer: as many kv heads together as fill the workers, at the end no fewer. */
static void test_abreast_in_an_answer(void **state) {
  (void)state;
  static const struct {
    int heads, workers, abreast, units[4];
  } cases[] = {{6, 4, 2, {2, 2, 2}}, {5, 4, 2, {2, 3}}, {3, 4, 2, {3}},    {2, 1, 4, {1, 1}},
               {4, 7, 2, {4}},       {4, 5, 2, {2, 2}}, {4, 8, 3, {2, 2}}, {4, 4, 1, {4}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[400];
    snprintf(text, sizeof text,
             "return rota.attention{head_dim = 64, heads = %d, mask = causal,\n"
             "schedule = {order = 'portable', assignment = 'longest',\n"
             "pattern = function() return {abreast = %d} end}}",
             cases[i].heads, cases[i].abreast);
    Plan *plan;
    check_ok(plan_script(text, cases[i].workers, dense(1, 1024), &plan));
    const RotaItem *items = plan_section(plan, plan->chain_items);
    int64_t chains = plan->chain_items.count / cases[i].heads, at = 0;
    assert_true(chains > 3);
    for (int unit = 0, head = 0; unit < 4; head += cases[i].units[unit++]) {
      /* The longest chain of each of its heads, then the others of these. */
      unsigned first = 0, all = (1u << cases[i].units[unit]) - 1;
      for (int64_t begin = at, end = at + chains * cases[i].units[unit]; at < end; at++) {
        assert_in_range(items[at].head, head, head + cases[i].units[unit] - 1);
        if (at < begin + cases[i].units[unit])
          first |= 1u << (items[at].head - head);
      }
      assert_int_equal(first, all);
    }
    assert_int_equal(at, plan->chain_items.count);
    plan_destroy(plan);
  }
}

/* `together` in an answer: the chains of one kv head, then of the next. */
static void test_together_in_an_answer(void **state) {
  (void)state;
  static const char *const answers[] = {"", "together = 1"};
  for (int one = 0; one < 2; one++) {
    char text[400];
    snprintf(text, sizeof text,
             "return rota.attention{head_dim = 64, heads = 2, kv_heads = 2, mask = causal,\n"
             "schedule = {order = 'portable', assignment = 'longest',\n"
             "pattern = function() return {%s} end}}",
             answers[one]);
    Plan *plan;
    check_ok(plan_script(text, 1, dense(1, 1024), &plan));
    const RotaItem *items = plan_section(plan, plan->chain_items);
    int changes = 0;
    for (int64_t i = 1; i < plan->chain_items.count; i++)
      changes += items[i].head != items[i - 1].head;
    assert_int_equal(changes == 1, one);
    plan_destroy(plan);
  }
}

/* A batch-variant schedule sees the batch; the digest of one sequence then depends on it. */
static void test_batch_variant(void **state) {
  (void)state;
  const char *text = "return rota.attention{head_dim = 64, schedule = {\n"
                     "  batch_variant = true,\n"
                     "  pattern = function(map)\n"
                     "    local turn = (#map.batch + map.sequence) % map.q_tiles\n"
                     "    return {visits = function(c) return {{turn, 99}, {0, turn - 1}} end}\n"
                     "  end}}";
  Plan *one, *two;
  check_ok(plan_script(text, 8, dense(1, 1024), &one));
  check_ok(plan_script(text, 8, dense(2, 1024), &two));
  check_ok(plan_check(two));
  assert_string_not_equal(one->pattern_digest.hex, two->pattern_digest.hex);
  Pattern *first, *second;
  check_ok(plan_pattern(two, 0, 0, &first));
  check_ok(plan_pattern(two, 1, 0, &second));
  assert_int_equal(first->visits[0].q_tile + 1, second->visits[0].q_tile);
  pattern_destroy(first);
  pattern_destroy(second);
  plan_destroy(one);
  plan_destroy(two);
}

/* Memory that runs out anywhere on the way is told, and nothing is lost. */
static void test_memory_failures(void **state) {
  (void)state;
  const char *text = "return rota.attention{head_dim = 128, mask = causal, schedule = {\n"
                     "  pattern = function(map) return {ranks = function(c) return c end,\n"
                     "    lanes = function(c) return c end, start = {0, 1, 2, 3}} end,\n"
                     "  assignment = function(b) local q = {} for i = 0, b.items - 1 do\n"
                     "    q[i + 1] = {i} end return q end}}";
  Plan *plan = NULL;
  check_ok(plan_script(text, 8, dense(1, 512), &plan));
  plan_destroy(plan);
  plan = NULL;
  Spec spec = spec_of(text);
  Tiling tiling;
  Target target;
  Schedule schedule;
  check_ok(script_target(test_script, "sm_90", &target));
  check_ok(script_tiling(test_script, &spec, ROTA_BACKWARD, ROTA_LAYOUT_ALIGNED, &target, &tiling));
  check_ok(script_schedule(test_script, &spec, &tiling, &target, &schedule));
  rota_plan_request request = {.lengths = dense(1, 512)};
  for (long n = 1; !plan; n += 1 + n / 50) {
    memory_fail_at(n);
    rota_status status = plan_build(&spec, ROTA_BACKWARD, &tiling, &schedule, &request, &plan);
    memory_fail_at(0);
    if (status != (plan ? ROTA_OK : ROTA_OUT_OF_MEMORY))
      fail_msg("%ld: status %d: %s", n, (int)status, status_message());
  }
  plan_destroy(plan);
  spec_free(&spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_documentation),
      cmocka_unit_test(test_portable_example),
      cmocka_unit_test(test_mistakes),
      cmocka_unit_test(test_any_answer),
      cmocka_unit_test(test_functions_start_afresh),
      cmocka_unit_test(test_a_map_ends_with_its_call),
      cmocka_unit_test(test_mixed_keeps_lanes),
      cmocka_unit_test(test_unequal_lanes_keep_step),
      cmocka_unit_test(test_side_by_side),
      cmocka_unit_test(test_some_heads_side_by_side),
      cmocka_unit_test(test_together_in_an_answer),
      cmocka_unit_test(test_abreast_in_an_answer),
      cmocka_unit_test(test_batch_variant),
      cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, script_setup, script_teardown);
}
