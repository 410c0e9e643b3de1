/* Level 1. The two-level memory machine: see io_machine.h. */
#include "generator/io_machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_MAX = 16, MATRICES_MAX = 32 };

typedef struct Slot {
  uint32_t generation; /* of the block now in it; odd: in use */
  IoView view;         /* data NULL when counting */
} Slot;

/* Invariants: `used` is the sum of the blocks in use and at most `capacity`; `weight` is the
 * product of the repetitions that the present pass through the loops stands for (1 when executing).
 */
struct IoMachine {
  IoMode mode;
  int64_t capacity, used, weight;
  IoCount count;
  rota_status status;
  Slot slots[SLOTS_MAX];
  IoMatrix *matrices[MATRICES_MAX];
  int matrix_count;
};

rota_status io_machine_create(IoMode mode, int64_t capacity, IoMachine **machine) {
  *machine = NULL;
  if (capacity < 1)
    return status_fail(ROTA_INVALID_ARGUMENT, "fast memory of %lld elements: at least 1 is needed",
                       (long long)capacity);
  IoMachine *result = memory_allocate(1, sizeof(IoMachine));
  if (!result)
    return ROTA_OUT_OF_MEMORY;
  result->mode = mode;
  result->capacity = capacity;
  result->weight = 1;
  *machine = result;
  return ROTA_OK;
}

void io_machine_destroy(IoMachine *machine) {
  if (!machine)
    return;
  for (int i = 0; i < SLOTS_MAX; i++)
    free(machine->slots[i].view.data);
  for (int i = 0; i < machine->matrix_count; i++) {
    free(machine->matrices[i]->data);
    free(machine->matrices[i]);
  }
  free(machine);
}

void io_refuse(IoMachine *machine, rota_status status) {
  if (machine->status == ROTA_OK)
    machine->status = status;
}

bool io_refused(const IoMachine *machine) {
  return machine->status != ROTA_OK;
}

IoMatrix *io_matrix_create(IoMachine *machine, int64_t rows, int64_t columns) {
  if (io_refused(machine))
    return NULL;
  if (rows < 0 || columns < 0 || machine->matrix_count == MATRICES_MAX) {
    io_refuse(machine,
              status_fail(ROTA_INTERNAL, "I/O machine: matrix %d of %lld x %lld is refused",
                          machine->matrix_count, (long long)rows, (long long)columns));
    return NULL;
  }
  IoMatrix *matrix = memory_allocate(1, sizeof(IoMatrix));
  if (!matrix) {
    io_refuse(machine, ROTA_OUT_OF_MEMORY);
    return NULL;
  }
  *matrix = (IoMatrix){rows, columns, NULL};
  machine->matrices[machine->matrix_count++] = matrix;
  if (machine->mode == IO_COUNT)
    return matrix;
  size_t elements = (size_t)(rows * columns);
  matrix->data = memory_allocate(elements + 1, sizeof(double));
  if (!matrix->data)
    io_refuse(machine, ROTA_OUT_OF_MEMORY);
  for (size_t i = 0; matrix->data && i < elements; i++)
    matrix->data[i] = NAN;
  return matrix;
}

/* ---- Fast memory ---- */

/* The slot of a block, or NULL with a refusal if it is not in fast memory. */
static Slot *find(IoMachine *machine, IoBlock block) {
  if (io_refused(machine))
    return NULL;
  if (block.slot < SLOTS_MAX && block.generation % 2 == 1 &&
      machine->slots[block.slot].generation == block.generation)
    return &machine->slots[block.slot];
  io_refuse(machine, status_fail(ROTA_INTERNAL,
                                 "I/O machine: the program uses a block that is not in fast memory "
                                 "(slot %u)",
                                 block.slot));
  return NULL;
}

/* Room for a block: zeros. */
static Slot *occupy(IoMachine *machine, int64_t rows, int64_t columns, IoBlock *block) {
  *block = (IoBlock){0, 0};
  if (io_refused(machine))
    return NULL;
  uint32_t free_slot = 0;
  while (free_slot < SLOTS_MAX && machine->slots[free_slot].generation % 2 == 1)
    free_slot++;
  int64_t size;
  if (free_slot == SLOTS_MAX || rows < 0 || columns < 0 ||
      __builtin_mul_overflow(rows, columns, &size)) {
    io_refuse(machine, status_fail(ROTA_INTERNAL, "I/O machine: a block of %lld x %lld is refused",
                                   (long long)rows, (long long)columns));
    return NULL;
  }
  if (size > machine->capacity - machine->used) {
    io_refuse(
        machine,
        status_fail(ROTA_INVALID_ARGUMENT,
                    "fast memory of %lld elements is too small: %lld in use, %lld more needed",
                    (long long)machine->capacity, (long long)machine->used, (long long)size));
    return NULL;
  }
  Slot *slot = &machine->slots[free_slot];
  slot->view = (IoView){rows, columns, NULL};
  if (machine->mode == IO_EXECUTE) {
    slot->view.data = memory_allocate((size_t)size + 1, sizeof(double));
    if (!slot->view.data) {
      io_refuse(machine, ROTA_OUT_OF_MEMORY);
      return NULL;
    }
  }
  slot->generation++;
  machine->used += size;
  if (machine->used > machine->count.peak)
    machine->count.peak = machine->used;
  *block = (IoBlock){free_slot, slot->generation};
  return slot;
}

