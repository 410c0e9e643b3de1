/* Pieces of forward rows: the rule; tables in which each kv tile is in one piece, each piece is an
 * item of every head and joined in order, and no partial result is written over; nothing of them
 * depends on the batch; damage is found. */
#include "tests/support/plan_case.h"

#include "generator/plan_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 4, HEADS = 4 };

static void add_field(PlanCase *at, const char *name, int value) {
  TilingField *field = &at->tiling.fields[at->tiling.field_count++];
  snprintf(field->name, sizeof field->name, "%s", name);
  field->value = value;
}

/* Tiles of 64 x 32, of which at least two make a piece. */
static void pieces_case(PlanCase *at, const char *mask, int packed, int workers) {
  plan_case_create(at, "forward", mask, NULL, HEADS, 2);
  add_field(at, "packed", packed);
  add_field(at, "piece_keys", 64);
  add_field(at, "piece_row_keys", 2);
  add_field(at, "pieces", 48);
  add_field(at, "join_rows", 4);
  add_field(at, "workers", workers);
}

/* ---- The rule ---- */

static void test_rule(void **state) {
  (void)state;
  /* 16 queries of 8 heads to a tile of 128 keys. */
  PieceRule rule = {.tile_q = 16,
                    .tile_kv = 128,
                    .packed = 8,
                    .keys = 256,
                    .row_keys = 32,
                    .most = 128,
                    .join_rows = 4};
  assert_int_equal(pieces_of_row(&rule, 8, 1, 0, 512), 16); /* the most, for each of 8 heads */
  assert_int_equal(pieces_of_row(&rule, 1, 1, 0, 512), 128);
  assert_int_equal(pieces_of_row(&rule, 1, 1, 0, 64), 32); /* of 256 keys each */
  assert_int_equal(pieces_of_row(&rule, 8, 1, 0, 4), 2);
  assert_int_equal(pieces_of_row(&rule, 8, 1, 0, 3), 1);
  assert_int_equal(pieces_of_row(&rule, 1, 1, 0, 31), 11);  /* 3 tiles each, as in 15 */
  assert_int_equal(pieces_of_row(&rule, 8, 16, 0, 64), 2);  /* 128 rows: of 4096 keys each */
  assert_int_equal(pieces_of_row(&rule, 8, 17, 0, 512), 8); /* half of the most, for each tile */
  assert_int_equal(pieces_of_row(&rule, 8, 17, 1, 512), 8);
  assert_int_equal(pieces_of_row(&rule, 8, 64, 0, 512), 4);
  assert_int_equal(pieces_of_row(&rule, 8, 65, 0, 512), 1); /* not 3: whole */
  assert_int_equal(pieces_of_row(&rule, 32, 1, 0, 512), 4);
  assert_int_equal(pieces_of_row(&rule, 33, 1, 0, 512), 1); /* many heads, too */
  assert_int_equal(pieces_of_row(&rule, 8, 1, 0, 0), 1);
  rule.most = 0;
  assert_int_equal(pieces_of_row(&rule, 1, 1, 0, 512), 1);
  /* As many queries as keys stay whole, whatever their number. */
  rule = (PieceRule){128, 128, 1, 256, 32, 128, 4};
  for (int n = 1; n < 200; n++)
    for (int q = 0; q < n; q++)
      assert_int_equal(pieces_of_row(&rule, 1, n * 128, q, n), 1);
}

/* ---- Tables ---- */

typedef struct View {
  const Plan *plan;
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaItem *items;
  const RotaPiece *pieces;
  const RotaJoin *joins;
  int32_t whole;
} View;

static View view_of(const Plan *plan) {
  return (View){plan,
                plan_section(plan, plan->sequences),
                plan_section(plan, plan->rows),
                plan_section(plan, plan->runs),
                plan_section(plan, plan->row_items),
                plan_section(plan, plan->pieces),
                plan_section(plan, plan->joins),
                (int32_t)plan_whole_rows(plan)};
}

/* Kind and owner of a row's tiles: seen[tile] = 1 + kind bits. */
static int mark_tiles(const View *view, const RotaRow *row, unsigned *seen) {
  int count = 0;
  for (int32_t r = row->run_begin; r < row->run_end; r++) {
    const RotaRun *run = &view->runs[r];
    for (unsigned tile = (unsigned)run->begin; tile < (run->end_kind & ROTA_RUN_END); tile++) {
      assert_int_equal(seen[tile], 0);
      seen[tile] = 1 + (run->end_kind >> 30);
      count++;
    }
  }
  return count;
}

