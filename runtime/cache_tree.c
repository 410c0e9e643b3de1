/* The cache directory: see cache_tree.h. */
#define _GNU_SOURCE /* O_DIRECTORY, mkdtemp */
#include "runtime/cache_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files.h"

enum { SHARD_DIGITS = 2, KEY_DIGITS = ROTA_DIGEST_SIZE - 1 };

char *cache_tree_entry(const char *root, const Digest *program, const Digest *key) {
  return files_path("%s/%.*s/%s", root, SHARD_DIGITS, program->hex, key->hex);
}

char *cache_tree_lock(const char *root, const char *key) {
  return files_path("%s/lock/%s", root, key);
}

/* ---- Walking -------------------------------------------------------------------------------- */

/* Nothing but names of ours is ever touched: the directory may hold other things. */
static bool is_hex(const char *name, size_t digits) {
  return strlen(name) == digits && strspn(name, "0123456789abcdef") == digits;
}

typedef bool (*Visit)(void *state, const char *path, const char *key);

/* False once the visitor has had enough. */
static bool walk_shard(const char *root, const char *shard, Visit visit, void *state) {
  char *path = files_path("%s/%s", root, shard);
  DIR *directory = path ? opendir(path) : NULL;
  bool more = true;
  for (struct dirent *item; more && directory && (item = readdir(directory));) {
    if (!is_hex(item->d_name, KEY_DIGITS))
      continue;
    char *entry = files_path("%s/%s", path, item->d_name);
    more = entry && visit(state, entry, item->d_name);
    free(entry);
  }
  if (directory)
    closedir(directory);
  free(path);
  return more;
}

void cache_tree_walk(const char *root, const Digest *program, Visit visit, void *state) {
  if (program) {
    char shard[SHARD_DIGITS + 1];
    memcpy(shard, program->hex, SHARD_DIGITS);
    shard[SHARD_DIGITS] = 0;
    walk_shard(root, shard, visit, state);
    return;
  }
  DIR *directory = opendir(root);
  bool more = true;
  for (struct dirent *item; more && directory && (item = readdir(directory));)
    if (is_hex(item->d_name, SHARD_DIGITS))
      more = walk_shard(root, item->d_name, visit, state);
  if (directory)
    closedir(directory);
}

/* ---- Building ------------------------------------------------------------------------------- */

/* A fresh directory in tmp/, which is made if need be. */
static int make_temporary(const char *root, char **path) {
  *path = files_path("%s/tmp/XXXXXX", root);
  if (!*path)
    return ENOMEM;
  int error = files_make_parents(*path);
  if (!error && !mkdtemp(*path))
    error = errno;
  if (error) {
    free(*path);
    *path = NULL;
  }
  return error;
}

int cache_tree_begin(const char *root, CacheDraft *draft) {
  *draft = (CacheDraft){NULL, -1};
  int error = make_temporary(root, &draft->path);
  if (error)
    return error;
  draft->directory = open(draft->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (draft->directory < 0) {
    error = errno;
    cache_tree_abandon(draft);
    return error;
  }
  /* Without locks in this file system, age alone protects the draft. */
  flock(draft->directory, LOCK_EX | LOCK_NB);
  return 0;
}

static void close_draft(CacheDraft *draft) {
  if (draft->directory >= 0) {
    flock(draft->directory, LOCK_UN);
    close(draft->directory);
  }
  free(draft->path);
  *draft = (CacheDraft){NULL, -1};
}

void cache_tree_abandon(CacheDraft *draft) {
  if (draft->path)
    files_remove_tree(draft->path);
  close_draft(draft);
}

int cache_tree_commit(const char *root, CacheDraft *draft, const char *entry) {
  int error = files_make_parents(entry);
  /* A second round where something was in the way: damage, or another builder's entry. */
  for (int round = 0; round < 2 && !error; round++) {
    if (rename(draft->path, entry) == 0) {
      close_draft(draft);
      return 0;
    }
    error = errno;
    bool in_the_way = error == EEXIST || error == ENOTEMPTY || error == ENOTDIR;
    if (round == 0 && in_the_way)
      error = cache_tree_discard(root, entry);
  }
  cache_tree_abandon(draft);
  return error;
}

/* ---- Removing ------------------------------------------------------------------------------- */

int cache_tree_discard(const char *root, const char *entry) {
  char *place;
  int error = make_temporary(root, &place);
  if (error)
    return error;
  char *target = files_path("%s/discarded", place);
  error = target ? 0 : ENOMEM;
  /* Somebody else may have been quicker. */
  if (!error && rename(entry, target) != 0 && errno != ENOENT)
    error = errno;
  files_remove_tree(place);
  free(target);
  free(place);
  return error;
}

int cache_tree_discard_unlocked(const char *root, const char *entry, const char *key) {
  char *path = cache_tree_lock(root, key);
  if (!path)
    return ENOMEM;
  CacheLock lock;
  int error = files_make_parents(path);
  if (!error && cache_lock_acquire(path, 0, &lock, &error) == CACHE_LOCK_HELD) {
    error = cache_tree_discard(root, entry);
    cache_lock_release(&lock);
  }
  free(path);
  return error;
}

static double seconds_since(struct timespec then) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)(now.tv_sec - then.tv_sec) + 1e-9 * (double)(now.tv_nsec - then.tv_nsec);
}

/* A draft is stale when nobody holds its flock; its age covers the moment between making it and
 * locking it. */
static void clean_draft(const char *path, double seconds) {
  struct stat info;
  if (lstat(path, &info) != 0 || seconds_since(info.st_mtim) < seconds)
    return;
  int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool alive = directory >= 0 && flock(directory, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!alive)
    files_remove_tree(path);
  if (directory >= 0)
    close(directory);
}

static void clean_lock(const char *path, double seconds) {
  struct stat info;
  CacheLock lock;
  int error;
  if (lstat(path, &info) == 0 && seconds_since(info.st_mtim) >= seconds &&
      cache_lock_acquire(path, 0, &lock, &error) == CACHE_LOCK_HELD)
    cache_lock_release(&lock); /* which removes the file */
}

static void clean_folder(const char *root, const char *name, void (*clean)(const char *, double),
                         double seconds) {
  char *path = files_path("%s/%s", root, name);
  DIR *directory = path ? opendir(path) : NULL;
  for (struct dirent *item; directory && (item = readdir(directory));) {
    if (item->d_name[0] == '.')
      continue;
    char *full = files_path("%s/%s", path, item->d_name);
    if (full)
      clean(full, seconds);
    free(full);
  }
  if (directory)
    closedir(directory);
  free(path);
}

void cache_tree_clean(const char *root, double seconds) {
  clean_folder(root, "tmp", clean_draft, seconds);
  clean_folder(root, "lock", clean_lock, seconds);
}
