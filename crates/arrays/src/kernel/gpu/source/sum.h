// Elements of a sum of a matrix and a thin product of two others, which is never built: bit for bit the CPU's, which first sums the
// product in the order of the rank, then adds the matrix, then multiplies by the row's factor.

namespace tacit {

template <> struct Elements<1> {
  template <class E> static TACIT_FN float whole(E e, u64 element, u64 row, float product) {
    float sum = exact_add(e.base_at(element), product);
    return E::IS_SCALED ? exact_mul(sum, e.factor_of(row)) : sum;
  }
  template <class E> static TACIT_FN float at(E e, u64 element) {
    const u64 row = element / e.k;
    const u32 column = (u32)(element % e.k);
    float product = 0.0f;
    for (u32 r = 0; r < e.rank; ++r)
      product = exact_add(product, exact_mul(e.left[row * e.rank + r], e.right[(u64)r * e.k + column]));
    return whole(e, element, row, product);
  }
  template <class E> static TACIT_FN Eight eight(E e, u64 first) {
    const u64 row = first / e.k;
    const u32 column = (u32)(first % e.k);
    Eight values;
    if (column + 8 <= e.k) {
      TACIT_UNROLL
      for (int i = 0; i < 8; ++i) values.at[i] = 0.0f;
      for (u32 r = 0; r < e.rank; ++r) {
        const float left = e.left[row * e.rank + r];
        TACIT_UNROLL
        for (int i = 0; i < 8; ++i)
          values.at[i] = exact_add(values.at[i], exact_mul(left, e.right[(u64)r * e.k + column + i]));
      }
      TACIT_UNROLL
      for (int i = 0; i < 8; ++i) values.at[i] = whole(e, first + i, row, values.at[i]);
    } else {
      TACIT_UNROLL
      for (int i = 0; i < 8; ++i) values.at[i] = at(e, first + i);
    }
    return values;
  }
};

}  // namespace tacit