/* Pieces `first` .. of a row: its tiles, in ascending order, each once. */
static void check_cut(const View *view, int32_t index, int32_t first, int32_t pieces) {
  const RotaRow *row = &view->rows[index];
  unsigned whole[1024] = {0}, parts[1024] = {0};
  int total = mark_tiles(view, row, whole), least = total, most = 0, before = -1;
  for (int32_t p = 0; p < pieces; p++) {
    const RotaRow *piece = &view->rows[view->whole + first + p];
    assert_int_equal(view->pieces[first + p].row, index);
    assert_int_equal(view->pieces[first + p].number, p);
    assert_int_equal(piece->sequence, row->sequence);
    assert_int_equal(piece->q_tile, row->q_tile);
    int count = mark_tiles(view, piece, parts);
    assert_true(view->runs[piece->run_begin].begin > before);
    before = (int)(view->runs[piece->run_end - 1].end_kind & ROTA_RUN_END) - 1;
    least = count < least ? count : least;
    most = count > most ? count : most;
  }
  assert_memory_equal(whole, parts, sizeof whole);
  assert_true(most - least <= 1 && least >= 2);
}

/* Each (row, item head) has one item, or one for each piece and all its joins. */
static void check_plan(const Plan *plan) {
  View view = view_of(plan);
  int heads = plan_row_heads(plan);
  size_t places = (size_t)plan->rows.count * (size_t)heads;
  int *items = calloc(places + 1, sizeof(int));
  char *written = calloc((size_t)plan->partial_rows + 1, 1);
  for (int64_t i = 0; i < plan->row_items.count; i++)
    items[view.items[i].index * heads + view.items[i].head]++;
  for (int64_t i = 0; i < plan->joins.count; i++) {
    const RotaJoin *join = &view.joins[i];
    if (join->first == 0)
      check_cut(&view, join->row, join->piece, join->pieces);
    assert_int_equal(items[join->row * heads + join->head], 0);
    for (int32_t p = 0; p < join->pieces; p++) {
      const RotaPiece *piece = &view.pieces[join->piece + p];
      assert_int_equal(items[(view.whole + join->piece + p) * heads + join->head], 1);
      int32_t partial = join->partial + p * join->rows;
      assert_int_equal(piece->partial + join->head * piece->step, partial);
      for (int32_t r = join->first; r < join->rows && r < join->first + 4; r++) {
        assert_in_range(partial + r, 0, plan->partial_rows - 1);
        assert_int_equal(written[partial + r]++, 0);
      }
    }
  }
  for (int64_t i = 0; i < plan->partial_rows; i++)
    assert_int_equal(written[i], 1);
  int64_t bytes = plan->partial_rows * (64 + 1) * 4; /* head dim of V: 64 */
  assert_in_range(plan->workspace.bytes, bytes, bytes + 512);
  free(items);
  free(written);
}

static rota_lengths random_lengths(uint64_t *random, int32_t *cu_q, int32_t *cu_k, int32_t *used_q,
                                   int32_t *used_k) {
  bool packed = case_random(random, 2);
  rota_lengths lengths = {.batch = 1 + case_random(random, BATCH),
                          .n_q = 1 + case_random(random, 200),
                          .n_k = 1 + case_random(random, 3000)};
  cu_q[0] = cu_k[0] = 0;
  for (int s = 0; s < BATCH; s++) {
    int rows_q = packed ? case_random(random, 3) * 47 : lengths.n_q;
    int rows_k = packed ? case_random(random, 3000) : lengths.n_k;
    cu_q[s + 1] = cu_q[s] + rows_q;
    cu_k[s + 1] = cu_k[s] + rows_k;
    used_q[s] = case_random(random, rows_q + 1);
    used_k[s] = case_random(random, rows_k + 1);
  }
  if (packed) {
    lengths.cu_seqlens_q = cu_q;
    lengths.cu_seqlens_k = cu_k;
  }
  if (case_random(random, 2)) {
    lengths.seqused_q = used_q;
    lengths.seqused_k = used_k;
  }
  return lengths;
}

