/* Files and directories: see files.h. */
#define _GNU_SOURCE /* nftw */
#include "runtime/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WALK_DESCRIPTORS = 8 }; /* how many directories nftw may hold open */

char *files_path(const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  char *path = length < 0 ? NULL : memory_allocate((size_t)length + 1, 1);
  if (path)
    vsnprintf(path, (size_t)length + 1, format, again);
  va_end(again);
  va_end(arguments);
  return path;
}

static bool is_directory(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* mkdir, taking an existing directory for success; some file systems answer EROFS or EACCES for
 * those. */
static int make_directory(const char *path) {
  if (mkdir(path, 0700) == 0)
    return 0;
  int error = errno;
  if (is_directory(path))
    return 0;
  return error == EEXIST ? ENOTDIR : error;
}

int files_make_parents(const char *path) {
  char *copy = memory_copy_string(path);
  if (!copy)
    return ENOMEM;
  int error = 0;
  for (char *slash = copy + 1; *copy && !error && (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    error = make_directory(copy);
    *slash = '/';
  }
  free(copy);
  return error;
}

static int read_open_file(int file, size_t limit, unsigned char **bytes, size_t *size) {
  struct stat info;
  if (fstat(file, &info) != 0)
    return errno;
  if (!S_ISREG(info.st_mode))
    return EISDIR;
  if (info.st_size < 0 || (size_t)info.st_size > limit)
    return EFBIG;
  size_t count = (size_t)info.st_size;
  unsigned char *data = memory_allocate(count + 1, 1);
  if (!data)
    return ENOMEM;
  size_t done = 0;
  while (done < count) {
    ssize_t got = read(file, data + done, count - done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0) {
      int error = errno;
      free(data);
      return error;
    }
    if (got == 0)
      break; /* the file was cut meanwhile: what is there is all there is */
    done += (size_t)got;
  }
  data[done] = 0;
  *bytes = data;
  *size = done;
  return 0;
}

int files_read(int directory, const char *name, size_t limit, unsigned char **bytes, size_t *size) {
  *bytes = NULL;
  *size = 0;
  /* O_NONBLOCK: a named pipe in a file's place must not stop us. */
  int file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return errno;
  int error = read_open_file(file, limit, bytes, size);
  close(file);
  return error;
}

static int write_open_file(int file, const unsigned char *bytes, size_t size) {
  while (size > 0) {
    ssize_t put = write(file, bytes, size);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return put < 0 ? errno : ENOSPC;
    bytes += put;
    size -= (size_t)put;
  }
  return 0;
}

int files_write(int directory, const char *name, const void *bytes, size_t size) {
  int file = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0)
    return errno;
  int error = write_open_file(file, bytes, size);
  /* Network file systems report a full disk only here. */
  if (close(file) != 0 && !error)
    error = errno;
  if (error)
    unlinkat(directory, name, 0);
  return error;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
  (void)info;
  (void)place;
  int result = kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path);
  return result == 0 || errno == ENOENT ? 0 : errno;
}

int files_remove_tree(const char *path) {
  int result = nftw(path, remove_one, WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
  if (result < 0)
    return errno == ENOENT ? 0 : errno;
  return result;
}
