// Matrix products of a warp: operands from swizzled shared tiles (memory.cuh) or registers, on
// mma_m16n8k16.
//
// Fragments, for lane = 4 g + t (g: 0 .. 7, t: 0 .. 3):
//   accumulator 16 x 8   d[0], d[1]: row g, columns 2t and 2t + 1; d[2], d[3]: row g + 8
//   A 16 x 16            a[0], a[1]: rows g and g + 8, k = 2t, 2t + 1; a[2], a[3]: k + 8
//   B 16 x 8             b[0]: column g, k = 2t, 2t + 1; b[1]: k + 8
// so two neighbouring accumulators, rounded and packed, are an A operand: nothing moves between
// lanes.
#ifndef ROTA_LIB_MATRIX_CUH
#define ROTA_LIB_MATRIX_CUH

#include "instructions.cuh"
#include "templates/lib/memory.cuh"

namespace rota {

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
ROTA_DEVICE void load_matrices(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
ROTA_DEVICE void load_matrices_transposed(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// Where a lane reads 16 x 16 blocks of a tile. The lane's part of the address is computed once;
// blocks at rows + 8 n and at even chunks differ from it by constants and one exclusive or. Tiles
// start at multiples of 128 bytes.
//
//   along    the four 8 x 8 matrices in the order upper left, lower left, upper right, lower right:
//            A stored [m][k]; transposed: B stored [k][n], as two fragments of 8 columns
//   across   the two in the middle exchanged:
//            B stored [n][k], as two fragments of 8 columns; transposed: A stored [k][m]
template <class Layout> struct BlockReader {
  unsigned origin;

  ROTA_DEVICE static BlockReader along(unsigned tile, int row) {
    const int lane = lane_index();
    return {tile + (unsigned)Layout::offset(row + lane % 16, lane / 16)};
  }
  ROTA_DEVICE static BlockReader across(unsigned tile, int row) {
    const int lane = lane_index();
    return {tile + (unsigned)Layout::offset(row + lane % 8 + lane / 16 * 8, lane / 8 % 2)};
  }
  // Address of the block at `rows` (multiple of 8) below the origin's and at k or column block
  // `block` of 16.
  ROTA_DEVICE unsigned at(int rows, int block) const {
    const int chunk = 2 * block;
    return (origin ^ (unsigned)((chunk & Layout::kMask) * 16)) +
           (unsigned)(rows * Layout::kPitch + (chunk & ~Layout::kMask) * 16);
  }
};

// A: 16 rows at `rows`, k block `block`, of a tile stored [m][k] (reader: along).
template <class Layout>
ROTA_DEVICE void load_a(unsigned (&a)[4], const BlockReader<Layout> &reader, int rows, int block) {
  load_matrices(a, reader.at(rows, block));
}
// A: column block `block` of 16, k = 16 rows at `rows`, of a tile stored [k][m] (reader: across).
template <class Layout>
ROTA_DEVICE void load_a_transposed(unsigned (&a)[4], const BlockReader<Layout> &reader, int rows,
                                   int block) {
  load_matrices_transposed(a, reader.at(rows, block));
}
// B: 16 columns = 16 rows at `rows`, k block `block`, of a tile stored [n][k] (reader: across): two
// fragments.
template <class Layout>
ROTA_DEVICE void load_b(unsigned (&b)[2][2], const BlockReader<Layout> &reader, int rows,
                        int block) {
  unsigned r[4];
  load_matrices(r, reader.at(rows, block));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}
// B: column block `block` of 16, k = 16 rows at `rows`, of a tile stored [k][n] (reader: along):
// two fragments.
template <class Layout>
ROTA_DEVICE void load_b_transposed(unsigned (&b)[2][2], const BlockReader<Layout> &reader, int rows,
                                   int block) {
  unsigned r[4];
  load_matrices_transposed(r, reader.at(rows, block));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// Two accumulators side by side (columns 16 n .. 16 n + 15) as an A operand of k block n.
template <class Element>
ROTA_DEVICE void pack_a(unsigned (&a)[4], const float (&left)[4], const float (&right)[4],
                        Element element) {
  a[0] = pack(left[0], left[1], element);
  a[1] = pack(left[2], left[3], element);
  a[2] = pack(right[0], right[1], element);
  a[3] = pack(right[2], right[3], element);
}

template <int kM, int kN> ROTA_DEVICE void clear(float (&d)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; m++)
#pragma unroll
    for (int n = 0; n < kN; n++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        d[m][n][i] = 0.0f;
}

// One k block: d += a b, with a in registers and two B fragments of columns 16 n ..
template <int kM, int kN>
ROTA_DEVICE void multiply_block(float (&d)[kM][kN][4], const unsigned (&a)[kM][4],
                                const unsigned (&b)[2][2], int n) {
#pragma unroll
  for (int m = 0; m < kM; m++) {
    mma_m16n8k16(d[m][2 * n], a[m], b[0]);
    mma_m16n8k16(d[m][2 * n + 1], a[m], b[1]);
  }
}

// For products with nothing to do meanwhile.
struct Nothing {
  ROTA_DEVICE void operator()(int) const {}
};

// d += A B^T with A stored [m][k] (reader along) and B stored [n][k] (reader across), for column
// blocks kFirst .. kFirst + kCount - 1 of 16. kBlocks: k / 16. A warp may issue a product only
// every few cycles: meanwhile(block) is called between k blocks for other work without branches,
// such as starting copies, to fill the gaps.
template <int kBlocks, int kFirst, int kCount, int kM, int kN, class LayoutA, class LayoutB,
          class Meanwhile = Nothing>
ROTA_DEVICE void
multiply_transposed_part(float (&d)[kM][kN][4], const BlockReader<LayoutA> &a_reader,
                         const BlockReader<LayoutB> &b_reader, Meanwhile meanwhile = Meanwhile()) {
#pragma unroll
  for (int block = 0; block < kBlocks; block++) {
    unsigned a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; m++)
      load_a(a[m], a_reader, 16 * m, block);
#pragma unroll
    for (int n = kFirst; n < kFirst + kCount; n++) {
      unsigned b[2][2];
      load_b(b, b_reader, 16 * n, block);
      multiply_block(d, a, b, n);
    }
    meanwhile(block);
  }
}
// The same for all columns: S = Q K^T.
template <int kBlocks, int kM, int kN, class LayoutA, class LayoutB, class Meanwhile = Nothing>
ROTA_DEVICE void multiply_transposed(float (&d)[kM][kN][4], const BlockReader<LayoutA> &a_reader,
                                     const BlockReader<LayoutB> &b_reader,
                                     Meanwhile meanwhile = Meanwhile()) {
  multiply_transposed_part<kBlocks, 0, kN / 2>(d, a_reader, b_reader, meanwhile);
}

// One k block of d += A B with A in registers and B stored [k][n] (reader along).
template <int kM, int kN, class LayoutB>
ROTA_DEVICE void multiply_registers(float (&d)[kM][kN][4], const unsigned (&a)[kM][4],
                                    const BlockReader<LayoutB> &b_reader, int block) {
#pragma unroll
  for (int n = 0; n < kN / 2; n++) {
    unsigned b[2][2];
    load_b_transposed(b, b_reader, 16 * block, n);
    multiply_block(d, a, b, n);
  }
}
// d += A B with A in accumulators p, rounded here to Element: dQ += dS K.
template <class Element, int kM, int kK, int kN, class LayoutB>
ROTA_DEVICE void multiply_packed(float (&d)[kM][kN][4], const float (&p)[kM][kK][4],
                                 const BlockReader<LayoutB> &b_reader) {
#pragma unroll
  for (int block = 0; block < kK / 2; block++) {
    unsigned a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; m++)
      pack_a(a[m], p[m][2 * block], p[m][2 * block + 1], Element());
    multiply_registers(d, a, b_reader, block);
  }
}

// Writes the accumulators of 16 rows x 8 kN columns, rounded to Element, into a tile stored [m][n].
template <class Layout, class Element, int kN>
ROTA_DEVICE void store_accumulators(unsigned tile, int row, const float (&d)[kN][4],
                                    Element element) {
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kN; n++) {
    store_shared_word(tile + (unsigned)(Layout::offset(row + g, n) + 4 * t),
                      pack(d[n][0], d[n][1], element));
    store_shared_word(tile + (unsigned)(Layout::offset(row + g + 8, n) + 4 * t),
                      pack(d[n][2], d[n][3], element));
  }
}

} // namespace rota

#endif
