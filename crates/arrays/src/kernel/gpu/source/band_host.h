// What `band_cuda.h` says, by lanes that show each other their fragments.

namespace tacit {

inline void copy_later(void* to, const void* from, bool there) {
  if (!is_aligned(to) || !is_aligned(from)) std::abort();
  if (there) {
    std::memcpy(to, from, 16);
  } else {
    std::memset(to, 0, 16);
  }
}
inline void wait_for_copies() {}

inline u32 pair_of(float low, float high, f16) { return half_bits(low) | (u32)half_bits(high) << 16; }
inline u32 pair_of(float low, float high, bf16) { return brain_bits(low) | (u32)brain_bits(high) << 16; }

inline float low_float(u32 pair, f16) { return half_from_bits(pair & 0xffff); }
inline float high_float(u32 pair, f16) { return half_from_bits(pair >> 16); }
inline float low_float(u32 pair, bf16) { return from_bits(pair << 16); }
inline float high_float(u32 pair, bf16) { return from_bits(pair & 0xffff0000u); }

// A product of 16 by 8 by 16 as CUDA has it.
template <class T> inline void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, T) {
  u32(*shown)[16] = host::shown();
  const u32 lane = host::place().lane, mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(shown[lane], mine, sizeof mine);
  host::wait_for_warp();
  for (u32 i = 0; i < 4; ++i)
    for (u32 pair = 0; pair < 8; ++pair) {
      u32 left = shown[lane / 4 * 4 + pair % 4][pair / 4 * 2 + i / 2];
      u32 right = shown[(lane % 4 * 2 + i % 2) * 4 + pair % 4][4 + pair / 4];
      sum[i] += low_float(left, T()) * low_float(right, T()) + high_float(left, T()) * high_float(right, T());
    }
  host::wait_for_warp();
}

template <class T, int COLUMNS> struct BandSum {
  float sum[COLUMNS / 2];

  void clear() {
    for (float& one : sum) one = 0.0f;
  }

  void add(u32 (&a)[4][4], const T* tile, u32 lane) {
    u32(*shown)[16] = host::shown();
    std::memcpy(shown[lane], a, sizeof a);
    host::wait_for_warp();
    for (int i = 0; i < COLUMNS / 2; ++i) {
      u32 row = lane / 4, high = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      for (u32 k = 0; k < 64; ++k) {
        // The lane that holds the pair, and which of its four: the first row and the second, the first eight and the second.
        u32 step = k / 16, part = high + k % 16 / 8 * 2, pair = shown[row * 4 + k % 8 / 2][step * 4 + part];
        T weight = {(u16)(k % 2 ? pair >> 16 : pair)};
        sum[i] += to_float(weight) * to_float(tile[column * 64 + (k / 8 ^ column % 8) * 8 + k % 8]);
      }
    }
    host::wait_for_warp();
  }

  void wait(u32 (&)[4][4]) {}
};

}  // namespace tacit
