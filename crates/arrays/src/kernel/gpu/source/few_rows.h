// Products of a few rows of activations with a stored matrix, with f32 sums in an order that is always the same.

namespace tacit {

TACIT_FN float sum_of_lanes(float value) {
  TACIT_UNROLL
  for (u32 mask = 16; mask > 0; mask /= 2) value = exact_add(value, shuffle_xor(value, mask));
  return value;
}

// Units in steps of eight elements, or one by one where rows do not begin with a whole byte.
template <class W, int STEPS> struct Strip {
  Codes<W::BITS, STEPS> codes;
  Line line[STEPS];
  u64 first;
};

// Whether sums of units are scaled, instead of each.
template <class W> TACIT_FN bool is_scaled_late() { return !W::BIASED && W::SPAN >= 8 && W::SCALING != NO_SCALES; }

template <class W, int STEPS> TACIT_FN Strip<W, STEPS> load_strip(W w, u64 first, bool aligned) {
  Strip<W, STEPS> strip;
  strip.codes = load_codes<W, STEPS>(w, first, aligned);
  strip.first = first;
  TACIT_UNROLL
  for (int step = 0; step < STEPS; ++step) {
    if (W::SPAN >= 8) {
      // One scale for all of them is read once.
      strip.line[step] = W::SPAN >= 8 * STEPS && step > 0 ? strip.line[0] : line_of(w, first + 8 * step);
    }
  }
  return strip;
}

// Eight of its elements.
template <class W, int STEPS> TACIT_FN Eight strip_values(W w, TACIT_THREAD const Strip<W, STEPS>& strip, int step) {
  Eight values = units_in<W, STEPS>(w, strip.codes, step);
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) {
    values.at[i] = value_of<W>(values.at[i], W::SPAN >= 8 ? strip.line[step] : line_of(w, strip.first + 8 * step + i));
  }
  return values;
}

// What eight elements are multiplied by x as, and what their sum is multiplied by afterwards: units and their scale, where they
// share it and nothing is added to them, or values.
template <class W, int STEPS> TACIT_FN Eight strip_factors(W w, Strip<W, STEPS> strip, int step) {
  Eight values = units_in<W, STEPS>(w, strip.codes, step);
  if (is_scaled_late<W>()) return values;
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) {
    Line line = W::SPAN >= 8 ? strip.line[step] : line_of(w, strip.first + 8 * step + i);
    values.at[i] = W::BIASED ? values.at[i] * line.scale + line.bias : value_of<W>(values.at[i], line);
  }
  return values;
}

