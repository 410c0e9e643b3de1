/* rota doctor: what was found, where, and what to do. Never fails: a missing part is a finding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command/commands.h"
#include "command/model.h"
#include "runtime/compile.h"
#include "runtime/device.h"
#include "runtime/environment.h"

/* One finding: ok or not, what, and advice where it is not. */
static void report(json_t *findings, bool json, bool ok, const char *what, const char *text,
                   const char *advice) {
  if (json) {
    json_array_append_new(findings, json_pack("{s:s s:b s:s s:s}", "part", what, "ok", ok, "found",
                                              text, "advice", ok ? "" : advice));
    return;
  }
  printf("%-4s %-8s %s\n", ok ? "ok" : "--", what, text);
  if (!ok)
    printf("              -> %s\n", advice);
}

/* Whose kernels serve a common model on the device, and why no better ones do. */
static void examine_kernels(json_t *findings, bool json, Script *script, const Device *device) {
  Spec spec;
  if (script_spec(script, "return rota.attention { head_dim = 128 }", "doctor", &spec) != ROTA_OK) {
    report(findings, json, false, "kernels", status_message(), "is ROTA_OVERRIDE_DIR right?");
    return;
  }
  for (int direction = ROTA_FORWARD; direction <= ROTA_BACKWARD; direction++) {
    Tiling tiling;
    const char *name = direction_name((rota_direction)direction);
    if (script_tiling(script, &spec, (rota_direction)direction, ROTA_LAYOUT_ALIGNED,
                      &device->target, &tiling) != ROTA_OK) {
      report(findings, json, false, "kernels", status_message(), "is ROTA_OVERRIDE_DIR right?");
      continue;
    }
    char text[512];
    snprintf(text, sizeof text, "cuda:%d bf16, head_dim 128, %s: %s%s%s%s", device->ordinal, name,
             tiling.architecture, tiling.passed_over[0] ? " (" : "", tiling.passed_over,
             tiling.passed_over[0] ? ")" : "");
    bool old = device->target.sm >= 90 && !device->target.tensor_maps;
    report(findings, json, !old, "kernels", text,
           "a driver for CUDA 12.0 or newer runs faster kernels on this GPU");
  }
  spec_free(&spec);
}

static void examine_driver(json_t *findings, bool json, Script *script) {
  const Driver *driver;
  if (driver_get(&driver) != ROTA_OK) {
    report(findings, json, false, "driver", status_message(),
           "without a GPU kernels run on the CPU device and can still be emitted and compiled");
    return;
  }
  char text[512];
  snprintf(text, sizeof text, "%s, CUDA %d.%d, %d device%s", driver->path, driver->version / 1000,
           driver->version % 1000 / 10, driver->device_count, driver->device_count == 1 ? "" : "s");
  report(findings, json, true, "driver", text, "");
  for (int i = 0; i < driver->device_count; i++) {
    Device *device;
    if (device_open(i, &device) != ROTA_OK) {
      report(findings, json, false, "gpu", status_message(), "use another device");
      continue;
    }
    const Target *target = &device->target;
    snprintf(text, sizeof text, "cuda:%d %s, %s, %d multiprocessors, %d KB shared memory a block",
             i, device->name, target->name, target->multiprocessors,
             target->shared_per_block / 1024);
    report(findings, json, target->sm >= 80, "gpu", text,
           "the kernels need sm_80 or newer; the CPU device serves instead");
    examine_kernels(findings, json, script, device);
    device_release(device);
  }
}

static void examine_compiler(json_t *findings, bool json, Compiler *compiler) {
  Nvrtc *nvrtc = compiler_nvrtc(compiler);
  if (nvrtc_load(nvrtc) != ROTA_OK) {
    report(findings, json, false, "nvrtc", status_message(),
           "install the CUDA toolkit's NVRTC or the wheel nvidia-cuda-nvrtc, or point ROTA_NVRTC "
           "to libnvrtc.so; cached and exported kernels run without it");
    return;
  }
  char text[512];
  size_t count;
  const int *architectures = nvrtc_architectures(nvrtc, &count);
  snprintf(text, sizeof text, "%s, version %s, sm_%d to sm_%d", nvrtc_path(nvrtc),
           nvrtc_version(nvrtc), count ? architectures[0] : 0,
           count ? architectures[count - 1] : 0);
  report(findings, json, true, "nvrtc", text, "");
}

static void examine_cache(json_t *findings, bool json, const CubinCache *cache) {
  const char *directory = cubin_cache_directory(cache);
  if (!directory) {
    report(findings, json, false, "cache", "no disk cache",
           "set ROTA_CACHE_DIR or HOME, so that kernels outlive the process");
    return;
  }
  CubinCacheList list = {0};
  char text[4600];
  if (cubin_cache_list((CubinCache *)cache, &list) != ROTA_OK) {
    report(findings, json, false, "cache", status_message(), "check the directory's permissions");
    return;
  }
  struct stat facts;
  bool exists = stat(directory, &facts) == 0;
  bool writable = !exists || access(directory, W_OK) == 0;
  snprintf(text, sizeof text, "%s%s, %zu kernels, %lld of %lld bytes, %zu damaged", directory,
           exists ? "" : " (not created yet)", list.count, (long long)list.bytes,
           (long long)cubin_cache_max_bytes(cache), list.damaged);
  report(findings, json, writable && !list.damaged, "cache", text,
         writable ? "damaged kernels are compiled again when next used; `rota cache clear` removes "
                    "all"
                  : "not writable: point ROTA_CACHE_DIR to a directory that is");
  cubin_cache_list_free(&list);
}

static void examine_environment(json_t *findings, bool json) {
  for (int i = 0; i < ENVIRONMENT_COUNT; i++) {
    const char *name = environment_name((Environment)i);
    const char *value = environment_get((Environment)i);
    if (!value || strncmp(name, "ROTA_", 5) != 0)
      continue;
    char text[4600];
    snprintf(text, sizeof text, "%s=%.4000s (%s)", name, value,
             environment_meaning((Environment)i));
    report(findings, json, true, "setting", text, "");
  }
}

int command_doctor(int count, char **arguments) {
  Options options;
  options_parse(count, arguments, OPTIONS_JSON, "",
                "Says what was found of driver, GPU, NVRTC and cache, where, and what to do.",
                &options);
  Log log;
  log_init(&log, -1);
  CompilerOptions compiler_options = {.log = &log};
  Compiler *compiler = NULL;
  Store *store = NULL;
  Script *script = NULL;
  if (compiler_create(&compiler_options, &compiler) != ROTA_OK ||
      store_create(environment_get(ENVIRONMENT_OVERRIDE_DIR), &store) != ROTA_OK ||
      script_create(store, &script) != ROTA_OK) {
    store_destroy(store);
    compiler_destroy(compiler);
    return command_fail("doctor");
  }
  json_t *findings = json_array();
  if (!options.json)
    printf("rota %s\n", rota_version());
  examine_driver(findings, options.json, script);
  examine_compiler(findings, options.json, compiler);
  examine_cache(findings, options.json, compiler_cache(compiler));
  examine_environment(findings, options.json);
  script_destroy(script);
  store_destroy(store);
  compiler_destroy(compiler);
  if (!options.json) {
    json_decref(findings);
    return EXIT_SUCCESS;
  }
  return json_print(findings) == ROTA_OK ? EXIT_SUCCESS : command_fail("doctor");
}
