/* From a program to a cubin: see compile.h. */
#include "runtime/compile.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator/clock.h"
#include "runtime/compile_dump.h"
#include "runtime/environment.h"

enum {
  DEFAULT_MEMORY_BYTES = 64 << 20,
  DEFAULT_LOCK_SECONDS = 120,
  LABEL_MAX = 160, /* characters of a program's provenance kept as its label */
};

/* NVRTC's options but for -arch and line information. Each changes the key of every kernel. */
static const struct {
  const char *text;
  int since; /* the first version that knows it, as in nvrtc_version_number */
} compile_options[] = {
    {"--std=c++17", 0},
    {"-default-device", 0},    /* functions without a mark are for the device: abi.h is plain C */
    {"--ptxas-options=-v", 0}, /* registers and spills, into the log */
    {"--modify-stack-limit=false", 11080}, /* the process's limits are not ours to change */
    {"--minimal", 12040},  /* no runtime API, textures or launches from the device: 20 ms less */
    {"--no-cache", 12090}, /* of its own, which gives no log; see cubin_cache.h */
};
enum { OPTION_COUNT = sizeof compile_options / sizeof compile_options[0] };
static const char line_info_option[] = "-lineinfo";

/* A program being resolved, or resolved and kept. Found by program digest: a compiler has one
 * NVRTC. */
typedef struct Flight {
  Digest program;
  bool done;
  int waiters;  /* threads that wait for it; it stays until they have seen it */
  Cubin *cubin; /* once done; NULL: failed, with status and message */
  rota_status status;
  char *message;
  unsigned long used; /* clock of the last use, for dropping */
  struct Flight *next;
} Flight;

struct Compiler {
  Log *log;
  CubinCache *cache;
  Nvrtc *nvrtc;
  char *dump_dir; /* NULL: none */
  bool line_info;
  double lock_seconds;
  size_t memory_bytes;
  pthread_mutex_t mutex; /* guards what follows; held for moments only */
  pthread_cond_t landed; /* some flight is done */
  Flight *flights;
  unsigned long clock;
  CompilerCounts counts;
  Compiler *next; /* in the registry */
};

static void flight_free(Flight *flight) {
  cubin_destroy(flight->cubin);
  free(flight->message);
  free(flight);
}

static void remove_flight(Compiler *compiler, Flight *flight) {
  for (Flight **link = &compiler->flights; *link; link = &(*link)->next)
    if (*link == flight) {
      *link = flight->next;
      break;
    }
  flight_free(flight);
}

/* ---- Fork: a child must find no mutex held by a thread that it does not have
 * ---------------------- */

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static Compiler *registry; /* every compiler of the process */

static void before_fork(void) {
  pthread_mutex_lock(&registry_mutex);
  for (Compiler *compiler = registry; compiler; compiler = compiler->next)
    pthread_mutex_lock(&compiler->mutex);
}

static void after_fork_in_parent(void) {
  for (Compiler *compiler = registry; compiler; compiler = compiler->next)
    pthread_mutex_unlock(&compiler->mutex);
  pthread_mutex_unlock(&registry_mutex);
}

/* Neither the threads at work nor those that wait for them are here: only what is done stays. */
static void ground_flights(Compiler *compiler) {
  for (Flight *flight = compiler->flights, *next; flight; flight = next) {
    next = flight->next;
    flight->waiters = 0;
    if (!flight->cubin)
      remove_flight(compiler, flight);
  }
}

static void after_fork_in_child(void) {
  for (Compiler *compiler = registry; compiler; compiler = compiler->next) {
    pthread_mutex_init(&compiler->mutex, NULL);
    pthread_cond_init(&compiler->landed, NULL);
    ground_flights(compiler);
  }
  pthread_mutex_init(&registry_mutex, NULL);
}

static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void enter_registry(Compiler *compiler) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&registry_mutex);
  compiler->next = registry;
  registry = compiler;
  pthread_mutex_unlock(&registry_mutex);
}

