/* Saved plans: the way there and back, and what happens to every kind of damage, by accident (the
 * checksum finds it) and by intent (the checksum is made to fit; then a plan is refused or
 * harmless, and never a crash). */
#include "tests/support/plan_case.h"

#include "generator/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64]; /* in a directory of this process's own */
static const Digest key = {"0123456789abcdef0123456789abcdef"};
static const Digest other_key = {"0123456789abcdef0123456789abcdee"};

/* The file's header as generator/plan_file.c documents it; a test that fails here sees a change of
 * format. */
enum { HEADER_BYTES = 96, KEY_AT = 28, DIGEST_AT = 61 };

static Plan *small_plan(const char *algorithm) {
  static int32_t ids[96];
  int length = strcmp(algorithm, "forward") == 0 ? 64 : 40; /* a query tile; more than one */
  for (int i = 0; i < 96; i++)
    ids[i] = i / length;
  static const rota_named_tensor document = {"document", ROTA_INT32, 1, {96}, {1}, ids};
  PlanCase at;
  plan_case_create(&at, algorithm, "k <= q + w * h and document[q] == document[k]", NULL, 2, 1);
  at.request.tensors = &document;
  at.request.tensor_count = 1;
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 96, .n_k = 96};
  if (at.direction == ROTA_FORWARD) { /* then tiles within a document are bounded */
    at.tiling.fields[1] = at.tiling.fields[0];
    at.tiling.fields[0] = (TilingField){.name = "bounded", .value = 1};
    at.tiling.field_count = 2;
  }
  Plan *plan = plan_case_good(&at);
  plan_case_free(&at);
  return plan;
}

/* Over an old file of the same length where there is one: truncating costs a flush on some file
 * systems. */
