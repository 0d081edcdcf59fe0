// What `pairs_cuda.h` says, and a product of 16 by 8 by 16 by lanes that show each other their fragments.

namespace tacit {

inline u32 pair_of(float low, float high, f16) { return half_bits(low) | (u32)half_bits(high) << 16; }
inline u32 pair_of(float low, float high, bf16) { return brain_bits(low) | (u32)brain_bits(high) << 16; }

inline float low_float(u32 pair, f16) { return half_from_bits(pair & 0xffff); }
inline float high_float(u32 pair, f16) { return half_from_bits(pair >> 16); }
inline float low_float(u32 pair, bf16) { return from_bits(pair << 16); }
inline float high_float(u32 pair, bf16) { return from_bits(pair & 0xffff0000u); }

// A product of 16 by 8 by 16 as CUDA has it.
template <class T> TACIT_UNWATCHED inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, T) {
  u32(*shown)[16] = host::shown();
  const u32 lane = host::place().lane, mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(shown[lane], mine, sizeof mine);
  host::meet_warp();
  for (u32 i = 0; i < 4; ++i)
    for (u32 pair = 0; pair < 8; ++pair) {
      u32 left = shown[lane / 4 * 4 + pair % 4][pair / 4 * 2 + i / 2];
      u32 right = shown[(lane % 4 * 2 + i % 2) * 4 + pair % 4][4 + pair / 4];
      sum[i] += low_float(left, T()) * low_float(right, T()) + high_float(left, T()) * high_float(right, T());
    }
  host::meet_warp();
}

}  // namespace tacit
