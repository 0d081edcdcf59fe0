// Attention of many rows of queries that share keys and values, with exact f32 products: a group makes 32 rows, 64 tokens at a time,
// whose keys and values are decoded into the group's memory a strip at a time.

namespace tacit {

template <class K, class V, int HEAD, int WIDTH, int MASK> struct ExactQueries {
  enum {
    ROWS = 32,
    TOKENS = 64,
    DEPTH = 16,
    CHUNKS = (WIDTH + TOKENS - 1) / TOKENS,
    Q_ROW = DEPTH + 1,
    W_ROW = TOKENS + 1,
    P_ROW = TOKENS + 1,
    // In floats. The queries lie where the weights come; at the end are which tokens some row weighs, and a flag.
    MEMORY = ROWS * P_ROW + DEPTH * W_ROW + TOKENS + 1
  };

  // Where values go. What weighs nothing may hold anything, of which a product with zero may be NaN.
  struct PutValues {
    TACIT_GROUP float* tile;
    const TACIT_GROUP float* weighed;
    TACIT_FN bool takes(u32 r) const { return MASK == NO_MASK || weighed[r] != 0.0f; }
    TACIT_FN void at(u32 r, u32 c, float value) const { tile[r * W_ROW + c] = value; }
  };

  template <class Places, class X, class O, class H>
  static TACIT_FN void attend(K keys, V values, X q, O out, H hiding, u32 masked, u32 entry, u32 queries_each, u32 row,
                              u32 rows, u64 start, u32 tokens, Place at, TACIT_GROUP float* memory) {
    const bool keys_aligned = is_aligned(keys.codes), values_aligned = is_aligned(values.codes);
    TACIT_GROUP float* left = memory;
    TACIT_GROUP float* right = memory + ROWS * P_ROW;
    TACIT_GROUP float* weighed = memory + (MEMORY - 1 - TOKENS);
    TACIT_GROUP float* flag = memory + (MEMORY - 1);
    Put<float, W_ROW, 1> key_tile = {right};
    // A thread has four rows, and every 16th column; the 16 threads of a row run together.
    const u32 r0 = at.id / 16 * 4, c0 = at.id % 16;
    u64 masks[4];
    TACIT_UNROLL
    for (int i = 0; i < 4; ++i) {
      const u32 own = row + r0 + i < rows ? row + r0 + i : rows - 1;
      masks[i] = (u64)Places::of(entry + own / queries_each) * masked + (u64)(own % queries_each) * hiding.row;
    }
    for (int skip = 1;; skip = 0) {
      float max[4], sum[4], sums[CHUNKS][4][4];
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        max[i] = no_score();
        sum[i] = 0.0f;
        TACIT_UNROLL
        for (int j = 0; j < 4 * CHUNKS; ++j) sums[j / 4][i][j % 4] = 0.0f;
      }
      for (u32 first = 0; first < tokens; first += TOKENS) {
        float numbers[4][4], scores[4][4];
        bool seen = false;
        TACIT_UNROLL
        for (int i = 0; i < 4; ++i) {
          TACIT_UNROLL
          for (int j = 0; j < 4; ++j) {
            const u32 token = first + c0 + 16 * j;
            scores[i][j] = 0.0f;
            numbers[i][j] = token < tokens ? Masked<MASK>::number(hiding, masks[i] + (u64)token * hiding.column) : 0.0f;
            seen = seen || (token < tokens && Masked<MASK>::sees(numbers[i][j]));
          }
        }
        if (MASK != NO_MASK && skip && !any_of_group(seen, flag, at.id)) continue;
        for (u32 d = 0; d < (u32)HEAD; d += DEPTH) {
          TACIT_BARRIER();
          for (u32 i = at.id; i < (u32)(ROWS * DEPTH); i += TILE_THREADS) {
            const u32 r = i / DEPTH, c = i % DEPTH;
            const bool there = row + r < rows && d + c < (u32)HEAD;
            left[r * Q_ROW + c] = there ? to_float(q[(u64)(row + r) * HEAD + d + c]) : 0.0f;
          }
          StageWeight<K, HEAD % 8 == 0, TOKENS, DEPTH>::stage(keys, key_tile, start * HEAD, first, tokens, d, HEAD,
                                                              at.id, keys_aligned);
          TACIT_BARRIER();
          add<Q_ROW, W_ROW>(left, right, r0, c0, scores);
        }
        TACIT_UNROLL
        for (int i = 0; i < 4; ++i) {
          float most = no_score();
          TACIT_UNROLL
          for (int j = 0; j < 4; ++j) {
            const bool there = first + c0 + 16 * j < tokens;
            const float hidden = skip ? no_score() : hiding.hidden;
            scores[i][j] = there ? Masked<MASK>::score(scores[i][j], numbers[i][j], hidden) : no_score();
            most = greater(most, is_nan(scores[i][j]) ? no_score() : scores[i][j]);
          }
          TACIT_UNROLL
          for (u32 mask = 8; mask > 0; mask /= 2) most = greater(most, shuffle_xor(most, mask));
          most = greater(max[i], most);
          const float factor = rescaling(max[i], most);
          max[i] = most;
          sum[i] *= factor;
          TACIT_UNROLL
          for (int j = 0; j < 4; ++j) {
            scores[i][j] = first + c0 + 16 * j < tokens ? weight_of(scores[i][j], most) : 0.0f;
            sum[i] += scores[i][j];
          }
          TACIT_UNROLL
          for (int j = 0; j < 4 * CHUNKS; ++j) sums[j / 4][i][j % 4] *= factor;
        }
        if (MASK != NO_MASK && at.id < (u32)TOKENS) weighed[at.id] = 0.0f;
        // All have read the queries.
        TACIT_BARRIER();
        TACIT_UNROLL
        for (int i = 0; i < 16; ++i) {
          left[(r0 + i / 4) * P_ROW + c0 + i % 4 * 16] = scores[i / 4][i % 4];
          if (MASK != NO_MASK && scores[i / 4][i % 4] != 0.0f) weighed[c0 + i % 4 * 16] = 1.0f;
        }
        TACIT_UNROLL
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
          for (u32 t = 0; t < (u32)TOKENS && first + t < tokens; t += DEPTH) {
            const PutValues value_tile = {right, weighed + t};
            TACIT_BARRIER();
            StageWeight<V, WIDTH % 8 == 0, DEPTH, TOKENS>::stage(values, value_tile, start * WIDTH, first + t, tokens,
                                                                 chunk * TOKENS, WIDTH, at.id, values_aligned);
            TACIT_BARRIER();
            add<P_ROW, W_ROW>(left + t, right, r0, c0, sums[chunk]);
          }
        }
      }
      bool again = false;
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        TACIT_UNROLL
        for (u32 mask = 8; mask > 0; mask /= 2) sum[i] = exact_add(sum[i], shuffle_xor(sum[i], mask));
        again = again || (row + r0 + i < rows && Masked<MASK>::counts_hidden(max[i], hiding.hidden));
      }
      if (MASK != NO_MASK && skip && any_of_group(again, flag, at.id)) continue;
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (row + r0 + i >= rows) continue;
        const float factor = 1.0f / sum[i];
        TACIT_UNROLL
        for (int j = 0; j < 4 * CHUNKS; ++j) {
          const u32 c = j * 16 + c0;
          if (c < (u32)WIDTH) write(out, (u64)(row + r0 + i) * WIDTH + c, sums[j / 4][i][j % 4] * factor);
        }
      }
      return;
    }
  }

  template <class T> static TACIT_FN void write(TACIT_DEVICE T* out, u64 at, float value) { out[at] = Round<T>::from(value); }

  template <int LEFT, int RIGHT>
  static TACIT_FN void add(const TACIT_GROUP float* left, const TACIT_GROUP float* right, u32 r0, u32 c0,
                           TACIT_THREAD float (&sums)[4][4]) {
    TACIT_UNROLL
    for (int d = 0; d < DEPTH; ++d) {
      float a[4], b[4];
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i] = left[(r0 + i) * LEFT + d];
        b[i] = right[d * RIGHT + c0 + 16 * i];
      }
      TACIT_UNROLL
      for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += a[i / 4] * b[i % 4];
    }
  }
};

}  // namespace tacit
