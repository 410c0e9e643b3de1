/* Level 7. Plans as files.
 *
 *     PlanHeader | fields, one after another | image
 *
 * One function, `wire_plan`, lists the fields for both directions. The header's digest covers all
 * bytes but itself; it finds accidents. Against intent, every count is bounded before it is used,
 * and plan_check walks the tables before a plan is handed out. */
#include "generator/plan.h"
#include "generator/replace.h"
#include "generator/text.h"

#include <stdlib.h>
#include <string.h>

enum { PLAN_FILE_VERSION = 7, TILE_MAX = 1 << 20 };

typedef struct PlanHeader {
  char magic[8];
  int64_t field_bytes, image_bytes;
  int32_t version;
  char key[ROTA_DIGEST_SIZE];    /* of the program, with NUL */
  char digest[ROTA_DIGEST_SIZE]; /* last: of everything before and after it */
  char zero[2];                  /* no padding of chance */
} PlanHeader;
_Static_assert(sizeof(PlanHeader) == 96, "the header has no hidden padding");

static const char plan_magic[8] = "ROTAPLAN";

/* ---- Fields, in both directions ---- */

typedef struct Wire {
  Text *out; /* NULL when reading */
  const unsigned char *in;
  size_t left;
  bool failed; /* the input ended early, or a count is impossible */
  bool no_memory;
} Wire;

static void wire_bytes(Wire *wire, void *data, size_t count) {
  if (wire->out) {
    text_append_bytes(wire->out, data, count);
  } else if (wire->failed || count > wire->left) {
    wire->failed = true;
  } else {
    memcpy(data, wire->in, count);
    wire->in += count;
    wire->left -= count;
  }
}

static void wire_int(Wire *wire, int32_t *value, int32_t low, int32_t high) {
  wire_bytes(wire, value, sizeof *value);
  if (*value < low || *value > high)
    wire->failed = true;
  if (wire->failed)
    *value = low; /* loops over a count stay short */
}

#define WIRE(wire, field) wire_bytes((wire), &(field), sizeof(field))
/* An enumeration or bool, as an int. */
#define WIRE_ENUM(wire, field, type, high)                                                         \
  do {                                                                                             \
    int32_t wire_value = (int32_t)(field);                                                         \
    wire_int((wire), &wire_value, 0, (high));                                                      \
    (field) = (type)wire_value;                                                                    \
  } while (0)

/* A string in an array: zeros after its end when written, an end when read. */
static void wire_string(Wire *wire, char *string, size_t size) {
  if (wire->out) {
    size_t length = strlen(string);
    memset(string + length, 0, size - length);
  }
  wire_bytes(wire, string, size);
  if (!memchr(string, 0, size))
    wire->failed = true;
  string[size - 1] = '\0';
}

static void wire_tiling(Wire *wire, Tiling *tiling) {
  wire_string(wire, tiling->architecture, sizeof tiling->architecture);
  wire_string(wire, tiling->algorithm, sizeof tiling->algorithm);
  wire_string(wire, tiling->template_path, sizeof tiling->template_path);
  wire_int(wire, &tiling->tile_q, 1, TILE_MAX);
  wire_int(wire, &tiling->tile_kv, 1, TILE_MAX);
  wire_int(wire, &tiling->field_count, 0, TILING_FIELDS_MAX);
  for (int i = 0; i < tiling->field_count; i++) {
    wire_string(wire, tiling->fields[i].name, sizeof tiling->fields[i].name);
    WIRE(wire, tiling->fields[i].value);
  }
  wire_int(wire, &tiling->launch_count, 0, LAUNCHES_MAX);
  for (int i = 0; i < tiling->launch_count; i++) {
    Launch *launch = &tiling->launches[i];
    wire_string(wire, launch->entry, sizeof launch->entry);
    WIRE_ENUM(wire, launch->grid, Grid, GRID_COUNT - 1);
    wire_int(wire, &launch->threads, 1, 1024);
    wire_int(wire, &launch->shared_bytes, 0, INT32_MAX);
    WIRE_ENUM(wire, launch->overlaps, bool, 1);
  }
  wire_int(wire, &tiling->map_count, 0, TILING_MAPS_MAX);
  for (int i = 0; i < tiling->map_count; i++) {
    WIRE_ENUM(wire, tiling->maps[i].tensor, Mapped, MAPPED_COUNT - 1);
    wire_int(wire, &tiling->maps[i].rows, 1, TILE_MAX);
    wire_int(wire, &tiling->maps[i].heads, 0, TILE_MAX);
  }
}