// `x W^T`: each warp makes ROWS columns of the result, for M rows of x of which `m` are there. STEPS octets of a row are
// read at once; with 0 of them elements are read one by one.
template <class W, class T, int STEPS, int ROWS, int M> struct Transposed {
  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 row, u32 lane,
                                bool aligned) {
    float sum[ROWS][M];
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TACIT_UNROLL
      for (int i = 0; i < M; ++i) sum[r][i] = 0.0f;
    }
    const u32 stride = 32 * 8 * STEPS;
    Strip<W, STEPS> next[ROWS];
    u32 at = lane * 8 * STEPS;
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r)
      if (at < k) next[r] = load_strip<W, STEPS>(w, start + (u64)(row + r < n ? row + r : n - 1) * k + at, aligned);
    for (; at < k; at += stride) {
      Strip<W, STEPS> strip[ROWS];
      TACIT_UNROLL
      for (int r = 0; r < ROWS; ++r) {
        strip[r] = next[r];
        // The next codes are on their way while these are multiplied.
        if (at + stride < k)
          next[r] = load_strip<W, STEPS>(w, start + (u64)(row + r < n ? row + r : n - 1) * k + at + stride, aligned);
      }
      // The sums of what shares a scale.
      float part[ROWS][M];
      TACIT_UNROLL
      for (int step = 0; step < STEPS; ++step) {
        Eight factors[ROWS];
        TACIT_UNROLL
        for (int r = 0; r < ROWS; ++r) factors[r] = strip_factors(w, strip[r], step);
        const bool begins = step == 0 || W::SPAN < 8 * STEPS, ends = step == STEPS - 1 || W::SPAN < 8 * STEPS;
        TACIT_UNROLL
        for (int i = 0; i < M; ++i) {
          Eight read = eight_at(x, (u32)i < m ? (u32)i : m - 1, k, at + 8 * step, aligned);
          TACIT_UNROLL
          for (int r = 0; r < ROWS; ++r) {
            if (is_scaled_late<W>()) {
              if (begins) part[r][i] = 0.0f;
              TACIT_UNROLL
              for (int e = 0; e < 8; ++e) part[r][i] += factors[r].at[e] * read.at[e];
              if (ends) sum[r][i] += part[r][i] * strip[r].line[step].scale;
            } else {
              TACIT_UNROLL
              for (int e = 0; e < 8; ++e) sum[r][i] += factors[r].at[e] * read.at[e];
            }
          }
        }
      }
    }
    write(sum, x, out, n, m, row, lane);
  }

  template <class X>
  static TACIT_FN void write(TACIT_THREAD float (&sum)[ROWS][M], X x, TACIT_DEVICE T* out, u32 n, u32 m, u32 row, u32 lane) {
    TACIT_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      TACIT_UNROLL
      for (int i = 0; i < M; ++i) {
        float total = sum_of_lanes(sum[r][i]);
        if (lane == 0 && row + r < n && (u32)i < m) out[(u64)i * n + row + r] = Round<T>::from(sum_of_row(x, i, total));
      }
    }
  }
};
template <class W, class T, int ROWS, int M> struct Transposed<W, T, 0, ROWS, M> {
  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 row, u32 lane, bool) {
    float sum[ROWS][M];
    for (int r = 0; r < ROWS; ++r)
      for (int i = 0; i < M; ++i) sum[r][i] = 0.0f;
    for (u32 at = lane; at < k; at += 32) {
      for (int r = 0; r < ROWS; ++r) {
        float value = element(w, start + (u64)(row + r < n ? row + r : n - 1) * k + at);
        for (int i = 0; i < M; ++i) sum[r][i] += value * number_at(x, (u32)i < m ? (u32)i : m - 1, k, at);
      }
    }
    Transposed<W, T, 1, ROWS, M>::write(sum, x, out, n, m, row, lane);
  }
};

// `x W`: a group makes a strip of columns, with LANES lanes of 8 STEPS columns each (STEPS is 1, or 0 for one column) beside each
// other; the others take other rows of W. Their sums meet in `meeting`, as many floats as the group has threads.
template <class W, class T, int STEPS, int M> struct Plain {
  enum { WIDTH = STEPS == 0 ? 1 : 8, LANES = STEPS == 0 ? 32 : 8 };

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 strip, u32 id,
                                u32 threads, TACIT_GROUP float* meeting, bool aligned) {
    float sum[M][WIDTH];
    TACIT_UNROLL
    for (int i = 0; i < M; ++i) {
      TACIT_UNROLL
      for (int e = 0; e < WIDTH; ++e) sum[i][e] = 0.0f;
    }
    const u32 column = (strip * LANES + id % LANES) * WIDTH, group = id / LANES, groups = threads / LANES;
    if (column < k) {
      for (u32 row = group; row < n; row += groups) {
        Eight values = Columns<STEPS>::read(w, start + (u64)row * k + column, aligned);
        TACIT_UNROLL
        for (int i = 0; i < M; ++i) {
          float factor = to_float(x[(u64)((u32)i < m ? i : m - 1) * n + row]);
          TACIT_UNROLL
          for (int e = 0; e < WIDTH; ++e) sum[i][e] += factor * values.at[e];
        }
      }
    }
    TACIT_UNROLL
    for (int i = 0; i < M; ++i) {
      TACIT_UNROLL
      for (int e = 0; e < WIDTH; ++e) {
        TACIT_BARRIER();
        meeting[id] = sum[i][e];
        TACIT_BARRIER();
        if (id < (u32)LANES && column < k && (u32)i < m) {
          float total = 0.0f;
          for (u32 other = 0; other < groups; ++other) total = exact_add(total, meeting[other * LANES + id]);
          out[(u64)i * k + column + e] = Round<T>::from(total);
        }
      }
    }
  }

  template <int AT_ONCE, int DUMMY = 0> struct Columns {
    static TACIT_FN Eight read(W w, u64 first, bool aligned) {
      return values_of(w, units_in<W, 1>(w, load_codes<W, 1>(w, first, aligned), 0), first);
    }
  };
  template <int DUMMY> struct Columns<0, DUMMY> {
    static TACIT_FN Eight read(W w, u64 first, bool) {
      Eight values;
      values.at[0] = element(w, first);
      return values;
    }
  };
};

}  // namespace tacit
