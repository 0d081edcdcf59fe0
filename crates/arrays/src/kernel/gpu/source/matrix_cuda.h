// Products of 16 by 16 by 16 by a warp's matrix units, as two of 16 by 8 by 16.

namespace tacit {

TACIT_FN u32 group_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

template <class T> struct MatrixLeft {
  u32 part[4];
  TACIT_FN void load(const T* from, u32 length, u32 lane) {
    u32 at = group_address(from + lane % 16 * length + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
                 : "r"(at)
                 : "memory");
  }
};

// TRANSPOSED: each row in memory is a column of the operand, which is how the units take it.
template <class T, int TRANSPOSED> struct MatrixRight {
  u32 part[4];
  TACIT_FN void load(const T* from, u32 length, u32 lane) {
    u32 part_of = lane / 8, high = part_of / 2 * 8, low = part_of % 2 * 8, in = lane % 8;
    if (TRANSPOSED) {
      u32 at = group_address(from + (high + in) * length + low);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
                   : "r"(at)
                   : "memory");
    } else {
      u32 at = group_address(from + (low + in) * length + high);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
                   : "r"(at)
                   : "memory");
    }
  }
};

#if __CUDA_ARCH__ >= 800
TACIT_FN void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TACIT_FN void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
// Turing has no units for these: lanes ask each other for what they multiply.
template <class T>
__device__ __noinline__ void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, T) {
  const u32 lane = threadIdx.x % 32;
  TACIT_UNROLL
  for (u32 pair = 0; pair < 8; ++pair) {
    TACIT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      u32 left = __shfl_sync(0xffffffffu, a[pair / 4 * 2 + i / 2], lane / 4 * 4 + pair % 4);
      u32 right = __shfl_sync(0xffffffffu, pair < 4 ? b0 : b1, (lane % 4 * 2 + i % 2) * 4 + pair % 4);
      sum[i] += low_float(left, T()) * low_float(right, T()) + high_float(left, T()) * high_float(right, T());
    }
  }
}
#endif

struct MatrixSum {
  float sum[2][4];
  TACIT_FN void clear() {
    TACIT_UNROLL
    for (int i = 0; i < 4; ++i) sum[0][i] = sum[1][i] = 0.0f;
  }
  template <class T, int TRANSPOSED>
  TACIT_FN void add(const MatrixLeft<T>& a, const MatrixRight<T, TRANSPOSED>& b, u32) {
    multiply_add(sum[0], a.part, b.part[0], b.part[1], T());
    multiply_add(sum[1], a.part, b.part[2], b.part[3], T());
  }
  TACIT_FN void store(float* to, u32 length, u32 lane) {
    TACIT_UNROLL
    for (int half = 0; half < 2; ++half) {
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) to[(lane / 4 + i / 2 * 8) * length + half * 8 + lane % 4 * 2 + i % 2] = sum[half][i];
    }
  }
};

}  // namespace tacit
