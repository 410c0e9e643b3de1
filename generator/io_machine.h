/* Level 1. A two-level memory: the machine on which the I/O complexity of attention is counted
 * (red- blue pebble game; arXiv 2410.09397 for the backward pass).
 *
 *     slow memory, unbounded          fast memory, M elements
 *     matrices            -- load --> blocks               arithmetic only here
 *                         <- store --
 *
 * Moving an element between the two costs 1; arithmetic, making a block of zeros and evicting are
 * free. A program is C code that calls the functions below. It runs in one of two modes, in which
 * it makes the same calls: EXECUTE does the arithmetic, COUNT leaves it out and runs each loop over
 * equal blocks once, counting it as often as it repeats.
 *
 * The machine refuses a program that needs more than M elements at a time, leaves a matrix,
 * computes on a block that is not in fast memory, or ends with blocks left there. The first refusal
 * sticks: what follows does nothing, and io_machine_finish returns it. */
#ifndef ROTA_GENERATOR_IO_MACHINE_H
#define ROTA_GENERATOR_IO_MACHINE_H

#include "generator/status.h"

typedef enum IoMode { IO_COUNT, IO_EXECUTE } IoMode;

typedef struct IoMachine IoMachine; /* owns its matrices and blocks; for one thread */

/* In slow memory. The data are row-major; NULL when counting; NaN until stored to, so that what was
 * never written shows. */
typedef struct IoMatrix {
  int64_t rows, columns;
  double *data;
} IoMatrix;

/* A name for a block in fast memory; stale once the block is evicted. */
typedef struct IoBlock {
  uint32_t slot, generation;
} IoBlock;

/* A block's elements, row-major. */
typedef struct IoView {
  int64_t rows, columns;
  double *data;
} IoView;

/* `capacity`: M. */
rota_status io_machine_create(IoMode mode, int64_t capacity, IoMachine **machine);
void io_machine_destroy(IoMachine *machine);
/* A new matrix in slow memory, which the machine frees; NULL once it has refused. */
IoMatrix *io_matrix_create(IoMachine *machine, int64_t rows, int64_t columns);

/* ---- What programs call ---- */

/* Copies rows x columns elements from (row, column) on into fast memory: costs as many transfers.
 */
IoBlock io_load(IoMachine *machine, const IoMatrix *matrix, int64_t row, int64_t column,
                int64_t rows, int64_t columns);
/* Zeros, made in fast memory. */
IoBlock io_zeros(IoMachine *machine, int64_t rows, int64_t columns);
/* Copies the block to (row, column) on; it stays in fast memory. Costs its elements. */
void io_store(IoMachine *machine, IoBlock block, IoMatrix *matrix, int64_t row, int64_t column);
void io_evict(IoMachine *machine, IoBlock block);
/* io_store, then io_evict. */
void io_put(IoMachine *machine, IoBlock block, IoMatrix *matrix, int64_t row, int64_t column);

/* Arithmetic on blocks in fast memory; not called when counting. It may hold a few scalars. */
typedef void IoOperation(const void *context, const IoView *views);
enum { IO_OPERANDS_MAX = 8 };
/* Checks that every block is in fast memory, then calls the operation with their views. */
void io_compute(IoMachine *machine, IoOperation *operation, const void *context,
                const IoBlock *blocks, int count);

/* A loop over [begin, end) in steps; the last may be shorter:
 *
 *     for (IoLoop i = io_loop(machine, 0, n, 8); io_next(machine, &i);)   i.at, i.size
 *
 * The body must leave fast memory as full as it was, must do the same for every `at` but for where
 * it loads and stores, and must not `break`: counting runs it once for all whole steps and once for
 * a shorter last one. */
typedef struct IoLoop {
  int64_t at, size;                  /* of this step */
  int64_t next, end, step;           /* where the next one starts */
  int64_t outer_weight, outer_usage; /* the machine's, on entry */
} IoLoop;
IoLoop io_loop(const IoMachine *machine, int64_t begin, int64_t end, int64_t step);
bool io_next(IoMachine *machine, IoLoop *loop);

/* For programs that find out themselves that they cannot run; sticks like any refusal. */
void io_refuse(IoMachine *machine, rota_status status);
bool io_refused(const IoMachine *machine);

/* ---- The outcome ---- */

typedef struct IoCount {
  int64_t loads, stores; /* elements */
  int64_t peak;          /* most elements of fast memory in use */
} IoCount;

/* Elements moved. */
static inline int64_t io_transfers(const IoCount *count) {
  return count->loads + count->stores;
}

/* The count, or the first refusal: INVALID_ARGUMENT where M was too small, else INTERNAL. */
rota_status io_machine_finish(IoMachine *machine, IoCount *count);

#endif
