/* Level 1. A lock file that processes share: whoever holds it compiles, the others wait for the
 * result.
 *
 * flock, because the kernel releases it when the holder dies, however that happens. The holder
 * removes the file before it lets go; a waiter that gets the lock of a removed file notices and
 * starts anew, so no lock files pile up. */
#ifndef ROTA_RUNTIME_CACHE_LOCK_H
#define ROTA_RUNTIME_CACHE_LOCK_H

#include "generator/status.h"

typedef enum CacheLockState {
  CACHE_LOCK_HELD,
  CACHE_LOCK_TIMEOUT,     /* someone else has held it for all of the time given */
  CACHE_LOCK_UNAVAILABLE, /* the file cannot be made: errno in `error` */
} CacheLockState;

typedef struct CacheLock {
  int file; /* -1: nothing held; a file system without locks counts as held, with work perhaps done
               twice */
  char *path;
} CacheLock;

/* Waits at most `seconds`, 0: only tries. Unless HELD, `lock` needs no release. */
CacheLockState cache_lock_acquire(const char *path, double seconds, CacheLock *lock, int *error);
void cache_lock_release(CacheLock *lock);

#endif
