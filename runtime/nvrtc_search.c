/* The search for NVRTC: see nvrtc_search.h. */
#define _GNU_SOURCE /* glob, realpath, ElfW */
#include "runtime/nvrtc_search.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/environment.h"

/* The newest major version first. libnvrtc.so alone comes with development packages. */
static const char *const file_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};

static const char *const system_directories[] = {"/usr/local/lib",
                                                 "/usr/lib/x86_64-linux-gnu",
                                                 "/usr/lib/aarch64-linux-gnu",
                                                 "/usr/lib64",
                                                 "/usr/lib/wsl/lib",
                                                 "/usr/lib",
                                                 "/opt/cuda/lib64",
                                                 NULL};

/* Below the prefix of a Python: wheels put each library under site-packages/nvidia/NAME/lib. The
 * last pattern serves a directory of version shims. */
static const char *const wheel_patterns[] = {"lib/python3*/site-packages/nvidia/*/lib",
                                             "lib64/python3*/site-packages/nvidia/*/lib",
                                             "lib/python3*/dist-packages/nvidia/*/lib",
                                             "local/lib/python3*/dist-packages/nvidia/*/lib",
                                             "versions/*/lib/python3*/site-packages/nvidia/*/lib",
                                             NULL};

static void add_found(NvrtcSearch *search, const char *path) {
  for (size_t i = 0; i < search->count; i++)
    if (!strcmp(search->found[i], path))
      return;
  char *copy = memory_copy_string(path);
  char **grown = copy ? memory_resize(search->found, search->count + 1, sizeof *grown) : NULL;
  if (!grown) {
    free(copy);
    search->places.failed = true; /* sticky, reported at the end */
    return;
  }
  search->found = grown;
  search->found[search->count++] = copy;
}

static bool is_file(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Adds the directory's first library. Places are listed whether they hold one or not. */
static void look_in(NvrtcSearch *search, const char *origin, const char *directory) {
  Text path = {0};
  const char *result = access(directory, F_OK) == 0 ? "no libnvrtc" : "no such directory";
  for (int i = 0; file_names[i]; i++) {
    path.length = 0;
    text_format(&path, "%s/%s", directory, file_names[i]);
    if (!path.failed && is_file(path.data)) {
      result = file_names[i];
      add_found(search, path.data);
      break;
    }
  }
  text_format(&search->places, "    %s%s%s: %s\n", origin ? origin : "", origin ? " " : "",
              directory, result);
  search->places.failed |= path.failed;
  text_free(&path);
}

/* Each element of a colon-separated list. */
static void look_in_list(NvrtcSearch *search, Environment variable) {
  const char *list = environment_get(variable);
  char *copy = list ? memory_copy_string(list) : NULL;
  char *rest = NULL;
  for (char *item = copy ? strtok_r(copy, ":", &rest) : NULL; item;
       item = strtok_r(NULL, ":", &rest))
    look_in(search, environment_name(variable), item);
  free(copy);
}

/* Each directory that matches, in descending order where the names carry versions. */
static void look_in_matches(NvrtcSearch *search, const char *origin, const char *prefix,
                            const char *pattern, bool descending) {
  Text full = {0};
  text_format(&full, "%s/%s", prefix, pattern);
  glob_t matches = {0};
  if (!full.failed && glob(full.data, 0, NULL, &matches) == 0)
    for (size_t i = 0; i < matches.gl_pathc; i++)
      look_in(search, origin, matches.gl_pathv[descending ? matches.gl_pathc - 1 - i : i]);
  globfree(&matches);
  search->places.failed |= full.failed;
  text_free(&full);
}

static void look_in_prefix(NvrtcSearch *search, const char *origin, const char *prefix) {
  for (int i = 0; wheel_patterns[i]; i++)
    look_in_matches(search, origin, prefix, wheel_patterns[i], false);
}

/* The part before the last `levels` path elements, in place; false if there are not so many. */
static bool strip_elements(char *path, int levels) {
  for (; levels > 0; levels--) {
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
      return false;
    *slash = 0;
  }
  return true;
}

/* A Python at PREFIX/bin/python3: its own prefix, and that of the file it links to (a virtual
 * environment's base). */
static void look_beside_python(NvrtcSearch *search, const char *directory, const char *program) {
  char path[PATH_MAX], base[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s", directory, program);
  if (length < 0 || (size_t)length >= sizeof path || directory[0] != '/')
    return;
  if (!is_file(path))
    return;
  if (!realpath(path, base))
    base[0] = 0;
  if (!strip_elements(path, 2))
    return;
  look_in_prefix(search, "Python's wheels", path);
  if (strip_elements(base, 2) && strcmp(base, path) != 0)
    look_in_prefix(search, "Python's wheels", base);
}

static void look_in_wheels(NvrtcSearch *search) {
  const char *environment = environment_get(ENVIRONMENT_VIRTUAL_ENV);
  if (environment)
    look_in_prefix(search, "VIRTUAL_ENV", environment);
  const char *conda = environment_get(ENVIRONMENT_CONDA_PREFIX);
  if (conda) {
    look_in_matches(search, "CONDA_PREFIX", conda, "lib", false);
    look_in_prefix(search, "CONDA_PREFIX", conda);
  }
  const char *list = environment_get(ENVIRONMENT_PATH);
  char *copy = list ? memory_copy_string(list) : NULL;
  char *rest = NULL;
  for (char *item = copy ? strtok_r(copy, ":", &rest) : NULL; item;
       item = strtok_r(NULL, ":", &rest)) {
    look_beside_python(search, item, "python3");
    look_beside_python(search, item, "python");
  }
  free(copy);
  const char *home = environment_get(ENVIRONMENT_HOME);
  if (home)
    look_in_matches(search, "user's wheels", home, ".local/lib/python3*/site-packages/nvidia/*/lib",
                    false);
}

/* A path that the user named: the only one. A bare name is left to the linker. */
static void look_at_path(NvrtcSearch *search, const char *origin, const char *path) {
  const char *result = !strchr(path, '/')        ? "a name for the dynamic linker"
                       : is_file(path)           ? "there"
                       : access(path, F_OK) == 0 ? "not a file"
                                                 : "no such file";
  if (!strchr(path, '/') || is_file(path))
    add_found(search, path);
  text_format(&search->places, "    %s %s: %s\n", origin, path, result);
}

rota_status nvrtc_search(const char *path, NvrtcSearch *search) {
  *search = (NvrtcSearch){0};
  const char *variable = environment_get(ENVIRONMENT_NVRTC);
  if (path && *path) {
    look_at_path(search, "given path", path);
  } else if (variable) {
    look_at_path(search, "ROTA_NVRTC", variable);
  } else {
    static const Environment toolkits[] = {ENVIRONMENT_CUDA_PATH, ENVIRONMENT_CUDA_HOME};
    look_in_list(search, ENVIRONMENT_LIBRARY_PATH);
    for (int i = 0; i < 2; i++)
      if (environment_get(toolkits[i])) {
        look_in_matches(search, environment_name(toolkits[i]), environment_get(toolkits[i]),
                        "lib64", false);
        look_in_matches(search, environment_name(toolkits[i]), environment_get(toolkits[i]), "lib",
                        false);
      }
    look_in(search, NULL, "/usr/local/cuda/lib64");
    look_in_matches(search, NULL, "/usr/local", "cuda-*/lib64", true);
    for (int i = 0; system_directories[i]; i++)
      look_in(search, NULL, system_directories[i]);
    look_in_wheels(search);
    for (int i = 0; file_names[i]; i++)
      add_found(search, file_names[i]);
    text_append(&search->places, "    the dynamic linker's search for libnvrtc.so.13, .12\n");
  }
  rota_status status = text_status(&search->places);
  if (status != ROTA_OK)
    nvrtc_search_free(search);
  return status;
}

void nvrtc_search_free(NvrtcSearch *search) {
  for (size_t i = 0; i < search->count; i++)
    free(search->found[i]);
  free(search->found);
  text_free(&search->places);
  *search = (NvrtcSearch){0};
}

/* ---- Identity ----------------------------------------------------------------------------- */

/* Looks for the GNU build id in one note segment of the file. */
static bool build_id_in_notes(int file, const ElfW(Phdr) * segment, Digest *identity) {
  unsigned char notes[4096];
  size_t size = segment->p_filesz < sizeof notes ? segment->p_filesz : sizeof notes;
  if (pread(file, notes, size, (off_t)segment->p_offset) != (ssize_t)size)
    return false;
  /* A note: header, name, content, each padded to 4 bytes. */
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    memcpy(&note, notes + at, sizeof note);
    size_t name = at + sizeof note;
    size_t content = name + (((size_t)note.n_namesz + 3) & ~(size_t)3);
    size_t next = content + (((size_t)note.n_descsz + 3) & ~(size_t)3);
    if (next > size)
      return false;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(notes + name, "GNU", 4)) {
      *identity = digest_of(notes + content, note.n_descsz);
      return true;
    }
    at = next;
  }
  return false;
}

