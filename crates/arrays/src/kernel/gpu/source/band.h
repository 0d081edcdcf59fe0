// `x W^T` for many rows of x of half floats: a group makes 128 columns of the result for COLUMNS rows of x. Each thread decodes the
// elements of W that its lane holds as fragments, so that these pass no memory; tiles of x lie in the group's memory twice, so
// that one is read while the other comes.

namespace tacit {

enum { BAND_DEPTH = 64, BAND_ROWS = 128, BAND_THREADS = 256 };

template <class W, class T, int COLUMNS> struct Band {
  // In halves.
  enum { TILE = COLUMNS * BAND_DEPTH, MEMORY = 2 * TILE };
  enum { LINES = W::SPAN >= BAND_DEPTH ? 1 : BAND_DEPTH / W::SPAN };

  // The codes of 64 elements of a row, with what scales them.
  struct Row {
    Codes<W::BITS, 8> codes;
    Line line[LINES];
  };
  static TACIT_FN Row load(W w, u64 first, bool aligned) {
    Row row;
    row.codes = load_codes<W, 8>(w, first, aligned);
    TACIT_UNROLL
    for (int i = 0; i < LINES; ++i) row.line[i] = line_of(w, first + i * W::SPAN);
    return row;
  }

  // Elements 2 t and 2 t + 1 of octet `octet`, as halves.
  static TACIT_FN u32 pair_in(W w, TACIT_THREAD const Row& row, int octet, u32 t) {
    // Bits of an octet begin with a byte, but not with a word.
    const int bit = octet * 8 * W::BITS, word = bit / 32, shift = bit % 32;
    u32 low = row.codes.word[word] >> shift, high = 0;
    if (shift > 0 && shift + 8 * W::BITS > 32) low |= row.codes.word[word + 1] << (32 - shift);
    if (W::BITS > 4) {
      high = row.codes.word[word + 1] >> shift;
      if (shift > 0 && shift + 8 * W::BITS > 64) high |= row.codes.word[word + 2] << (32 - shift);
    }
    const u32 place = W::HIGH_FIRST ? t ^ ((8 / W::BITS - 1) / 2) : t;
    u32 pair;
    if (W::BITS == 8) {
      pair = (place & 2 ? high : low) >> (place % 2 * 16);
    } else if (W::BITS > 4) {
      pair = (u32)(((u64)high << 32 | low) >> (place * 2 * W::BITS));
    } else {
      pair = low >> (place * 2 * W::BITS);
    }
    enum { SHIFT = Shift<W>::BITS, DOWN = W::BITS > SHIFT ? W::BITS - SHIFT : 0, UP = W::BITS > SHIFT ? 0 : SHIFT - W::BITS };
    const u32 first = pair << SHIFT & Shift<W>::MASK, second = pair >> DOWN << UP & Shift<W>::MASK;
    const Line line = row.line[octet * 8 / W::SPAN < LINES ? octet * 8 / W::SPAN : 0];
    const float a = value_of<W>(Unit<W::CODING>::of(w, W::HIGH_FIRST ? second : first), line);
    const float b = value_of<W>(Unit<W::CODING>::of(w, W::HIGH_FIRST ? first : second), line);
    return pair_of(a, b, T());
  }

  // The lane's fragments of four products of 16: of its rows the numbers 2 t, 2 t + 1, and those 8 behind.
  static TACIT_FN void decode(W w, TACIT_THREAD const Row (&rows)[2], TACIT_THREAD u32 (&a)[4][4], u32 t) {
    TACIT_UNROLL
    for (int step = 0; step < 4; ++step) {
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) a[step][i] = pair_in(w, rows[i % 2], 2 * step + i / 2, t);
    }
  }

  template <class X>
  static TACIT_FN void stage(X x, TACIT_GROUP T* tile, u32 row, u32 m, u32 at, u32 k, u32 id, bool aligned) {
    TACIT_UNROLL
    for (u32 i = 0; i < (u32)(COLUMNS * 8 / BAND_THREADS); ++i) {
      const u32 r = (id + i * BAND_THREADS) / 8, chunk = id % 8;
      TACIT_GROUP T* to = tile + r * BAND_DEPTH + (chunk ^ r % 8) * 8;
      const bool there = row + r < m;
      X from = x + (u64)(there ? row + r : 0) * k + at + chunk * 8;
      if (aligned) {
        copy_later(to, from, there);
      } else {
        for (int e = 0; e < 8; ++e) to[e] = Round<T>::from(there ? to_float(from[e]) : 0.0f);
      }
    }
  }

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 row, u32 column,
                                Place at, TACIT_GROUP T* memory, bool aligned) {
    const u32 first = column + at.warp * 16 + at.lane / 4, t = at.lane % 4;
    const u64 rows[2] = {start + (u64)(first < n ? first : n - 1) * k, start + (u64)(first + 8 < n ? first + 8 : n - 1) * k};
    BandSum<T, COLUMNS> sum;
    sum.clear();
    Row coded[2] = {load(w, rows[0], aligned), load(w, rows[1], aligned)};
    u32 now[4][4] = {}, next[4][4];
    decode(w, coded, next, t);
    // Of the entry before, all may still be reading the tiles.
    TACIT_BARRIER();
    stage(x, memory, row, m, 0, k, at.id, aligned);
    for (u32 chunk = 0; chunk * BAND_DEPTH < k; ++chunk) {
      const bool more = (chunk + 1) * BAND_DEPTH < k;
      if (more) {
        coded[0] = load(w, rows[0] + (chunk + 1) * BAND_DEPTH, aligned);
        coded[1] = load(w, rows[1] + (chunk + 1) * BAND_DEPTH, aligned);
      }
      sum.wait(now);
      TACIT_UNROLL
      for (int i = 0; i < 16; ++i) now[i / 4][i % 4] = next[i / 4][i % 4];
      wait_for_copies();
      // Nobody reads the other tile any more, and this one is there.
      TACIT_BARRIER();
      sum.add(now, memory + chunk % 2 * TILE, at.lane);
      if (more) {
        stage(x, memory + (chunk + 1) % 2 * TILE, row, m, (chunk + 1) * BAND_DEPTH, k, at.id, aligned);
        decode(w, coded, next, t);
      }
    }
    sum.wait(now);
    TACIT_UNROLL
    for (int i = 0; i < COLUMNS / 2; ++i) {
      const u32 r = row + i / 4 * 8 + t * 2 + i % 2, c = first + i / 2 % 2 * 8;
      if (r < m && c < n) out[(u64)r * n + c] = Round<T>::from(sum.sum[i]);
    }
  }
};

}  // namespace tacit
