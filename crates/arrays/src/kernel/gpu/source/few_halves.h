// `x W^T` for up to 8 TILES rows of x of half floats, in products of 16 rows of W. Each weight is two halves, a rounding and what that
// leaves, so that sums are those of f32: with so few rows it is the decoding that takes the time.

namespace tacit {

// How a weight is made two halves: bf16 has the range of f32, and a weight that is stored as an f16 is one. What the roundings leave
// has sums of its own, which do not count where one of the roundings is infinite or NaN: nothing times infinity is NaN, too.
template <class T, int IS_F16> struct Halving {
  static TACIT_FN float down() { return 1.0f; }
  static TACIT_FN float rest(float left) { return left; }
  static TACIT_FN float total(float sum, float rest) { return sum + rest; }
};
// With f16 it is 2^-4 of each weight, so that these reach to 2^20, and what its rounding leaves is 2^11 times as large: 2^-22 of a
// weight is lost at most, or 2^-32.
template <> struct Halving<f16, 0> {
  static TACIT_FN float down() { return 0.0625f; }
  static TACIT_FN float rest(float left) { return left * 2048.0f; }
  static TACIT_FN float total(float sum, float rest) { return sum * 16.0f + rest * 0.0078125f; }
};
template <class H> TACIT_FN float total_of(float sum, float rest) {
  return (to_bits(sum) & 0x7f800000u) == 0x7f800000u ? sum : H::total(sum, rest);
}

// 32 halves from `at` on, two a word.
template <class X> TACIT_FN void load_halves(X at, bool aligned, TACIT_THREAD u32 (&word)[16]) {
  TACIT_UNROLL
  for (int quad = 0; quad < 4; ++quad) {
    if (aligned) {
      Quad read = load128((const TACIT_DEVICE u8*)at + 16 * quad);
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) word[4 * quad + i] = read.word[i];
    } else {
      const TACIT_DEVICE u16* halves = (const TACIT_DEVICE u16*)at + 8 * quad;
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) word[4 * quad + i] = halves[2 * i] | (u32)halves[2 * i + 1] << 16;
    }
  }
}

// A group makes 16 columns of the result; its warps take turns at 128 numbers of each row, and their sums meet in `meeting`. Of
// those numbers a lane has 32 that lie together, of W as of x: which of them are multiplied at once does not matter.
template <class W, class T, int TILES> struct FewHalves {
  typedef Halving<T, (int)W::SCALING == (int)NO_SCALES && (int)W::CODING == (int)F16_CODES> Halves;
  enum { WARPS = 8, MEMORY = WARPS * 16 * 8 };

  // Eight weights as they are halved. A scale that many share takes the factor for them.
  static TACIT_FN Eight weights_of(W w, Strip<W, 4> strip, int octet) {
    if (W::SCALING != NO_SCALES) {
      strip.line[octet].scale *= Halves::down();
      strip.line[octet].bias *= Halves::down();
    }
    Eight weights = strip_values(w, strip, octet);
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) weights.at[i] = W::SCALING == NO_SCALES ? weights.at[i] * Halves::down() : weights.at[i];
    return weights;
  }

  static TACIT_FN u32 rounding_of(TACIT_THREAD float& low, TACIT_THREAD float& high) {
    const u32 pair = pair_of(low, high, T());
    low = Halves::rest(low - low_float(pair, T()));
    high = Halves::rest(high - high_float(pair, T()));
    return pair;
  }

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 column, Place at,
                                TACIT_GROUP float* meeting, bool aligned) {
    const u32 g = at.lane / 4, t = at.lane % 4;
    const u64 first = start + (u64)(column + g < n ? column + g : n - 1) * k;
    const u64 second = start + (u64)(column + g + 8 < n ? column + g + 8 : n - 1) * k;
    // Of the roundings, and of what these leave.
    float sum[2][TILES][4];
    TACIT_UNROLL
    for (int i = 0; i < 2 * 4 * TILES; ++i) sum[i / (4 * TILES)][i / 4 % TILES][i % 4] = 0.0f;
    u32 from = at.warp * 128 + t * 32;
    Strip<W, 4> next[2];
    if (at.warp * 128 < k) {
      next[0] = load_strip<W, 4>(w, first + from, aligned);
      next[1] = load_strip<W, 4>(w, second + from, aligned);
    }
    for (u32 chunk = at.warp; chunk * 128 < k; chunk += WARPS, from += 128 * WARPS) {
      const Strip<W, 4> strip[2] = {next[0], next[1]};
      if ((chunk + WARPS) * 128 < k) {
        next[0] = load_strip<W, 4>(w, first + from + 128 * WARPS, aligned);
        next[1] = load_strip<W, 4>(w, second + from + 128 * WARPS, aligned);
      }
      u32 right[TILES][16];
      TACIT_UNROLL
      for (int tile = 0; tile < TILES; ++tile) {
        const u32 row = tile * 8 + g < m ? tile * 8 + g : m - 1;
        load_halves(x + (u64)row * k + from, aligned, right[tile]);
      }
      TACIT_UNROLL
      for (int octet = 0; octet < 4; ++octet) {
        Eight values[2];
        TACIT_UNROLL
        for (int r = 0; r < 2; ++r) values[r] = weights_of(w, strip[r], octet);
        TACIT_UNROLL
        for (int step = 0; step < 2; ++step) {
          u32 a[4], rest[4];
          TACIT_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int e = 4 * step + i / 2 * 2;
            float low = values[i % 2].at[e], high = values[i % 2].at[e + 1];
            a[i] = rounding_of(low, high);
            rest[i] = pair_of(low, high, T());
          }
          TACIT_UNROLL
          for (int tile = 0; tile < TILES; ++tile) {
            const int word = 4 * octet + 2 * step;
            multiply_add(sum[0][tile], a, right[tile][word], right[tile][word + 1], T());
            multiply_add(sum[1][tile], rest, right[tile][word], right[tile][word + 1], T());
          }
        }
      }
    }
    TACIT_UNROLL
    for (int tile = 0; tile < TILES; ++tile) {
      TACIT_BARRIER();
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float total = total_of<Halves>(sum[0][tile][i], sum[1][tile][i]);
        meeting[at.warp * 128 + (g + i / 2 * 8) * 8 + t * 2 + i % 2] = total;
      }
      TACIT_BARRIER();
      const u32 c = column + at.id % 16, r = tile * 8 + at.id / 16;
      if (at.id < 128 && c < n && r < m) {
        float total = 0.0f;
        TACIT_UNROLL
        for (int warp = 0; warp < WARPS; ++warp)
          total = exact_add(total, meeting[warp * 128 + at.id % 16 * 8 + at.id / 16]);
        out[(u64)r * n + c] = Round<T>::from(total);
      }
    }
  }
};

}  // namespace tacit
