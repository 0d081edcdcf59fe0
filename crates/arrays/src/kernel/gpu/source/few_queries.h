// Attention of a few rows of queries that share keys and values, with exact f32 products: each warp goes through blocks of 32
// tokens by itself, and at the end all warps' sums meet, in an order that is always the same.

namespace tacit {

TACIT_FN float greatest_of_lanes(float value) {
  TACIT_UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) value = greater(value, shuffle_xor(value, mask));
  return value;
}

// The scores of one token by the lane that decodes its key, STEPS octets at a time; with 0 of them, element by element. An octet of
// each row of the queries lies beside that of the next row.
template <class K, int HEAD, int ROWS, int STEPS> struct KeyScores {
  static TACIT_FN void of(K keys, const TACIT_GROUP float* queries, u64 first, bool aligned,
                          TACIT_THREAD float (&scores)[ROWS]) {
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r) scores[r] = 0.0f;
    TACIT_UNROLL
    for (int d = 0; d < HEAD; d += 8 * STEPS) {
      Strip<K, STEPS> strip = load_strip<K, STEPS>(keys, first + d, aligned);
      TACIT_UNROLL
      for (int step = 0; step < STEPS; ++step) {
        Eight factors = strip_factors(keys, strip, step);
        TACIT_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const TACIT_GROUP float* row = queries + ((d / 8 + step) * ROWS + r) * 8;
          float part = 0.0f;
          TACIT_UNROLL
          for (int e = 0; e < 8; ++e) part += factors.at[e] * row[e];
          scores[r] += is_scaled_late<K>() ? part * strip.line[step].scale : part;
        }
      }
    }
  }
};
template <class K, int HEAD, int ROWS> struct KeyScores<K, HEAD, ROWS, 0> {
  static TACIT_FN void of(K keys, const TACIT_GROUP float* queries, u64 first, bool,
                          TACIT_THREAD float (&scores)[ROWS]) {
    for (int r = 0; r < ROWS; ++r) scores[r] = 0.0f;
    for (int d = 0; d < HEAD; ++d) {
      float value = element(keys, first + d);
      for (int r = 0; r < ROWS; ++r) scores[r] += value * queries[(d / 8 * ROWS + r) * 8 + d % 8];
    }
  }
};

// A unit of a value: eight columns, or one where rows do not begin with a whole byte.
template <class V, int UNIT> struct ValueUnit {
  Strip<V, 1> strip;
  TACIT_FN void load(V values, u64 first, bool aligned) { strip = load_strip<V, 1>(values, first, aligned); }
  template <int ROWS, int LENGTH>
  TACIT_FN void add(V values, const TACIT_GROUP float* weights, int at, TACIT_THREAD float (&sums)[ROWS][LENGTH]) const {
    Eight factors = strip_factors(values, strip, 0);
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const float weight = is_scaled_late<V>() ? weights[r] * strip.line[0].scale : weights[r];
      TACIT_UNROLL
      for (int e = 0; e < 8; ++e) sums[r][at * 8 + e] += weight * factors.at[e];
    }
  }
};
template <class V> struct ValueUnit<V, 1> {
  float value;
  TACIT_FN void load(V values, u64 first, bool) { value = element(values, first); }
  template <int ROWS, int LENGTH>
  TACIT_FN void add(V, const TACIT_GROUP float* weights, int at, TACIT_THREAD float (&sums)[ROWS][LENGTH]) const {
    for (int r = 0; r < ROWS; ++r) sums[r][at] += weights[r] * value;
  }
};

