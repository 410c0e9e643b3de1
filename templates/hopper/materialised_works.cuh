// What kernels that pass matrices through memory have in common: works taken by ticket, the stages
// of operands, and warpgroups that multiply them. For the order of works see lib/materialised.h.
//
// A persistent block is a producer warpgroup (loader warp, two store warps) and two consumer
// warpgroups of 64 rows each. Nothing in a result depends on which block takes which work.
//
//   shared memory     kStages x (A 16 KB, B up to 32 KB) | staging 2 warpgroups x kStagings
//                     x 8 KB | barriers | words and scales of the stages | two Tasks
//
//   loader       task ring -> everybody          stages -> consumers
//   consumers    staging, 64 rows x 64 columns -> store warp of the warpgroup -> workspace
//
// A stage is 64 deep in the sum: A is 128 x 64 (two boxes), B up to 256 x 64 (four boxes).
#ifndef ROTA_HOPPER_MATERIALISED_WORKS_CUH
#define ROTA_HOPPER_MATERIALISED_WORKS_CUH

#include "instructions.cuh"
#include "spec.cuh"
#include "tiling.cuh"

#include "templates/hopper/materialised_scores.cuh"
#include "templates/lib/barrier.cuh"
#include "templates/lib/order.cuh"
#include "templates/lib/tables.cuh"

