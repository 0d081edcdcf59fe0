// The gradients of the scales and biases of stored matrices, where those of the matrices are sums of outer products that are never
// built.

namespace tacit {

// TEAM threads have ROWS blocks together, which lie one below the other in as many rows of a matrix and share what is read of the
// right side. An entry of a matrix that is not there is one of the last, as plain ops have it. Warps meet at `meeting`, which has
// room for two floats of each.
template <int TEAM, int ROWS, class W, class Side, class Matrices, class Of>
TACIT_FN void product_scale_gradients(W w, Side left, Side right, Matrices matrices, Of of_scales, Of of_biases, u32 entries,
                                      u32 depth, u32 n, u32 k, u32 count, u32 blocks, u32 block, Place at, u32 threads,
                                      TACIT_GROUP float* meeting) {
  const u32 lane = at.id % TEAM, team = at.x * (threads / TEAM) + at.id / TEAM, apart = ROWS > 1 ? k / block : 1;
  const u64 first = (u64)(team / apart) * apart * ROWS + team % apart;
  const bool exists = first < blocks;
  const u32 last = (u32)((u64)count * n * k - (u64)(blocks - 1) * block);
  const u32 length = !exists ? 0 : first + 1 == blocks ? last : block;
  Twofold of_scale[ROWS], of_bias[ROWS];
  TACIT_UNROLL
  for (u32 r = 0; r < ROWS; ++r) of_scale[r] = of_bias[r] = Twofold{0.0f, 0.0f};
  for (u32 i = lane; i < length; i += TEAM) {
    const u64 element = first * block + i;
    const u32 row = (u32)(element / k), column = (u32)(element % k), matrix = row / n, in_matrix = row % n;
    float gradient[ROWS];
    TACIT_UNROLL
    for (u32 r = 0; r < ROWS; ++r) gradient[r] = 0.0f;
    for (u32 entry = 0; entry < entries; ++entry) {
      const u32 named = matrices[entry];
      if ((named < count ? named : count - 1) != matrix) continue;
      for (u64 product = (u64)entry * depth; product < (u64)(entry + 1) * depth; ++product) {
        const float factor = right[product * k + column];
        TACIT_UNROLL
        for (u32 r = 0; r < ROWS; ++r) gradient[r] = exact_fma(left[product * n + in_matrix + r], factor, gradient[r]);
      }
    }
    TACIT_UNROLL
    for (u32 r = 0; r < ROWS; ++r) {
      const float value = Unit<W::CODING>::of(w, code_at(w, element + (u64)r * k) << Shift<W>::BITS);
      of_scale[r] = add_twofold(of_scale[r], exact_product(gradient[r], value));
      of_bias[r] = add_twofold(of_bias[r], Twofold{gradient[r], 0.0f});
    }
  }
  TACIT_UNROLL
  for (u32 r = 0; r < ROWS; ++r) {
    const Twofold scale = sum_of_team<TEAM>(of_scale[r], at, meeting), bias = sum_of_team<TEAM>(of_bias[r], at, meeting);
    if (exists && lane == 0) {
      of_scales[first + (u64)r * apart] = float_of(scale);
      of_biases[first + (u64)r * apart] = float_of(bias);
    }
  }
}

}  // namespace tacit
