/* rota cache: the cache of compiled kernels on disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command/commands.h"
#include "command/model.h"
#include "runtime/cubin_cache.h"

static void print_item(const CubinCacheItem *item) {
  printf("%s  %8lld bytes  %8.0f s ago  ", item->key.hex, (long long)item->bytes, item->age);
  if (item->damaged)
    printf("DAMAGED: %s\n", item->reason);
  else
    printf("%-7s %s\n", item->architecture, item->label);
}

static json_t *describe_item(const CubinCacheItem *item) {
  return json_pack("{s:s s:s s:s s:I s:f s:b s:s}", "key", item->key.hex, "architecture",
                   item->architecture, "label", item->label, "bytes", (json_int_t)item->bytes,
                   "age_seconds", item->age, "damaged", item->damaged, "reason", item->reason);
}

/* `verify` prints damaged entries alone and fails if there are any. */
static rota_status list_entries(CubinCache *cache, const Options *options, bool verify,
                                bool *damaged) {
  CubinCacheList list;
  ROTA_TRY(cubin_cache_list(cache, &list));
  rota_status status = ROTA_OK;
  *damaged = list.damaged > 0;
  if (options->json) {
    json_t *items = json_array();
    for (size_t i = 0; i < list.count; i++)
      json_array_append_new(items, describe_item(&list.items[i]));
    status = json_print(json_pack("{s:s? s:I s:I s:I s:o}", "directory",
                                  cubin_cache_directory(cache), "bytes", (json_int_t)list.bytes,
                                  "max_bytes", (json_int_t)cubin_cache_max_bytes(cache), "damaged",
                                  (json_int_t)list.damaged, "entries", items));
  } else {
    for (size_t i = 0; i < list.count; i++)
      if (!verify || list.items[i].damaged)
        print_item(&list.items[i]);
    const char *directory = cubin_cache_directory(cache);
    printf("%s: %zu entries, %zu damaged, %lld of %lld bytes\n",
           directory ? directory : "no cache directory", list.count, list.damaged,
           (long long)list.bytes, (long long)cubin_cache_max_bytes(cache));
  }
  cubin_cache_list_free(&list);
  return status;
}

static rota_status clear_entries(CubinCache *cache, const Options *options) {
  size_t removed = 0;
  int64_t bytes = 0;
  ROTA_TRY(cubin_cache_clear(cache, &removed, &bytes));
  if (options->json)
    return json_print(
        json_pack("{s:I s:I}", "removed", (json_int_t)removed, "bytes", (json_int_t)bytes));
  printf("%zu entries removed, %lld bytes\n", removed, (long long)bytes);
  return ROTA_OK;
}

int command_cache(int count, char **arguments) {
  Options options;
  options_parse(count, arguments, OPTIONS_ACTION | OPTIONS_JSON, "list|verify|clear",
                "The cache of compiled kernels: ROTA_CACHE_DIR, else $XDG_CACHE_HOME/rota, else "
                "~/.cache/rota. `verify` exits with 1 if an entry is damaged; the next use of that "
                "kernel repairs it.",
                &options);
  Log log;
  log_init(&log, -1);
  CubinCache *cache = NULL;
  bool damaged = false, verify = !strcmp(options.action, "verify");
  rota_status status = cubin_cache_create(NULL, 0, &log, &cache);
  if (status == ROTA_OK) {
    if (verify || !strcmp(options.action, "list"))
      status = list_entries(cache, &options, verify, &damaged);
    else if (!strcmp(options.action, "clear"))
      status = clear_entries(cache, &options);
    else
      status =
          status_fail(ROTA_INVALID_ARGUMENT, "'%s' is none of list, verify, clear", options.action);
  }
  cubin_cache_destroy(cache);
  if (status != ROTA_OK)
    return command_fail("cache");
  return verify && damaged ? EXIT_FAILURE : EXIT_SUCCESS;
}
