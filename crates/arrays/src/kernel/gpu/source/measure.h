// The largest magnitude of each row of a sum that is never built, or its length.

namespace tacit {

// What all threads of a group have in common of what each found, by a warp and then by all of them, who meet at `meeting`.
template <class Meeting> TACIT_FN float greatest_of_group(float magnitude, Place at, u32 threads, Meeting meeting) {
  Found found = Found{0.0f, magnitude};
  TACIT_UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) found = Finding<ABSMAX>::with(found, shuffle_xor(found.high, mask));
  if (at.lane == 0) meeting[at.warp] = found.high;
  TACIT_BARRIER();
  for (u32 warp = 0; warp < threads / 32; ++warp) found = Finding<ABSMAX>::with(found, meeting[warp]);
  TACIT_BARRIER();
  return found.high;
}

// Of row `x` of the grid.
template <int IS_NORM, int THREADS, class E, class Meeting>
TACIT_FN void measure_row(E e, TACIT_DEVICE float* out, Place at, Meeting meeting) {
  const u64 start = (u64)at.x * e.k;
  float absmax = 0.0f;
  for (u32 column = at.id; column < e.k; column += THREADS)
    absmax = Finding<ABSMAX>::with(Found{0.0f, absmax}, Elements<1>::at(e, start + column)).high;
  absmax = greatest_of_group(absmax, at, THREADS, meeting);
  float measured = absmax;
  // Of a row of zeros, or with what is not finite, that is its length as well.
  if (IS_NORM && absmax > 0.0f && to_bits(absmax) < 0x7f800000u) {
    // Squares are those of numbers below 4, as doubles have room for all squares of floats. Neither factor is subnormal, which Metal
    // would take for zero.
    const u32 biased = to_bits(absmax) >> 23, exponent = biased < 1 ? 1 : biased > 253 ? 253 : biased;
    const float down = from_bits((254 - exponent) << 23), up = from_bits(exponent << 23);
    Twofold sum = Twofold{0.0f, 0.0f};
    for (u32 column = at.id; column < e.k; column += THREADS) {
      const float x = exact_mul(Elements<1>::at(e, start + column), down);
      sum = add_twofold(sum, exact_product(x, x));
    }
    sum = sum_of_team<THREADS>(sum, at, meeting);
    const float root = exact_sqrt(sum.sum);
    const float left = exact_add(exact_fma(-root, root, sum.sum), sum.rest);
    measured = exact_mul(exact_add(root, exact_div(left, 2.0f * root)), up);
  }
  if (at.id == 0) out[at.x] = measured;
}

}  // namespace tacit
