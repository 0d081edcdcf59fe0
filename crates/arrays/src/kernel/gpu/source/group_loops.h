// What `group_cuda.h` says, by lanes that make their sums of the tiles alone.

namespace tacit {

inline void copy_later(void* to, const void* from, bool there) {
  if (!is_aligned(to) || (there && !is_aligned(from))) std::abort();
  if (there) {
    std::memcpy(to, from, 16);
  } else {
    std::memset(to, 0, 16);
  }
}
inline void end_copies() {}
template <int LATER> inline void wait_for_copies() {}
inline void store128(void* to, const u32 (&word)[4]) {
  if (!is_aligned(to)) std::abort();
  std::memcpy(to, word, 16);
}
inline void keep128(void* to, const u32 (&word)[4]) { store128(to, word); }

template <class T, int COLUMNS, int> struct GroupSum {
  // Half of the columns of a row.
  enum { OWN = COLUMNS / 2 };
  float sum[OWN];

  static u32 row(Place at) { return at.id % 128 / 2; }
  static u32 column(Place at, int i) { return at.id % 2 * OWN + i; }
  void clear() {
    for (float& one : sum) one = 0.0f;
  }
  void add(const T* left, const T* right, Place at) {
    for (int i = 0; i < OWN; ++i) {
      const u32 r = row(at), c = column(at, i);
      for (u32 d = 0; d < 64; ++d)
        sum[i] += to_float(left[r * 64 + (d / 8 ^ r % 8) * 8 + d % 8]) * to_float(right[c * 64 + (d / 8 ^ c % 8) * 8 + d % 8]);
    }
  }
  // The tiles are read at once.
  void wait() {}
  template <class Put> void give(Put put, Place at) const {
    for (int i = 0; i < OWN; ++i) put.at(row(at), column(at, i), sum[i]);
  }
};

}  // namespace tacit
