/* Level 1. A compiled program in memory: what the GPU loads, and what ptxas says of it. */
#ifndef ROTA_RUNTIME_CUBIN_H
#define ROTA_RUNTIME_CUBIN_H

#include "generator/digest.h"

typedef struct Cubin {
  unsigned char *data;
  size_t bytes;
  Digest key;        /* the cache's; "" for a cubin that came from elsewhere */
  Digest content;    /* of the bytes */
  int nvrtc_version; /* that compiled it: 13000 for 13.0; 0: not known */
  bool hit;          /* from memory or disk */
  double seconds;    /* spent in NVRTC; 0 on a hit */
  int registers;     /* of the entry that uses most */
  int spill_bytes;   /* local memory per thread, worst entry */
  int shared_bytes;  /* static shared memory per block, worst entry */
  char *log;         /* NVRTC's and ptxas's words; "" on a hit */
} Cubin;

/* A cubin from bytes that were kept elsewhere; they are copied. */
rota_status cubin_create(const void *data, size_t bytes, int nvrtc_version, Cubin **cubin);
/* As a hit: without the log and the time that making it took. */
rota_status cubin_copy(const Cubin *from, Cubin **cubin);
void cubin_destroy(Cubin *cubin); /* NULL is fine */
/* Fills registers, spill_bytes and shared_bytes from the words of `ptxas -v`. */
void cubin_read_log(Cubin *cubin, const char *log);
/* Where a log says that wgmma was serialised, which ptxas calls information: a kernel several times
 * slower than it looks. NULL: nowhere. */
const char *cubin_log_serialised(const char *log);

#endif
