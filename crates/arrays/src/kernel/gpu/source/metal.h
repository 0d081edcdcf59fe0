// What the common text needs of Metal. MLX compiles it at run time, after its own header.

#define TACIT_FN inline
#define TACIT_STATIC static constant constexpr const int
#define TACIT_DEVICE device
#define TACIT_GROUP threadgroup
#define TACIT_THREAD thread
#define TACIT_UNROLL _Pragma("clang loop unroll(full)")
#define TACIT_TABLE(name, count) constant uint name[count]
#ifndef TACIT_GROUP_ARRAY
#define TACIT_GROUP_ARRAY(type, name, count) threadgroup type name[count]
#endif
#define TACIT_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define TACIT_WARP_BARRIER() simdgroup_barrier(mem_flags::mem_threadgroup)

namespace tacit {

typedef uchar u8;
typedef char i8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef half f16;
typedef bfloat bf16;

// A product and a sum that the compiler must not make one rounding of.
inline float exact_mul(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
inline float exact_add(float a, float b) {
#pragma clang fp contract(off)
  return a + b;
}
inline float exact_fma(float a, float b, float c) { return metal::fma(a, b, c); }
inline float exact_sqrt(float value) { return metal::precise::sqrt(value); }
inline float exact_div(float a, float b) { return metal::precise::divide(a, b); }
inline float nearest_even(float value) { return metal::rint(value); }
inline u32 to_bits(float value) { return as_type<uint>(value); }
inline float from_bits(u32 bits) { return as_type<float>(bits); }
inline float exp_of(float value) { return metal::precise::exp(value); }
inline float power_of(float value, float power) { return metal::precise::pow(value, power); }
inline float to_float(float value) { return value; }
inline float to_float(f16 value) { return (float)value; }
inline float to_float(bf16 value) { return (float)value; }
template <class T> struct Round { static T from(float value) { return (T)value; } };
inline float half_from_bits(u32 bits) { return (float)as_type<half>((ushort)bits); }
inline float shuffle_xor(float value, u32 mask) { return simd_shuffle_xor(value, (ushort)mask); }

struct Eight {
  float at[8];
};
template <class P> inline bool is_aligned(P at) { return ((u64)at & 15) == 0; }
inline void store32(device u8* at, u32 word) { *(device uint*)at = word; }
inline u32 load32(const device u8* at) { return *(const device uint*)at; }
struct Quad { u32 word[4]; };
inline Quad load128(const device u8* at) {
  uint4 read = *(const device uint4*)at;
  return Quad{{read.x, read.y, read.z, read.w}};
}
template <class P> inline Eight eight_floats(P at, bool) {
  Eight values;
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) values.at[i] = to_float(at[i]);
  return values;
}

}  // namespace tacit
