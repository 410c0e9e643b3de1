/* An executor of plans and patterns. */
#include "tests/support/job.h"

#include <stdlib.h>

static int32_t pick(uint64_t *random, int32_t count) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return (int32_t)((*random >> 33) % (uint64_t)count);
}

Job job_of_plan(const Plan *plan) {
  const RotaSequence *sequences = plan_section(plan, plan->sequences);
  const RotaChain *chains = plan_section(plan, plan->chains);
  const RotaVisit *visits = plan_section(plan, plan->visits);
  const RotaItem *items = plan_section(plan, plan->chain_items);
  const int *queue = plan_section(plan, plan->queue);
  int group = plan->heads / plan->kv_heads;
  Job job = {.slots = plan_q_tiles(plan) * plan->heads, .queues = plan->workers};
  int64_t count = 0;
  for (int64_t i = 0; i < plan->chain_items.count; i++)
    count += chains[items[i].index].visit_end - chains[items[i].index].visit_begin;
  job.begin = calloc((size_t)job.queues + 1, sizeof(int64_t));
  job.steps = calloc((size_t)count + 1, sizeof(JobStep));
  count = 0;
  for (int32_t w = 0; w < job.queues; w++) {
    for (int i = queue[w]; i < queue[w + 1]; i++) {
      const RotaChain *chain = &chains[items[i].index];
      for (int v = chain->visit_begin; v < chain->visit_end; v++) {
        int head = items[i].head * group + (int)(visits[v].rank >> ROTA_VISIT_HEAD_SHIFT);
        int64_t tile =
            sequences[chain->sequence].tile_begin + (int64_t)(visits[v].tile & ROTA_VISIT_TILE);
        job.steps[count++] = (JobStep){tile * plan->heads + head,
                                       (int32_t)(visits[v].rank & ROTA_VISIT_RANK), chain->kv_tile};
      }
    }
    job.begin[w + 1] = count;
  }
  return job;
}

Job job_of_pattern(const Pattern *pattern, bool by_lane) {
  Job job = {.slots = (int64_t)pattern->group * pattern->q_tiles,
             .queues = by_lane ? pattern->lanes : pattern->chains};
  job.begin = calloc((size_t)job.queues + 1, sizeof(int64_t));
  job.steps = calloc((size_t)pattern->chain_begin[pattern->chains] + 1, sizeof(JobStep));
  int64_t count = 0;
  for (int32_t queue = 0; queue < job.queues; queue++) {
    for (int32_t i = 0; i < pattern->chains; i++) {
      int32_t chain = pattern->start_order[i];
      if (by_lane ? pattern->lane[chain] != queue : i != queue)
        continue;
      for (int64_t v = pattern->chain_begin[chain]; v < pattern->chain_begin[chain + 1]; v++) {
        const PatternVisit *visit = &pattern->visits[v];
        job.steps[count++] = (JobStep){
            (int64_t)visit->group_head * pattern->q_tiles + visit->q_tile, visit->rank, chain};
      }
    }
    job.begin[queue + 1] = count;
  }
  return job;
}

void job_free(Job *job) {
  free(job->begin);
  free(job->steps);
  *job = (Job){0};
}

typedef struct Worker {
  int64_t at, end;
} Worker;

/* Where each slot's additions begin in `order`. */
static int64_t *slot_begins(const Job *job) {
  int64_t *begin = calloc((size_t)job->slots + 2, sizeof(int64_t));
  for (int64_t i = 0; i < job->begin[job->queues]; i++)
    begin[job->steps[i].slot + 1]++;
  for (int64_t slot = 0; slot < job->slots; slot++)
    begin[slot + 1] += begin[slot];
  return begin;
}

/* Up to a random number of steps of one worker; how many it took. */
static int64_t work(const Job *job, Worker *worker, int32_t most, int32_t *added,
                    const int64_t *begin, int32_t *order) {
  int64_t steps = 0;
  for (; steps < most && worker->at < worker->end; steps++, worker->at++) {
    const JobStep *step = &job->steps[worker->at];
    if (added[step->slot] != step->rank)
      break;
    if (order)
      order[begin[step->slot] + added[step->slot]] = step->kv_tile;
    added[step->slot]++;
  }
  return steps;
}

bool job_run(const Job *job, int32_t workers, uint64_t *random, int32_t *order) {
  Worker *all = calloc((size_t)workers + 1, sizeof(Worker));
  int32_t *added = calloc((size_t)job->slots + 1, sizeof(int32_t));
  int64_t *begin = slot_begins(job), left = job->begin[job->queues];
  int32_t next = 0;
  for (bool moved = true; moved;) {
    moved = false;
    int32_t first = pick(random, workers);
    for (int32_t i = 0; i < workers; i++) {
      Worker *worker = &all[(first + i) % workers];
      while (worker->at == worker->end && next < job->queues) {
        *worker = (Worker){job->begin[next], job->begin[next + 1]};
        next++;
        moved = true;
      }
      int64_t steps = work(job, worker, 1 + pick(random, 9), added, begin, order);
      left -= steps;
      moved |= steps > 0;
    }
  }
  free(all);
  free(added);
  free(begin);
  return left == 0 && next == job->queues;
}
