// Attention of many rows of queries that share keys and values, by the matrix units: a group makes 64 rows, 64 tokens at a time.
// Queries, weights and decoded elements are rounded to T.

namespace tacit {

template <class K, class V, class T, int HEAD, int WIDTH, int MASK> struct MatrixQueries {
  enum {
    SIDE = 64,
    THREADS = 256,
    CHUNKS = (WIDTH + SIDE - 1) / SIDE,
    // Rows are padded, so that those that are read together lie in different banks.
    ROW = SIDE + 8,
    S_ROW = SIDE + 4,
    OUT_ROW = 16 + 4,
    // In floats: two tiles of halves, or the scores.
    TILES = SIDE * ROW,
    MEMORY = TILES + SIDE + 1
  };

  template <class Places, class X, class O, class H>
  static TACIT_FN void attend(K keys, V values, X q, O out, H hiding, u32 masked, u32 entry, u32 queries_each, u32 row,
                              u32 rows, u64 start, u32 tokens, Place at, TACIT_GROUP float* memory) {
    const bool keys_aligned = is_aligned(keys.codes), values_aligned = is_aligned(values.codes);
    TACIT_GROUP T* left = (TACIT_GROUP T*)memory;
    Put<T, ROW, 0> right = {left + SIDE * ROW};
    TACIT_GROUP float* factors = memory + TILES;
    TACIT_GROUP float* flag = factors + SIDE;
    // Each warp makes 16 rows by 32 columns; of the softmax four threads that run together have a row, and every fourth column.
    const u32 wr = at.warp / 2 * 16, wc = at.warp % 2 * 32, r = at.id / 4, c0 = at.id % 4;
    const u32 own = row + r < rows ? row + r : rows - 1;
    const u64 mask = (u64)Places::of(entry + own / queries_each) * masked + (u64)(own % queries_each) * hiding.row;
    for (int skip = 1;; skip = 0) {
      float max = no_score(), sum = 0.0f;
      MatrixSum sums[CHUNKS][2];
      TACIT_UNROLL
      for (int i = 0; i < 2 * CHUNKS; ++i) sums[i / 2][i % 2].clear();
      for (u32 first = 0; first < tokens; first += SIDE) {
        float numbers[16];
        bool seen = false;
        TACIT_UNROLL
        for (int j = 0; j < 16; ++j) {
          const u32 token = first + c0 + 4 * j;
          numbers[j] = token < tokens ? Masked<MASK>::number(hiding, mask + (u64)token * hiding.column) : 0.0f;
          seen = seen || (token < tokens && Masked<MASK>::sees(numbers[j]));
        }
        if (MASK != NO_MASK && skip && !any_of_group(seen, flag, at.id)) continue;
        MatrixSum products[2];
        products[0].clear();
        products[1].clear();
        for (u32 d = 0; d < (u32)HEAD; d += SIDE) {
          TACIT_BARRIER();
          for (u32 i = at.id; i < (u32)(SIDE * SIDE); i += THREADS) {
            const bool there = row + i / SIDE < rows && d + i % SIDE < (u32)HEAD;
            left[i / SIDE * ROW + i % SIDE] =
                Round<T>::from(there ? to_float(q[(u64)(row + i / SIDE) * HEAD + d + i % SIDE]) : 0.0f);
          }
          StageWeight<K, HEAD % 8 == 0, SIDE, SIDE, THREADS>::stage(keys, right, start * HEAD, first, tokens, d, HEAD,
                                                                    at.id, keys_aligned);
          TACIT_BARRIER();
          TACIT_UNROLL
          for (int e = 0; e < SIDE; e += 16) {
            if (d + e >= (u32)HEAD) continue;
            MatrixLeft<T> a;
            a.load(left + wr * ROW + e, ROW, at.lane);
            TACIT_UNROLL
            for (int j = 0; j < 2; ++j) {
              MatrixRight<T, 1> b;
              b.load(right.tile + (wc + 16 * j) * ROW + e, ROW, at.lane);
              products[j].add(a, b, at.lane);
            }
          }
        }
        // The scores lie where the tiles were, and the weights where the first of them was.
        TACIT_BARRIER();
        products[0].store(memory + wr * S_ROW + wc, S_ROW, at.lane);
        products[1].store(memory + wr * S_ROW + wc + 16, S_ROW, at.lane);
        TACIT_BARRIER();
        float scores[16], most = no_score();
        TACIT_UNROLL
        for (int j = 0; j < 16; ++j) {
          const u32 c = c0 + 4 * j;
          const float hidden = skip ? no_score() : hiding.hidden;
          scores[j] = first + c < tokens ? Masked<MASK>::score(memory[r * S_ROW + c], numbers[j], hidden) : no_score();
          most = greater(most, is_nan(scores[j]) ? no_score() : scores[j]);
        }
        most = greater(most, shuffle_xor(most, 1));
        most = greater(most, shuffle_xor(most, 2));
        most = greater(max, most);
        const float factor = rescaling(max, most);
        max = most;
        sum *= factor;
        if (c0 == 0) factors[r] = factor;
        TACIT_BARRIER();
        TACIT_UNROLL
        for (int j = 0; j < 16; ++j) {
          const float weight = first + c0 + 4 * j < tokens ? weight_of(scores[j], most) : 0.0f;
          sum += weight;
          left[r * ROW + c0 + 4 * j] = Round<T>::from(weight);
        }
        TACIT_UNROLL
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
          if (chunk > 0) TACIT_BARRIER();
          StageWeight<V, WIDTH % 8 == 0, SIDE, SIDE, THREADS>::stage(values, right, start * WIDTH, first, tokens,
                                                                     chunk * SIDE, WIDTH, at.id, values_aligned);
          TACIT_BARRIER();
          TACIT_UNROLL
          for (int j = 0; j < 2; ++j) sums[chunk][j].scale_rows(factors + wr, at.lane);
          TACIT_UNROLL
          for (int e = 0; e < SIDE; e += 16) {
            MatrixLeft<T> a;
            a.load(left + wr * ROW + e, ROW, at.lane);
            TACIT_UNROLL
            for (int j = 0; j < 2; ++j) {
              MatrixRight<T, 0> b;
              b.load(right.tile + e * ROW + wc + 16 * j, ROW, at.lane);
              sums[chunk][j].add(a, b, at.lane);
            }
          }
        }
      }
      sum = exact_add(sum, shuffle_xor(sum, 1));
      sum = exact_add(sum, shuffle_xor(sum, 2));
      const bool again = row + r < rows && Masked<MASK>::counts_hidden(max, hiding.hidden);
      if (MASK != NO_MASK && skip && any_of_group(again, flag, at.id)) continue;
      TACIT_BARRIER();
      if (c0 == 0) factors[r] = 1.0f / sum;
      // Each warp has room of its own for one product.
      TACIT_GROUP float* product = memory + at.warp * 16 * OUT_ROW;
      TACIT_BARRIER();
      TACIT_UNROLL
      for (int i = 0; i < 2 * CHUNKS; ++i) {
        sums[i / 2][i % 2].store(product, OUT_ROW, at.lane);
        TACIT_WARP_BARRIER();
        for (u32 e = at.lane; e < 256; e += 32) {
          const u32 to = row + wr + e / 16, c = i / 2 * SIDE + wc + i % 2 * 16 + e % 16;
          if (to < rows && c < (u32)WIDTH)
            write(out, (u64)to * WIDTH + c, product[e / 16 * OUT_ROW + e % 16] * factors[wr + e / 16]);
        }
        TACIT_WARP_BARRIER();
      }
      return;
    }
  }

  template <class O> static TACIT_FN void write(TACIT_DEVICE O* out, u64 at, float value) { out[at] = Round<O>::from(value); }
};

}  // namespace tacit
