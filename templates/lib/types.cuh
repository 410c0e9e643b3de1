// The words every kernel uses: element types with their conversions, positions, and a few PTX
// instructions on floats. No CUDA header anywhere: elements are their bits, conversions are PTX.
#ifndef ROTA_LIB_TYPES_CUH
#define ROTA_LIB_TYPES_CUH

#include "templates/lib/abi.h"

#define ROTA_DEVICE __device__ __forceinline__

namespace rota {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
inline constexpr float kLowest = -3.4028234663852886e38f; // finite
inline constexpr float kLog2E = 1.4426950408889634f;      // exp(x) = exp2(kLog2E x)
inline constexpr float kLn2 = 0.6931471805599453f;        // log(x) = kLn2 log2(x)
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// A place in the (query, key) plane of one sequence and head; q and k count within the sequence.
struct Position {
  int q, k, h, b;
  int n_q, n_k;
};

// ---- Elements ----

struct Bf16 {
  unsigned short bits;
};
struct Fp16 {
  unsigned short bits;
};
struct Fp32 {
  float value;
};

ROTA_DEVICE float to_float(Bf16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
ROTA_DEVICE float to_float(Fp16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
ROTA_DEVICE float to_float(Fp32 x) {
  return x.value;
}

// Rounding to nearest even: from_float(x, Element()).
ROTA_DEVICE Bf16 from_float(float x, Bf16) {
  Bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
ROTA_DEVICE Fp16 from_float(float x, Fp16) {
  Fp16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
ROTA_DEVICE Fp32 from_float(float x, Fp32) {
  return Fp32{x};
}

// Two 16-bit elements in one register, `low` at the lower address: pack(low, high, Element()).
ROTA_DEVICE unsigned pack(float low, float high, Bf16) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
ROTA_DEVICE unsigned pack(float low, float high, Fp16) {
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
// The two elements of a packed register as floats.
ROTA_DEVICE void unpack(unsigned x, float &low, float &high, Bf16) {
  low = __uint_as_float(x << 16);
  high = __uint_as_float(x & 0xffff0000u);
}
ROTA_DEVICE void unpack(unsigned x, float &low, float &high, Fp16) {
  low = to_float(Fp16{(unsigned short)x});
  high = to_float(Fp16{(unsigned short)(x >> 16)});
}

// Products of both elements, rounded; sm_90 and newer.
ROTA_DEVICE unsigned multiply_packed(unsigned a, unsigned b, Bf16) {
  unsigned y;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
ROTA_DEVICE unsigned multiply_packed(unsigned a, unsigned b, Fp16) {
  unsigned y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

// Nonzero if one of the two packed elements is NaN or infinite: an exponent of all ones, plus one,
// carries into the sign's place.
ROTA_DEVICE unsigned packed_not_finite(unsigned x, Bf16) {
  return ((x & 0x7f807f80u) + 0x00800080u) & 0x80008000u;
}
ROTA_DEVICE unsigned packed_not_finite(unsigned x, Fp16) {
  return ((x & 0x7c007c00u) + 0x04000400u) & 0x80008000u;
}

// sum += 0 * x, two packed elements: NaN from the first NaN or infinity on. An instruction, where
// packed_not_finite takes three.
ROTA_DEVICE void packed_add_zero_times(unsigned &sum, unsigned x, Bf16) {
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
}
ROTA_DEVICE void packed_add_zero_times(unsigned &sum, unsigned x, Fp16) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
}

// ---- Floats ----

// 2^x and log2 x by the special function unit: relative error 2^-22, exact at x = 0 and 1;
// exp2(-inf) = 0.
ROTA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ROTA_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to 2^-23.
ROTA_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The same, but 0 where |x| is below the smallest normal number. One statement, so that it is
// computed once where many elements are divided by the same x, and without a branch.
ROTA_DEVICE float reciprocal_or_zero(float x) {
  float y;
  asm("{\n.reg .pred none;\n.reg .f32 size, inverse;\n"
      "abs.f32 size, %1;\n"
      "setp.lt.f32 none, size, 0f00800000;\n"
      "rcp.approx.ftz.f32 inverse, %1;\n"
      "selp.f32 %0, 0f00000000, inverse, none;\n}"
      : "=f"(y)
      : "f"(x));
  return y;
}
// y where a^2 = square is below 0.36, else tanh a = 1 - 2 / (e^2a + 1). Predicated, so that the
// special function unit is not asked where no lane of a warp is beyond.
ROTA_DEVICE float tanh_beyond(float y, float a, float square) {
  asm("{\n.reg .pred far;\n.reg .f32 x;\n"
      "setp.geu.f32 far, %2, 0f3eb851ec;\n"
      "mul.f32 x, %1, 0f4038aa3b;\n" // 2 log2 e; not predicated: x would live from before
      "@far ex2.approx.ftz.f32 x, x;\n"
      "@far add.f32 x, x, 0f3f800000;\n"
      "@far rcp.approx.ftz.f32 x, x;\n"
      "@far fma.rn.f32 %0, x, 0fc0000000, 0f3f800000;\n}"
      : "+f"(y)
      : "f"(a), "f"(square));
  return y;
}
// The same of exponents: y where |z| is below `bound` or z is not above `least`, else
// end + slope / (2^(factor z) + 1).
ROTA_DEVICE float tanh_exponent(float y, float z, float bound, float least, float factor,
                                float slope, float end) {
  asm("{\n.reg .pred counts, far;\n.reg .f32 x;\n"
      "setp.gtu.f32 counts, %1, %3;\n"
      "abs.f32 x, %1;\n"
      "setp.geu.and.f32 far, x, %2, counts;\n"
      "mul.f32 x, %1, %4;\n"
      "@far ex2.approx.ftz.f32 x, x;\n"
      "@far add.f32 x, x, 0f3f800000;\n"
      "@far rcp.approx.ftz.f32 x, x;\n"
      "@far fma.rn.f32 %0, x, %5, %6;\n}"
      : "+f"(y)
      : "f"(z), "f"(bound), "f"(least), "f"(factor), "f"(slope), "f"(end));
  return y;
}
// max.f32 drops a NaN operand: what is needed, since a NaN score reaches the result through the
// sum.
ROTA_DEVICE float maximum(float a, float b) {
  float y;
  asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

ROTA_DEVICE float minimum(float a, float b) {
  float y;
  asm("min.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// NaN if one of them is.
ROTA_DEVICE float maximum_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// ---- Integers, also in constant expressions ----

__host__ __device__ constexpr int round_up(int x, int multiple) {
  return (x + multiple - 1) / multiple * multiple;
}
__host__ __device__ constexpr int power_of_two_from(int x) {
  return x <= 1 ? 1 : 2 * power_of_two_from((x + 1) / 2);
}
__host__ __device__ constexpr int larger(int a, int b) {
  return a > b ? a : b;
}
__host__ __device__ constexpr int smaller(int a, int b) {
  return a < b ? a : b;
}

// The lowest `count` bits; all from 32 on.
ROTA_DEVICE unsigned lowest_bits(unsigned count) {
  unsigned y;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(y) : "r"(count));
  return y;
}

// ---- Lanes ----

ROTA_DEVICE int lane_index() {
  return (int)(threadIdx.x % kWarp);
}
ROTA_DEVICE int warp_index() {
  return (int)(threadIdx.x / kWarp);
}

// Over the four lanes that share the rows of a matrix fragment.
ROTA_DEVICE float quad_maximum(float x) {
  x = maximum(x, __shfl_xor_sync(kAllLanes, x, 1));
  return maximum(x, __shfl_xor_sync(kAllLanes, x, 2));
}
ROTA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
// Over the whole warp.
ROTA_DEVICE float warp_maximum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    x = maximum(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
ROTA_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

} // namespace rota

#endif
