// Sums of 64 rows by COLUMNS columns that four warps make of tiles in the group's memory: the left one has 64 rows of 64 halves, the
// right one COLUMNS. The 16 bytes `i` of row `r` lie at place `i ^ r % 8`, and a tile begins at a multiple of 1024 bytes. That is what
// Hopper's units for four warps call a swizzle of 128 bytes; `ldmatrix`, by which other GPUs read, meets no bank twice.

namespace tacit {

// Copies 16 bytes to the group's memory, or zeros, some time before `wait_for_copies`.
TACIT_FN void copy_later(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(group_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
// Those so far are waited for together.
TACIT_FN void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last LATER that were ended are there, and what this thread wrote to the group's memory can be multiplied by all that
// meet it at a barrier afterwards.
template <int LATER> TACIT_FN void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // The units read what ordinary instructions wrote in another way.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Writes 16 bytes to the group's memory. A compiler that does not see that they are aligned would make four writes of it.
TACIT_FN void keep128(void* to, const u32 (&word)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(group_address(to)), "r"(word[0]), "r"(word[1]), "r"(word[2]),
               "r"(word[3])
               : "memory");
}
TACIT_FN void store128(void* to, const u32 (&word)[4]) { *(uint4*)to = make_uint4(word[0], word[1], word[2], word[3]); }

// Each warp makes half of the rows by half of the columns, in products of 16 by 8.
template <class T, int COLUMNS, int BY_GROUP> struct GroupSum {
  enum { OWN = COLUMNS / 2 };
  float sum[2][OWN / 8][4];

  TACIT_FN void clear() {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i / (OWN / 2)][i / 4 % (OWN / 8)][i % 4] = 0.0f;
  }

  static TACIT_FN void load(u32 (&part)[4], const T* tile, u32 row, u32 chunk) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
                 : "r"(group_address(tile) + row * 128 + (chunk ^ row % 8) * 16)
                 : "memory");
  }

  TACIT_FN void add(const T* left, const T* right, Place at) {
    const u32 row = at.warp % 2 * 32, column = at.warp / 2 % 2 * OWN;
    TACIT_UNROLL
    for (int step = 0; step < 4; ++step) {
      u32 a[2][4];
      TACIT_UNROLL
      for (int i = 0; i < 2; ++i) load(a[i], left, row + i * 16 + at.lane % 16, 2 * step + at.lane / 16);
      TACIT_UNROLL
      for (int j = 0; j < OWN / 16; ++j) {
        u32 b[4];
        load(b, right, column + j * 16 + at.lane / 16 * 8 + at.lane % 8, 2 * step + at.lane / 8 % 2);
        TACIT_UNROLL
        for (int i = 0; i < 2; ++i) {
          multiply_add(sum[i][2 * j], a[i], b[0], b[1], T());
          multiply_add(sum[i][2 * j + 1], a[i], b[2], b[3], T());
        }
      }
    }
  }

  // The tiles are read at once.
  TACIT_FN void wait() {}

  template <class Put> TACIT_FN void give(Put put, Place at) const {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i)
      put.at(at.warp % 2 * 32 + i / (OWN / 2) * 16 + at.lane / 4 + i / 2 % 2 * 8,
             at.warp / 2 % 2 * OWN + i / 4 % (OWN / 8) * 8 + at.lane % 4 * 2 + i % 2, sum[i / (OWN / 2)][i / 4 % (OWN / 8)][i % 4]);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Ten operands by their first digit, and what is bound to them.