/* Adds `elements`, as often as the present pass is repeated, to loads or stores. */
static void charge(IoMachine *machine, int64_t elements, int64_t *total) {
  int64_t all;
  if (__builtin_mul_overflow(elements, machine->weight, &all) ||
      __builtin_add_overflow(all, *total, total))
    io_refuse(machine,
              status_fail(ROTA_INVALID_ARGUMENT, "the count leaves 63 bits: take smaller lengths"));
}

static bool inside(IoMachine *machine, const IoMatrix *matrix, int64_t row, int64_t column,
                   int64_t rows, int64_t columns) {
  if (matrix && row >= 0 && column >= 0 && rows >= 0 && columns >= 0 &&
      row <= matrix->rows - rows && column <= matrix->columns - columns)
    return true;
  io_refuse(machine,
            status_fail(ROTA_INTERNAL,
                        "I/O machine: %lld x %lld elements from (%lld, %lld) on leave their matrix",
                        (long long)rows, (long long)columns, (long long)row, (long long)column));
  return false;
}

IoBlock io_zeros(IoMachine *machine, int64_t rows, int64_t columns) {
  IoBlock block;
  occupy(machine, rows, columns, &block);
  return block;
}

IoBlock io_load(IoMachine *machine, const IoMatrix *matrix, int64_t row, int64_t column,
                int64_t rows, int64_t columns) {
  IoBlock block = {0, 0};
  if (io_refused(machine) || !inside(machine, matrix, row, column, rows, columns))
    return block;
  Slot *slot = occupy(machine, rows, columns, &block);
  if (!slot)
    return block;
  charge(machine, rows * columns, &machine->count.loads);
  for (int64_t i = 0; slot->view.data && i < rows; i++)
    memcpy(slot->view.data + i * columns, matrix->data + (row + i) * matrix->columns + column,
           (size_t)columns * sizeof(double));
  return block;
}

void io_store(IoMachine *machine, IoBlock block, IoMatrix *matrix, int64_t row, int64_t column) {
  const Slot *slot = find(machine, block);
  if (!slot || !inside(machine, matrix, row, column, slot->view.rows, slot->view.columns))
    return;
  int64_t rows = slot->view.rows, columns = slot->view.columns;
  charge(machine, rows * columns, &machine->count.stores);
  for (int64_t i = 0; slot->view.data && i < rows; i++)
    memcpy(matrix->data + (row + i) * matrix->columns + column, slot->view.data + i * columns,
           (size_t)columns * sizeof(double));
}

void io_evict(IoMachine *machine, IoBlock block) {
  Slot *slot = find(machine, block);
  if (!slot)
    return;
  machine->used -= slot->view.rows * slot->view.columns;
  free(slot->view.data);
  slot->view.data = NULL;
  slot->generation++;
}

void io_put(IoMachine *machine, IoBlock block, IoMatrix *matrix, int64_t row, int64_t column) {
  io_store(machine, block, matrix, row, column);
  io_evict(machine, block);
}

void io_compute(IoMachine *machine, IoOperation *operation, const void *context,
                const IoBlock *blocks, int count) {
  IoView views[IO_OPERANDS_MAX];
  if (count > IO_OPERANDS_MAX)
    io_refuse(machine, status_fail(ROTA_INTERNAL, "I/O machine: %d operands, at most %d are taken",
                                   count, IO_OPERANDS_MAX));
  for (int i = 0; i < count && !io_refused(machine); i++) {
    const Slot *slot = find(machine, blocks[i]);
    if (slot)
      views[i] = slot->view;
  }
  if (!io_refused(machine) && machine->mode == IO_EXECUTE)
    operation(context, views);
}

/* ---- Loops ---- */

IoLoop io_loop(const IoMachine *machine, int64_t begin, int64_t end, int64_t step) {
  return (IoLoop){.next = begin,
                  .end = end,
                  .step = step,
                  .outer_weight = machine->weight,
                  .outer_usage = machine->used};
}

bool io_next(IoMachine *machine, IoLoop *loop) {
  machine->weight = loop->outer_weight;
  if (io_refused(machine))
    return false;
  if (loop->step < 1 || machine->used != loop->outer_usage) {
    io_refuse(
        machine,
        status_fail(ROTA_INTERNAL,
                    "I/O machine: a loop in steps of %lld changed the use of fast memory from "
                    "%lld to %lld",
                    (long long)loop->step, (long long)loop->outer_usage, (long long)machine->used));
    return false;
  }
  int64_t left = loop->end - loop->next;
  if (left <= 0)
    return false;
  int64_t whole = left / loop->step; /* steps that are all alike */
  int64_t steps = machine->mode == IO_COUNT && whole > 1 ? whole : 1;
  loop->at = loop->next;
  loop->size = left < loop->step ? left : loop->step;
  loop->next += whole > 0 ? steps * loop->step : left;
  if (__builtin_mul_overflow(loop->outer_weight, steps, &machine->weight))
    io_refuse(machine,
              status_fail(ROTA_INVALID_ARGUMENT, "the count leaves 63 bits: take smaller lengths"));
  return !io_refused(machine);
}

rota_status io_machine_finish(IoMachine *machine, IoCount *count) {
  *count = machine->count;
  if (machine->status == ROTA_OK && machine->used != 0)
    io_refuse(machine, status_fail(ROTA_INTERNAL,
                                   "I/O machine: the program ends with %lld elements left in fast "
                                   "memory",
                                   (long long)machine->used));
  return machine->status;
}
