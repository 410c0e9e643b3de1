// Moving data: asynchronous copies of matrix tiles into swizzled shared memory, and stores back
// with bounds.
//
// A tile of 16-bit elements lies in shared memory as rows of 16-byte chunks (8 elements), without
// gaps, head dim padded with zeros to a multiple of 16. Chunk c of row r sits at place c ^
// swizzle(r) of its row; the swizzle has period 8 in r and makes the same chunk of 8 neighbouring
// rows fall into 8 different groups of 4 banks, for every even number of chunks:
//
//   chunks per row   bank group of place p in row r   swizzle       mask
//   8 n              p                                r % 8         7
//   8 n + 4          p + 4 (r % 2)                    r / 2 % 4     3
//   4 n + 2          p + 2 r or p + 6 r               r / 4 % 2     1
#ifndef ROTA_LIB_MEMORY_CUH
#define ROTA_LIB_MEMORY_CUH

#include "templates/lib/types.cuh"

namespace rota {

inline constexpr int kChunk = 8; // elements of 16 bits in 16 bytes

template <int kColumnsUsed> struct TileLayout {
  static constexpr int kColumns = kColumnsUsed;                      // real head dim
  static constexpr int kPadded = round_up(kColumnsUsed, 2 * kChunk); // with zeros
  static constexpr int kChunks = kPadded / kChunk;
  static constexpr int kPitch = kPadded * 2; // bytes per row
  static constexpr int kMask = kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : 1;

  ROTA_DEVICE static int swizzle(int row) {
    return kMask == 7 ? row & 7 : kMask == 3 ? (row >> 1) & 3 : (row >> 2) & 1;
  }
  // Byte offset of a chunk.
  ROTA_DEVICE static int offset(int row, int chunk) {
    return row * kPitch + ((chunk ^ swizzle(row)) * 16);
  }
};

// ---- Instructions ----

// Hides how a pointer came about, so that the compiler keeps it in a register rather than the parts
// of its sum, which are more.
template <class T> ROTA_DEVICE void keep_whole(T *&pointer) {
  asm volatile("" : "+l"(pointer));
}

// The block's dynamic shared memory, aligned for any tile.
ROTA_DEVICE unsigned char *dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char rota_dynamic_shared[];
  return rota_dynamic_shared;
}
ROTA_DEVICE unsigned shared_address(const void *pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// 16 bytes into shared memory, of which the first `bytes` come from global memory and the rest are
// zeros; nothing is read where bytes is 0. Both addresses are multiples of 16.
ROTA_DEVICE void copy_async(unsigned shared, const void *global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
ROTA_DEVICE void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending of this thread's committed groups are under way; others' copies need a
// barrier besides.
template <int kPending> ROTA_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

struct Chunk { // 16 bytes in registers
  unsigned word[4];
};
ROTA_DEVICE Chunk load_shared_chunk(unsigned shared) {
  Chunk x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(shared)
               : "memory");
  return x;
}
ROTA_DEVICE void store_shared_chunk(unsigned shared, const Chunk &x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.word[0]),
               "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}
ROTA_DEVICE void store_shared_word(unsigned shared, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}
ROTA_DEVICE int load_shared_int(unsigned shared) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}
ROTA_DEVICE Chunk load_global_chunk(const void *global) {
  Chunk x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(global)
               : "memory");
  return x;
}
// The same of what will not be read again: it takes no place in the L1.
ROTA_DEVICE Chunk load_global_chunk_once(const void *global) {
  Chunk x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(global)
               : "memory");
  return x;
}
ROTA_DEVICE void store_global_chunk(void *global, const Chunk &x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(x.word[0]),
               "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

// Where `stores`, without a branch, which would part the lanes.
ROTA_DEVICE void store_global_if(bool stores, float *to, float x) {
  asm volatile("{\n"
               ".reg .pred stores;\n"
               "setp.ne.u32 stores, %0, 0;\n"
               "@stores st.global.f32 [%1], %2;\n"
               "}" ::"r"((unsigned)stores),
               "l"(to), "f"(x)
               : "memory");
}
ROTA_DEVICE void store_global_words(void *global, unsigned low, unsigned high) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(global), "r"(low), "r"(high) : "memory");
}

// ---- Chunks of a row in global memory: any head dim, any alignment ----