static void write_bytes(const char *bytes, size_t count) {
  char *old = NULL;
  size_t length = 0;
  bool fits = text_read_file(path, &old, &length) == ROTA_OK && length == count;
  free(old);
  FILE *file = fopen(path, fits ? "r+b" : "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

static char *saved_bytes(const Plan *plan, size_t *length) {
  char *bytes;
  assert_int_equal(plan_save(plan, &key, path), ROTA_OK);
  assert_int_equal(text_read_file(path, &bytes, length), ROTA_OK);
  return bytes;
}

/* Makes the checksum fit whatever the bytes say. */
static void seal(char *bytes) {
  int64_t sizes[2];
  memcpy(sizes, bytes + 8, sizeof sizes);
  DigestStream *stream = digest_begin();
  digest_add(stream, bytes, DIGEST_AT);
  digest_add(stream, bytes + HEADER_BYTES, (size_t)sizes[0]);
  digest_add(stream, bytes + HEADER_BYTES + sizes[0], (size_t)sizes[1]);
  Digest digest = digest_end(stream);
  memcpy(bytes + DIGEST_AT, digest.hex, sizeof digest.hex);
}

/* ---- There and back ---- */

static void check_same(const Plan *a, const Plan *b) {
  assert_int_equal(a->direction, b->direction);
  assert_int_equal(a->heads, b->heads);
  assert_int_equal(a->kv_heads, b->kv_heads);
  assert_memory_equal(&a->scale, &b->scale, sizeof a->scale);
  assert_int_equal(a->workers, b->workers);
  assert_int_equal(a->full_tiles, b->full_tiles);
  assert_int_equal(a->partial_tiles, b->partial_tiles);
  assert_int_equal(a->empty_tiles, b->empty_tiles);
  assert_memory_equal(&a->workspace, &b->workspace, sizeof a->workspace);
  assert_memory_equal(a->tensors, b->tensors, sizeof a->tensors);
  assert_memory_equal(&a->sequences, &b->sequences, sizeof a->sequences);
  assert_memory_equal(&a->queue, &b->queue, sizeof a->queue);
  assert_string_equal(a->pattern_digest.hex, b->pattern_digest.hex);
  assert_int_equal(a->image_bytes, b->image_bytes);
  assert_memory_equal(a->image, b->image, a->image_bytes);
  assert_string_equal(a->tiling.algorithm, b->tiling.algorithm);
  assert_string_equal(a->tiling.launches[0].entry, b->tiling.launches[0].entry);
  assert_int_equal(tiling_get(&b->tiling, "stages", 0), 2);
  assert_string_equal(b->symbols.tensors[0].name, "document");
  assert_int_equal(b->bindings.parameters[0].i, a->bindings.parameters[0].i);
  assert_ptr_equal(b->bindings.tensors[0].data, b->image + b->tensors[0].offset);
  assert_memory_equal(a->bindings.tensors[0].stride, b->bindings.tensors[0].stride, 32);
  assert_memory_equal(a->lengths->n_q, b->lengths->n_q, 8);
}

/* The first query tile against the first kv tile: on the diagonal, within a document. */
static void check_first_tile(const Plan *plan) {
  TileMap *map;
  assert_int_equal(plan_tile_map(plan, 0, 0, &map), ROTA_OK);
  TileKind kind = plan->direction == ROTA_FORWARD ? TILE_BOUNDED : TILE_PARTIAL;
  assert_int_equal(tile_map_kind(map, 0, 0), kind);
  tile_map_destroy(map);
}

static void test_round_trip(void **state) {
  (void)state;
  static const char *const algorithms[] = {"ordered", "two_pass", "forward"};
  for (int i = 0; i < 3; i++) {
    Plan *plan = small_plan(algorithms[i]), *loaded;
    size_t first_length, second_length;
    check_first_tile(plan);
    char *first = saved_bytes(plan, &first_length);
    if (plan_load(path, &key, &loaded) != ROTA_OK)
      fail_msg("%s", status_message());
    check_same(plan, loaded);
    check_first_tile(loaded);
    char *second = saved_bytes(loaded, &second_length); /* no byte of chance in the file */
    assert_int_equal(first_length, second_length);
    assert_memory_equal(first, second, first_length);
    assert_memory_equal(first + KEY_AT, key.hex, sizeof key.hex);
    free(first);
    free(second);
    plan_destroy(plan);
    plan_destroy(loaded);
  }
}

static void test_wrong_key_and_missing_files(void **state) {
  (void)state;
  Plan *plan = small_plan("ordered"), *loaded;
  assert_int_equal(plan_save(plan, &key, path), ROTA_OK);
  assert_int_equal(plan_load(path, &other_key, &loaded), ROTA_INVALID_ARGUMENT);
  assert_non_null(strstr(status_message(), "another program"));
  assert_null(loaded);
  assert_int_equal(remove(path), 0);
  assert_int_equal(plan_load(path, &key, &loaded), ROTA_FILE);
  assert_int_equal(plan_save(plan, &key, "/nonexistent/directory/plan"), ROTA_FILE);
  assert_non_null(strstr(status_message(), "/nonexistent/directory/plan"));
  /* A directory cannot be replaced. The attempt leaves nothing beside it, or its parent would not
   * go. */
  assert_int_equal(mkdir(path, 0700), 0);
  assert_int_equal(plan_save(plan, &key, path), ROTA_FILE);
  assert_int_equal(rmdir(path), 0);
  char *name = strrchr(path, '/');
  *name = '\0';
  assert_int_equal(rmdir(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  *name = '/';
  plan_destroy(plan);
}

/* ---- Accidents ---- */

static void expect_damaged(const char *what, size_t at) {
  Plan *loaded;
  rota_status status = plan_load(path, &key, &loaded);
  if (status != ROTA_FILE || !strstr(status_message(), path))
    fail_msg("%s at %zu: status %d, '%s'", what, at, (int)status, status_message());
  assert_null(loaded);
}

static void test_truncated(void **state) {
  (void)state;
  Plan *plan = small_plan("ordered");
  size_t length;
  char *bytes = saved_bytes(plan, &length);
  for (size_t at = 0; at < length; at += at < 100 ? 3 : 101) {
    write_bytes(bytes, at);
    expect_damaged("truncated", at);
  }
  char *longer = calloc(1, length + 1);
  memcpy(longer, bytes, length);
  write_bytes(longer, length + 1);
  expect_damaged("one byte more", length);
  free(longer);
  free(bytes);
  plan_destroy(plan);
}

static void test_flipped_bits(void **state) {
  (void)state;
  Plan *plan = small_plan("ordered");
  size_t length;
  char *bytes = saved_bytes(plan, &length);
  for (size_t at = 0; at < length; at++) {
    char flip = (char)(1 << at % 8);
    bytes[at] = (char)(bytes[at] ^ flip);
    write_bytes(bytes, length);
    expect_damaged("flipped", at);
    bytes[at] = (char)(bytes[at] ^ flip);
  }
  write_bytes(bytes, length);
  Plan *loaded;
  assert_int_equal(plan_load(path, &key, &loaded), ROTA_OK);
  plan_destroy(loaded);
  free(bytes);
  plan_destroy(plan);
}

/* ---- Intent ---- */

/* Walks all that a kernel would: with AddressSanitizer a wild index ends the test. */
static void use_plan(const Plan *plan) {
  for (int32_t s = 0; s < plan->lengths->batch && s < 4; s++) {
    TileMap *map;
    Pattern *pattern;
    if (plan_tile_map(plan, s, 0, &map) == ROTA_OK)
      tile_map_destroy(map);
    if (plan->direction == ROTA_BACKWARD && plan_pattern(plan, s, 0, &pattern) == ROTA_OK)
      pattern_destroy(pattern);
  }
}

static void load_sealed(char *bytes, size_t length, int *accepted) {
  seal(bytes);
  write_bytes(bytes, length);
  Plan *loaded;
  rota_status status = plan_load(path, &key, &loaded);
  if (status == ROTA_OK) {
    ++*accepted;
    use_plan(loaded);
    plan_destroy(loaded);
  } else {
    assert_true(status == ROTA_FILE || status == ROTA_OUT_OF_MEMORY);
    assert_null(loaded);
  }
}

/* Every 32-bit word of fields and image becomes each of several extreme values. */
static void test_hostile_words(void **state) {
  (void)state;
  static const uint32_t values[] = {0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0x40000001};
  Plan *plan = small_plan("ordered");
  size_t length;
  char *bytes = saved_bytes(plan, &length);
  int accepted = 0, tried = 0;
  for (size_t at = HEADER_BYTES; at + 4 <= length; at += 4)
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
      char before[4];
      memcpy(before, bytes + at, 4);
      if (memcmp(before, &values[v], 4) == 0)
        continue;
      memcpy(bytes + at, &values[v], 4);
      load_sealed(bytes, length, &accepted);
      memcpy(bytes + at, before, 4);
      tried++;
    }
  print_message("%d hostile words, %d changed nothing that indexes\n", tried, accepted);
  assert_true(accepted < tried);
  free(bytes);
  plan_destroy(plan);
}

/* Edits of tables that a kernel would run into the wall with. Each must be refused. */
typedef struct TableEdit {
  const char *name, *message;
  size_t section; /* offset of the RotaSection in Plan */
  size_t word;    /* 32-bit words from the section's start */
  uint32_t flip;  /* xor */
} TableEdit;

#define SECTION(name) offsetof(Plan, name)

static const TableEdit table_edits[] = {
    {"run past the keys", "runs out of range", SECTION(runs), 1, 0x40},
    {"row's run past the table", "out of range", SECTION(rows), 3, 0x4000},
    {"row of another sequence", "row item", SECTION(rows), 0, 1},
    {"row item repeated", "repeats", SECTION(row_items), 1, 1},
    {"chain item's head", "names no chain", SECTION(chain_items), 1, 4},
    {"chain's visits past the table", "out of range", SECTION(chains), 3, 0x4000},
    {"visit of another tile", "visit", SECTION(visits), 0, 1},
    {"visit's kind", "wrong tile kind", SECTION(visits), 0, ROTA_VISIT_PARTIAL},
    {"visit's bounds", "wrong tile kind", SECTION(visits), 0, ROTA_VISIT_BOUNDED},
    {"visit's last", "wrong rank", SECTION(visits), 0, ROTA_VISIT_LAST},
    {"visit's rank", "wrong rank", SECTION(visits), 1, 1},
    {"visit's head", "names no query tile", SECTION(visits), 1, 1u << 30},
    {"queue's end", "queue", SECTION(queue), 0, 1},
    {"sequence's lengths", "lengths", SECTION(sequences), 0, 1},
    {"sequence's tiles", "tile counts", SECTION(sequences), 13, 2},
};

static void test_hostile_tables(void **state) {
  (void)state;
  Plan *plan = small_plan("ordered");
  for (size_t i = 0; i < sizeof table_edits / sizeof *table_edits; i++) {
    const TableEdit *edit = &table_edits[i];
    RotaSection section;
    memcpy(&section, (const char *)plan + edit->section, sizeof section);
    uint32_t *word = (uint32_t *)(void *)(plan->image + section.offset) + edit->word;
    *word ^= edit->flip;
    rota_status status = plan_check(plan);
    if (status != ROTA_FILE || !strstr(status_message(), edit->message))
      fail_msg("%s: status %d, '%s'", edit->name, (int)status, status_message());
    *word ^= edit->flip;
    assert_int_equal(plan_check(plan), ROTA_OK);
  }
  /* Items out of their start order: every index is right, but a worker would wait for a later
   * ticket. That is good only if all are resident, and if the plan says so. */
  RotaItem *items = (RotaItem *)(void *)(plan->image + plan->chain_items.offset);
  const RotaChain *chains = plan_section(plan, plan->chains);
  RotaItem first = items[0];
  int next = 1; /* of the same sequence and kv head */
  while (items[next].head != first.head ||
         chains[items[next].index].sequence != chains[first.index].sequence)
    next++;
  items[0] = items[next];
  items[next] = first;
  assert_int_equal(plan_check(plan), ROTA_FILE);
  assert_non_null(strstr(status_message(), "does not say so"));
  plan->co_resident = true;
  assert_int_equal(plan_check(plan), ROTA_OK);
  plan->gang = 1;
  assert_int_equal(plan_check(plan), ROTA_FILE);
  assert_non_null(strstr(status_message(), "whose chain starts no earlier"));
  plan_destroy(plan);
}

/* A plan of one head: `n` queries and keys, of which `used` are in use. */
static Plan *plain_plan(const char *algorithm, const char *mask, int n, int32_t used) {
  PlanCase at;
  plan_case_create(&at, algorithm, mask, NULL, 1, 1);
  at.request.lengths =
      (rota_lengths){.batch = 1, .n_q = n, .n_k = n, .seqused_q = &used, .seqused_k = &used};
  Plan *plan = plan_case_good(&at);
  plan_case_free(&at);
  return plan;
}

static void expect_refused(Plan *plan, const char *message) {
  rota_status status = plan_check(plan);
  if (status != ROTA_FILE || !strstr(status_message(), message))
    fail_msg("wanted '%s', got status %d, '%s'", message, (int)status, status_message());
  plan_destroy(plan);
}

/* Faults that only one check can see. */
static void test_hostile_corners(void **state) {
  (void)state;
  Plan *plan = plain_plan("forward", NULL, 100, 100); /* the fourth kv tile holds 4 keys of 32 */
  RotaRun *runs = (RotaRun *)(void *)(plan->image + plan->runs.offset);
  assert_int_equal(runs[1].end_kind, 4 | ROTA_RUN_PARTIAL);
  runs[1].end_kind = 4;
  expect_refused(plan, "runs out of range");

  plan = plain_plan("forward", NULL, 100, 64); /* the second query tile is past the end */
  RotaRow *rows = (RotaRow *)(void *)(plan->image + plan->rows.offset);
  rows[1].run_begin = rows[0].run_begin;
  rows[1].run_end = rows[0].run_end;
  expect_refused(plan, "queries are past the end");

  plan = plain_plan("two_pass", "k <= q", 128, 128); /* no order, but every partial must come */
  RotaChain *chains = (RotaChain *)(void *)(plan->image + plan->chains.offset);
  chains[0].visit_end--;
  expect_refused(plan, "does not get all of its partials");

  plan = plain_plan("ordered", "q < 0", 128, 128); /* chains without visits still write zeros */
  RotaItem *items = (RotaItem *)(void *)(plan->image + plan->chain_items.offset);
  items[0] = items[1];
  expect_refused(plan, "repeats another");
}

/* ---- Memory ---- */

static void test_memory_failures(void **state) {
  (void)state;
  Plan *plan = small_plan("ordered"), *loaded = NULL;
  rota_status status = ROTA_OUT_OF_MEMORY;
  for (long n = 1; status != ROTA_OK; n++) {
    memory_fail_at(n);
    status = plan_save(plan, &key, path);
    memory_fail_at(0);
    assert_true(status == ROTA_OK || status == ROTA_OUT_OF_MEMORY);
  }
  for (long n = 1; !loaded; n++) {
    memory_fail_at(n);
    status = plan_load(path, &key, &loaded);
    memory_fail_at(0);
    if (status != (loaded ? ROTA_OK : ROTA_OUT_OF_MEMORY))
      fail_msg("allocation %ld: status %d, '%s'", n, (int)status, status_message());
  }
  plan_destroy(plan);
  plan_destroy(loaded);
}

static int setup(void **state) {
  (void)state;
  char directory[] = "/tmp/rota-plan-XXXXXX";
  if (!mkdtemp(directory))
    return -1;
  snprintf(path, sizeof path, "%s/plan", directory);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  remove(path);
  *strrchr(path, '/') = '\0';
  return rmdir(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_wrong_key_and_missing_files),
      cmocka_unit_test(test_truncated),       cmocka_unit_test(test_flipped_bits),
      cmocka_unit_test(test_hostile_words),   cmocka_unit_test(test_hostile_tables),
      cmocka_unit_test(test_hostile_corners), cmocka_unit_test(test_memory_failures),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
