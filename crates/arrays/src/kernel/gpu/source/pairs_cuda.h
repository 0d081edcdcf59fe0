// Two half floats of a word, as the matrix units take them.

namespace tacit {

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

}  // namespace tacit