// Bytes of chunk `chunk` that exist in a row of kColumns elements: 16, fewer in the last one, 0 in
// the padding.
template <int kColumns> ROTA_DEVICE constexpr int chunk_bytes(int chunk) {
  return smaller(16, larger(0, 2 * kColumns - 16 * chunk));
}

// Element by element: for addresses that are not multiples of 16 bytes.
template <int kColumns, class Element>
ROTA_DEVICE Chunk load_elements(const Element *row, int chunk) {
  Chunk x;
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    const int column = chunk * kChunk + i;
    const unsigned low = column < kColumns ? row[column].bits : 0u;
    const unsigned high = column + 1 < kColumns ? row[column + 1].bits : 0u;
    x.word[i / 2] = low | high << 16;
  }
  return x;
}
template <int kColumns, class Element>
ROTA_DEVICE void store_elements(Element *row, int chunk, const Chunk &x) {
#pragma unroll
  for (int i = 0; i < kChunk; i++) {
    const int column = chunk * kChunk + i;
    if (column < kColumns)
      row[column] = Element{(unsigned short)(x.word[i / 2] >> (i % 2 * 16))};
  }
}
// Stores a chunk of a row; nothing beyond kColumns is written. row: element 0 of the row.
template <int kColumns, bool kAligned, class Element>
ROTA_DEVICE void store_row_chunk(Element *row, int chunk, const Chunk &x) {
  if (kAligned && (kColumns % kChunk == 0 || chunk * kChunk + kChunk <= kColumns)) {
    if (chunk * kChunk < kColumns)
      store_global_chunk(row + chunk * kChunk, x);
  } else {
    store_elements<kColumns>(row, chunk, x);
  }
}

// ---- Tiles ----

// Which chunks of a tile a thread moves: a group of kAcross neighbouring threads takes neighbouring
// chunks of a row, and then further columns and rows in constant steps that leave the swizzle alone
// (if there are 64 threads or more), so that all addresses but one are constants away from it. A
// thread's share is the same in every call: after copy_wait it may look at its own chunks before
// the barrier.
template <class Layout, int kRows, int kThreads> struct TileShare {
  static constexpr int kAcross = Layout::kMask + 1; // divides kChunks
  static constexpr int kDown = kThreads / kAcross;  // rows per step
  static_assert(kThreads % kAcross == 0, "whole groups of threads");

  ROTA_DEVICE static int row(int thread) { return thread / kAcross; }
  ROTA_DEVICE static int chunk(int thread) { return thread % kAcross; }
  // False where the tile has fewer rows than there are groups of threads and this one is idle.
  ROTA_DEVICE static bool has(int thread, int step) {
    return kRows % kDown == 0 || row(thread) + step < kRows;
  }
};

// Calls visit(row, chunk) for this thread's chunks.
template <class Layout, int kRows, int kThreads, class Visit>
ROTA_DEVICE void for_own_chunks(int thread, Visit visit) {
  using Share = TileShare<Layout, kRows, kThreads>;
#pragma unroll
  for (int step = 0; step < kRows; step += Share::kDown)
#pragma unroll
    for (int column = 0; column < Layout::kChunks; column += Share::kAcross)
      if (Share::has(thread, step))
        visit(Share::row(thread) + step, Share::chunk(thread) + column);
}