static void leave_registry(Compiler *compiler) {
  pthread_mutex_lock(&registry_mutex);
  for (Compiler **link = &registry; *link; link = &(*link)->next)
    if (*link == compiler) {
      *link = compiler->next;
      break;
    }
  pthread_mutex_unlock(&registry_mutex);
}

/* ---- Creation ------------------------------------------------------------------------------- */

rota_status compiler_create(const CompilerOptions *options, Compiler **result) {
  *result = NULL;
  Compiler *compiler = memory_allocate(1, sizeof *compiler);
  if (!compiler)
    return ROTA_OUT_OF_MEMORY;
  pthread_mutex_init(&compiler->mutex, NULL);
  pthread_cond_init(&compiler->landed, NULL);
  enter_registry(compiler);
  compiler->log = options->log;
  compiler->line_info = options->line_info;
  compiler->lock_seconds = options->lock_seconds > 0 ? options->lock_seconds : DEFAULT_LOCK_SECONDS;
  compiler->memory_bytes = options->memory_bytes ? options->memory_bytes : DEFAULT_MEMORY_BYTES;
  const char *dump_dir = environment_get(ENVIRONMENT_DUMP_DIR);
  rota_status status = ROTA_OK;
  if (dump_dir && !(compiler->dump_dir = memory_copy_string(dump_dir)))
    status = ROTA_OUT_OF_MEMORY;
  if (status == ROTA_OK)
    status = cubin_cache_create(options->cache_dir, options->cache_max_bytes, options->log,
                                &compiler->cache);
  if (status == ROTA_OK)
    status = nvrtc_create(options->nvrtc_path, options->log, &compiler->nvrtc);
  if (status != ROTA_OK) {
    compiler_destroy(compiler);
    return status;
  }
  *result = compiler;
  return ROTA_OK;
}

void compiler_destroy(Compiler *compiler) {
  if (!compiler)
    return;
  leave_registry(compiler);
  while (compiler->flights) {
    Flight *next = compiler->flights->next;
    flight_free(compiler->flights);
    compiler->flights = next;
  }
  nvrtc_destroy(compiler->nvrtc);
  cubin_cache_destroy(compiler->cache);
  pthread_cond_destroy(&compiler->landed);
  pthread_mutex_destroy(&compiler->mutex);
  free(compiler->dump_dir);
  free(compiler);
}

CubinCache *compiler_cache(const Compiler *compiler) {
  return compiler->cache;
}

Nvrtc *compiler_nvrtc(const Compiler *compiler) {
  return compiler->nvrtc;
}

static void count(Compiler *compiler, int *counter) {
  pthread_mutex_lock(&compiler->mutex);
  ++*counter;
  pthread_mutex_unlock(&compiler->mutex);
}

CompilerCounts compiler_counts(Compiler *compiler) {
  pthread_mutex_lock(&compiler->mutex);
  CompilerCounts counts = compiler->counts;
  pthread_mutex_unlock(&compiler->mutex);
  return counts;
}

/* ---- Keys ----------------------------------------------------------------------------------- */

/* One request on its way. */
typedef struct Job {
  Compiler *compiler;
  const Program *program;
  const char *architecture;
  Digest digest;                    /* program, options and architecture */
  Digest key;                       /* digest and NVRTC build */
  char name[ROTA_DIGEST_SIZE + 33]; /* of the dump directory */
} Job;

/* "sm_90", "sm_90a". Strict, because it becomes an option and part of a file name. */
static rota_status check_architecture(const char *architecture) {
  size_t digits = 0;
  bool valid = architecture && strncmp(architecture, "sm_", 3) == 0;
  if (valid) {
    digits = strspn(architecture + 3, "0123456789");
    const char *suffix = architecture + 3 + digits;
    valid =
        digits >= 2 && digits <= 4 && (!*suffix || !strcmp(suffix, "a") || !strcmp(suffix, "f"));
  }
  if (valid)
    return ROTA_OK;
  return status_fail(ROTA_INVALID_ARGUMENT,
                     "architecture \"%.32s\": a name such as sm_80, sm_90 or sm_90a is expected",
                     architecture ? architecture : "");
}

