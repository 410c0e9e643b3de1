/* The account that fake_driver.c keeps, which test_driver.c reads and sets. */
#ifndef ROTA_TESTS_FAKE_DRIVER_H
#define ROTA_TESTS_FAKE_DRIVER_H

#include <stdint.h>

/* What a tensor map holds here: the words it was made from. */
typedef struct FakeMap {
  void *address;
  uint64_t size[4], stride[3];
  uint32_t box[4];
  int type, swizzle, promotion, fill;
} FakeMap;

typedef struct FakeDriver {
  int inits, retained, modules, memory_blocks, launches;
  int errors;       /* refused calls */
  int resets;       /* counts the lives of the primary context: handles of another life are stale */
  int capturing;    /* a stream is being captured: capture_mode counts */
  int capture_mode; /* of the one thread that captures */
  int refuse_load;  /* cuModuleLoadData answers NO_BINARY_FOR_GPU */
  int capability;   /* 90 */
  int resident_blocks; /* of a multiprocessor: 1 */
  int cooperative_launches, overlapping_launches;
  int depth; /* of the stack of contexts, summed over threads */
  unsigned last_grid, last_threads, last_shared, max_dynamic;
  int block_bytes; /* how much of a launch's argument block to keep */
  unsigned char last_block[4096];
  int maps; /* how many tensor maps of a launch's second argument to keep */
  FakeMap last_maps[8];
} FakeDriver;

#endif
