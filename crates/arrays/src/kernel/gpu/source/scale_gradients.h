// The gradients of a quantized matrix for its scales, its biases and the floats that were quantized, as the CPU's kernel has them.

namespace tacit {

// Of the blocks from `first` on, which are `each`. TEAM threads have a block together; their warps meet at `meeting`, which has
// room for four floats of each.
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
    TACIT_UNROLL
    for (u32 mask = (TEAM < 32 ? TEAM : 32) / 2; mask > 0; mask /= 2) {
      of_scale = add_twofold(of_scale, of_lane(of_scale, mask));
      of_bias = add_twofold(of_bias, of_lane(of_bias, mask));
    }
    if (TEAM > 32) {
      TACIT_GROUP float* own = meeting + 4 * at.warp;
      if (at.lane == 0) {
        own[0] = of_scale.sum;
        own[1] = of_scale.rest;
        own[2] = of_bias.sum;
        own[3] = of_bias.rest;
      }
      TACIT_BARRIER();
      of_scale = Twofold{meeting[0], meeting[1]};
      of_bias = Twofold{meeting[2], meeting[3]};
      for (u32 warp = 1; warp < TEAM / 32; ++warp) {
        TACIT_GROUP float* other = meeting + 4 * warp;
        of_scale = add_twofold(of_scale, Twofold{other[0], other[1]});
        of_bias = add_twofold(of_bias, Twofold{other[2], other[3]});
      }
      TACIT_BARRIER();
    }
    if (exists && lane == 0) {
      of_scales[block] = exact_add(of_scale.sum, of_scale.rest);
      if (W::BIASED) of_biases[block] = exact_add(of_bias.sum, of_bias.rest);
    }
  }
}

}  // namespace tacit
