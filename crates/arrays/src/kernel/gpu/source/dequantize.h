// Elements of a stored matrix as floats: all of them, or those of some rows.

namespace tacit {

// Each thread writes eight elements, the last one what is left.
template <class W, class T>
TACIT_FN void dequantize(W w, TACIT_DEVICE T* out, u64 elements, Place at, u32 threads) {
  u64 first = ((u64)at.x * threads + at.id) * 8;
  if (first + 8 <= elements) {
    Eight values = values_of(w, units_in<W, 1>(w, load_codes<W, 1>(w, first, is_aligned(w.codes)), 0), first);
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) out[first + i] = Round<T>::from(values.at[i]);
  } else {
    for (u64 i = first; i < elements; ++i) out[i] = Round<T>::from(element(w, i));
  }
}

// Row `rows[y]`, of which each thread writes one element in as many as there are threads along x. A row outside of the matrix
// is NaN: a GPU has no error to give.
template <class W, class T, class Rows>
TACIT_FN void gather_rows(W w, Rows rows, TACIT_DEVICE T* out, u32 n, u32 k, u32 count, Place at, u32 threads) {
  u32 column = at.x * threads + at.id;
  if (column >= k) return;
  // The grid may be shorter than the rows.
  for (u32 y = at.y; y < count; y += 32768) {
    u32 row = rows[y];
    float value = row < n ? element(w, (u64)row * k + column) : from_bits(0x7fc00000u);
    out[(u64)y * k + column] = Round<T>::from(value);
  }
}

}  // namespace tacit
