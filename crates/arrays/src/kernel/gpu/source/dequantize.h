// Elements of a stored matrix as floats: all of them, those of some rows, or in a sum.

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

// The product and the sum are each rounded, as they are where they are made one after the other.
template <class T> TACIT_FN T scaled_sum(float value, float factor, float x) {
  return Round<T>::from(exact_add(to_float(Round<T>::from(exact_mul(value, factor))), x));
}

// The matrix times a number, added to x, as `dequantize` takes elements.
template <class W, class T, class X>
TACIT_FN void add_dense(W w, X x, float factor, TACIT_DEVICE T* out, u64 elements, Place at, u32 threads) {
  const u64 first = ((u64)at.x * threads + at.id) * 8;
  if (first + 8 <= elements) {
    const Eight added = eight_floats(x + first, is_aligned(x));
    Eight values = values_of(w, units_in<W, 1>(w, load_codes<W, 1>(w, first, is_aligned(w.codes)), 0), first);
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) out[first + i] = scaled_sum<T>(values.at[i], factor, added.at[i]);
  } else {
    for (u64 i = first; i < elements; ++i) out[i] = scaled_sum<T>(element(w, i), factor, to_float(x[i]));
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
