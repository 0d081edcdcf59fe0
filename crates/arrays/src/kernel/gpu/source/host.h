// What the common text needs of a CPU that plays a GPU: the threads of a group are fibres, which run one after the other in an
// order that changes, until each waits at a barrier or for the others of its warp.

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ucontext.h>

// ThreadSanitizer watches what the common text reads and writes, and nothing of how its threads are played.
#ifdef TACIT_WATCHED
#define TACIT_UNWATCHED __attribute__((no_sanitize("thread"), noinline))
#else
#define TACIT_UNWATCHED
#endif

#define TACIT_FN inline
#define TACIT_APART inline
#define TACIT_STATIC static constexpr int
#define TACIT_DEVICE
#define TACIT_GROUP
#define TACIT_THREAD
#define TACIT_UNROLL
#define TACIT_ROLLED
#define TACIT_TABLE(name, count) static const unsigned int name[count]
#define TACIT_GROUP_ARRAY(type, name, count) type* name = (type*)host::group_array(#name, (count) * sizeof(type))
#define TACIT_LAUNCH_ARRAY(type, name, count) TACIT_GROUP_ARRAY(type, name, count)
#define TACIT_BARRIER() host::wait_for_group()
#define TACIT_WARP_BARRIER() host::wait_for_warp()
#define TACIT_PLACE() host::place()

namespace tacit {

typedef std::uint8_t u8;
typedef std::int8_t i8;
typedef std::uint16_t u16;
typedef std::uint32_t u32;
typedef std::uint64_t u64;
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

inline float from_bits(u32 bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline u32 to_bits(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float exp_of(float value) { return std::exp(value); }
inline float power_of(float value, float power) { return std::pow(value, power); }
inline float exact_mul(float a, float b) { return a * b; }
inline float exact_add(float a, float b) { return a + b; }
inline float exact_fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float exact_sqrt(float value) { return sqrtf(value); }
inline float exact_div(float a, float b) { return a / b; }
inline float nearest_even(float value) { return nearbyintf(value); }

inline float half_from_bits(u32 bits) {
  u32 sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  float magnitude = (float)mantissa * from_bits(103u << 23);
  return sign ? -magnitude : magnitude;
}
// To the nearest, ties to even.
inline u16 half_bits(float value) {
  u32 bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000u) return (u16)(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00);
  if (magnitude < 0x38800000u) {
    // Below the normal numbers all are multiples of 2^-24, to which adding 1/2 rounds.
    return (u16)(sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
  }
  u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return (u16)(sign | ((rounded >> 13) - (112 << 10)));
}
inline u16 brain_bits(float value) {
  u32 bits = to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
  return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float to_float(float value) { return value; }
inline float to_float(f16 value) { return half_from_bits(value.bits); }
inline float to_float(bf16 value) { return from_bits((u32)value.bits << 16); }
template <class T> struct Round;
template <> struct Round<float> { static float from(float value) { return value; } };
template <> struct Round<f16> { static f16 from(float value) { return f16{half_bits(value)}; } };
template <> struct Round<bf16> { static bf16 from(float value) { return bf16{brain_bits(value)}; } };

struct Eight {
  float at[8];
};
template <class P> inline bool is_aligned(P at) { return ((std::uintptr_t)at & 15) == 0; }
// A wide read or write where a GPU could not make one is a mistake.
inline u32 load32(const u8* at) {
  u32 read;
  if ((std::uintptr_t)at % 4 != 0) std::abort();
  std::memcpy(&read, at, 4);
  return read;
}
inline void store32(u8* at, u32 word) {
  if ((std::uintptr_t)at % 4 != 0) std::abort();
  std::memcpy(at, &word, 4);
}
struct Quad { u32 word[4]; };
inline Quad load128(const u8* at) {
  Quad read;
  if (!is_aligned(at)) std::abort();
  std::memcpy(&read, at, 16);
  return read;
}

// As the GPUs' overloads, which read what is aligned at once.
template <class T> inline Eight eight_floats(const T* at, bool aligned) {
  Eight values;
  if (aligned && !is_aligned(at)) std::abort();
  for (int i = 0; i < 8; ++i) values.at[i] = to_float(at[i]);
  return values;
}

// Where a thread is, as in `weight.h`.
struct Place;

}  // namespace tacit

namespace host {

tacit::Place place();
void wait_for_group();
void wait_for_warp();
// Waits without ordering what lanes read and write, as what they show each other does not on a GPU.
void meet_warp();
void* group_array(const char* name, std::size_t bytes);
float shuffle_xor(float value, tacit::u32 mask);
// What the lanes of this warp show each other.
tacit::u32 (*shown())[16];

}  // namespace host

namespace tacit {
inline float shuffle_xor(float value, u32 mask) { return host::shuffle_xor(value, mask); }
}  // namespace tacit