namespace rota {

// ---- Shared memory ----

constexpr int kStep = 64;                  // of a sum, per stage
constexpr int kPartBytes = 64 * kBoxPitch; // a box: 64 rows of 64 elements
constexpr int kBytesA = 2 * kPartBytes;
constexpr int kStaging = kStages * kStageBytes;                  // [warpgroup][kStagings] parts
constexpr int kBarriers = kStaging + 2 * kStagings * kPartBytes; // see Barriers
constexpr int kStageWords = kBarriers + 8 * (2 * kStages + 12);
constexpr int kStageScales = kStageWords + 16 * kStages; // see Kernel's own file
constexpr int kScalesBytes = kScorePlanes == 1 ? 512 : 0;
constexpr int kStagedWords = kStageScales + kScalesBytes * kStages; // of each warpgroup's part
constexpr int kMailbox = kStagedWords + 16;                         // two of Task
constexpr int kTaskBytes = 64;
constexpr int kCurrentUnit = kMailbox + 2 * kTaskBytes; // the loader's: registers are short
constexpr int kCurrentSequence = kCurrentUnit + 64;
constexpr int kCurrentSegment = kCurrentSequence + 64;
constexpr int kSharedEnd = kCurrentSegment + 32;
static_assert(sizeof(RotaUnit) <= 64 && sizeof(RotaSequence) <= 64, "their places");
static_assert(kSharedEnd <= kSharedBytes, "the launch's shared memory holds the stages");
static_assert(kTileQ == 128 && kTileKv == 128, "tiles of the map");

constexpr int kConsumerWarps = 8;
// Blocks of columns: as few as hold the head dim, equally wide.
__host__ __device__ constexpr int column_blocks(int dim) {
  return (dim + 255) / 256;
}
__host__ __device__ constexpr int columns_of(int dim) {
  return round_up((dim + column_blocks(dim) - 1) / column_blocks(dim), 16);
}
constexpr int kColumnsK = columns_of(kHeadDim), kColumnsV = columns_of(kHeadDimV);
// Bytes of 128 queries x 64 keys in the workspace: P, and in the backward pass dS.
constexpr long long kScoreBlock = kScorePlanes * kBytesA;
constexpr int kPairBlocks = 4; // of a pair of kv tiles

struct Barriers {
  unsigned base;
  ROTA_DEVICE unsigned full(int stage) const { return base + 8u * (unsigned)stage; }
  ROTA_DEVICE unsigned empty(int stage) const { return base + 8u * (unsigned)(kStages + stage); }
  ROTA_DEVICE unsigned task_full(int i) const { return base + 8u * (unsigned)(2 * kStages + i); }
  ROTA_DEVICE unsigned task_empty(int i) const { return task_full(2 + i); }
  ROTA_DEVICE unsigned staged(int group, int i) const { return task_full(4 + 2 * group + i); }
  ROTA_DEVICE unsigned unstaged(int group, int i) const { return task_full(8 + 2 * group + i); }
};

// A work, as the loader describes it to consumers and store warps. kind 4: no more works.
struct Task {
  int kind, head, sequence, first_row; // query or key within the sequence
  int columns, chunk, flags, steps;    // first key or first column
  long long place;                     // block of P in the workspace; or tile of sums
  int table, sums;                     // entry in the table of rows; forward: tile of sums
  int kv_begin, kv_end;                // kv tiles of the unit; or visits of a kv tile in it
  int tensor_row, slot;                // first_row in the tensors
};
constexpr int kTaskEnd = 4;
// Flags beside the unit's: scores that are masked; an output that the copy engine stores.
constexpr int kTaskPartial = 16, kTaskBoxes = 32;
static_assert(sizeof(Task) <= kTaskBytes, "its place");
ROTA_DEVICE Task &task_place(int i) {
  return *reinterpret_cast<Task *>(dynamic_shared() + kMailbox + i * kTaskBytes);
}

// Of a stage, from the loader: bits below; which rows of B to clear (64 bits); B's first key.
constexpr unsigned kWordLast = 1, kWordClear = 2, kWordSuspect = 4;
ROTA_DEVICE unsigned stage_words(unsigned shared, int stage) {
  return shared + (unsigned)(kStageWords + 16 * stage);
}
// lib/barrier.cuh's Ring for a power of two, in one register.
template <int kCount> struct Turns {
  static_assert((kCount & (kCount - 1)) == 0, "stage and parity are bits of the turn");
  int turn;
  ROTA_DEVICE explicit Turns(int first_parity) : turn(first_parity * kCount) {}
  ROTA_DEVICE int stage() const { return turn & (kCount - 1); }
  ROTA_DEVICE int before() const { return (turn - 1) & (kCount - 1); }
  ROTA_DEVICE int parity() const { return turn / kCount & 1; }
  ROTA_DEVICE void advance() { turn = (turn + 1) & (2 * kCount - 1); }
};

// The same for up to 6 stages, kHeld of which may be left out for a while. Stages take turns as the
// low 24 bits say, four each, the current one first; those that are held wait above the others. The
// high 8 bits are parities. In one register.
template <int kCount, int kHeld = 2> struct Slots {
  static constexpr int kRest = kCount - kHeld, kParities = 24;
  static_assert(kCount <= 6, "four bits each");
  unsigned state;
  ROTA_DEVICE explicit Slots(int first_parity) : state(first_parity ? 0xffu << kParities : 0u) {
    for (int i = 0; i < kCount; i++)
      state |= (unsigned)i << 4 * i;
  }
  ROTA_DEVICE int stage() const { return (int)(state & 15u); }
  ROTA_DEVICE int before() const { return (int)(state >> 4 * (kCount - 1) & 15u); }
  ROTA_DEVICE int parity() const { return (int)(state >> (kParities + stage()) & 1u); }
  ROTA_DEVICE int held(int i) const { return (int)(state >> 4 * (kRest + i) & 15u); }
  ROTA_DEVICE void advance() { rotate<kCount>(); }
  // With kHeld stages held: among the rest. To hold the next, advance() kHeld times; when they are
  // given back, they come after the rest.
  ROTA_DEVICE void advance_rest() { rotate<kRest>(); }
  ROTA_DEVICE int before_rest() const { return (int)(state >> 4 * (kRest - 1) & 15u); }

private:
  template <int kTurns> ROTA_DEVICE void rotate() {
    constexpr unsigned kMask = (1u << 4 * kTurns) - 1;
    const unsigned flipped = state ^ 1u << (kParities + stage());
    state = (flipped & ~kMask) | (state & kMask) >> 4 | (state & 15u) << 4 * (kTurns - 1);
  }
};
using StageRing = TypeIf<kHolds != 0, Slots<kStages>, Turns<kStages>>;
using StagingRing = Turns<kStagings>;

// What the loader says of a stage.
struct StageNote {
  bool last, suspect;       // the sum's last; B may hold what is not finite in keys nobody attends
  unsigned long long clear; // rows of B that must not be multiplied, even by 0
  int key;
};
// The rows of 64 from `first` on that lie beyond n.
ROTA_DEVICE unsigned long long rows_beyond(int first, int n) {
  const int left = n - first;
  return left >= 64 ? 0 : left <= 0 ? ~0ull : ~0ull << left;
}

// ---- The loader ----

// Kernel has describe(work), load(work, task) and kLongScores: works of the first phase make sums.
template <class Kernel> struct WorkLoader {
  const RotaArguments &arguments;
  const RotaTensorMaps &maps;
  const RotaMaterialised &plan;
  const Barriers barriers;
  const unsigned shared;
  StageRing ring;
  struct Segment : RotaSegment {
    int number, next_ticket; // next_ticket: of the segment after
    int ready;               // what has been waited for: 2 * chunk + phase
  };
  // In shared memory: registers are short.
  Segment &current;
  RotaUnit &unit;         // of the segment
  RotaSequence &sequence; // of the unit

  ROTA_DEVICE WorkLoader(const RotaArguments &arguments, const RotaTensorMaps &maps,
                         Barriers barriers, unsigned shared)
      : arguments(arguments), maps(maps), plan(arguments.materialised), barriers(barriers),
        shared(shared), ring(1),
        current(*reinterpret_cast<Segment *>(dynamic_shared() + kCurrentSegment)),
        unit(*reinterpret_cast<RotaUnit *>(dynamic_shared() + kCurrentUnit)),
        sequence(*reinterpret_cast<RotaSequence *>(dynamic_shared() + kCurrentSequence)) {
    static_assert(sizeof(Segment) <= 32, "its place");
    if (lane_index() == 0) {
      current.number = current.ready = -1;
      current.next_ticket = 0;
    }
    __syncwarp();
  }

  // Moves on to the segment of a ticket; tickets ascend.
  ROTA_DEVICE void seek(int ticket) {
    if (ticket < current.next_ticket)
      return;
    int segment = current.number;
    for (;;) {
      const int at = segment + 1 + lane_index();
      const bool beyond = at >= plan.segment_count || plan.segments[at].first_ticket > ticket;
      const unsigned found = __ballot_sync(kAllLanes, beyond);
      if (found) {
        segment += __ffs((int)found) - 1;
        break;
      }
      segment += kWarp;
    }
    if (lane_index() == 0) {
      static_cast<RotaSegment &>(current) = plan.segments[segment];
      current.number = segment;
      current.next_ticket = segment + 1 < plan.segment_count
                                ? plan.segments[segment + 1].first_ticket
                                : plan.ticket_count;
      const RotaUnit next = plan.units[current.unit];
      unit = next;
      sequence = arguments.sequences[next.sequence];
    }
    __syncwarp();
  }

  ROTA_DEVICE const int *scores_done(int chunk) const { return plan.counters + 1 + 2 * chunk; }
  ROTA_DEVICE const int *gradients_done(int chunk) const { return scores_done(chunk) + 1; }
  ROTA_DEVICE void wait_for_gradients(int chunk) const {
    wait_for_signals(gradients_done(chunk), 2 * plan.chunks[chunk].gradients);
  }
  ROTA_DEVICE void wait_for_scores(int chunk) const {
    wait_for_signals(scores_done(chunk), 2 * plan.chunks[chunk].scores);
  }
  // What a work of this phase reads has been written, what it overwrites has been read: two
  // signals, of each warpgroup, for each work of the phases it depends on.
  ROTA_DEVICE void wait(bool scores) {
    const int c = current.chunk, key = 2 * c + (scores ? 0 : 1);
    if (key == current.ready)
      return;
    __syncwarp();
    if (lane_index() == 0)
      current.ready = key;
    if (scores) {
      const RotaChunk chunk = plan.chunks[c];
      for (int i = 0; i < chunk.free_count; i++)
        wait_for_gradients(chunk.free_first + i);
      if (Kernel::kLongScores && chunk.after >= 0)
        wait_for_scores(chunk.after);
    } else {
      wait_for_scores(c);
    }
    // Sums go on where another chunk left them, or in the place of another plane's.
    if (!scores && unit.after >= 0)
      wait_for_gradients(unit.after);
    fence_global_for_engines();
  }

  // One stage: `fill(stage's address, barrier)`, by one lane, starts copies of so many bytes.
  template <class Fill> ROTA_DEVICE void step(int bytes, const StageNote &note, Fill fill) {
    barrier_wait_phase(barriers.empty(ring.stage()), ring.parity());
    if (elect_lane()) {
      const unsigned words = stage_words(shared, ring.stage());
      store_shared_word(words, (note.last ? kWordLast : 0) | (note.clear ? kWordClear : 0) |
                                   (note.suspect ? kWordSuspect : 0));
      store_shared_word(words + 4, (unsigned)note.clear);
      store_shared_word(words + 8, (unsigned)(note.clear >> 32));
      store_shared_word(words + 12, (unsigned)note.key);
      barrier_expect(barriers.full(ring.stage()), bytes);
      fill(shared + (unsigned)(ring.stage() * kStageBytes), barriers.full(ring.stage()));
    }
    __syncwarp();
    ring.advance();
  }

  // Number of the block of 64 keys `kv64` of a group row.
  ROTA_DEVICE long long block(int row, int kv64) const {
    return unit.scores + (long long)(row - unit.row_begin) * (2 * unit.kv_tiles) +
           (kv64 - 2 * unit.kv_begin);
  }
  ROTA_DEVICE int tensor_q(int q) const { return (int)sequence.begin_q + q; }
  ROTA_DEVICE int tensor_k(int k) const { return (int)sequence.begin_k + k; }

  // kRows / 64 boxes, one below the other.
  template <int kRows>
  ROTA_DEVICE void boxes_down(unsigned to, const RotaTensorMap *map, int column, int row, int head,
                              unsigned barrier) const {
#pragma unroll
    for (int i = 0; i < kRows / 64; i++)
      copy_box(to + (unsigned)(i * kPartBytes), map, column, row + 64 * i, head, sequence.slot,
               barrier);
  }
  // The boxes that hold kColumns columns of 64 rows, side by side.
  template <int kColumns>
  ROTA_DEVICE void boxes_along(unsigned to, const RotaTensorMap *map, int column, int row, int head,
                               unsigned barrier) const {
#pragma unroll
    for (int i = 0; i < (kColumns + 63) / 64; i++)
      copy_box(to + (unsigned)(i * kPartBytes), map, column + 64 * i, row, head, sequence.slot,
               barrier);
  }
  template <int kColumns> ROTA_DEVICE static constexpr int gradient_bytes() {
    return kBytesA + (kColumns + 63) / 64 * kPartBytes;
  }

  // S or dP of a query tile and a pair of kv tiles: over the head dim.
  template <int kDim>
  ROTA_DEVICE void load_scores(const RotaTensorMap *map_a, const RotaTensorMap *map_b,
                               const Task &task) {
    constexpr int kSteps = (kDim + kStep - 1) / kStep;
    for (int i = 0; i < kSteps; i++) {
      const StageNote note = {i + 1 == kSteps, false, 0, 0};
      step(kStageBytes, note, [&](unsigned stage, unsigned barrier) {
        boxes_down<128>(stage, map_a, kStep * i, tensor_q(task.first_row), task.head, barrier);
        boxes_down<256>(stage + kBytesA, map_b, kStep * i, tensor_k(task.columns), unit.kv_head,
                        barrier);
      });
    }
  }

  // Over the keys that a query tile attends to: half(kv tile, half, note) for each 64 of them.
  template <class Half> ROTA_DEVICE void for_keys(const RotaRow &table, Half half) {
    const int end = unit.kv_begin + unit.kv_tiles;
    int left = count_tiles(table);
    for (RunWalk walk(arguments, table); walk.valid() && left > 0; walk.advance(arguments)) {
      if (walk.tile < unit.kv_begin || walk.tile >= end)
        continue;
      left--;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int key = walk.tile * kTileKv + 64 * i;
        half(2 * walk.tile + i, StageNote{i == 1 && left == 0, kHasMask && walk.partial(),
                                          rows_beyond(key, sequence.n_k), key});
      }
    }
  }
  // kv tiles of a row within the unit.
  ROTA_DEVICE int count_tiles(const RotaRow &table) const {
    int count = 0;
    for (int i = table.run_begin; i < table.run_end; i++) {
      const RotaRun run = arguments.runs[i];
      const int end = (int)(run.end_kind & ~ROTA_RUN_PARTIAL);
      const int first = larger(run.begin, unit.kv_begin);
      count += larger(0, smaller(end, unit.kv_begin + unit.kv_tiles) - first);
    }
    return count;
  }
  ROTA_DEVICE int group_row(const RotaVisit &visit) const {
    return (int)(visit.rank >> ROTA_VISIT_HEAD_SHIFT) * sequence.q_tiles +
           (int)(visit.tile & ROTA_VISIT_TILE);
  }
  // The visits of a chain that are in the unit: one after another, since chains that are cut
  // ascend.
  struct VisitRange {
    int begin, end;
    bool first, last; // whether these are the chain's first, and its last
  };
  ROTA_DEVICE VisitRange visits_within(const RotaChain &chain) const {
    int before = 0, within = 0;
    for (int i = chain.visit_begin + lane_index(); i < chain.visit_end; i += kWarp) {
      const int row = group_row(arguments.visits[i]) - unit.row_begin;
      before += row < 0;
      within += row >= 0 && row < unit.rows;
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      before += __shfl_xor_sync(kAllLanes, before, step);
      within += __shfl_xor_sync(kAllLanes, within, step);
    }
    const int begin = chain.visit_begin + before, end = begin + within;
    return {begin, end, before == 0, end == chain.visit_end};
  }
  ROTA_DEVICE int row_entry(int row) const {
    return unit.row_table + row / sequence.q_tiles * unit.row_step + row % sequence.q_tiles;
  }

