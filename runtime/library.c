/* Shared libraries found at run time. */
#define _GNU_SOURCE /* dlinfo */
#include "runtime/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

struct Library {
  void *handle;
  char *path;
};

/* What dlopen was given may be a bare name; the link map knows the file. */
static char *resolved_path(void *handle, const char *name) {
  struct link_map *map = NULL;
  bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && map->l_name[0];
  return memory_copy_string(known ? map->l_name : name);
}

Library *library_open(const char *const *names, Text *tried) {
  for (int i = 0; names[i]; i++) {
    /* RTLD_LOCAL: a host program with its own copy of the library must not see ours, nor we its. */
    void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char *reason = dlerror();
      if (tried)
        text_format(tried, "    %s: %s\n", names[i], reason ? reason : "does not load");
      continue;
    }
    Library *library = memory_allocate(1, sizeof *library);
    if (library) {
      library->handle = handle;
      library->path = resolved_path(handle, names[i]);
      if (library->path)
        return library;
    }
    free(library);
    dlclose(handle);
    return NULL;
  }
  return NULL;
}

void *library_symbol(const Library *library, const char *name) {
  return dlsym(library->handle, name);
}

const char *library_path(const Library *library) {
  return library->path;
}

void library_close(Library *library) {
  if (!library)
    return;
  dlclose(library->handle);
  free(library->path);
  free(library);
}
