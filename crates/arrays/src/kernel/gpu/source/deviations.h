// How far stored blocks are from the floats that were quantized, and which scales and biases would bring them nearer, as the CPU's
// kernel has it.

namespace tacit {

// What is summed of an error, and how much of it a scale is to follow.
struct Deviation {
  Twofold error;
  float followed;
};
template <int IS_POWER> struct Deviates {
  template <class X> static TACIT_FN Deviation by(float r, X, u64, float) { return Deviation{exact_product(r, r), r}; }
};
template <> struct Deviates<1> {
  template <class X> static TACIT_FN Deviation by(float r, X weights, u64 block, float power) {
    const float size = from_bits(to_bits(r) & 0x7fffffffu);
    // Without a deviation there is nothing to follow, and its power would be infinite.
    const float steep = size == 0.0f ? 0.0f : power_of(size, power), most = exact_mul(steep, weights[block]);
    const float followed = most < size ? most : size;
    return Deviation{exact_product(size, steep), r < 0.0f ? -followed : followed};
  }
};

// Of the blocks from `first` on, which are `each`. TEAM threads have a block together; their warps meet at `meeting`, which has
// room for two floats of each. `power` is one less than that of the errors.
template <int TEAM, int IS_POWER, class W, class X, class Of>
TACIT_FN void deviations(W w, X x, X weights, float power, Of error, Of value, Of square, Of slope, Of shift, u64 first, u32 each,
                         u64 blocks, u32 last, Place at, u32 threads, TACIT_GROUP float* meeting) {
  const u32 team = at.id / TEAM, lane = at.id % TEAM;
  // All threads take as many turns: those of a warp look at each other's.
  for (u32 turn = 0; turn < each; turn += threads / TEAM) {
    const u64 block = first + turn + team;
    const bool exists = turn + team < each && block < blocks;
    const u32 length = !exists ? 0 : block + 1 == blocks ? last : w.block;
    Twofold sums[5];
    TACIT_UNROLL
    for (int of = 0; of < 5; ++of) sums[of] = Twofold{0.0f, 0.0f};
    for (u32 i = lane; i < length; i += TEAM) {
      const u64 place = block * w.block + i;
      const float v = element(w, place);
      const Deviation deviation = Deviates<IS_POWER>::by(exact_add(x[place], -v), weights, block, power);
      sums[0] = add_twofold(sums[0], deviation.error);
      sums[1] = add_twofold(sums[1], Twofold{v, 0.0f});
      sums[2] = add_twofold(sums[2], exact_product(v, v));
      sums[3] = add_twofold(sums[3], exact_product(v, deviation.followed));
      sums[4] = add_twofold(sums[4], Twofold{deviation.followed, 0.0f});
    }
    TACIT_UNROLL
    for (int of = 0; of < 5; ++of) sums[of] = sum_of_team<TEAM>(sums[of], at, meeting);
    if (exists && lane == 0) {
      error[block] = float_of(sums[0]);
      value[block] = float_of(sums[1]);
      square[block] = float_of(sums[2]);
      slope[block] = float_of(sums[3]);
      shift[block] = float_of(sums[4]);
    }
  }
}

}  // namespace tacit