  // The part of a task's description that all kinds share; `keys`: its rows are keys.
  ROTA_DEVICE Task describe_rows(const RotaWork &work, bool keys) const {
    Task task;
    task.kind = (int)(work.what & 3u);
    task.sequence = unit.sequence;
    task.chunk = current.chunk;
    task.flags = unit.flags;
    task.head = keys ? unit.kv_head : unit.kv_head * kGroup + work.tile / sequence.q_tiles;
    task.first_row = keys ? work.tile * kTileKv : work.tile % sequence.q_tiles * kTileQ;
    task.columns = 0;
    task.steps = 1;
    task.place = 0;
    task.kv_begin = unit.kv_begin;
    task.kv_end = unit.kv_begin + unit.kv_tiles;
    task.tensor_row = keys ? tensor_k(task.first_row) : tensor_q(task.first_row);
    task.slot = (int)sequence.slot;
    task.sums = 0;
    task.table = keys ? 0 : row_entry(work.tile);
    return task;
  }
  // A finished output whose rows are all within the slot, in blocks of columns that are whole boxes
  // or have none beside them.
  ROTA_DEVICE int boxes_flag(const Task &task, bool keys, int dim, int columns) const {
    const bool last = task.flags & (keys ? ROTA_UNIT_LAST_K : ROTA_UNIT_LAST_Q);
    const int rows = keys ? sequence.rows_k : sequence.rows_q;
    const bool whole = columns % 64 == 0 || columns >= dim;
    return last && whole && task.first_row + kTileQ <= rows ? kTaskBoxes : 0;
  }
  ROTA_DEVICE Task describe_scores(const RotaWork &work) const {
    Task task = describe_rows(work, false);
    const int pair = (int)(work.what >> 4);
    task.columns = 2 * pair * kTileKv;
    task.place = block(work.tile, kPairBlocks * pair);
    if ((work.what >> 2 & 3u) != 0 || task.first_row + kTileQ > sequence.n_q ||
        task.columns + 2 * kTileKv > sequence.n_k)
      task.flags |= kTaskPartial;
    return task;
  }