static bool build_id(int file, Digest *identity) {
  ElfW(Ehdr) header;
  if (pread(file, &header, sizeof header, 0) != (ssize_t)sizeof header ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr)))
    return false;
  for (int i = 0; i < header.e_phnum; i++) {
    ElfW(Phdr) segment;
    off_t at = (off_t)(header.e_phoff + (size_t)i * sizeof segment);
    if (pread(file, &segment, sizeof segment, at) != (ssize_t)sizeof segment)
      return false;
    if (segment.p_type == PT_NOTE && build_id_in_notes(file, &segment, identity))
      return true;
  }
  return false;
}

/* Reads the whole file: 30 ms for a real libnvrtc, which however has a build id. */
static rota_status content_identity(int file, Digest *identity) {
  enum { CHUNK = 1 << 20 }; /* bytes */
  unsigned char *chunk = memory_allocate(CHUNK, 1);
  DigestStream *stream = chunk ? digest_begin() : NULL;
  if (!stream) {
    free(chunk);
    return ROTA_OUT_OF_MEMORY;
  }
  ssize_t count;
  for (off_t at = 0; (count = pread(file, chunk, CHUNK, at)) > 0; at += count)
    digest_add(stream, chunk, (size_t)count);
  *identity = digest_end(stream);
  free(chunk);
  return count < 0 ? ROTA_FILE : ROTA_OK;
}

rota_status nvrtc_file_identity(const char *path, Digest *identity) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return status_fail(ROTA_FILE, "%s: cannot be opened: %s", path, strerror(errno));
  rota_status status = build_id(file, identity) ? ROTA_OK : content_identity(file, identity);
  if (status == ROTA_FILE)
    status_fail(ROTA_FILE, "%s: cannot be read: %s", path, strerror(errno));
  close(file);
  return status;
}
