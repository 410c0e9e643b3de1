// The copy engine of sm_90: boxes of a tensor into swizzled shared memory, and reductions of plain
// bytes from shared memory into global memory.
//
// A box of a tensor map is 64 columns (128 bytes) x rows of one head; it lies in shared memory as
// rows of 128 bytes at a multiple of 1024, with 16-byte chunk c of row r at place c ^ (r % 8).
// Rows and columns beyond the tensor arrive as zeros, also before its first row; expanded tensors
// (a stride of 0) may be read like any other.
//
//   wide tile, head dim 192:   box columns 0 .. 63 | box columns 64 .. 127 | box columns 128 .. 191
//                              rows * 128 bytes each, one after another
#ifndef ROTA_LIB_TENSOR_COPY_CUH
#define ROTA_LIB_TENSOR_COPY_CUH

#include "templates/lib/types.cuh"

namespace rota {

inline constexpr int kBoxColumns = 64, kBoxPitch = 128; // elements, bytes

// Byte offset of 16-byte chunk `chunk` (of 8 elements) of row `row` in a tile of `rows` rows.
ROTA_DEVICE constexpr int box_offset(int rows, int row, int chunk) {
  return (chunk / 8) * rows * kBoxPitch + row * kBoxPitch + ((chunk % 8) ^ (row % 8)) * 16;
}

ROTA_DEVICE void tensor_map_prefetch(const RotaTensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// True for one lane of a converged warp, always the same, and the compiler knows that it is one:
// copies that it starts need no loop over lanes.
ROTA_DEVICE bool elect_lane() {
  unsigned elected = 0;
  asm volatile("{\n"
               ".reg .pred elected;\n"
               "elect.sync _|elected, 0xffffffff;\n"
               "@elected mov.u32 %0, 1;\n"
               "}\n"
               : "+r"(elected));
  return elected != 0;
}

// One box, first element (column, row, head, slot); its bytes arrive at the barrier. One thread.
ROTA_DEVICE void copy_box(unsigned shared, const RotaTensorMap *map, int column, int row, int head,
                          int slot, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared),
               "l"(map), "r"(column), "r"(row), "r"(head), "r"(slot), "r"(barrier)
               : "memory");
}
// All boxes of a tile of kColumns columns and kRows rows (the map's box rows).
template <int kColumns, int kRows>
ROTA_DEVICE void copy_boxes(unsigned shared, const RotaTensorMap *map, int row, int head, int slot,
                            unsigned barrier) {
#pragma unroll
  for (int column = 0; column < kColumns; column += kBoxColumns)
    copy_box(shared + (unsigned)(column / kBoxColumns * kRows * kBoxPitch), map, column, row, head,
             slot, barrier);
}

// Contiguous bytes, a multiple of 16, both addresses multiples of 16; they arrive at the barrier.
ROTA_DEVICE void copy_bytes(unsigned shared, const void *global, int bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
               "[%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// ---- From shared to global memory: asynchronous, in groups of the issuing thread ----

ROTA_DEVICE void store_bytes(void *global, unsigned shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
// One box of shared memory into the tensor, first element (column, row, head, slot); what lies
// beyond the tensor is not written. One thread.
ROTA_DEVICE void store_box(const RotaTensorMap *map, int column, int row, int head, int slot,
                           unsigned shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], "
               "[%5];" ::"l"(map),
               "r"(column), "r"(row), "r"(head), "r"(slot), "r"(shared)
               : "memory");
}
// global[i] += shared[i], fp32: each element atomic, the order among several not fixed.
ROTA_DEVICE void add_floats(float *global, unsigned shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}
ROTA_DEVICE void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most kPending groups have not been read from shared memory: it may be written again.
template <int kPending> ROTA_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Until at most kPending groups are not complete: the writes have been made.
template <int kPending> ROTA_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Proxies ----

// Ordinary writes to shared memory before it, reads by tensor cores and copy engine after the next
// barrier: in every writing thread.
ROTA_DEVICE void fence_shared_for_engines() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Between accesses to global memory by the copy engine and ordinary ones.
ROTA_DEVICE void fence_global_for_engines() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- Launches that overlap their predecessor on the stream ----

// Until the kernel before this one has ended and what it wrote is visible, whether it called
// launch_dependents or not: before anything that others write is read. By a kernel that overlaps,
// always, so that the end of a chain of them means the end of all; at its end if it waits for words
// that the kernel ahead has reset before launch_dependents.
ROTA_DEVICE void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Called by all blocks (or ended): the next kernel may start where there is room.
ROTA_DEVICE void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

} // namespace rota

#endif