static void wire_symbols(Wire *wire, Symbols *symbols, Bindings *bindings) {
  wire_int(wire, &symbols->parameter_count, 0, PARAMETERS_MAX);
  for (int i = 0; i < symbols->parameter_count; i++) {
    Parameter *parameter = &symbols->parameters[i];
    wire_string(wire, parameter->name, sizeof parameter->name);
    WIRE_ENUM(wire, parameter->type, ValueType, VALUE_FLOAT);
    WIRE_ENUM(wire, parameter->constant, bool, 1);
    WIRE(wire, parameter->value);
    WIRE(wire, bindings->parameters[i]);
  }
  wire_int(wire, &symbols->tensor_count, 0, TENSORS_MAX);
  for (int i = 0; i < symbols->tensor_count; i++) {
    TensorSymbol *tensor = &symbols->tensors[i];
    wire_string(wire, tensor->name, sizeof tensor->name);
    WIRE_ENUM(wire, tensor->element, rota_dtype, ROTA_INT32);
    wire_int(wire, &tensor->rank, 0, TENSOR_RANK_MAX);
    WIRE_ENUM(wire, tensor->in_mask, bool, 1);
    WIRE(wire, bindings->tensors[i].size);
    WIRE(wire, bindings->tensors[i].stride);
  }
}

static void wire_lengths(Wire *wire, Lengths **lengths) {
  int32_t batch = wire->out ? (*lengths)->batch : 0;
  const size_t entry = 4 * sizeof(int32_t) + 2 * sizeof(int64_t);
  wire_int(wire, &batch, 0, INT32_MAX);
  if (!wire->out) {
    wire->failed |= (size_t)batch > wire->left / entry;
    if (wire->failed)
      return;
    wire->no_memory = lengths_allocate(batch, lengths) != ROTA_OK;
    if (wire->no_memory)
      return;
  }
  Lengths *to = *lengths;
  size_t count = (size_t)batch;
  WIRE_ENUM(wire, to->packed, bool, 1);
  wire_bytes(wire, to->n_q, count * sizeof(int32_t));
  wire_bytes(wire, to->n_k, count * sizeof(int32_t));
  wire_bytes(wire, to->rows_q, count * sizeof(int32_t));
  wire_bytes(wire, to->rows_k, count * sizeof(int32_t));
  wire_bytes(wire, to->begin_q, count * sizeof(int64_t));
  wire_bytes(wire, to->begin_k, count * sizeof(int64_t));
}

static void wire_plan(Wire *wire, Plan *plan) {
  WIRE_ENUM(wire, plan->direction, rota_direction, ROTA_BACKWARD);
  wire_int(wire, &plan->heads, 1, INT32_MAX);
  wire_int(wire, &plan->kv_heads, 1, INT32_MAX);
  WIRE(wire, plan->scale);
  wire_tiling(wire, &plan->tiling);
  wire_symbols(wire, &plan->symbols, &plan->bindings);
  RotaSection *sections[] = {&plan->sequences, &plan->rows,   &plan->runs,        &plan->row_items,
                             &plan->chains,    &plan->visits, &plan->chain_items, &plan->pieces,
                             &plan->joins,     &plan->queue};
  for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
    WIRE(wire, *sections[i]);
  WIRE(wire, plan->tensors);
  WIRE(wire, plan->partial_rows);
  wire_int(wire, &plan->workers, 0, INT32_MAX);
  wire_int(wire, &plan->gang, 0, INT32_MAX);
  WIRE_ENUM(wire, plan->co_resident, bool, 1);
  wire_string(wire, plan->schedule, sizeof plan->schedule);
  WIRE(wire, plan->workspace);
  WIRE(wire, plan->workspace_limit);
  WIRE(wire, plan->full_tiles);
  WIRE(wire, plan->partial_tiles);
  WIRE(wire, plan->empty_tiles);
  wire_string(wire, plan->pattern_digest.hex, sizeof plan->pattern_digest.hex);
  wire_lengths(wire, &plan->lengths);
}