// Loads tiles of one matrix in global memory. Made once, it keeps the thread's place in the matrix,
// so that a tile costs little more than its copies.
template <class Layout, int kRows, int kThreads, bool kAligned, class Element> struct TileLoader {
  using Share = TileShare<Layout, kRows, kThreads>;
  static constexpr int kColumns = Layout::kChunks / Share::kAcross; // copies per row
  static constexpr int kCopies = kColumns * ((kRows + Share::kDown - 1) / Share::kDown);
  const Element *own; // this thread's first chunk of the tile at row 0
  unsigned offset;    // its place in shared memory
  int row, chunk;

  // `global`: element 0 of row 0; strides in elements.
  ROTA_DEVICE TileLoader(const Element *global, long long stride_row, int thread)
      : own(global + Share::row(thread) * stride_row + Share::chunk(thread) * kChunk),
        offset((unsigned)Layout::offset(Share::row(thread), Share::chunk(thread))),
        row(Share::row(thread)), chunk(Share::chunk(thread)) {
    keep_whole(own);
  }

  // Loads rows [first, first + kRows) into the tile at shared address `tile`; rows from row_count
  // on become zeros and are not read, and so do the padding columns. The caller commits and waits.
  ROTA_DEVICE void load(unsigned tile, int first, long long stride_row, int row_count) const {
    load_part(tile, tile_source(first, stride_row), stride_row, row_count - first, 0, 1);
  }
  // The same in `parts` calls, part = 0 .. parts - 1, each with its share of the copies: `from` is
  // tile_source(first, stride_row), rows_left is row_count - first.
  ROTA_DEVICE void load_part(unsigned tile, const Element *from, long long stride_row,
                             int rows_left, int part, int parts) const {
#pragma unroll
    for (int i = part * kCopies / parts; i < (part + 1) * kCopies / parts; i++) {
      const int step = i / kColumns * Share::kDown, column = i % kColumns * Share::kAcross;
      if (kRows % Share::kDown == 0 || row + step < kRows)
        load_chunk(place(tile, step, column), from + step * stride_row, column,
                   row + step < rows_left);
    }
  }
  // This thread's first chunk of the tile that begins at row `first`.
  ROTA_DEVICE const Element *tile_source(int first, long long stride_row) const {
    const Element *from = own + first * stride_row;
    keep_whole(from);
    return from;
  }

private:
  ROTA_DEVICE unsigned place(unsigned tile, int step, int column) const {
    if constexpr (Share::kDown % 8 == 0)
      return tile + offset + (unsigned)(step * Layout::kPitch + column * 16);
    else
      return tile + (unsigned)Layout::offset(row + step, chunk + column);
  }
  ROTA_DEVICE void load_chunk(unsigned to, const Element *from, int column, bool exists) const {
    if constexpr (kAligned) {
      const int bytes =
          Layout::kColumns == Layout::kPadded ? 16 : chunk_bytes<Layout::kColumns>(chunk + column);
      copy_async(to, from + column * kChunk, exists ? bytes : 0);
    } else {
      Chunk x = {{0, 0, 0, 0}};
      if (exists)
        x = load_elements<Layout::kColumns>(from - chunk * kChunk, chunk + column);
      store_shared_chunk(to, x);
    }
  }
};

// Loads one tile: rows [0, kRows) of the matrix whose row 0 `global` points to.
template <class Layout, int kRows, int kThreads, bool kAligned, class Element>
ROTA_DEVICE void load_tile(unsigned tile, const Element *global, long long stride_row,
                           int row_count, int thread) {
  TileLoader<Layout, kRows, kThreads, kAligned, Element>(global, stride_row, thread)
      .load(tile, 0, stride_row, row_count);
}

// Stores rows [0, row_count) of the tile at `tile` to global memory.
template <class Layout, int kRows, int kThreads, bool kAligned, class Element>
ROTA_DEVICE void store_tile(unsigned tile, Element *global, long long stride_row, int row_count,
                            int thread) {
  for_own_chunks<Layout, kRows, kThreads>(thread, [&](int row, int chunk) {
    if (row >= row_count)
      return;
    const Chunk x = load_shared_chunk(tile + (unsigned)Layout::offset(row, chunk));
    store_row_chunk<Layout::kColumns, kAligned>(global + row * stride_row, chunk, x);
  });
}

// True if one of this thread's own chunks of the tile holds a NaN or an infinity.
template <class Layout, int kRows, int kThreads, class Element>
ROTA_DEVICE bool own_chunks_not_finite(unsigned tile, int thread) {
  unsigned found = 0;
  for_own_chunks<Layout, kRows, kThreads>(thread, [&](int row, int chunk) {
    const Chunk x = load_shared_chunk(tile + (unsigned)Layout::offset(row, chunk));
#pragma unroll
    for (int i = 0; i < 4; i++)
      found |= packed_not_finite(x.word[i], Element());
  });
  return found != 0;
}

// Zeros one row of a tile.
template <class Layout> ROTA_DEVICE void zero_row(unsigned tile, int row) {
  const Chunk zero = {{0, 0, 0, 0}};
  for (int chunk = 0; chunk < Layout::kChunks; chunk++)
    store_shared_chunk(tile + (unsigned)Layout::offset(row, chunk), zero);
}

} // namespace rota

#endif
