// Sums of more digits than floats have. The CPU sums in doubles, which Metal has not: here sums are two floats, what is rounded and
// what that leaves.

namespace tacit {

struct Twofold {
  float sum, rest;
};

// The sum of two numbers with what it is rounded off by (Knuth, The Art of Computer Programming 2, 4.2.2).
TACIT_FN Twofold exact_sum(float a, float b) {
  float sum = exact_add(a, b), part = exact_add(sum, -a);
  return Twofold{sum, exact_add(exact_add(a, -exact_add(sum, -part)), exact_add(b, -part))};
}
TACIT_FN Twofold add_twofold(Twofold a, Twofold b) {
  Twofold sum = exact_sum(a.sum, b.sum);
  float rest = exact_add(sum.rest, exact_add(a.rest, b.rest));
  // An infinity leaves nothing.
  return exact_sum(sum.sum, rest != rest ? 0.0f : rest);
}
TACIT_FN Twofold exact_product(float a, float b) {
  float product = exact_mul(a, b);
  return Twofold{product, exact_fma(a, b, -product)};
}
// An infinity leaves nothing.
TACIT_FN float float_of(Twofold a) { return a.rest != a.rest ? a.sum : exact_add(a.sum, a.rest); }
TACIT_FN Twofold of_lane(Twofold sum, u32 mask) { return Twofold{shuffle_xor(sum.sum, mask), shuffle_xor(sum.rest, mask)}; }

// The sum of what TEAM threads have: those of a group, or part of a warp. Warps meet at `meeting`, which has room for two floats of
// each.
template <int TEAM> TACIT_FN Twofold sum_of_team(Twofold sum, Place at, TACIT_GROUP float* meeting) {
  TACIT_UNROLL
  for (u32 mask = (TEAM < 32 ? TEAM : 32) / 2; mask > 0; mask /= 2) sum = add_twofold(sum, of_lane(sum, mask));
  if (TEAM > 32) {
    if (at.lane == 0) {
      meeting[2 * at.warp] = sum.sum;
      meeting[2 * at.warp + 1] = sum.rest;
    }
    TACIT_BARRIER();
    sum = Twofold{meeting[0], meeting[1]};
    for (u32 warp = 1; warp < TEAM / 32; ++warp)
      sum = add_twofold(sum, Twofold{meeting[2 * warp], meeting[2 * warp + 1]});
    TACIT_BARRIER();
  }
  return sum;
}

}  // namespace tacit
