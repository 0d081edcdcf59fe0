// What the common text needs of CUDA, without a header of CUDA's, which would take longer to compile than all of it.

#define TACIT_FN __device__ __forceinline__
#define TACIT_APART __device__ __noinline__
#define TACIT_STATIC static constexpr int
#define TACIT_DEVICE
#define TACIT_GROUP
#define TACIT_THREAD
#define TACIT_UNROLL _Pragma("unroll")
#define TACIT_ROLLED _Pragma("unroll 1")
// Read by lanes at different indices, which constant memory would serve one after the other.
#define TACIT_TABLE(name, count) __device__ const unsigned int name[count]
#define TACIT_GROUP_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
// The memory that a launch asks for, which may be more than an array can have. It begins at a multiple of 1024 bytes, for which 1023
// more are asked for.
#define TACIT_LAUNCH_ARRAY(type, name, count)      \
  extern __shared__ unsigned char tacit_launched[]; \
  type* name = (type*)(tacit_launched + (0u - (unsigned int)__cvta_generic_to_shared(tacit_launched)) % 1024u)
#define TACIT_BARRIER() __syncthreads()
#define TACIT_WARP_BARRIER() __syncwarp()
#define TACIT_PLACE() \
  tacit::Place { blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.x & 31, threadIdx.x >> 5 }

namespace tacit {

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
// Half floats by their bits.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

TACIT_FN float exact_mul(float a, float b) { return __fmul_rn(a, b); }
TACIT_FN float exact_add(float a, float b) { return __fadd_rn(a, b); }
TACIT_FN float exact_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TACIT_FN float exact_sqrt(float value) { return __fsqrt_rn(value); }
TACIT_FN float exact_div(float a, float b) { return __fdiv_rn(a, b); }
TACIT_FN float nearest_even(float value) { return rintf(value); }
TACIT_FN float from_bits(u32 bits) { return __uint_as_float(bits); }
TACIT_FN u32 to_bits(float value) { return __float_as_uint(value); }
TACIT_FN float exp_of(float value) { return expf(value); }
TACIT_FN float power_of(float value, float power) { return powf(value, power); }
TACIT_FN float to_float(float value) { return value; }
TACIT_FN float half_from_bits(u32 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
  return value;
}
TACIT_FN float to_float(f16 value) { return half_from_bits(value.bits); }
TACIT_FN float to_float(bf16 value) { return from_bits((u32)value.bits << 16); }
template <class T> struct Round;
template <> struct Round<float> { static TACIT_FN float from(float value) { return value; } };
template <> struct Round<f16> {
  static TACIT_FN f16 from(float value) {
    f16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
    return rounded;
  }
};
template <> struct Round<bf16> {
  static TACIT_FN bf16 from(float value) {
    bf16 rounded;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
#else
    u32 bits = __float_as_uint(value);
    rounded.bits = value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
    return rounded;
  }
};
TACIT_FN float shuffle_xor(float value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

template <class P> TACIT_FN bool is_aligned(P at) { return ((u64)at & 15) == 0; }
TACIT_FN void store32(u8* at, u32 word) { *(u32*)at = word; }
TACIT_FN u32 load32(const u8* at) { return __ldg((const u32*)at); }
struct Quad { u32 word[4]; };
TACIT_FN Quad load128(const u8* at) {
  uint4 read = __ldg((const uint4*)at);
  return Quad{{read.x, read.y, read.z, read.w}};
}

struct Eight {
  float at[8];
};
TACIT_FN Eight eight_floats(const float* at, bool aligned) {
  Eight values;
  if (aligned) {
    TACIT_UNROLL
    for (int half = 0; half < 2; ++half) {
      float4 read = __ldg((const float4*)at + half);
      values.at[4 * half] = read.x;
      values.at[4 * half + 1] = read.y;
      values.at[4 * half + 2] = read.z;
      values.at[4 * half + 3] = read.w;
    }
  } else {
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) values.at[i] = at[i];
  }
  return values;
}
TACIT_FN float low_float(u32 pair, f16) { return half_from_bits(pair & 0xffff); }
TACIT_FN float high_float(u32 pair, f16) { return half_from_bits(pair >> 16); }
TACIT_FN float low_float(u32 pair, bf16) { return from_bits(pair << 16); }
TACIT_FN float high_float(u32 pair, bf16) { return from_bits(pair & 0xffff0000u); }
template <class T> TACIT_FN Eight eight_halves(const T* at, bool aligned) {
  Eight values;
  if (aligned) {
    Quad read = load128((const u8*)at);
    TACIT_UNROLL
    for (int i = 0; i < 4; ++i) {
      values.at[2 * i] = low_float(read.word[i], T());
      values.at[2 * i + 1] = high_float(read.word[i], T());
    }
  } else {
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) values.at[i] = to_float(at[i]);
  }
  return values;
}
TACIT_FN Eight eight_floats(const f16* at, bool aligned) { return eight_halves(at, aligned); }
TACIT_FN Eight eight_floats(const bf16* at, bool aligned) { return eight_halves(at, aligned); }

}  // namespace tacit
