/* Level 14. A kernel as one file, to be loaded where no NVRTC is. One line of text, then three
 * parts:
 *
 *     rota-kernel FORMAT VERSION DIGEST NVRTC META SOURCE CUBIN\n
 *     META bytes of JSON (export_meta.c)
 *     SOURCE bytes of text
 *     CUBIN bytes; none for the CPU device
 *
 * VERSION is Rota's, NVRTC the compiler's (13000); DIGEST covers NVRTC and everything after the
 * line. Files of another format or another version of Rota are refused: the templates and the
 * tables that they read go together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/program.h"
#include "generator/replace.h"
#include "runtime/export_meta.h"

enum { EXPORT_FORMAT = 6, HEADER_MAX = 256 };

typedef struct Header {
  char version[32], digest[ROTA_DIGEST_SIZE];
  int nvrtc_version;
  size_t meta, source, cubin; /* bytes */
} Header;

static Digest digest_body(int nvrtc_version, const char *body, size_t bytes) {
  DigestStream *stream = digest_begin();
  digest_add(stream, &nvrtc_version, sizeof nvrtc_version);
  digest_add(stream, body, bytes);
  return digest_end(stream);
}

/* ---- Export ---- */

/* The description must lead to the same program again; else the file would plan for one kernel and
 * run another. */
static rota_status verify_meta(const rota_kernel *kernel, const char *meta) {
  rota_kernel *twin = memory_allocate(1, sizeof *twin);
  if (!twin)
    return ROTA_OUT_OF_MEMORY;
  twin->references = 1;
  Program *program = NULL;
  rota_status status = export_meta_read(meta, strlen(meta), twin);
  if (status == ROTA_OK)
    status = program_build(&twin->spec, twin->direction, twin->layout, &twin->tiling,
                           kernel->context->store, &program);
  if (status == ROTA_OK) {
    Digest digest = program_digest(program, false);
    if (strcmp(digest.hex, kernel->program.hex) != 0)
      status = status_fail(ROTA_INTERNAL,
                           "the exported description of the kernel leads to another program (%s, "
                           "not %s)",
                           digest.hex, kernel->program.hex);
  }
  program_destroy(program);
  kernel_release(twin);
  return status;
}

static rota_status export_parts(const rota_kernel *kernel, const char *meta, const char *path) {
  ROTA_TRY(verify_meta(kernel, meta));
  const Cubin *cubin = kernel->cubin;
  Text body = {0};
  text_append(&body, meta);
  text_append(&body, kernel->source);
  if (cubin)
    text_append_bytes(&body, cubin->data, cubin->bytes);
  ROTA_TRY(text_status(&body));
  int nvrtc_version = cubin ? cubin->nvrtc_version : 0;
  Digest digest = digest_body(nvrtc_version, body.data, body.length);
  if (!digest.hex[0]) {
    text_free(&body);
    return ROTA_OUT_OF_MEMORY;
  }
  char header[HEADER_MAX];
  snprintf(header, sizeof header, "rota-kernel %d %s %s %d %zu %zu %zu\n", EXPORT_FORMAT,
           rota_version(), digest.hex, nvrtc_version, strlen(meta), strlen(kernel->source),
           cubin ? cubin->bytes : (size_t)0);
  const FilePiece pieces[] = {{header, strlen(header)}, {body.data, body.length}};
  rota_status status = file_replace(path, "the kernel", pieces, 2);
  text_free(&body);
  return status;
}

rota_status kernel_export(const rota_kernel *kernel, const char *path) {
  char *meta;
  ROTA_TRY(export_meta_write(kernel, &meta));
  rota_status status = export_parts(kernel, meta, path);
  free(meta);
  return status;
}

/* ---- Import ---- */

