// The names of the Metal Shading Language that the sources use, for a C++ compiler that only parses. Memories are address spaces,
// which no pointer leaves unasked, as in that language.
#pragma once

#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
// C++ has no local variables in an address space but static ones.
#define TACIT_GROUP_ARRAY(type, name, count) static threadgroup type name[count]

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
// Keywords there: no variable may have such a name.
#define half _Float16
#define bfloat __bf16
typedef half float16_t;
typedef bfloat bfloat16_t;
struct uint3 {
  uint x, y, z;
};
typedef uint uint4 __attribute__((ext_vector_type(4)));
struct ulong2 {
  ulong x, y;
  ulong2(ulong x, ulong y) : x(x), y(y) {}
};

template <class To, class From> To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type changes no size");
  return __builtin_bit_cast(To, from);
}

float simd_shuffle_xor(float value, ushort mask);
enum class mem_flags { mem_threadgroup };
void simdgroup_barrier(mem_flags);
namespace metal {
namespace precise {
float exp(float);
float pow(float, float);
float divide(float, float);
float sqrt(float);
}
float rint(float);
float fma(float, float, float);
}  // namespace metal
void threadgroup_barrier(mem_flags flags);

template <class T, int ROWS, int COLUMNS> struct simdgroup_matrix {
  T own[2];
  T (&thread_elements())[2] { return own; }
};
template <class T, int ROWS, int COLUMNS> simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value);
template <class T, int ROWS, int COLUMNS>
void simdgroup_load(
    simdgroup_matrix<T, ROWS, COLUMNS>& to, const threadgroup T* from, ulong row, ulong2 origin = ulong2(0, 0),
    bool transpose = false);
template <class T, int ROWS, int COLUMNS>
void simdgroup_store(simdgroup_matrix<T, ROWS, COLUMNS> from, threadgroup T* to, ulong row);
template <class T, class A, class B>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<T, 8, 8>& to, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
    simdgroup_matrix<T, 8, 8> c);