/* Of header (without its digest), fields and image. */
static rota_status digest_file(const PlanHeader *header, const void *fields, const void *image,
                               Digest *digest) {
  DigestStream *stream = digest_begin();
  if (!stream)
    return ROTA_OUT_OF_MEMORY;
  digest_add(stream, header, offsetof(PlanHeader, digest));
  digest_add(stream, fields, (size_t)header->field_bytes);
  digest_add(stream, image, (size_t)header->image_bytes);
  *digest = digest_end(stream);
  return ROTA_OK;
}

/* ---- Saving ---- */

rota_status plan_save(const Plan *plan, const Digest *key, const char *path) {
  Plan *copy = memory_allocate(1, sizeof(Plan)); /* wire_string tidies what it writes */
  if (!copy)
    return ROTA_OUT_OF_MEMORY;
  *copy = *plan;
  Text fields = {0};
  wire_plan(&(Wire){.out = &fields}, copy);
  free(copy);
  PlanHeader header = {.version = PLAN_FILE_VERSION,
                       .field_bytes = (int64_t)fields.length,
                       .image_bytes = (int64_t)plan->image_bytes};
  memcpy(header.magic, plan_magic, sizeof header.magic);
  memcpy(header.key, key->hex, sizeof header.key);
  Digest digest;
  rota_status status = text_status(&fields);
  if (status == ROTA_OK)
    status = digest_file(&header, fields.data, plan->image, &digest);
  if (status == ROTA_OK) {
    memcpy(header.digest, digest.hex, sizeof header.digest);
    const FilePiece pieces[] = {
        {&header, sizeof header}, {fields.data, fields.length}, {plan->image, plan->image_bytes}};
    status = file_replace(path, "the plan", pieces, 3);
  }
  text_free(&fields);
  return status;
}

/* ---- Loading ---- */

static rota_status check_header(const char *path, const char *data, size_t length,
                                PlanHeader *header) {
  if (length < sizeof *header || memcmp(data, plan_magic, sizeof plan_magic) != 0)
    return status_fail(ROTA_FILE, "%s: not a plan of Rota, or cut short", path);
  memcpy(header, data, sizeof *header);
  if (header->version != PLAN_FILE_VERSION)
    return status_fail(ROTA_FILE, "%s: plan format %d, this library reads %d; build the plan again",
                       path, header->version, PLAN_FILE_VERSION);
  int64_t rest = (int64_t)(length - sizeof *header);
  if (header->field_bytes < 0 || header->image_bytes < 16 || header->field_bytes > rest ||
      header->image_bytes != rest - header->field_bytes)
    return status_fail(ROTA_FILE, "%s: the plan is damaged: its length is wrong", path);
  const char *fields = data + sizeof *header;
  Digest digest;
  ROTA_TRY(digest_file(header, fields, fields + header->field_bytes, &digest));
  if (memcmp(digest.hex, header->digest, sizeof digest.hex) != 0 || header->zero[0] ||
      header->zero[1])
    return status_fail(ROTA_FILE, "%s: the plan is damaged: its checksum differs", path);
  return ROTA_OK;
}