static rota_status digest_result(const Digest *digest) {
  return digest->hex[0] ? ROTA_OK : ROTA_OUT_OF_MEMORY;
}

static rota_status job_start(Job *job) {
  Digest program = program_digest(job->program, job->compiler->line_info);
  ROTA_TRY(digest_result(&program));
  DigestStream *stream = digest_begin();
  digest_add_string(stream, program.hex);
  digest_add_string(stream, job->architecture);
  for (int i = 0; i < OPTION_COUNT; i++)
    digest_add_string(stream, compile_options[i].text);
  if (job->compiler->line_info)
    digest_add_string(stream, line_info_option);
  job->digest = digest_end(stream);
  snprintf(job->name, sizeof job->name, "%s_%s", job->digest.hex, job->architecture);
  return digest_result(&job->digest);
}

static rota_status job_set_key(Job *job, const Digest *nvrtc) {
  DigestStream *stream = digest_begin();
  digest_add_string(stream, job->digest.hex);
  digest_add_string(stream, nvrtc->hex);
  job->key = digest_end(stream);
  return digest_result(&job->key);
}

/* The first line of main.cu says what the program is: "// portable 128x64 bf16 d128 causal | ...".
 */
static void program_label(const Program *program, char label[LABEL_MAX]) {
  const char *text = program->files[0].text;
  text += strspn(text, "/ ");
  size_t length = strcspn(text, "\n");
  if (length >= LABEL_MAX)
    length = LABEL_MAX - 1;
  for (size_t i = 0; i < length; i++) /* it goes into JSON and onto terminals */
    label[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
  label[length] = 0;
}

/* ---- NVRTC ---------------------------------------------------------------------------------- */

static rota_status ask_nvrtc(const Job *job, NvrtcResult *result) {
  const Compiler *compiler = job->compiler;
  const char *options[OPTION_COUNT + 1];
  int option_count = 0;
  for (int i = 0; i < OPTION_COUNT; i++)
    if (nvrtc_version_number(compiler->nvrtc) >= compile_options[i].since)
      options[option_count++] = compile_options[i].text;
  if (compiler->line_info)
    options[option_count++] = line_info_option;
  size_t files = (size_t)job->program->count;
  const char **names = memory_allocate(2 * files, sizeof *names);
  if (!names)
    return ROTA_OUT_OF_MEMORY;
  for (size_t i = 0; i < files; i++) {
    names[i] = job->program->files[i].name;
    names[files + i] = job->program->files[i].text;
  }
  NvrtcRequest request = {names,   names + files, (int)files, job->architecture,
                          options, option_count};
  rota_status status = nvrtc_compile(compiler->nvrtc, &request, result);
  free(names);
  return status;
}

/* Called with NVRTC loaded. */
static rota_status compile(const Job *job, Cubin **cubin) {
  Compiler *compiler = job->compiler;
  NvrtcResult result = {0};
  double begin = clock_seconds();
  rota_status status = ask_nvrtc(job, &result);
  double seconds = clock_seconds() - begin;
  const char *log = result.log ? result.log : "";
  if (status == ROTA_OK)
    status = cubin_create(result.cubin, result.size, nvrtc_version_number(compiler->nvrtc), cubin);
  if (status == ROTA_OK) {
    free((*cubin)->log);
    (*cubin)->log = result.log;
    result.log = NULL;
    (*cubin)->key = job->key;
    (*cubin)->seconds = seconds;
    (*cubin)->hit = false;
    cubin_read_log(*cubin, log);
    log_print(compiler->log, 1,
              "compiled %s for %s in %.0f ms: %zu bytes, %d registers, %d B spilled",
              job->digest.hex, job->architecture, 1e3 * seconds, (*cubin)->bytes,
              (*cubin)->registers, (*cubin)->spill_bytes);
  }
  bool warned = strstr(log, "warning") || cubin_log_serialised(log) || status != ROTA_OK;
  if (*log)
    log_print(compiler->log, warned ? 1 : 3, "NVRTC's log for %s:\n%s", job->digest.hex, log);
  compile_dump_cubin(compiler->dump_dir, job->name, *cubin, log, compiler->log);
  nvrtc_result_free(&result);
  return status;
}

/* ---- Disk ----------------------------------------------------------------------------------- */

/* Takes the entry over. */
static rota_status cubin_from_entry(CacheEntry *entry, Cubin **result) {
  rota_status status = cubin_create(entry->cubin, entry->size, entry->nvrtc_version, result);
  if (status == ROTA_OK) {
    (*result)->key = entry->key;
    (*result)->registers = entry->registers;
    (*result)->spill_bytes = entry->spill_bytes;
    (*result)->shared_bytes = entry->shared_bytes;
  }
  cache_entry_free(entry);
  return status;
}

static void store(const Job *job, const Cubin *cubin) {
  char label[LABEL_MAX];
  program_label(job->program, label);
  CacheEntry entry = {.key = job->key,
                      .program = job->digest,
                      .content = cubin->content,
                      .nvrtc_version = cubin->nvrtc_version,
                      .label = label,
                      .registers = cubin->registers,
                      .spill_bytes = cubin->spill_bytes,
                      .shared_bytes = cubin->shared_bytes,
                      .cubin = cubin->data,
                      .size = cubin->bytes};
  snprintf(entry.architecture, sizeof entry.architecture, "%s", job->architecture);
  char *source;
  if (program_flatten(job->program, &source) == ROTA_OK) {
    cubin_cache_store(job->compiler->cache, &entry, source);
    free(source);
  }
}

/* Not in the cache under this key: compiles, unless another process is just doing so. */
static rota_status compile_under_lock(const Job *job, Cubin **cubin) {
  Compiler *compiler = job->compiler;
  CacheLock lock;
  CacheLockState state =
      cubin_cache_lock(compiler->cache, &job->key, compiler->lock_seconds, &lock);
  CacheEntry entry;
  rota_status status;
  if (cubin_cache_find_locked(compiler->cache, &job->digest, &job->key, &entry)) {
    status = cubin_from_entry(&entry, cubin);
  } else {
    status = compile(job, cubin);
    if (status == ROTA_OK && state == CACHE_LOCK_HELD)
      store(job, *cubin);
  }
  if (state == CACHE_LOCK_HELD)
    cache_lock_release(&lock);
  return status;
}

/* Settles the key: NVRTC's identity as read from its file, and once more after loading it, which
 * may have settled on another file. `ready`: there is a cubin. */
static rota_status find_or_load(Job *job, Cubin **cubin, bool *ready) {
  Compiler *compiler = job->compiler;
  Digest identity, before = {""};
  for (;;) {
    ROTA_TRY(nvrtc_identify(compiler->nvrtc, &identity));
    if (!strcmp(identity.hex, before.hex))
      return ROTA_OK;
    ROTA_TRY(job_set_key(job, &identity));
    CacheEntry entry;
    *ready = cubin_cache_find(compiler->cache, &job->digest, &job->key, &entry);
    if (*ready)
      return cubin_from_entry(&entry, cubin);
    ROTA_TRY(nvrtc_load(compiler->nvrtc));
    before = identity;
  }
}

/* Where there is no NVRTC that serves, another one's cubin of the same program is as good. Keeps
 * the failure's message. */
static rota_status rescue(const Job *job, rota_status failure, Cubin **cubin) {
  char *message = memory_copy_string(status_message());
  CacheEntry entry;
  rota_status status = failure;
  if (cubin_cache_find_program(job->compiler->cache, &job->digest, &entry))
    status = cubin_from_entry(&entry, cubin);
  else if (message)
    status_fail(failure, "%s", message);
  free(message);
  return status;
}

static rota_status resolve(Job *job, Cubin **cubin) {
  Compiler *compiler = job->compiler;
  bool ready = false;
  *cubin = NULL;
  compile_dump_program(compiler->dump_dir, job->name, job->program, compiler->log);
  rota_status status = find_or_load(job, cubin, &ready);
  if (status == ROTA_OK && !ready)
    status = compile_under_lock(job, cubin);
  if (status == ROTA_NO_COMPILER || status == ROTA_UNSUPPORTED)
    status = rescue(job, status, cubin);
  if (status != ROTA_OK)
    count(compiler, &compiler->counts.failed);
  else if ((*cubin)->hit)
    count(compiler, &compiler->counts.from_disk);
  else
    count(compiler, &compiler->counts.compiled);
  if (status == ROTA_OK && (*cubin)->hit)
    compile_dump_cubin(compiler->dump_dir, job->name, *cubin, "", compiler->log);
  return status;
}

/* ---- Memory: called with the mutex held --------------------------------------------------------
 */

static Flight *find_flight(Compiler *compiler, const Digest *program) {
  for (Flight *flight = compiler->flights; flight; flight = flight->next)
    if (!strcmp(flight->program.hex, program->hex))
      return flight;
  return NULL;
}

/* Drops the longest unused cubins beyond the limit. */
static void trim(Compiler *compiler) {
  for (;;) {
    size_t bytes = 0;
    Flight *oldest = NULL;
    for (Flight *flight = compiler->flights; flight; flight = flight->next) {
      if (!flight->cubin || flight->waiters)
        continue;
      bytes += flight->cubin->bytes;
      if (!oldest || flight->used < oldest->used)
        oldest = flight;
    }
    if (bytes <= compiler->memory_bytes || !oldest)
      return;
    remove_flight(compiler, oldest);
  }
}

/* Waits until the flight has landed and copies what came of it. */
static rota_status await_flight(Compiler *compiler, Flight *flight, Cubin **cubin) {
  flight->waiters++;
  while (!flight->done)
    pthread_cond_wait(&compiler->landed, &compiler->mutex);
  flight->waiters--;
  rota_status status;
  if (flight->cubin) {
    flight->used = ++compiler->clock;
    compiler->counts.from_memory++;
    status = cubin_copy(flight->cubin, cubin);
  } else {
    status = status_fail(flight->status, "%s", flight->message ? flight->message : "");
    if (!flight->waiters)
      remove_flight(compiler, flight);
  }
  return status;
}

/* The first to ask flies; the result is kept if it is one, else only for those who already wait. */
static rota_status fly(Compiler *compiler, Flight *flight, Job *job, Cubin **cubin) {
  pthread_mutex_unlock(&compiler->mutex);
  rota_status status = resolve(job, cubin);
  Cubin *kept = NULL;
  char *message = NULL;
  if (status == ROTA_OK)
    cubin_copy(*cubin, &kept); /* without memory for a copy, waiters learn that */
  else
    message = memory_copy_string(status_message());
  pthread_mutex_lock(&compiler->mutex);
  flight->done = true;
  flight->cubin = kept;
  flight->message = message;
  flight->status = status == ROTA_OK ? ROTA_OUT_OF_MEMORY : status;
  flight->used = ++compiler->clock;
  pthread_cond_broadcast(&compiler->landed);
  if (!kept && !flight->waiters)
    remove_flight(compiler, flight);
  trim(compiler);
  return status;
}

rota_status compile_program(Compiler *compiler, const Program *program, const char *architecture,
                            Cubin **cubin) {
  *cubin = NULL;
  Job job = {.compiler = compiler, .program = program, .architecture = architecture};
  ROTA_TRY(check_architecture(architecture));
  ROTA_TRY(job_start(&job));
  pthread_mutex_lock(&compiler->mutex);
  Flight *flight = find_flight(compiler, &job.digest);
  rota_status status = ROTA_OUT_OF_MEMORY;
  if (flight) {
    status = await_flight(compiler, flight, cubin);
  } else if ((flight = memory_allocate(1, sizeof *flight))) {
    flight->program = job.digest;
    flight->next = compiler->flights;
    compiler->flights = flight;
    status = fly(compiler, flight, &job, cubin);
  }
  pthread_mutex_unlock(&compiler->mutex);
  return status;
}
