// Products of many rows of activations: tiles of the stored matrix are decoded into the group's memory, each element once for
// TILE_M rows.

namespace tacit {

enum { TILE_M = 64, TILE_N = 64, TILE_THREADS = 128 };

// A tile of x as floats, `DEPTH` columns from `depth` on; beyond its ends there are zeros.
template <class E, int DEPTH, int ROW, class X>
TACIT_FN void stage_x(X x, TACIT_GROUP E* tile, u32 row, u32 rows, u32 depth, u32 k, u32 id) {
  for (u32 i = id; i < (u32)(TILE_M * DEPTH); i += TILE_THREADS) {
    u32 r = i / DEPTH, c = i % DEPTH;
    bool there = row + r < rows && depth + c < k;
    tile[r * ROW + c] = Round<E>::from(there ? number_at(x, row + r, k, depth + c) : 0.0f);
  }
}

// Octets of a tile of the stored matrix: `ACROSS` elements along its rows from `column` on, `DOWN` rows from `row` on, which go
// where `put.at(row, column, value)` of the tile says. There are zeros beyond the ends, and in rows that `put.takes(row)` denies. STEPS
// is 0 where rows do not begin with a whole byte.
template <class W, int STEPS, int DOWN, int ACROSS> struct StageWeight {
  template <class Put>
  static TACIT_FN void stage(W w, Put put, u64 start, u32 row, u32 n, u32 column, u32 k, u32 id, bool aligned) {
    for (u32 i = id; i < (u32)(DOWN * ACROSS / 8); i += TILE_THREADS) {
      u32 r = i / (ACROSS / 8), c = i % (ACROSS / 8) * 8;
      Eight values;
      if (put.takes(r) && row + r < n && column + c < k) {
        u64 first = start + (u64)(row + r) * k + column + c;
        values = values_of(w, units_in<W, 1>(w, load_codes<W, 1>(w, first, aligned), 0), first);
      } else {
        TACIT_UNROLL
        for (int e = 0; e < 8; ++e) values.at[e] = 0.0f;
      }
      TACIT_UNROLL
      for (int e = 0; e < 8; ++e) put.at(r, c + e, values.at[e]);
    }
  }
};
template <class W, int DOWN, int ACROSS> struct StageWeight<W, 0, DOWN, ACROSS> {
  template <class Put>
  static TACIT_FN void stage(W w, Put put, u64 start, u32 row, u32 n, u32 column, u32 k, u32 id, bool) {
    for (u32 i = id; i < (u32)(DOWN * ACROSS); i += TILE_THREADS) {
      u32 r = i / ACROSS, c = i % ACROSS;
      bool there = put.takes(r) && row + r < n && column + c < k;
      put.at(r, c, there ? element(w, start + (u64)(row + r) * k + column + c) : 0.0f);
    }
  }
};

// A tile of the right operand, `DEPTH` rows from `depth` on and `TILE_N` columns from `column` on. Of `x W^T` its columns are rows
// of the stored matrix.
template <class W, int STEPS, int TRANSPOSED, int DEPTH, class Put>
TACIT_FN void stage_w(W w, Put put, u64 start, u32 depth, u32 column, u32 n, u32 k, u32 id, bool aligned) {
  if (TRANSPOSED) {
    StageWeight<W, STEPS, TILE_N, DEPTH>::stage(w, put, start, column, n, depth, k, id, aligned);
  } else {
    StageWeight<W, STEPS, DEPTH, TILE_N>::stage(w, put, start, depth, n, column, k, id, aligned);
  }
}

// Where decoded elements go: row `depth` and column `column` of the right operand, of `ROW` numbers a row. Of `x W^T` the rows of
// the stored matrix are the columns.
template <class E, int ROW, int TRANSPOSED> struct Put {
  TACIT_GROUP E* tile;
  TACIT_FN bool takes(u32) const { return true; }
  TACIT_FN void at(u32 r, u32 c, float value) const {
    tile[TRANSPOSED ? c * ROW + r : r * ROW + c] = Round<E>::from(value);
  }
};

// `x W^T` or `x W` with exact f32 products: the tile of the result at these rows and columns. `rows` of x have `depth` numbers,
// those of the result `columns`.
template <class W, class T, int STEPS, int TRANSPOSED> struct ExactTile {
  enum { DEPTH = 16, X_ROW = DEPTH + 1, W_ROW = TILE_N + 1, MEMORY = TILE_M * X_ROW + DEPTH * W_ROW };

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 rows, u32 row, u32 column,
                                u32 id, TACIT_GROUP float* memory, bool aligned) {
    const u32 depth = TRANSPOSED ? k : n, columns = TRANSPOSED ? n : k;
    TACIT_GROUP float* left = memory;
    Put<float, W_ROW, TRANSPOSED> right = {memory + TILE_M * X_ROW};
    const u32 r0 = id / 16 * 8, c0 = id % 16;
    float sum[8][4];
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) {
      TACIT_UNROLL
      for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    }
    for (u32 at = 0; at < depth; at += DEPTH) {
      TACIT_BARRIER();
      stage_x<float, DEPTH, X_ROW>(x, left, row, rows, at, depth, id);
      stage_w<W, STEPS, TRANSPOSED, DEPTH>(w, right, start, at, column, n, k, id, aligned);
      TACIT_BARRIER();
      TACIT_UNROLL
      for (int d = 0; d < DEPTH; ++d) {
        float a[8], b[4];
        TACIT_UNROLL
        for (int i = 0; i < 8; ++i) a[i] = left[(r0 + i) * X_ROW + d];
        TACIT_UNROLL
        for (int j = 0; j < 4; ++j) b[j] = right.tile[d * W_ROW + c0 + 16 * j];
        TACIT_UNROLL
        for (int i = 0; i < 8; ++i) {
          TACIT_UNROLL
          for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
        }
      }
    }
    TACIT_UNROLL
    for (int i = 0; i < 8; ++i) {
      TACIT_UNROLL
      for (int j = 0; j < 4; ++j) {
        u32 r = row + r0 + i, c = column + c0 + 16 * j;
        if (r < rows && c < columns) out[(u64)r * columns + c] = Round<T>::from(sum_of_row(x, r, sum[i][j]));
      }
    }
  }
};

