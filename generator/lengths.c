/* Level 3. Lengths of a batch, from dense sizes or from cu_seqlens.
 *
 *     dense    slot s = rows [0, n) of batch entry s          begin 0
 *     packed   slot s = rows [cu[s], cu[s + 1]) of all rows   begin cu[s]
 *     used     the first n rows of a slot; all of it without seqused */
#include "generator/lengths.h"

#include <stdlib.h>

rota_status lengths_allocate(int32_t batch, Lengths **lengths) {
  *lengths = NULL;
  Lengths *result = memory_allocate(1, sizeof(Lengths));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->batch = batch;
  size_t count = (size_t)batch + 1; /* a batch of 0 is legal, an allocation of nothing is not */
  result->n_q = memory_allocate(count, sizeof(int32_t));
  result->n_k = memory_allocate(count, sizeof(int32_t));
  result->rows_q = memory_allocate(count, sizeof(int32_t));
  result->rows_k = memory_allocate(count, sizeof(int32_t));
  result->begin_q = memory_allocate(count, sizeof(int64_t));
  result->begin_k = memory_allocate(count, sizeof(int64_t));
  if (!result->n_q || !result->n_k || !result->rows_q || !result->rows_k || !result->begin_q ||
      !result->begin_k) {
    lengths_destroy(result);
    return ROTA_OUT_OF_MEMORY;
  }
  *lengths = result;
  return ROTA_OK;
}

void lengths_destroy(Lengths *lengths) {
  if (!lengths)
    return;
  free(lengths->n_q);
  free(lengths->n_k);
  free(lengths->rows_q);
  free(lengths->rows_k);
  free(lengths->begin_q);
  free(lengths->begin_k);
  free(lengths);
}

/* One side, queries or keys: slot sizes and begins. `side` is "q" or "k". */
static rota_status slots(const char *side, int32_t batch, const int32_t *cu, int32_t dense,
                         int32_t *rows, int64_t *begin) {
  if (cu && cu[0] < 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "cu_seqlens_%s[0] is %d; offsets start at 0 or later",
                       side, cu[0]);
  for (int32_t i = 0; i < batch; i++) {
    if (cu && cu[i + 1] < cu[i])
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "cu_seqlens_%s[%d] = %d is below cu_seqlens_%s[%d] = %d; offsets ascend",
                         side, i + 1, cu[i + 1], side, i, cu[i]);
    rows[i] = cu ? cu[i + 1] - cu[i] : dense;
    begin[i] = cu ? cu[i] : 0;
    if (rows[i] > LIMIT_LENGTH)
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "sequence %d has %d rows of %s; the limit is 2^26 = 67108864", i, rows[i],
                         side);
  }
  return ROTA_OK;
}

/* Rows in use: all of the slot, or what seqused says. */
static rota_status used(const char *side, int32_t batch, const int32_t *seqused,
                        const int32_t *rows, int32_t *n) {
  for (int32_t i = 0; i < batch; i++) {
    n[i] = seqused ? seqused[i] : rows[i];
    if (n[i] < 0 || n[i] > rows[i])
      return status_fail(ROTA_INVALID_ARGUMENT,
                         "seqused_%s[%d] = %d is not in 0 .. %d, the rows of its sequence", side, i,
                         n[i], rows[i]);
  }
  return ROTA_OK;
}

/* What needs no array entry to be read. */
static rota_status check_request(const rota_lengths *request) {
  if (request->batch < 0)
    return status_fail(ROTA_INVALID_ARGUMENT, "batch %d is negative", request->batch);
  if (!request->cu_seqlens_q != !request->cu_seqlens_k)
    return status_fail(ROTA_INVALID_ARGUMENT,
                       "cu_seqlens_%s is missing: packed sequences need both",
                       request->cu_seqlens_q ? "k" : "q");
  if (!request->cu_seqlens_q && (request->n_q < 0 || request->n_k < 0))
    return status_fail(ROTA_INVALID_ARGUMENT, "lengths n_q %d, n_k %d: must not be negative",
                       request->n_q, request->n_k);
  return ROTA_OK;
}

/* Reads batch + 1 entries of each cu_seqlens and batch of each seqused. */
rota_status lengths_create(const rota_lengths *request, Lengths **lengths) {
  *lengths = NULL;
  ROTA_TRY(check_request(request));
  Lengths *result;
  ROTA_TRY(lengths_allocate(request->batch, &result));
  int32_t batch = request->batch;
  result->packed = request->cu_seqlens_q != NULL;
  rota_status status =
      slots("q", batch, request->cu_seqlens_q, request->n_q, result->rows_q, result->begin_q);
  if (status == ROTA_OK)
    status =
        slots("k", batch, request->cu_seqlens_k, request->n_k, result->rows_k, result->begin_k);
  if (status == ROTA_OK)
    status = used("q", batch, request->seqused_q, result->rows_q, result->n_q);
  if (status == ROTA_OK)
    status = used("k", batch, request->seqused_k, result->rows_k, result->n_k);
  if (status == ROTA_OK)
    *lengths = result;
  else
    lengths_destroy(result);
  return status;
}