template <class K, class V, int HEAD, int WIDTH, int ROWS, int WARPS, int MASK> struct FewQueries {
  enum {
    STEPS = HEAD % 32 == 0 ? 4 : HEAD % 8 == 0 ? 1 : 0,
    UNIT = WIDTH % 8 == 0 ? 8 : 1,
    UNITS = WIDTH / UNIT,
    ACROSS = UNITS < 32 ? UNITS : 32,
    EACH = (UNITS + 31) / 32,
    AT_ONCE = 32 / ACROSS,
    // Values of so many tokens are on their way at once.
    AHEAD = EACH > 1 || ROWS > 4 ? 2 : 4,
    TURNS = (32 + AT_ONCE - 1) / AT_ONCE,
    QUERIES = ROWS * ((HEAD + 7) / 8 * 8),
    WEIGHTS = WARPS * 32 * ROWS,
    MEETING = WARPS * AT_ONCE * WIDTH,
    STATES = 2 * WARPS * ROWS,
    // In floats.
    MEMORY = QUERIES + (WEIGHTS > MEETING ? WEIGHTS : MEETING) + STATES
  };

  // Rows `row` and on of the `rows` that share a matrix, whose tokens begin with token `start`; `q` and `out` are those of row 0.
  template <class Places, class X, class O, class H>
  static TACIT_FN void attend(K keys, V values, X q, O out, H hiding, u32 masked, u32 entry, u32 queries_each, u32 row,
                              u32 rows, u64 start, u32 tokens, Place at, TACIT_GROUP float* memory) {
    TACIT_GROUP float* queries = memory;
    TACIT_GROUP float* meeting = memory + QUERIES;
    TACIT_GROUP float* states = memory + (MEMORY - STATES);
    TACIT_GROUP float* weights = meeting + at.warp * 32 * ROWS;
    const bool keys_aligned = is_aligned(keys.codes), values_aligned = is_aligned(values.codes);
    for (u32 i = at.id; i < (u32)(ROWS * HEAD); i += 32 * WARPS) {
      const u32 r = i / HEAD, d = i % HEAD;
      queries[(d / 8 * ROWS + r) * 8 + d % 8] = row + r < rows ? to_float(q[(u64)(row + r) * HEAD + d]) : 0.0f;
    }
    u64 masks[ROWS];
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      const u32 own = row + r < rows ? row + r : rows - 1;
      masks[r] = (u64)Places::of(entry + own / queries_each) * masked + (u64)(own % queries_each) * hiding.row;
    }
    // The columns that the lane adds up, of one of the tokens that are added at once.
    const u32 turn = at.lane / ACROSS, column = at.lane % ACROSS;
    for (int skip = 1;; skip = 0) {
      float max[ROWS], sum[ROWS], sums[ROWS][EACH * UNIT];
      TACIT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        max[r] = no_score();
        sum[r] = 0.0f;
        TACIT_UNROLL
        for (int e = 0; e < EACH * UNIT; ++e) sums[r][e] = 0.0f;
      }
      TACIT_BARRIER();
      for (u32 first = at.warp * 32; first < tokens; first += WARPS * 32) {
        const u32 token = first + at.lane;
        const bool there = token < tokens;
        float numbers[ROWS], scores[ROWS];
        bool seen = false;
        TACIT_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          numbers[r] = there ? Masked<MASK>::number(hiding, masks[r] + (u64)token * hiding.column) : 0.0f;
          seen = seen || (there && Masked<MASK>::sees(numbers[r]));
        }
        if (MASK != NO_MASK && skip && greatest_of_lanes(seen ? 1.0f : 0.0f) == 0.0f) continue;
        KeyScores<K, HEAD, ROWS, STEPS>::of(keys, queries, (start + (there ? token : tokens - 1)) * HEAD, keys_aligned, scores);
        TACIT_UNROLL
        for (int r = 0; r < ROWS; ++r) {
          const float hidden = skip ? no_score() : hiding.hidden;
          const float score = there ? Masked<MASK>::score(scores[r], numbers[r], hidden) : no_score();
          const float most = greater(max[r], greatest_of_lanes(is_nan(score) ? no_score() : score));
          const float factor = rescaling(max[r], most), weight = there ? weight_of(score, most) : 0.0f;
          max[r] = most;
          sum[r] = sum[r] * factor + weight;
          TACIT_UNROLL
          for (int e = 0; e < EACH * UNIT; ++e) sums[r][e] *= factor;
          weights[at.lane * ROWS + r] = weight;
        }
        TACIT_WARP_BARRIER();
        add(values, (start + first) * WIDTH, tokens - first, weights, turn, column, sums, values_aligned);
        TACIT_WARP_BARRIER();
      }
      TACIT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        const float total = sum_of_lanes(sum[r]);
        if (at.lane == 0) {
          states[(at.warp * ROWS + r) * 2] = max[r];
          states[(at.warp * ROWS + r) * 2 + 1] = total;
        }
      }
      TACIT_BARRIER();
      bool again = false;
      TACIT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        float most = no_score(), total = 0.0f;
        for (int w = 0; w < WARPS; ++w) most = greater(most, states[(w * ROWS + r) * 2]);
        for (int w = 0; w < WARPS; ++w)
          total = exact_add(total, exact_mul(states[(w * ROWS + r) * 2 + 1], rescaling(states[(w * ROWS + r) * 2], most)));
        again = again || (row + r < rows && Masked<MASK>::counts_hidden(most, hiding.hidden));
        const float factor = rescaling(max[r], most) * (1.0f / total);
        TACIT_UNROLL
        for (int e = 0; e < EACH * UNIT; ++e) sums[r][e] *= factor;
      }
      // All threads read the same states, so all of them go on or none.
      if (MASK != NO_MASK && skip && again) continue;
      TACIT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        TACIT_BARRIER();
        if (turn < (u32)AT_ONCE) {
          TACIT_UNROLL
          for (int i = 0; i < EACH * UNIT; ++i) {
            const u32 unit = column + i / UNIT * 32;
            if (unit < (u32)UNITS) meeting[(at.warp * AT_ONCE + turn) * WIDTH + unit * UNIT + i % UNIT] = sums[r][i];
          }
        }
        TACIT_BARRIER();
        if (row + r >= rows) continue;
        for (u32 c = at.id; c < (u32)WIDTH; c += 32 * WARPS) {
          float total = 0.0f;
          for (int part = 0; part < WARPS * AT_ONCE; ++part) total = exact_add(total, meeting[part * WIDTH + c]);
          write(out, (u64)(row + r) * WIDTH + c, total);
        }
      }
      return;
    }
  }

  template <class T> static TACIT_FN void write(TACIT_DEVICE T* out, u64 at, float value) { out[at] = Round<T>::from(value); }

  // Adds the weighted values of a block of 32 tokens, of which `count` are there. What weighs nothing may hold anything.
  static TACIT_FN void add(V values, u64 first, u32 count, const TACIT_GROUP float* weights, u32 turn, u32 column,
                           TACIT_THREAD float (&sums)[ROWS][EACH * UNIT], bool aligned) {
    if (turn >= (u32)AT_ONCE) return;
    for (int group = 0; group < TURNS; group += AHEAD) {
      ValueUnit<V, UNIT> units[AHEAD][EACH];
      TACIT_UNROLL
      for (int i = 0; i < AHEAD; ++i) {
        const u32 token = turn + (group + i) * AT_ONCE;
        TACIT_UNROLL
        for (int each = 0; each < EACH; ++each) {
          const u32 unit = column + each * 32;
          if (unit < (u32)UNITS) units[i][each].load(values, first + (u64)(token < count ? token : count - 1) * WIDTH + unit * UNIT, aligned);
        }
      }
      TACIT_UNROLL
      for (int i = 0; i < AHEAD; ++i) {
        const u32 token = turn + (group + i) * AT_ONCE;
        if (token >= 32 || token >= count) continue;
        bool weighs = false;
        TACIT_UNROLL
        for (int r = 0; r < ROWS; ++r) weighs = weighs || weights[token * ROWS + r] != 0.0f;
        if (!weighs) continue;
        TACIT_UNROLL
        for (int each = 0; each < EACH; ++each) {
          if (column + each * 32 < (u32)UNITS) units[i][each].add(values, weights + token * ROWS, each, sums);
        }
      }
    }
  }
};

}  // namespace tacit
