// Rows of activations as integers from -127 to 127 in units of their own, rounded where they are read: bit for bit the integers and
// the units of the CPU's kernel.

namespace tacit {

// Such rows, from `first` on. Of each there are three numbers: what its elements grow by, the factor that makes integers of those, and
// what a product of integers is worth.
template <class X> struct RoundedRows {
  X x;
  const TACIT_GROUP float* numbers;
  u32 first;
};

// The rows from `first` on that are there, which are COUNT at most. `numbers` has room for three of each.
template <int COUNT, class X>
TACIT_FN RoundedRows<X> rounded_rows(X x, u32 first, u32 m, u32 k, float unit, Place at, u32 threads,
                                     TACIT_GROUP float* numbers) {
  // All have read those of the rows before.
  TACIT_BARRIER();
  for (u32 r = at.warp; r < (u32)COUNT && first + r < m; r += threads / 32) {
    // The bits of magnitudes order as they do, with infinities and NaN above all others.
    u32 most = 0;
    for (u32 column = at.lane; column < k; column += 32) {
      const u32 bits = to_bits(number_at(x, first + r, k, column)) & 0x7fffffffu;
      most = bits > most ? bits : most;
    }
    TACIT_UNROLL
    for (u32 mask = 16; mask > 0; mask /= 2) {
      const u32 bits = to_bits(shuffle_xor(from_bits(most), mask));
      most = bits > most ? bits : most;
    }
    if (at.lane == 0) {
      // Below 2^-110 the factor would be no float: such rows are rounded as 2^64 times as large.
      const float grown = most < 0x08800000u ? from_bits(0x5f800000u) : 1.0f, absmax = exact_mul(from_bits(most), grown);
      const float worth = exact_div(exact_div(absmax, 127.0f), grown);
      numbers[3 * r] = grown;
      // Not by the bits: a GPU may take subnormal numbers for zeros, and such a row is one of zeros there.
      numbers[3 * r + 1] = absmax == 0.0f ? 0.0f : exact_div(127.0f, absmax);
      numbers[3 * r + 2] = most < 0x7f800000u ? exact_mul(worth, unit) : from_bits(0x7fc00000u);
    }
  }
  TACIT_BARRIER();
  return RoundedRows<X>{x, numbers, first};
}

template <class X> TACIT_FN float rounded(RoundedRows<X> rows, u32 row, float x) {
  const TACIT_GROUP float* own = rows.numbers + 3 * (row - rows.first);
  const float units = exact_mul(exact_mul(x, own[0]), own[1]);
  return nearest_even(units < -127.0f ? -127.0f : units > 127.0f ? 127.0f : units);
}

template <class X> TACIT_FN float number_at(RoundedRows<X> rows, u32 row, u32 k, u32 column) {
  return rounded(rows, row, number_at(rows.x, row, k, column));
}
template <class X> TACIT_FN Eight eight_at(RoundedRows<X> rows, u32 row, u32 k, u32 column, bool aligned) {
  Eight values = eight_at(rows.x, row, k, column, aligned);
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) values.at[i] = rounded(rows, row, values.at[i]);
  return values;
}
template <class X> TACIT_FN float sum_of_row(RoundedRows<X> rows, u32 row, float sum) {
  return exact_mul(sum, rows.numbers[3 * (row - rows.first) + 2]);
}

}  // namespace tacit
