/* Level 4. Whether workers that follow their queues ever wait for ever: verification of an order of
 * additions together with an assignment. Independent of what made them, and untimed: it only asks
 * who waits for whom. */
#ifndef ROTA_GENERATOR_SCHEDULE_QUEUES_H
#define ROTA_GENERATOR_SCHEDULE_QUEUES_H

#include "generator/dag.h"

/* Words for a message: tile t of a plane is query tile t % q_tiles of head t / q_tiles. */
typedef struct QueueNames {
  const char *schedule;    /* its name */
  const int32_t *q_tiles;  /* [planes] */
  const int32_t *sequence; /* [instances]; NULL where there is one alone */
  const int32_t *kv_head;  /* likewise */
} QueueNames;

typedef enum QueueMode {
  QUEUES_TOGETHER,   /* a worker for each queue, all of them at once */
  QUEUES_IN_SEQUENCE /* one worker takes queue after queue; then any number of workers may */
} QueueMode;

/* Every chain of every instance in the queues once, ranks complete, and nobody waits for ever.
 * SCHEDULE names the tiles at fault, and the cycle if there is one. */
rota_status queues_verify(const DagProblem *problem, QueueMode mode, const QueueNames *names);

#endif
