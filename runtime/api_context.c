/* Level 14. The public interface: errors, version, contexts and specs. See rota.h; here only
 * arguments are checked. */
#include <stdlib.h>

#include "runtime/kernel.h"

#define ROTA_TEXT_(x) #x
#define ROTA_TEXT(x)  ROTA_TEXT_(x)

const char *rota_error_message(void) {
  return status_message();
}

const char *rota_status_name(rota_status status) {
  switch (status) {
#define X(name, value, meaning)                                                                    \
  case ROTA_##name:                                                                                \
    return #name;
    ROTA_STATUS_LIST(X)
#undef X
  }
  return "UNKNOWN";
}

const char *rota_version(void) {
  return ROTA_TEXT(ROTA_VERSION_MAJOR) "." ROTA_TEXT(ROTA_VERSION_MINOR) "." ROTA_TEXT(
      ROTA_VERSION_PATCH);
}

rota_status rota_context_create(const rota_context_options *options, rota_context **context) {
  if (!context)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_context_create: context is NULL");
  return context_create(options, context);
}

void rota_context_destroy(rota_context *context) {
  context_destroy(context);
}

/* Allocates the result; `fill` runs under the script's lock. */
typedef rota_status SpecMaker(Script *script, const void *from, const char *name, Spec *spec);

static rota_status make_spec(rota_context *context, SpecMaker *maker, const void *from,
                             const char *name, rota_spec **result) {
  rota_spec *spec = memory_allocate(1, sizeof *spec);
  if (!spec)
    return ROTA_OUT_OF_MEMORY;
  Script *script = context_lock_script(context);
  rota_status status = maker(script, from, name, &spec->spec);
  context_unlock_script(context);
  if (status != ROTA_OK) {
    free(spec);
    return status;
  }
  *result = spec;
  return ROTA_OK;
}

static rota_status spec_from_text(Script *script, const void *text, const char *name, Spec *spec) {
  return script_spec(script, text, name, spec);
}

static rota_status spec_from_fields(Script *script, const void *fields, const char *name,
                                    Spec *spec) {
  (void)name;
  return script_spec_from_fields(script, fields, spec);
}

rota_status rota_spec_create_from_script(rota_context *context, const char *text,
                                         const char *chunk_name, rota_spec **spec) {
  if (spec)
    *spec = NULL;
  if (!context || !text || !spec)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_spec_create_from_script: %s is NULL",
                       !context ? "context"
                       : !text  ? "text"
                                : "spec");
  return make_spec(context, spec_from_text, text, chunk_name ? chunk_name : "script", spec);
}

rota_status rota_spec_create_from_file(rota_context *context, const char *path, rota_spec **spec) {
  if (spec)
    *spec = NULL;
  if (!context || !path || !spec)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_spec_create_from_file: %s is NULL",
                       !context ? "context"
                       : !path  ? "path"
                                : "spec");
  char *text;
  size_t length;
  ROTA_TRY(text_read_file(path, &text, &length));
  rota_status status = make_spec(context, spec_from_text, text, path, spec);
  free(text);
  return status;
}

rota_status rota_spec_create(rota_context *context, const rota_spec_fields *fields,
                             rota_spec **spec) {
  if (spec)
    *spec = NULL;
  if (!context || !fields || !spec)
    return status_fail(ROTA_INVALID_ARGUMENT, "rota_spec_create: %s is NULL",
                       !context  ? "context"
                       : !fields ? "fields"
                                 : "spec");
  return make_spec(context, spec_from_fields, fields, NULL, spec);
}

void rota_spec_destroy(rota_spec *spec) {
  if (!spec)
    return;
  spec_free(&spec->spec);
  free(spec);
}

void rota_spec_get(const rota_spec *spec, rota_spec_fields *fields) {
  if (!fields)
    return;
  *fields = (rota_spec_fields){0};
  if (!spec)
    return;
  const Spec *from = &spec->spec;
  *fields = (rota_spec_fields){.dtype = from->dtype,
                               .head_dim = from->head_dim,
                               .head_dim_v = from->head_dim_v,
                               .heads = from->heads,
                               .kv_heads = from->kv_heads,
                               .scale = from->scale,
                               .sink_logit = from->sink_logit,
                               .allow_nondeterministic = !from->deterministic,
                               .backward = backward_name(from->backward),
                               .bound = bound_name(from->spread),
                               .schedule = from->schedule,
                               .forward_tiling = from->tiling[ROTA_FORWARD],
                               .backward_tiling = from->tiling[ROTA_BACKWARD]};
}
