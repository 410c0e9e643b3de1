/* Level 7. The digest of what decides a plan's bits.
 *
 * A set of sequences: each is described by its lengths, runs and visits, equal ones count once, and
 * their order does not matter. So neither the batch nor a sequence's place in it shows, and the
 * tables of a shared plane are read once. */
#include "generator/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct Source {
  const Plan *plan;
  const RotaSequence *sequences;
  const RotaRow *rows;
  const RotaRun *runs;
  const RotaVisit *visits;
  const RotaPiece *pieces;
  const int32_t *cut; /* [rows] a row's first piece, -1: none */
  int64_t whole_rows, piece_count;
  const RotaChain **chains;       /* [batch] of a sequence, pattern head by pattern head */
  int64_t row_heads, chain_heads; /* tables per sequence: 1, or one for each head */
} Source;

/* How a row is cut: its pieces' runs, each with how many they are. */
static void digest_pieces(const Source *source, int32_t row, DigestStream *stream) {
  int64_t piece = source->cut[row];
  for (; piece >= 0 && piece < source->piece_count && source->pieces[piece].row == row; piece++) {
    const RotaRow *part = &source->rows[source->whole_rows + piece];
    int32_t count = part->run_end - part->run_begin;
    digest_add(stream, &count, sizeof count);
    digest_add(stream, source->runs + part->run_begin, (size_t)count * sizeof(RotaRun));
  }
}

/* Where in the tables a sequence's parts lie: the same for all sequences on one plane. */
static Digest digest_places(const Source *source, int32_t s) {
  const RotaSequence *sequence = &source->sequences[s];
  DigestStream *stream = digest_begin();
  const int32_t lengths[] = {sequence->n_q, sequence->n_k};
  digest_add(stream, lengths, sizeof lengths);
  int64_t rows = source->row_heads * sequence->q_tiles;
  for (int64_t i = 0; i < rows; i++) {
    const RotaRow *row = &source->rows[sequence->row_begin + i];
    const int32_t place[] = {row->q_tile, row->run_begin, row->run_end};
    digest_add(stream, place, sizeof place);
    digest_pieces(source, sequence->row_begin + (int32_t)i, stream);
  }
  int64_t chains = source->chain_heads * sequence->kv_tiles;
  for (int64_t i = 0; i < chains; i++) {
    const RotaChain *chain = &source->chains[s][i];
    const int32_t place[] = {chain->kv_tile, chain->visit_begin, chain->visit_end};
    digest_add(stream, place, sizeof place);
  }
  return digest_end(stream);
}

/* What lies there. Rows and chains without any tile are left out: a slot may be larger than its
 * sequence. */
static Digest digest_content(const Source *source, int32_t s) {
  const RotaSequence *sequence = &source->sequences[s];
  DigestStream *stream = digest_begin();
  const int32_t lengths[] = {sequence->n_q, sequence->n_k};
  digest_add(stream, lengths, sizeof lengths);
  for (int64_t i = 0; i < source->row_heads * sequence->q_tiles; i++) {
    const RotaRow *row = &source->rows[sequence->row_begin + i];
    if (row->run_begin == row->run_end)
      continue;
    const int64_t place[] = {i / sequence->q_tiles, row->q_tile};
    digest_add(stream, place, sizeof place);
    digest_add(stream, source->runs + row->run_begin,
               (size_t)(row->run_end - row->run_begin) * sizeof(RotaRun));
    digest_pieces(source, sequence->row_begin + (int32_t)i, stream);
  }
  for (int64_t i = 0; i < source->chain_heads * sequence->kv_tiles; i++) {
    const RotaChain *chain = &source->chains[s][i];
    if (chain->visit_begin == chain->visit_end)
      continue;
    const int64_t place[] = {i / sequence->kv_tiles, chain->kv_tile};
    digest_add(stream, place, sizeof place);
    digest_add(stream, source->visits + chain->visit_begin,
               (size_t)(chain->visit_end - chain->visit_begin) * sizeof(RotaVisit));
  }
  return digest_end(stream);
}

/* cut[row]: a row's first piece, or -1. NULL if memory ran out. */
static int32_t *find_cuts(const Plan *plan) {
  int64_t rows = plan_whole_rows(plan);
  int32_t *cut = memory_allocate((size_t)rows + 1, sizeof(int32_t));
  for (int64_t i = 0; cut && i < rows; i++)
    cut[i] = -1;
  const RotaPiece *pieces = plan_section(plan, plan->pieces);
  for (int64_t i = plan->pieces.count; cut && i-- > 0;)
    cut[pieces[i].row] = (int32_t)i;
  return cut;
}