/* Sizes and data of the tensors; the data of owned ones are in the image. */
static rota_status attach_tensors(const char *path, Plan *plan) {
  for (int i = 0; i < plan->symbols.tensor_count; i++) {
    TensorBinding *tensor = &plan->bindings.tensors[i];
    RotaSection section = plan->tensors[i];
    int64_t elements = 1;
    for (int d = 0; d < TENSOR_RANK_MAX; d++) {
      if (tensor->size[d] < 0 || tensor->size[d] > INT32_MAX ||
          (tensor->size[d] > 0 && elements > ((int64_t)1 << 40) / tensor->size[d]))
        return status_fail(ROTA_FILE, "%s: tensor '%s' has an impossible size", path,
                           plan->symbols.tensors[i].name);
      elements *= tensor->size[d];
    }
    if (section.count == 0)
      continue;
    int64_t bytes = (int64_t)plan->image_bytes;
    if (section.offset < 0 || section.offset > bytes || section.offset % 16 != 0 ||
        section.count != elements || elements > (bytes - section.offset) / (int64_t)sizeof(float))
      return status_fail(ROTA_FILE, "%s: tensor '%s' reaches outside the image", path,
                         plan->symbols.tensors[i].name);
    int64_t stride = 1;
    for (int d = TENSOR_RANK_MAX - 1; d >= 0; stride *= tensor->size[d--])
      tensor->stride[d] = stride;
    tensor->data = plan->image + section.offset;
  }
  return ROTA_OK;
}

static rota_status read_plan(const char *path, const PlanHeader *header, const char *data,
                             Plan *plan) {
  const unsigned char *fields = (const unsigned char *)data + sizeof *header;
  Wire wire = {.in = fields, .left = (size_t)header->field_bytes};
  wire_plan(&wire, plan);
  if (wire.no_memory)
    return ROTA_OUT_OF_MEMORY;
  if (wire.failed || wire.left != 0 || plan->heads % plan->kv_heads != 0 ||
      tiling_packed(&plan->tiling) < 1 ||
      plan->heads / plan->kv_heads % tiling_packed(&plan->tiling) != 0)
    return status_fail(ROTA_FILE, "%s: the plan is damaged: a field is out of range", path);
  plan->image_bytes = (size_t)header->image_bytes;
  plan->image = memory_allocate(plan->image_bytes, 1);
  if (!plan->image)
    return ROTA_OUT_OF_MEMORY;
  memcpy(plan->image, fields + header->field_bytes, plan->image_bytes);
  ROTA_TRY(attach_tensors(path, plan));
  rota_status status = plan_check(plan);
  if (status != ROTA_OK)
    return status_prefix(status, "%s: ", path);
  Digest digest;
  ROTA_TRY(plan_digest_tables(plan, &digest));
  if (strcmp(digest.hex, plan->pattern_digest.hex) != 0)
    return status_fail(ROTA_FILE, "%s: the plan's digest is not that of its tables", path);
  return ROTA_OK;
}

rota_status plan_load(const char *path, const Digest *key, Plan **plan) {
  *plan = NULL;
  char *data;
  size_t length;
  ROTA_TRY(text_read_file(path, &data, &length));
  PlanHeader header = {0};
  rota_status status = check_header(path, data, length, &header);
  if (status == ROTA_OK && memcmp(header.key, key->hex, sizeof header.key) != 0)
    status = status_fail(ROTA_INVALID_ARGUMENT,
                         "%s: the plan belongs to another program (%.32s, not %.32s); build it "
                         "again for this kernel",
                         path, header.key, key->hex);
  Plan *result = NULL;
  if (status == ROTA_OK) {
    result = memory_allocate(1, sizeof(Plan));
    status = result ? read_plan(path, &header, data, result) : ROTA_OUT_OF_MEMORY;
  }
  free(data);
  if (status == ROTA_OK)
    *plan = result;
  else
    plan_destroy(result);
  return status;
}
