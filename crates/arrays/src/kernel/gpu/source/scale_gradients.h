// The gradients of a quantized matrix for its scales, its biases and the floats that were quantized, as the CPU's kernel has them.

namespace tacit {

// Of the blocks from `first` on, which are `each`. TEAM threads have a block together; their warps meet at `meeting`, which has
// room for two floats of each.
template <int TEAM, class W, class X, class Of>
TACIT_FN void scale_gradients(W w, X x, X cotangent, Of of_x, Of of_scales, Of of_biases, u64 first, u32 each, u64 blocks,
                              u32 last, float low, float high, Place at, u32 threads, TACIT_GROUP float* meeting) {
  const u32 team = at.id / TEAM, lane = at.id % TEAM;
  // All threads take as many turns: those of a warp look at each other's.
  for (u32 turn = 0; turn < each; turn += threads / TEAM) {
    const u64 block = first + turn + team;
    const bool exists = turn + team < each && block < blocks;
    const u32 length = !exists ? 0 : block + 1 == blocks ? last : w.block;
    Line line = Line{0.0f, 0.0f};
    if (exists) line = Lines<W::BIASED>::of(w, block);
    Twofold of_scale = Twofold{0.0f, 0.0f}, of_bias = Twofold{0.0f, 0.0f};
    for (u32 i = lane; i < length; i += TEAM) {
      const u64 element = block * w.block + i;
      const float g = cotangent[element], q = Unit<W::CODING>::of(w, code_at(w, element) << Shift<W>::BITS);
      const float u = line.scale == 0.0f ? 0.0f : exact_div(exact_add(x[element], -line.bias), line.scale);
      const bool inside = u >= low && u <= high;
      of_x[element] = inside ? g : 0.0f;
      of_scale = add_twofold(of_scale, exact_product(g, inside ? exact_add(q, -u) : q));
      of_bias = add_twofold(of_bias, Twofold{inside ? 0.0f : g, 0.0f});
    }
    of_scale = sum_of_team<TEAM>(of_scale, at, meeting);
    of_bias = sum_of_team<TEAM>(of_bias, at, meeting);
    if (exists && lane == 0) {
      of_scales[block] = float_of(of_scale);
      if (W::BIASED) of_biases[block] = float_of(of_bias);
    }
  }
}

}  // namespace tacit