static const char *const masks[] = {NULL,
                                    "k <= q + n_k - n_q",
                                    "k <= q + n_k - n_q and q + n_k - n_q - k < 900",
                                    "k % 128 < 64 or k < 100",
                                    "k <= q + 400 * h",
                                    "q > 0 and k < 1500 + b"};

static void test_tables(void **state) {
  (void)state;
  uint64_t random = 5;
  int cut = 0;
  for (int round = 0; round < 200; round++) {
    PlanCase at;
    int mask = case_random(&random, 6);
    pieces_case(&at, masks[mask], mask == 4 ? 1 : 1 + case_random(&random, 2),
                case_random(&random, 2) * 9);
    int32_t cu_q[BATCH + 1], cu_k[BATCH + 1], used_q[BATCH], used_k[BATCH];
    at.request.lengths = random_lengths(&random, cu_q, cu_k, used_q, used_k);
    Plan *plan = plan_case_good(&at);
    check_plan(plan);
    assert_int_equal(plan_grid(plan, GRID_JOINS), plan->joins.count);
    cut += plan->pieces.count > 0;
    plan_destroy(plan);
    plan_case_free(&at);
  }
  assert_true(cut > 50);
}

/* A plan with pieces, saved, is the same one when it is loaded. */
static void test_file(void **state) {
  (void)state;
  PlanCase at;
  pieces_case(&at, "k <= q + n_k - n_q", 2, 7);
  at.request.lengths = (rota_lengths){.batch = 2, .n_q = 5, .n_k = 2000};
  Plan *plan = plan_case_good(&at), *loaded;
  assert_true(plan->pieces.count > 0);
  char path[] = "/tmp/rota_test_pieces_XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  Digest key = digest_of("key", 3);
  assert_int_equal(plan_save(plan, &key, path), ROTA_OK);
  if (plan_load(path, &key, &loaded) != ROTA_OK)
    fail_msg("%s", status_message());
  assert_int_equal(loaded->image_bytes, plan->image_bytes);
  assert_memory_equal(loaded->image, plan->image, plan->image_bytes);
  assert_int_equal(loaded->partial_rows, plan->partial_rows);
  assert_string_equal(loaded->pattern_digest.hex, plan->pattern_digest.hex);
  assert_int_equal(plan_matches(loaded, &at.spec, ROTA_FORWARD, &at.tiling), ROTA_OK);
  remove(path);
  plan_destroy(loaded);
  plan_destroy(plan);
  plan_case_free(&at);
}

/* ---- Bits ---- */

/* The first kv tile of each piece of a sequence's first row. */
static int cuts_of(const Plan *plan, int sequence, int32_t *begins) {
  View view = view_of(plan);
  int count = 0;
  for (int64_t p = 0; p < plan->pieces.count; p++)
    if (view.pieces[p].row == view.sequences[sequence].row_begin)
      begins[count++] = view.runs[view.rows[view.whole + p].run_begin].begin;
  return count;
}

/* A sequence is cut alike alone, anywhere in a batch, in a longer slot and for any workers. */
static void test_batch_does_not_matter(void **state) {
  (void)state;
  static const int32_t used_q[] = {9, 3, 1, 40}, used_k[] = {100, 1777, 2500, 900};
  for (int place = 0; place < BATCH; place++) {
    PlanCase alone, together;
    pieces_case(&alone, "k <= q + n_k - n_q", 2, 3);
    pieces_case(&together, "k <= q + n_k - n_q", 2, 100);
    alone.request.lengths = (rota_lengths){.batch = 1, .n_q = used_q[place], .n_k = used_k[place]};
    together.request.lengths = (rota_lengths){
        .batch = BATCH, .n_q = 70, .n_k = 4000, .seqused_q = used_q, .seqused_k = used_k};
    Plan *one = plan_case_good(&alone), *all = plan_case_good(&together);
    int32_t want[64], got[64];
    int count = cuts_of(one, 0, want);
    assert_int_equal(cuts_of(all, place, got), count);
    assert_memory_equal(want, got, (size_t)count * sizeof *want);
    assert_true(place == 0 || count > 1);
    plan_destroy(one);
    plan_destroy(all);
    plan_case_free(&alone);
    plan_case_free(&together);
  }
}

