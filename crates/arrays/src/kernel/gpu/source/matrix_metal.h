// Products of 16 by 16 by 16 by a simdgroup's matrix units, as eight of 8 by 8 by 8.

namespace tacit {

template <class T> struct MatrixLeft {
  simdgroup_matrix<T, 8, 8> part[2][2];
  void load(threadgroup const T* from, u32 length, u32) {
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c) simdgroup_load(part[r][c], from + 8 * r * length + 8 * c, length);
  }
};

// TRANSPOSED: each row in memory is a column of the operand.
template <class T, int TRANSPOSED> struct MatrixRight {
  simdgroup_matrix<T, 8, 8> part[2][2];
  void load(threadgroup const T* from, u32 length, u32) {
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c) {
        threadgroup const T* at = TRANSPOSED ? from + 8 * c * length + 8 * r : from + 8 * r * length + 8 * c;
        simdgroup_load(part[r][c], at, length, ulong2(0, 0), TRANSPOSED != 0);
      }
  }
};

struct MatrixSum {
  simdgroup_matrix<float, 8, 8> sum[2][2];
  void clear() {
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c) sum[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  template <class T, int TRANSPOSED>
  void add(thread const MatrixLeft<T>& a, thread const MatrixRight<T, TRANSPOSED>& b, u32) {
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c)
        for (int d = 0; d < 2; ++d) simdgroup_multiply_accumulate(sum[r][c], a.part[r][d], b.part[d][c], sum[r][c]);
  }
  void store(threadgroup float* to, u32 length, u32) {
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c) simdgroup_store(sum[r][c], to + 8 * r * length + 8 * c, length);
  }
};

}  // namespace tacit