/* `data` is NUL-terminated after `length` bytes. */
static rota_status read_header(const char *path, const char *data, size_t length, Header *header,
                               size_t *body) {
  int format = 0, used = 0;
  const char *line_end = memchr(data, '\n', length < HEADER_MAX ? length : HEADER_MAX);
  if (!line_end || sscanf(data, "rota-kernel %d %31s %n", &format, header->version, &used) != 2)
    return status_fail(ROTA_FILE, "%s is not an exported kernel of Rota", path);
  if (format != EXPORT_FORMAT || strcmp(header->version, rota_version()) != 0)
    return status_fail(ROTA_FILE,
                       "%s was written by Rota %s (format %d); this is Rota %s (format %d): export "
                       "the kernel again",
                       path, header->version, format, rota_version(), EXPORT_FORMAT);
  if (sscanf(data + used, "%32s %d %zu %zu %zu", header->digest, &header->nvrtc_version,
             &header->meta, &header->source, &header->cubin) != 5)
    return status_fail(ROTA_FILE, "%s is damaged: its first line", path);
  *body = (size_t)(line_end - data) + 1;
  size_t rest = length - *body;
  if (header->meta > rest || header->source > rest - header->meta ||
      header->cubin != rest - header->meta - header->source)
    return status_fail(ROTA_FILE, "%s is damaged: %zu bytes follow its first line", path, rest);
  Digest digest = digest_body(header->nvrtc_version, data + *body, rest);
  if (!digest.hex[0])
    return ROTA_OUT_OF_MEMORY;
  if (strcmp(digest.hex, header->digest) != 0)
    return status_fail(ROTA_FILE, "%s is damaged: its checksum does not match", path);
  return ROTA_OK;
}

static rota_status fill_kernel(rota_kernel *kernel, const Header *header, const char *body) {
  ROTA_TRY(export_meta_read(body, header->meta, kernel));
  kernel->source = memory_allocate(header->source + 1, 1);
  if (!kernel->source)
    return ROTA_OUT_OF_MEMORY;
  memcpy(kernel->source, body + header->meta, header->source);
  if (kernel->device == ROTA_DEVICE_CPU)
    return ROTA_OK;
  if (header->cubin == 0)
    return status_fail(ROTA_FILE, "the kernel's file holds no cubin");
  return cubin_create(body + header->meta + header->source, header->cubin, header->nvrtc_version,
                      &kernel->cubin);
}

static rota_status load_imported(rota_kernel *kernel, int ordinal) {
  if (kernel->device == ROTA_DEVICE_CPU)
    return ROTA_OK;
  Device *device;
  ROTA_TRY(context_device(kernel->context, ordinal, &device));
  rota_status status;
  if (module_runs_on(&kernel->target, &device->target))
    status = kernel_load(kernel, device);
  else
    status = status_fail(ROTA_UNSUPPORTED,
                         "the kernel was compiled for %s; device %d (%s) is %s: export it for that",
                         kernel->target.name, ordinal, device->name, device->target.name);
  device_release(device);
  return status;
}

rota_status kernel_import(rota_context *context, const char *path, int ordinal,
                          rota_kernel **result) {
  *result = NULL;
  char *data;
  size_t length, body = 0;
  Header header = {0};
  ROTA_TRY(text_read_file(path, &data, &length));
  rota_kernel *kernel = NULL;
  rota_status status = read_header(path, data, length, &header, &body);
  if (status == ROTA_OK) {
    kernel = memory_allocate(1, sizeof *kernel);
    status = kernel ? ROTA_OK : ROTA_OUT_OF_MEMORY;
  }
  if (status == ROTA_OK) {
    kernel->references = 1;
    kernel->context = context;
    status = fill_kernel(kernel, &header, data + body);
    if (status != ROTA_OK)
      status_prefix(status, "%s: ", path);
  }
  free(data);
  if (status == ROTA_OK)
    status = load_imported(kernel, ordinal);
  if (status == ROTA_OK) /* for the workers of the device that it runs on */
    status = kernel_schedule(context, &kernel->spec, &kernel->tiling,
                             kernel->module ? &kernel->module->device->target : &kernel->target,
                             &kernel->schedule);
  if (status != ROTA_OK) {
    kernel_release(kernel);
    return status;
  }
  *result = kernel;
  return ROTA_OK;
}