/* Where rows are cut decides bits, so the digest tells; how often a sequence occurs does not. */
static void test_digest(void **state) {
  (void)state;
  char digests[3][ROTA_DIGEST_SIZE];
  for (int i = 0; i < 3; i++) {
    PlanCase at;
    pieces_case(&at, NULL, 2, 7);
    at.request.lengths = (rota_lengths){.batch = i == 1 ? 3 : 1, .n_q = 1, .n_k = 3000};
    if (i == 2)
      at.tiling.fields[2].value = 500; /* piece_keys */
    assert_string_equal(at.tiling.fields[2].name, "piece_keys");
    Plan *plan = plan_case_good(&at);
    memcpy(digests[i], plan->pattern_digest.hex, ROTA_DIGEST_SIZE);
    plan_destroy(plan);
    plan_case_free(&at);
  }
  assert_string_equal(digests[0], digests[1]);
  assert_string_not_equal(digests[0], digests[2]);
}

/* ---- Damage ---- */

#define WORD(type, field) (offsetof(type, field) / 4)

static void test_damage_is_found(void **state) {
  (void)state;
  static const struct {
    const char *message;
    size_t section, word;
    uint32_t flip;
  } edits[] = {
      {"differs from what is joined", offsetof(Plan, pieces), WORD(RotaPiece, number), 1},
      {"differs from what is joined", offsetof(Plan, pieces), WORD(RotaPiece, partial), 1},
      {"names no row", offsetof(Plan, pieces), WORD(RotaPiece, row), 0x80000000},
      {"names no row, head or pieces", offsetof(Plan, joins), WORD(RotaJoin, row), 0x4000},
      {"names no row, head or pieces", offsetof(Plan, joins), WORD(RotaJoin, head), 0x4000},
      {"names no row, head or pieces", offsetof(Plan, joins), WORD(RotaJoin, pieces), 0x80000000},
      {"names no row, head or pieces", offsetof(Plan, joins), WORD(RotaJoin, piece), 0x40000000},
      {"has wrong rows", offsetof(Plan, joins), WORD(RotaJoin, first), 4},
      {"has wrong rows", offsetof(Plan, joins), WORD(RotaJoin, rows), 1},
      {"has wrong rows", offsetof(Plan, joins), WORD(RotaJoin, partial), 1},
      {"does not go on", offsetof(Plan, joins), sizeof(RotaJoin) / 4 + WORD(RotaJoin, first), 1},
      {"names no row or head", offsetof(Plan, row_items), 0, 0x4000},
  };
  PlanCase at;
  pieces_case(&at, "k <= q + n_k - n_q", 2, 7);
  at.request.lengths = (rota_lengths){.batch = 1, .n_q = 5, .n_k = 2000};
  Plan *plan = plan_case_good(&at);
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    RotaSection section;
    memcpy(&section, (const char *)plan + edits[i].section, sizeof section);
    uint32_t *word = (uint32_t *)(void *)(plan->image + section.offset) + edits[i].word;
    *word ^= edits[i].flip;
    rota_status status = plan_check(plan);
    if (status != ROTA_FILE || !strstr(status_message(), edits[i].message))
      fail_msg("edit %zu: status %d, '%s'", i, (int)status, status_message());
    *word ^= edits[i].flip;
    assert_int_equal(plan_check(plan), ROTA_OK);
  }
  /* A piece that takes a tile of its neighbour, and one that comes twice. */
  RotaRow *rows = (RotaRow *)(void *)(plan->image + plan->rows.offset);
  RotaRun *run = (RotaRun *)(void *)(plan->image + plan->runs.offset);
  run += rows[plan_whole_rows(plan)].run_begin;
  run->end_kind++;
  assert_int_equal(plan_check(plan), ROTA_FILE);
  assert_non_null(strstr(status_message(), "other tiles than the row"));
  run->end_kind--;
  RotaItem *items = (RotaItem *)(void *)(plan->image + plan->row_items.offset);
  items[0] = items[1];
  assert_int_equal(plan_check(plan), ROTA_FILE);
  assert_non_null(strstr(status_message(), "repeats another"));
  plan_destroy(plan);
  plan_case_free(&at);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rule),   cmocka_unit_test(test_tables),
      cmocka_unit_test(test_file),   cmocka_unit_test(test_batch_does_not_matter),
      cmocka_unit_test(test_digest), cmocka_unit_test(test_damage_is_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