  // Takes works until there are none. The next ticket is drawn while this one's loads run.
  ROTA_DEVICE void run() {
    Kernel &kernel = static_cast<Kernel &>(*this);
    Turns<2> mail(1);
    for (int ticket = draw();;) {
      const bool more = ticket < plan.ticket_count;
      RotaWork work = {0, 0};
      barrier_wait_phase(barriers.task_empty(mail.stage()), mail.parity());
      // The task stays there: only this warp writes its place again.
      Task &task = task_place(mail.stage());
      if (more) {
        seek(ticket);
        work = plan.works[current.work_begin + ticket - current.first_ticket];
        post(task, kernel.describe(work));
        wait((work.what & 3u) == ROTA_WORK_SCORES);
      } else if (lane_index() == 0) {
        task.kind = kTaskEnd;
      }
      __syncwarp();
      if (lane_index() == 0)
        barrier_arrive(barriers.task_full(mail.stage()));
      __syncwarp();
      mail.advance();
      if (!more)
        return;
      // Long works are drawn late: whoever has one must not hold the next already.
      const bool early = !Kernel::kLongScores && task.kind == (int)ROTA_WORK_SCORES;
      if (early)
        ticket = draw();
      if (task.steps > 0)
        kernel.load(work, task);
      if (!early)
        ticket = draw();
    }
  }
  ROTA_DEVICE static void post(Task &to, const Task &task) {
    if (lane_index() == 0)
      to = task;
    __syncwarp();
  }
  ROTA_DEVICE int draw() const {
    int ticket = 0;
    if (lane_index() == 0)
      ticket = take_ticket(plan.counters);
    return __shfl_sync(kAllLanes, ticket, 0);
  }
};

