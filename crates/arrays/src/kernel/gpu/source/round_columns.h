// The columns of rows as the numbers that they are coded as, one after the other, with the error of each spread over those behind
// it: bit for bit as the CPU's kernel has them. A generated `struct Columns` describes the format as `struct Encode` does, with
// what is stored for the elements of the first column, then of the second, and so on; ROOM is how many columns are kept.

namespace tacit {

// The number that an element is coded as, by what is stored for it.
template <class E> TACIT_FN float as_coded(E e, u64 element, float x) {
  const Stored stored = Storage<E::STORAGE>::get(e, element);
  const u32 code = Rule<E::RULE>::code(e, Rule<E::RULE>::coder(e, stored), x) & ((1u << E::BITS) - 1);
  const float number = exact_mul(e.decoded(code), e.unit(stored));
  return (int)E::STORAGE == (int)LINES ? exact_add(number, stored.bias) : number;
}

// Each warp has a row, of which it keeps the columns at `rows`.
template <class E> TACIT_FN void round_columns(E e, Place at, u32 threads, TACIT_GROUP float* rows) {
  const u32 asked = at.x * (threads / 32) + at.warp;
  const bool exists = asked < e.n;
  // One that is not there takes the turns of another.
  const u32 row = exists ? asked : 0;
  const u64 first = (u64)row * e.width;
  TACIT_GROUP float* own = rows + at.warp * E::ROOM;
  for (u32 column = at.lane; column < e.width; column += 32) own[column] = e.x[first + column];
  TACIT_BARRIER();
  for (u32 column = 0; column < e.width; ++column) {
    const u64 factors = (u64)column * e.width;
    const float x = own[column], rounded = as_coded(e, (u64)column * e.n + row, x);
    const float error = exact_div(exact_add(x, -rounded), e.triangle[factors + column]);
    for (u32 behind = column + 1 + at.lane; behind < e.width; behind += 32)
      own[behind] = exact_add(own[behind], -exact_mul(error, e.triangle[factors + behind]));
    if (exists && at.lane == 0) {
      e.rounded[first + column] = rounded;
      e.errors[first + column] = error;
    }
    TACIT_WARP_BARRIER();
  }
}

}  // namespace tacit
