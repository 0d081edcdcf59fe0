// `x W^T` for many rows of x of half floats: a group makes ROWS columns of the result for COLUMNS rows of x. Tiles of W are decoded into
// the group's memory, rounded to the type of x, while the matrix units multiply those before. Four warps multiply 64 rows of W with all
// rows of x.

namespace tacit {

enum { WIDE_DEPTH = 64 };

template <class W, class T, int ROWS, int COLUMNS, int ALIGNED> struct WideTile {
  enum {
    // Two decode a row of a tile.
    THREADS = 2 * ROWS,
    // In halves.
    LEFT = ROWS * WIDE_DEPTH,
    RIGHT = COLUMNS * WIDE_DEPTH,
    // Tiles take turns; those of x are asked for earlier than those of W are decoded.
    LEFTS = 2,
    RIGHTS = 3,
    TILES = LEFTS * LEFT + RIGHTS * RIGHT,
    // A row of the result in floats, padded so that those that are written together lie in different banks.
    OUT_ROW = ROWS + 4,
    RESULT = 2 * COLUMNS * OUT_ROW,
    MEMORY = (int)TILES > (int)RESULT ? (int)TILES : (int)RESULT
  };

  // Where four warps put their sums. They are rounded later: compilers round before the units are waited for.
  struct Put {
    TACIT_GROUP float* tile;
    TACIT_FN void at(u32 row, u32 column, float value) const { tile[column * OUT_ROW + row] = value; }
  };

  // Rows of x that a thread copies, each of which is so many rows behind the one before.
  enum { COPIES = COLUMNS * 8 / THREADS, APART = THREADS / 8 };
  template <class X> static TACIT_FN void stage_x(X own, TACIT_GROUP T* tile, u32 row, u32 m, u32 k, u32 id) {
    TACIT_GROUP T* to = tile + id / 8 * WIDE_DEPTH + (id % 8 ^ id / 8 % 8) * 8;
    TACIT_UNROLL
    for (u32 i = 0; i < (u32)COPIES; ++i) {
      const bool there = row + id / 8 + i * APART < m;
      X from = own + (u64)(i * APART) * k;
      if (ALIGNED) {
        copy_later(to + i * APART * WIDE_DEPTH, from, there);
      } else {
        for (int e = 0; e < 8; ++e) to[i * APART * WIDE_DEPTH + e].bits = there ? from[e].bits : (u16)0;
      }
    }
    end_copies();
  }

  // Half of a row of a tile.
  static TACIT_FN void decode(W w, TACIT_THREAD const Strip<W, 4>& strip, TACIT_GROUP T* tile, u32 id) {
    u32 word[4][4];
    TACIT_UNROLL
    for (int octet = 0; octet < 4; ++octet) {
      const Eight values = strip_values(w, strip, octet);
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) word[octet][i] = pair_of(values.at[2 * i], values.at[2 * i + 1], T());
    }
    TACIT_GROUP T* row = tile + id / 2 * WIDE_DEPTH;
    TACIT_UNROLL
    for (u32 octet = 0; octet < 4; ++octet) keep128(row + ((id % 2 * 4 + octet) ^ id / 2 % 8) * 8, word[octet]);
  }

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 row, u32 column,
                                Place at, TACIT_GROUP T* memory) {
    TACIT_GROUP T *left = memory, *right = memory + LEFTS * LEFT;
    // What of W this thread decodes, and what of x it copies.
    const u32 own = column + at.id / 2, last = k - WIDE_DEPTH;
    const u64 from = start + (u64)(own < n ? own : n - 1) * k + at.id % 2 * 32;
    X copied = x + (u64)(row + at.id / 8) * k + at.id % 8 * 8;
    GroupSum<T, COLUMNS, ALIGNED> sum;
    sum.clear();
    const u32 first = last < (u32)WIDE_DEPTH ? last : (u32)WIDE_DEPTH, second = last - first < (u32)WIDE_DEPTH ? last : 2 * WIDE_DEPTH;
    Strip<W, 4> next = load_strip<W, 4>(w, from, ALIGNED);
    // The result of the entry before may still lie there.
    TACIT_BARRIER();
    stage_x(copied, right, row, m, k, at.id);
    stage_x(copied + first, right + RIGHT, row, m, k, at.id);
    decode(w, next, left, at.id);
    // The codes of the tile after the next are on their way while the next is decoded.
    next = load_strip<W, 4>(w, from + first, ALIGNED);
    Strip<W, 4> later = load_strip<W, 4>(w, from + second, ALIGNED);
    u32 of_w = 0, of_x = 0, depth = 0;
    // The last tiles are made several times, and nobody multiplies them: a branch here would take the sums from where the units add.
    TACIT_ROLLED
    do {
      const u32 then = 1 - of_w;
      const u32 filled = of_x + 2 < (u32)RIGHTS ? of_x + 2 : of_x + 2 - RIGHTS;
      const u32 third = last - depth > (u32)WIDE_DEPTH ? depth + 2 * WIDE_DEPTH : last;
      const u32 fourth = last - depth > (u32)(2 * WIDE_DEPTH) ? depth + 3 * WIDE_DEPTH : last;
      sum.wait();
      wait_for_copies<1>();
      // These tiles are there, and nobody reads any more what is written next.
      TACIT_BARRIER();
      sum.add(left + of_w * LEFT + at.warp / 4 * 64 * WIDE_DEPTH, right + of_x * RIGHT, at);
      stage_x(copied + third, right + filled * RIGHT, row, m, k, at.id);
      decode(w, next, left + then * LEFT, at.id);
      next = later;
      later = load_strip<W, 4>(w, from + fourth, ALIGNED);
      of_w = then;
      of_x = of_x + 1 < (u32)RIGHTS ? of_x + 1 : 0;
      depth += WIDE_DEPTH;
    } while (depth < k);
    sum.wait();
    wait_for_copies<0>();
    TACIT_BARRIER();
    TACIT_GROUP float* sums = (TACIT_GROUP float*)memory;
    sum.give(Put{sums + at.warp / 4 * 64}, at);
    TACIT_BARRIER();
    const bool in_words = n % 8 == 0 && is_aligned(out);
    for (u32 i = at.id; i < (u32)(COLUMNS * ROWS / 8); i += THREADS) {
      const u32 r = row + i / (ROWS / 8), c = column + i % (ROWS / 8) * 8;
      const TACIT_GROUP float* made = sums + i / (ROWS / 8) * OUT_ROW + i % (ROWS / 8) * 8;
      if (r >= m || c >= n) continue;
      TACIT_DEVICE T* to = out + (u64)r * n + c;
      if (in_words) {
        u32 word[4];
        TACIT_UNROLL
        for (int e = 0; e < 4; ++e) word[e] = pair_of(made[2 * e], made[2 * e + 1], T());
        store128(to, word);
      } else {
        for (u32 e = 0; e < 8 && c + e < n; ++e) to[e] = Round<T>::from(made[e]);
      }
    }
  }
};

// Where something does not begin at a multiple of 16 bytes: in smaller parts, one after the other.
template <int ROWS, int COLUMNS, class W, class T, class X>
TACIT_APART void multiply_unaligned(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 m, u32 row, u32 column, Place at,
                                    TACIT_GROUP T* memory) {
  for (u32 part = row; part < row + COLUMNS; part += 64)
    WideTile<W, T, ROWS, 64, 0>::multiply(w, x, out, start, n, k, m, part, column, at, memory);
}

}  // namespace tacit