// The next task, for a warp, in its place, until done_with_task().
ROTA_DEVICE const Task &wait_for_task(const Barriers &barriers, const Turns<2> &mail) {
  barrier_wait_phase(barriers.task_full(mail.stage()), mail.parity());
  return task_place(mail.stage());
}
ROTA_DEVICE void done_with_task(const Barriers &barriers, Turns<2> &mail) {
  __syncwarp();
  if (lane_index() == 0)
    barrier_arrive(barriers.task_empty(mail.stage()));
  mail.advance();
}
// The next task; its place is free again on return.
ROTA_DEVICE Task next_task(const Barriers &barriers, Turns<2> &mail) {
  const Task task = wait_for_task(barriers, mail);
  done_with_task(barriers, mail);
  return task;
}

// ---- Store warps: one per warpgroup, from staging to the workspace and to finished outputs ----

struct StoreWarp {
  const RotaMaterialised &plan;
  const Barriers barriers;
  const unsigned shared;
  const int group;
  StagingRing ring;

  // `count` parts as they are staged: store(part, where it lies), by one lane; then the signal.
  template <class Store> ROTA_DEVICE void take(int count, int *signal, Store store) {
    for (int i = 0; i < count; i++) {
      barrier_wait_phase(barriers.staged(group, ring.stage()), ring.parity());
      if (elect_lane()) {
        store(i, shared + (unsigned)(kStaging + (kStagings * group + ring.stage()) * kPartBytes));
        bulk_commit();
        bulk_wait_read<0>();
        barrier_arrive(barriers.unstaged(group, ring.stage()));
      }
      __syncwarp();
      ring.advance();
    }
    finish(signal);
  }
  // All that was stored is in memory: the signal.
  ROTA_DEVICE void finish(int *signal) const {
    if (elect_lane()) {
      bulk_wait<0>();
      fence_global_for_engines();
      add_release(signal, 1);
    }
    __syncwarp();
  }
};

