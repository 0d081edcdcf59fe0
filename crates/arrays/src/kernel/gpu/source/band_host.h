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

template <class T, int COLUMNS> struct BandSum {
  float sum[COLUMNS / 2];

  void clear() {
    for (float& one : sum) one = 0.0f;
  }

  void add(const u32 (&a)[4][4], const T* tile, u32 lane) {
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

  void wait() {}
};

}  // namespace tacit
