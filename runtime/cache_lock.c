/* Locks between processes: see cache_lock.h. */
#include "runtime/cache_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "generator/clock.h"

/* Waiters look again after 1 ms, then after twice as long each time up to 16 ms: a compile takes
 * hundreds. */
enum { FIRST_PAUSE_NS = 1000000, LONGEST_PAUSE_NS = 16000000 };

/* Whether the path still names the open file: its last holder may have removed it. */
static bool is_current(int file, const char *path) {
  struct stat held, named;
  return fstat(file, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

/* One try. 0: held; EWOULDBLOCK: held by another; else why it cannot be. */
static int try_lock(const char *path, int *file) {
  for (;;) {
    *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*file < 0)
      return errno;
    int result;
    do
      result = flock(*file, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result == 0 && is_current(*file, path))
      return 0;
    int error = result == 0 ? 0 : errno;
    close(*file);
    *file = -1;
    if (error)
      return error;
  }
}

CacheLockState cache_lock_acquire(const char *path, double seconds, CacheLock *lock, int *error) {
  *lock = (CacheLock){-1, NULL};
  lock->path = memory_copy_string(path);
  if (!lock->path) {
    *error = ENOMEM;
    return CACHE_LOCK_UNAVAILABLE;
  }
  double end = clock_seconds() + seconds;
  long pause = FIRST_PAUSE_NS;
  while ((*error = try_lock(path, &lock->file)) == EWOULDBLOCK && clock_seconds() < end) {
    nanosleep(&(struct timespec){0, pause}, NULL);
    if (pause < LONGEST_PAUSE_NS)
      pause *= 2;
  }
  if (*error == 0 || *error == ENOLCK || *error == EOPNOTSUPP || *error == ENOSYS)
    return CACHE_LOCK_HELD;
  free(lock->path);
  lock->path = NULL;
  return *error == EWOULDBLOCK ? CACHE_LOCK_TIMEOUT : CACHE_LOCK_UNAVAILABLE;
}

void cache_lock_release(CacheLock *lock) {
  if (lock->path)
    unlink(lock->path);
  if (lock->file >= 0) {
    /* Said aloud, because a child forked meanwhile shares the open file and would keep the lock. */
    flock(lock->file, LOCK_UN);
    close(lock->file);
  }
  free(lock->path);
  *lock = (CacheLock){-1, NULL};
}