typedef struct Entry {
  Digest digest;
  int32_t sequence;
} Entry;

static int compare_entries(const void *a, const void *b) {
  const Entry *x = a, *y = b;
  int order = strcmp(x->digest.hex, y->digest.hex);
  return order ? order : x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Sorts and keeps one of equals; the number kept. */
static int32_t sort_unique(Entry *entries, int32_t count) {
  qsort(entries, (size_t)count, sizeof(Entry), compare_entries);
  int32_t kept = 0;
  for (int32_t i = 0; i < count; i++)
    if (kept == 0 || strcmp(entries[kept - 1].digest.hex, entries[i].digest.hex) != 0)
      entries[kept++] = entries[i];
  return kept;
}

/* False if memory ran out. */
static bool digest_sequences(const Source *source, Entry *entries, DigestStream *stream) {
  int32_t count = source->plan->lengths->batch;
  for (int32_t s = 0; s < count; s++) {
    entries[s] = (Entry){digest_places(source, s), s};
    if (!entries[s].digest.hex[0])
      return false;
  }
  count = sort_unique(entries, count);
  for (int32_t i = 0; i < count; i++) {
    entries[i].digest = digest_content(source, entries[i].sequence);
    if (!entries[i].digest.hex[0])
      return false;
  }
  count = sort_unique(entries, count);
  for (int32_t i = 0; i < count; i++)
    digest_add_string(stream, entries[i].digest.hex);
  return true;
}

static void digest_values(const Plan *plan, DigestStream *stream) {
  const int32_t header[] = {(int32_t)plan->direction, plan->heads, plan->kv_heads,
                            plan->tiling.tile_q, plan->tiling.tile_kv};
  digest_add(stream, header, sizeof header);
  digest_add(stream, &plan->scale, sizeof plan->scale);
  for (int i = 0; i < plan->symbols.parameter_count; i++)
    digest_add(stream, &plan->bindings.parameters[i], sizeof(Scalar));
  for (int i = 0; i < plan->symbols.tensor_count; i++) {
    digest_add(stream, plan->bindings.tensors[i].size, sizeof plan->bindings.tensors[i].size);
    digest_add(stream, plan_section(plan, plan->tensors[i]),
               (size_t)plan->tensors[i].count * sizeof(float));
  }
}

rota_status plan_digest_tables(const Plan *plan, Digest *digest) {
  size_t batch = (size_t)plan->lengths->batch;
  Source source = {.plan = plan,
                   .sequences = plan_section(plan, plan->sequences),
                   .rows = plan_section(plan, plan->rows),
                   .runs = plan_section(plan, plan->runs),
                   .visits = plan_section(plan, plan->visits),
                   .pieces = plan_section(plan, plan->pieces),
                   .whole_rows = plan_whole_rows(plan),
                   .piece_count = plan->pieces.count,
                   .chains = memory_allocate(batch + 1, sizeof(RotaChain *)),
                   .row_heads = 1,
                   .chain_heads = plan->direction == ROTA_BACKWARD ? 1 : 0};
  int32_t *cut = find_cuts(plan);
  source.cut = cut;
  Entry *entries = memory_allocate(batch + 1, sizeof(Entry));
  DigestStream *stream = digest_begin();
  bool done = source.chains && cut && entries && stream;
  if (done) {
    int64_t kv_tiles = 0;
    for (size_t s = 0; s < batch; s++)
      kv_tiles += source.sequences[s].kv_tiles;
    if (plan_whole_rows(plan) > plan_q_tiles(plan))
      source.row_heads = plan->heads;
    if (plan->chains.count > kv_tiles)
      source.chain_heads = plan->kv_heads;
    const RotaChain *chains = plan_section(plan, plan->chains);
    for (size_t s = 0; s < batch; s++) {
      source.chains[s] = chains;
      chains += source.chain_heads * source.sequences[s].kv_tiles;
    }
    digest_values(plan, stream);
    done = digest_sequences(&source, entries, stream);
  }
  *digest = digest_end(stream);
  free(source.chains);
  free(cut);
  free(entries);
  if (done && digest->hex[0])
    return ROTA_OK;
  return status_fail(ROTA_OUT_OF_MEMORY, "plan: no memory for its digest");
}
