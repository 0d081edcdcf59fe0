// Products of 16 by 16 by 16 without matrix units: each lane makes 8 sums from the operands in the group's memory, which must
// stay until they are added.

namespace tacit {

template <class T> struct MatrixLeft {
  TACIT_GROUP const T* at;
  u32 row;
  TACIT_FN void load(TACIT_GROUP const T* from, u32 length, u32) {
    at = from;
    row = length;
  }
};

// TRANSPOSED: each row in memory is a column of the operand.
template <class T, int TRANSPOSED> struct MatrixRight {
  TACIT_GROUP const T* at;
  u32 row;
  TACIT_FN void load(TACIT_GROUP const T* from, u32 length, u32) {
    at = from;
    row = length;
  }
};

struct MatrixSum {
  float sum[8];
  TACIT_FN void clear() {
    for (int i = 0; i < 8; ++i) sum[i] = 0.0f;
  }
  template <class T, int TRANSPOSED>
  TACIT_FN void add(TACIT_THREAD const MatrixLeft<T>& a, TACIT_THREAD const MatrixRight<T, TRANSPOSED>& b, u32 lane) {
    for (int i = 0; i < 8; ++i) {
      u32 r = lane / 2, c = lane % 2 * 8 + i;
      for (u32 d = 0; d < 16; ++d)
        sum[i] += to_float(a.at[r * a.row + d]) * to_float(b.at[TRANSPOSED ? c * b.row + d : d * b.row + c]);
    }
  }
  TACIT_FN void store(TACIT_GROUP float* to, u32 length, u32 lane) {
    for (int i = 0; i < 8; ++i) to[lane / 2 * length + lane % 2 * 8 + i] = sum[i];
  }
};

}  // namespace tacit
