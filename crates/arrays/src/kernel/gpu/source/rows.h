// How products read their rows of activations, and what they make of the sums: nothing, unless rows are rounded, as `int8_rows.h` has
// it.

namespace tacit {

template <class X> TACIT_FN float number_at(X x, u32 row, u32 k, u32 column) {
  return to_float(x[(u64)row * k + column]);
}
template <class X> TACIT_FN Eight eight_at(X x, u32 row, u32 k, u32 column, bool aligned) {
  return eight_floats(x + (u64)row * k + column, aligned);
}
template <class X> TACIT_FN float sum_of_row(X, u32, float sum) { return sum; }

}  // namespace tacit