// Of scores and outputs. Output tells the map and the columns of a kind of output.
template <class Output> struct OutputStores : StoreWarp {
  // The whole warp.
  ROTA_DEVICE void run(const RotaTensorMaps &maps) {
    for (Turns<2> mail(0);;) {
      const Task task = next_task(barriers, mail);
      if (task.kind == kTaskEnd)
        return;
      int *signals = plan.counters + 1 + 2 * task.chunk;
      if (task.kind == (int)ROTA_WORK_SCORES) {
        unsigned char *to = plan.scores + task.place * kScoreBlock + group * kPartBytes;
        // 64 keys each: P, P, P, P, dS ...
        take(kPairBlocks * kScorePlanes, signals, [&](int i, unsigned from) {
          store_bytes(to + i % kPairBlocks * kScoreBlock + i / kPairBlocks * kBytesA, from,
                      kPartBytes);
        });
      } else if (task.flags & kTaskBoxes) {
        const RotaTensorMap *map = &maps.map[Output::map(task.kind)];
        take((Output::columns(task.kind) + 63) / 64, signals + 1, [&](int i, unsigned from) {
          store_box(map, task.columns + 64 * i, task.tensor_row + 64 * group, task.head, task.slot,
                    from);
        });
      }
    }
  }
};

// ---- Consumers ----

struct WorkConsumer {
  const RotaArguments &arguments;
  const RotaMaterialised &plan;
  const Barriers barriers;
  const unsigned shared;
  const int group, thread; // warpgroup; thread within it
  StageRing ring;
  StagingRing staging;

  ROTA_DEVICE WorkConsumer(const RotaArguments &arguments, Barriers barriers, unsigned shared,
                           int group)
      : arguments(arguments), plan(arguments.materialised), barriers(barriers), shared(shared),
        group(group), thread((int)threadIdx.x % kWarpgroup), ring(0), staging(1) {}

  // Of half r of this lane's rows.
  ROTA_DEVICE int lane_row(int r) const {
    return 64 * group + hidden(thread) / kWarp * 16 + 8 * r + lane_index() / 4;
  }

