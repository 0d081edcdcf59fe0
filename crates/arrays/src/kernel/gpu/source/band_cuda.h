// Products of a band of 64 rows, whose fragments lie in the registers of four warps, with a tile in the group's memory.
//
// The tile has COLUMNS rows of 64 halves; the 16 bytes `i` of row `r` lie at place `i ^ r % 8`. That is what Hopper's units for four
// warps call a swizzle of 128 bytes, and `ldmatrix`, which all others read it with, meets no bank twice.

namespace tacit {

// Copies 16 bytes to the group's memory, or zeros, some time before `wait_for_copies`.
TACIT_FN void copy_later(void* to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(group_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
#else
  *(uint4*)to = there ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
#endif
}
TACIT_FN void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // What ordinary instructions wrote is read by the units in another way.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

TACIT_FN u32 pair_of(float low, float high, f16) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return Round<f16>::from(low).bits | (u32)Round<f16>::from(high).bits << 16;
#endif
}
TACIT_FN u32 pair_of(float low, float high, bf16) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return Round<bf16>::from(low).bits | (u32)Round<bf16>::from(high).bits << 16;
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TACIT_BAND_PRODUCT(type, d, a, b)                                                                          \
  asm volatile(                                                                                                    \
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; "                                                                      \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                              \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                       \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                             \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                             \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "                              \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"                                                                  \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), \
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), \
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]) \
      : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b), "r"(1))
TACIT_FN void band_product(float (&d)[64], const u32 (&a)[4], u64 b, f16) { TACIT_BAND_PRODUCT("f16", d, a, b); }
TACIT_FN void band_product(float (&d)[64], const u32 (&a)[4], u64 b, bf16) { TACIT_BAND_PRODUCT("bf16", d, a, b); }
#endif

// Sums of the four warps that begin with a multiple of four. Row `lane / 4 + 8 (i / 2 % 2)` of a warp's 16 and column
// `i / 4 * 8 + lane % 4 * 2 + i % 2` are sum `i`.
template <class T, int COLUMNS> struct BandSum {
  float sum[COLUMNS / 2];

  TACIT_FN void clear() {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.0f;
  }

  // Begins to add the product of 64 numbers of each row, whose fragments must stay until `wait`.
  TACIT_FN void add(u32 (&a)[4][4], const T* tile, u32 lane) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    hold(a);
    // Rows of 128 bytes, eight of which are 1024 apart from the next eight.
    u64 place = (u64)((group_address(tile) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    TACIT_UNROLL
    for (int step = 0; step < 4; ++step) band_product(sum, a[step], place + 2 * step, T());
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    TACIT_UNROLL
    for (int step = 0; step < 4; ++step) {
      TACIT_UNROLL
      for (int pair = 0; pair < COLUMNS / 16; ++pair) {
        u32 row = pair * 16 + lane / 16 * 8 + lane % 8, chunk = (2 * step + lane / 8 % 2) ^ (row % 8);
        u32 b[4], at = group_address(tile) + row * 128 + chunk * 16;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(at)
                     : "memory");
        multiply_add(*(float(*)[4])&sum[8 * pair], a[step], b[0], b[1], T());
        multiply_add(*(float(*)[4])&sum[8 * pair + 4], a[step], b[2], b[3], T());
      }
    }
#endif
  }

  TACIT_FN void wait(u32 (&a)[4][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(a);
#endif
  }

  // The units read fragments and write sums from `add` to `wait`, which a compiler does not know: asked for before and behind, they
  // stay in their registers meanwhile, and nothing else gets these.
  TACIT_FN void hold(u32 (&a)[4][4]) {
    TACIT_UNROLL
    for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
  }
};

}  // namespace tacit