#define TACIT_TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define TACIT_SUM(i) "+f"(d[i])
#define TACIT_TEN_SUMS(t)                                                                                           \
  TACIT_SUM(t##0), TACIT_SUM(t##1), TACIT_SUM(t##2), TACIT_SUM(t##3), TACIT_SUM(t##4), TACIT_SUM(t##5), TACIT_SUM(t##6), \
      TACIT_SUM(t##7), TACIT_SUM(t##8), TACIT_SUM(t##9)
#define TACIT_32 TACIT_TEN() TACIT_TEN(1) TACIT_TEN(2) "%30, %31}, %32, %33"
#define TACIT_32_SUMS TACIT_TEN_SUMS(), TACIT_TEN_SUMS(1), TACIT_TEN_SUMS(2), TACIT_SUM(30), TACIT_SUM(31)
#define TACIT_64 \
  TACIT_TEN() TACIT_TEN(1) TACIT_TEN(2) TACIT_TEN(3) TACIT_TEN(4) TACIT_TEN(5) "%60, %61, %62, %63}, %64, %65"
#define TACIT_64_SUMS                                                                                                   \
  TACIT_TEN_SUMS(), TACIT_TEN_SUMS(1), TACIT_TEN_SUMS(2), TACIT_TEN_SUMS(3), TACIT_TEN_SUMS(4), TACIT_TEN_SUMS(5), TACIT_SUM(60), \
      TACIT_SUM(61), TACIT_SUM(62), TACIT_SUM(63)
#define TACIT_128                                                                                                       \
  TACIT_TEN() TACIT_TEN(1) TACIT_TEN(2) TACIT_TEN(3) TACIT_TEN(4) TACIT_TEN(5) TACIT_TEN(6) TACIT_TEN(7) TACIT_TEN(8)   \
  TACIT_TEN(9) TACIT_TEN(10) TACIT_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129"
#define TACIT_128_SUMS                                                                                                  \
  TACIT_TEN_SUMS(), TACIT_TEN_SUMS(1), TACIT_TEN_SUMS(2), TACIT_TEN_SUMS(3), TACIT_TEN_SUMS(4), TACIT_TEN_SUMS(5),      \
      TACIT_TEN_SUMS(6), TACIT_TEN_SUMS(7), TACIT_TEN_SUMS(8), TACIT_TEN_SUMS(9), TACIT_TEN_SUMS(10), TACIT_TEN_SUMS(11), \
      TACIT_SUM(120), TACIT_SUM(121), TACIT_SUM(122), TACIT_SUM(123), TACIT_SUM(124), TACIT_SUM(125), TACIT_SUM(126),   \
      TACIT_SUM(127)
// Adds the product of 64 rows of 16 numbers with COLUMNS rows to what four warps hold.
#define TACIT_GROUP_PRODUCT(columns, sums, type, number)                                                                    \
  TACIT_FN void group_product(float (&d)[sums], u64 a, u64 b, number) {                                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" TACIT_##sums ", 1, 1, 1, 0, 0;" \
                 : TACIT_##sums##_SUMS                                                                                      \
                 : "l"(a), "l"(b));                                                                                         \
  }
TACIT_GROUP_PRODUCT(64, 32, "f16", f16)
TACIT_GROUP_PRODUCT(64, 32, "bf16", bf16)
TACIT_GROUP_PRODUCT(128, 64, "f16", f16)
TACIT_GROUP_PRODUCT(128, 64, "bf16", bf16)
TACIT_GROUP_PRODUCT(256, 128, "f16", f16)
TACIT_GROUP_PRODUCT(256, 128, "bf16", bf16)

// A tile as the units are told of it: rows of 128 bytes, eight of which are 1024 bytes before the next eight.
TACIT_FN u64 tile_at(const void* at) { return (u64)((group_address(at) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// By the units for four warps, which work while the warps go on. In a function with two such loops compilers have them waited for at
// once, so that `BY_GROUP` is for one place of a kernel. Sum `i` is that of row `lane / 4 + 8 (i / 2 % 2)` of the 16 of a warp, and of
// column `i / 4 * 8 + lane % 4 * 2 + i % 2`.
template <class T, int COLUMNS> struct GroupSum<T, COLUMNS, 1> {
  float sum[COLUMNS / 2];

  TACIT_FN void clear() {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.0f;
  }

  // Begins to add the product of two tiles, which must stay until it is waited for.
  TACIT_FN void add(const T* left, const T* right, Place) {
    const u64 a = tile_at(left), b = tile_at(right);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    TACIT_UNROLL
    for (int step = 0; step < 4; ++step) group_product(sum, a + 2 * step, b + 2 * step, T());
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }

  TACIT_FN void wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold();
  }

  // The units write the sums behind a compiler's back: asked for before and behind, they stay in their registers.
  TACIT_FN void hold() {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
  }

  template <class Put> TACIT_FN void give(Put put, Place at) const {
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i)
      put.at(at.warp % 4 * 16 + at.lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + at.lane % 4 * 2 + i % 2, sum[i]);
  }
};

#endif

}  // namespace tacit
