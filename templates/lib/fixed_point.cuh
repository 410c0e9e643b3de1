// Sums that come out the same in any order: partials scaled to 32-bit integers, whose addition is
// associative. Beside it what bounds such sums: largest absolute values and norms, found without
// overflow or underflow, and the same whatever the order, since a maximum is.
#ifndef ROTA_LIB_FIXED_POINT_CUH
#define ROTA_LIB_FIXED_POINT_CUH

#include "templates/lib/memory.cuh"
#include "templates/lib/types.cuh"

namespace rota {

// A sum's bound is scaled to 2^30, where 2^31 would overflow: docs/exact.md says what the other
// half is for.
inline constexpr float kFixedBits = 30.0f;

// ---- Integers in the registers and the memory of floats ----

// To the nearest integer, as the bits of a float; a NaN gives some integer.
ROTA_DEVICE float to_fixed(float x) {
  int y;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __int_as_float(y);
}
ROTA_DEVICE float from_fixed(float x) {
  return (float)__float_as_int(x);
}
// global[i] += shared[i], int32, modulo 2^32: by the copy engine.
ROTA_DEVICE void add_integers(float *global, unsigned shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}

// ---- Largest absolute values: as bits, whose order is that of the values; NaN is the largest ----

// Of two packed elements each.
ROTA_DEVICE unsigned packed_magnitudes(unsigned a, unsigned b) {
  unsigned y;
  asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b & 0x7fff7fffu));
  return y;
}
ROTA_DEVICE unsigned larger_bits(unsigned a, unsigned b) {
  return a > b ? a : b;
}
ROTA_DEVICE unsigned warp_largest(unsigned x) {
  unsigned y;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}
ROTA_DEVICE void raise_to(unsigned *global, unsigned x) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(global), "r"(x) : "memory");
}
ROTA_DEVICE bool bits_are_finite(unsigned magnitude) {
  return magnitude < 0x7f800000u;
}

// ---- Norms ----

// A power of two that brings magnitudes of which `largest` is the largest (bits) to 1 .. 2, or, at
// the ends of the range, near that; and what takes it back.
struct PowerOfTwo {
  float down, up;
  ROTA_DEVICE explicit PowerOfTwo(unsigned largest) {
    const unsigned exponent = largest >> 23; // 255: not finite, and so will the norm be
    const unsigned held = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    down = __uint_as_float((254u - held) << 23);
    up = __uint_as_float(held << 23);
  }
};
ROTA_DEVICE float chunk_square_sum(const Chunk &x, float factor) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float low, high;
    unpack(x.word[i], low, high, Element());
    low *= factor, high *= factor;
    sum += low * low + high * high;
  }
  return sum;
}
ROTA_DEVICE unsigned chunk_magnitude(const Chunk &x) {
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    largest = packed_magnitudes(largest, x.word[i]);
  float low, high;
  unpack(largest, low, high, Element());
  return larger_bits(__float_as_uint(low), __float_as_uint(high));
}
// Of a row whose chunks kLanes neighbouring lanes hold; all lanes get it.
template <int kLanes> ROTA_DEVICE float row_square(const Chunk &x) {
  float sum = chunk_square_sum(x, 1.0f);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}
// The norm of a row whose chunks kLanes neighbouring lanes hold, as bits; NaN or infinite where an
// element is. All lanes get it.
template <int kLanes> ROTA_DEVICE unsigned row_norm(const Chunk &x) {
  unsigned largest = chunk_magnitude(x);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    largest = larger_bits(largest, __shfl_xor_sync(kAllLanes, largest, step));
  const PowerOfTwo power(largest);
  float sum = chunk_square_sum(x, power.down);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  float root;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(sum));
  return bits_are_finite(largest) ? __float_as_uint(root * power.up) : largest;
}

// ---- Logarithms, so that a product of bounds neither overflows nor vanishes ----

// Unlike log2_fast, right for subnormals; -inf for 0.
ROTA_DEVICE float log2_wide(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(2^a + 2^b).
ROTA_DEVICE float log2_sum(float a, float b) {
  const float top = a > b ? a : b, difference = a > b ? b - a : a - b;
  return top == -kInfinity ? top : top + log2_wide(1.0f + exp2_fast(difference));
}

} // namespace rota

#endif