  // A row of B: zeros.
  template <int kColumns> ROTA_DEVICE void clear_row(unsigned b, int row) const {
#pragma unroll 1
    for (int i = 0; i < (kColumns + 63) / 64 * 8; i++)
      store_shared_chunk(b + (unsigned)(i / 8 * kPartBytes + row * kBoxPitch + i % 8 * 16),
                         Chunk{{0, 0, 0, 0}});
  }
  // Clears rows of B as the stage's words say; a suspect row with something that is not finite,
  // unless keep(key): 0 * NaN must not reach a row that does not attend to the key. Four threads
  // look at a row. All consumers, before the products.
  template <int kColumns, class Keep>
  ROTA_DEVICE void clear_rows(unsigned word, unsigned words, unsigned b, Keep keep) const {
    const int row = (group * kWarpgroup + hidden(thread)) / 4, part = hidden(thread) % 4;
    const unsigned bits = load_shared_word(words + (row < 32 ? 4u : 8u));
    bool clear = (word & kWordClear) && (bits >> row % 32 & 1u);
    if (word & kWordSuspect) { // the same for all threads
      unsigned found = 0;
#pragma unroll 1
      for (int i = part; i < (kColumns + 63) / 64 * 8; i += 4) {
        const Chunk x =
            load_shared_chunk(b + (unsigned)(i / 8 * kPartBytes + row * kBoxPitch + i % 8 * 16));
        for (int j = 0; j < 4; j++)
          found |= packed_not_finite(x.word[j], Element());
      }
      found |= __shfl_xor_sync(kAllLanes, found, 1);
      found |= __shfl_xor_sync(kAllLanes, found, 2);
      clear = clear || (found && !keep((int)load_shared_word(words + 12) + row));
    }
    if (clear && part == 0)
      clear_row<kColumns>(b, row);
    fence_shared_for_engines();
    named_barrier_sync(1, 2 * kWarpgroup);
  }

  // The products of one stage; returns whether it was the sum's last.
  template <int kN, int kAcrossA, int kAcrossB, bool kFirst>
  ROTA_DEVICE bool multiply_stage(float (&d)[kN / 2]) {
    barrier_wait_phase(barriers.full(ring.stage()), ring.parity());
    const unsigned a = shared + (unsigned)(ring.stage() * kStageBytes + group * kPartBytes);
    const unsigned b = shared + (unsigned)(ring.stage() * kStageBytes + kBytesA);
    const unsigned words = stage_words(shared, ring.stage()), word = load_shared_word(words);
    if (kAcrossB && (word & (kWordClear | kWordSuspect)))
      clear_rows<kN>(word, words, b, [](int) { return false; });
    const Descriptor from_a = kAcrossA ? describe_across(a, 64) : describe_along(a);
    const Descriptor from_b = kAcrossB ? describe_across(b, 64) : describe_along(b);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStep / 16; i++) {
      const Descriptor da = advance(from_a, kAcrossA ? step_across(i) : 32 * i);
      const Descriptor db = advance(from_b, kAcrossB ? step_across(i) : 32 * i);
      if (kFirst && i == 0)
        Wgmma<kN>::template multiply<kAcrossA, kAcrossB>(d, da, db);
      else
        Wgmma<kN>::template accumulate<kAcrossA, kAcrossB>(d, da, db);
    }
    wgmma_commit();
    return (word & kWordLast) != 0;
  }
  ROTA_DEVICE void release(int stage) const {
    if (lane_index() == 0)
      barrier_arrive(barriers.empty(stage));
  }
  // d = (kFresh) or += the whole sum.
  template <int kN, int kAcrossA, int kAcrossB, bool kFresh>
  ROTA_DEVICE void multiply(float (&d)[kN / 2]) {
    bool last = multiply_stage<kN, kAcrossA, kAcrossB, kFresh>(d);
    ring.advance();
    while (!last) {
      last = multiply_stage<kN, kAcrossA, kAcrossB, false>(d);
      wgmma_wait<1>();
      release(ring.before());
      ring.advance();
    }
    wgmma_wait<0>();
    wgmma_touch(d);
    release(ring.before());
  }

  // Packed pairs of 64 keys to staging, in the order of a box.
  ROTA_DEVICE void stage(const unsigned (&x)[16]) {
    barrier_wait_phase(barriers.unstaged(group, staging.stage()), staging.parity());
    const unsigned to =
        shared + (unsigned)(kStaging + (kStagings * group + staging.stage()) * kPartBytes);
    const int row = thread / kWarp * 16 + lane_index() % 16, chunk = lane_index() / 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned four[4] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
      store_matrices(to + (unsigned)box_offset(64, row, 2 * i + chunk), four);
    }
    fence_shared_for_engines();
    barrier_arrive(barriers.staged(group, staging.stage()));
    staging.advance();
  }

  // Rows of an output for the store warp: rounded, times scale[r]; rows beyond `used` as zeros.
  template <int kN>
  ROTA_DEVICE void stage_output(const Task &task, int used, const float (&scale)[2],
                                const float (&d)[kN / 2]) {
    bool zero[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
      zero[r] = task.first_row + lane_row(r) >= used || scale[r] == 0.0f;
    for_parts([&](auto part) {
      constexpr int kFirst = 32 * decltype(part)::kIndex;
      if constexpr (kFirst < kN / 2) {
        unsigned words[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
          const int at = kFirst + 2 * i, r = i % 2;
          words[i] = 0;
          if (at < kN / 2 && !zero[r])
            words[i] = pack(scale[r] * d[at], scale[r] * d[at + 1], Element());
        }
        stage(words);
      }
    });
  }
  // The same, by the consumers themselves.
  template <int kN>
  ROTA_DEVICE void store(const RotaTensor &tensor, const Task &task, bool keys, int dim,
                         const float (&scale)[2], const float (&d)[kN / 2]) const {
    const RotaSequence &sequence = arguments.sequences[task.sequence];
    const int used = keys ? sequence.n_k : sequence.n_q;
    const int slot_rows = keys ? sequence.rows_k : sequence.rows_q;
    const long long begin = keys ? sequence.begin_k : sequence.begin_q;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = task.first_row + lane_row(r);
      if (row >= slot_rows)
        continue;
      Element *to = element_at<Element>(tensor, sequence.slot, begin + row, task.head);
      const bool zero = row >= used || scale[r] == 0.0f;
#pragma unroll
      for (int i = 0; i < kN / 8; i++) {
        const int column = task.columns + 8 * i + 2 * (lane_index() % 4);
        const unsigned x =
            pack(scale[r] * d[4 * i + 2 * r], scale[r] * d[4 * i + 2 * r + 1], Element());
        if (column < dim)
          *reinterpret_cast<unsigned *>(to + column) = zero ? 0u : x;
      }
    }
  }

  // Sums of the units before or for those after: each thread finds its own again.
  template <int kN> ROTA_DEVICE void load_sums(float (&d)[kN / 2], const float *mine) const {
#pragma unroll
    for (int i = 0; i < kN / 8; i++) {
      float x[4];
      load_sum(x, mine + 4 * kWarpgroup * i);
#pragma unroll
      for (int j = 0; j < 4; j++)
        d[4 * i + j] = x[j];
    }
  }
  template <int kN> ROTA_DEVICE void store_sums(const float (&d)[kN / 2], float *mine) const {
#pragma unroll
    for (int i = 0; i < kN / 8; i++) {
      const float x[4] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
      store_sum(mine + 4 * kWarpgroup * i, x);
    }
  }

  // This warpgroup has finished a work of a chunk's second phase.
  ROTA_DEVICE void signal_gradients(int chunk) const {
    named_barrier_sync(2 + group, kWarpgroup);
    if (thread == 0)
      add_release(plan.counters + 2 + 2 * chunk, 1);
  }
};