// The same with half floats, whose products the matrix units sum in f32. Decoded elements are rounded to the type of x.
template <class W, class T, int STEPS, int TRANSPOSED> struct MatrixTile {
  // The right operand lies as the stored matrix does; rows are padded, so that those that are read together lie in
  // different banks.
  enum {
    DEPTH = 32,
    X_ROW = DEPTH + 8,
    W_ROW = (TRANSPOSED ? DEPTH : TILE_N) + 8,
    W_ROWS = TRANSPOSED ? TILE_N : DEPTH,
    SUM_ROW = 16 + 4,
    // In floats.
    MEMORY = (TILE_M * X_ROW + W_ROWS * W_ROW) / 2
  };

  template <class X>
  static TACIT_FN void multiply(W w, X x, TACIT_DEVICE T* out, u64 start, u32 n, u32 k, u32 rows, u32 row, u32 column,
                                u32 id, TACIT_GROUP float* memory, bool aligned) {
    const u32 depth = TRANSPOSED ? k : n, columns = TRANSPOSED ? n : k;
    TACIT_GROUP T* left = (TACIT_GROUP T*)memory;
    Put<T, W_ROW, 0> right = {left + TILE_M * X_ROW};
    const u32 warp = id / 32, lane = id % 32;
    // Each warp makes 32 rows by 32 columns, in products of 16 by 16.
    const u32 r0 = warp / 2 * 32, c0 = warp % 2 * 32;
    MatrixSum sum[2][2];
    TACIT_UNROLL
    for (int i = 0; i < 2; ++i) {
      TACIT_UNROLL
      for (int j = 0; j < 2; ++j) sum[i][j].clear();
    }
    for (u32 at = 0; at < depth; at += DEPTH) {
      TACIT_BARRIER();
      stage_x<T, DEPTH, X_ROW>(x, left, row, rows, at, depth, id);
      stage_w<W, STEPS, TRANSPOSED, DEPTH>(w, right, start, at, column, n, k, id, aligned);
      TACIT_BARRIER();
      TACIT_UNROLL
      for (int d = 0; d < DEPTH; d += 16) {
        MatrixLeft<T> a[2];
        MatrixRight<T, TRANSPOSED> b[2];
        TACIT_UNROLL
        for (int i = 0; i < 2; ++i) {
          a[i].load(left + (r0 + 16 * i) * X_ROW + d, X_ROW, lane);
          b[i].load(right.tile + (TRANSPOSED ? (c0 + 16 * i) * W_ROW + d : d * W_ROW + c0 + 16 * i), W_ROW, lane);
        }
        TACIT_UNROLL
        for (int i = 0; i < 2; ++i) {
          TACIT_UNROLL
          for (int j = 0; j < 2; ++j) sum[i][j].add(a[i], b[j], lane);
        }
      }
    }
    // Each warp has room of its own for one product.
    TACIT_GROUP float* product = memory + warp * 16 * SUM_ROW;
    TACIT_BARRIER();
    TACIT_UNROLL
    for (int i = 0; i < 2; ++i) {
      TACIT_UNROLL
      for (int j = 0; j < 2; ++j) {
        sum[i][j].store(product, SUM_ROW, lane);
        TACIT_BARRIER();
        for (u32 e = lane; e < 256; e += 32) {
          u32 r = row + r0 + 16 * i + e / 16, c = column + c0 + 16 * j + e % 16;
          if (r < rows && c < columns) out[(u64)r * columns + c] = Round<T>::from(product[e / 16 * SUM_ROW + e % 16]);
        }
        TACIT_BARRIER();
      }
    }
  }
};

}  // namespace tacit
