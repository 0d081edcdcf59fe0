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
TACIT_FN Twofold of_lane(Twofold sum, u32 mask) { return Twofold{shuffle_xor(sum.sum, mask), shuffle_xor(sum.rest, mask)}; }

}  // namespace tacit