ROTA_DEVICE void start_barriers(Barriers barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) {
      barrier_init(barriers.full(i), 1);
      barrier_init(barriers.empty(i), kConsumerWarps);
    }
    for (int i = 0; i < 2; i++) {
      barrier_init(barriers.task_full(i), 1);
      barrier_init(barriers.task_empty(i), kConsumerWarps + 2);
      for (int group = 0; group < 2; group++) {
        barrier_init(barriers.staged(group, i), kWarpgroup);
        barrier_init(barriers.unstaged(group, i), 1);
      }
    }
    barrier_init_fence();
  }
  __syncthreads();
}

// A block of 384 threads, two consumer warpgroups first.
template <class Loader, class Consumer, class Stores>
ROTA_DEVICE void run_works(const RotaArguments &arguments, const RotaTensorMaps &maps) {
  const unsigned shared = shared_address(dynamic_shared());
  const Barriers barriers = {shared + (unsigned)kBarriers};
  start_barriers(barriers);
  wait_for_predecessor();
  const int group = uniform((int)threadIdx.x / kWarpgroup);
  if (group == 2) {
    registers_lower<kProducerRegisters>();
    const int warp = warp_index() - 2 * kWarpgroup / kWarp;
    if (warp == 0)
      Loader(arguments, maps, barriers, shared).run();
    else if (warp <= 2)
      Stores{{arguments.materialised, barriers, shared, warp - 1, StagingRing(0)}}.run(maps);
  } else {
    registers_raise<kConsumerRegisters>();
    Consumer(arguments, barriers, shared, group).run();
  }
}

} // namespace rota

#endif
