// How the elements of a stored matrix are read. A generated `struct Weight` describes the matrix: the constants BITS,
// HIGH_FIRST, CODING, SCALING, BIASED, BLOCK, SPAN, NESTED, ENTRIES and REPLICAS, and the pointers to its children.

namespace tacit {

// Where a thread is: its group in the grid, its place in the group, its lane in the 32 that run together, and these.
struct Place {
  u32 x, y, z, id, lane, warp;
};

// The codings, by the constant CODING.
enum { TABLE_CODES, UNSIGNED_CODES, OFFSET_CODES, SIGNED_CODES, E4M3_CODES, F16_CODES, BF16_CODES };
// The scalings, by the constant SCALING.
enum { NO_SCALES, FLOAT_SCALES, E8M0_SCALES, E4M3_SCALES, NESTED_SCALES, INTEGER_SCALES };

TACIT_FN float e4m3(u32 byte) {
  u32 exponent = byte >> 3 & 15, mantissa = byte & 7;
  float magnitude = exponent == 0 ? exact_mul((float)mantissa, 1.0f / 512.0f)
                                  : from_bits((exponent + 120) << 23 | mantissa << 20);
  if (exponent == 15 && mantissa == 7) magnitude = from_bits(0x7fc00000u);
  return byte & 0x80 ? -magnitude : magnitude;
}

TACIT_FN float e8m0(u32 byte) {
  if (byte == 255) return from_bits(0x7fc00000u);
  return from_bits(byte == 0 ? 1u << 22 : byte << 23);
}

// The table of a coding in the group's memory: each entry REPLICAS times, so that lanes with different codes meet in no
// bank.
template <int CODING> struct Entry {
  template <class W> static TACIT_FN float of(W, u32) { return 0.0f; }
};
template <> struct Entry<TABLE_CODES> {
  template <class W> static TACIT_FN float of(W w, u32 code) { return from_bits(w.entry_bits(code)); }
};
template <> struct Entry<E4M3_CODES> {
  template <class W> static TACIT_FN float of(W, u32 code) { return e4m3(code); }
};

template <class W>
TACIT_FN void stage_table(W w, TACIT_GROUP float* table, u32 id, u32 threads) {
  for (u32 i = id; i < (u32)(W::ENTRIES * W::REPLICAS); i += threads)
    table[i] = Entry<W::CODING>::of(w, i / W::REPLICAS);
}

// What a code stands for in units of its block's scale. `scaled` is the code times the bytes between entries of a table; `lane`
// are those before the lane's own, fewer than between entries, so that a single operation puts an address together.
template <int CODING> struct Unit {
  enum { SHIFTED = 1 };
  template <class W> static TACIT_FN float of(W w, u32 scaled) {
    return *(const TACIT_GROUP float*)((const TACIT_GROUP u8*)w.table + (scaled | w.lane));
  }
};
// Of numbers to 2^23 the float of 2^23 holds the sum in its lowest bits.
template <> struct Unit<UNSIGNED_CODES> {
  enum { SHIFTED = 0 };
  template <class W> static TACIT_FN float of(W, u32 code) { return from_bits(0x4b000000u | code) - 8388608.0f; }
};
template <> struct Unit<OFFSET_CODES> {
  enum { SHIFTED = 0 };
  template <class W> static TACIT_FN float of(W, u32 code) {
    return from_bits(0x4b000000u | code) - (8388608.0f + (float)(1 << (W::BITS - 1)));
  }
};
template <> struct Unit<SIGNED_CODES> {
  enum { SHIFTED = 0 };
  template <class W> static TACIT_FN float of(W, u32 code) {
    return from_bits((0x4b000000u | code) ^ 0x80u) - (8388608.0f + 128.0f);
  }
};
template <> struct Unit<F16_CODES> {
  enum { SHIFTED = 0 };
  template <class W> static TACIT_FN float of(W, u32 code) { return half_from_bits(code); }
};
template <> struct Unit<BF16_CODES> {
  enum { SHIFTED = 0 };
  template <class W> static TACIT_FN float of(W, u32 code) { return from_bits(code << 16); }
};
// How far a code is shifted for its unit.
template <class W> struct Shift {
  enum { BITS = !Unit<W::CODING>::SHIFTED ? 0 : W::REPLICAS == 32 ? 7 : 4, MASK = ((1 << W::BITS) - 1) << BITS };
};

// The scale of a block, and what is added to its elements.
template <int SCALING> struct Scale;
template <> struct Scale<NO_SCALES> {
  template <class W> static TACIT_FN float of(W, u64) { return 1.0f; }
};
template <> struct Scale<FLOAT_SCALES> {
  template <class W> static TACIT_FN float of(W w, u64 block) { return to_float(w.scales[block]); }
  template <class W> static TACIT_FN float bias(W w, u64 block) { return to_float(w.biases[block]); }
};
template <> struct Scale<E8M0_SCALES> {
  template <class W> static TACIT_FN float of(W w, u64 block) { return e8m0(w.scales[block]); }
};
template <> struct Scale<E4M3_SCALES> {
  template <class W> static TACIT_FN float of(W w, u64 block) { return exact_mul(e4m3(w.scales[block]), w.factor); }
};
template <> struct Scale<NESTED_SCALES> {
  template <class W> static TACIT_FN float of(W w, u64 block) {
    float unit = from_bits(w.map_bits(w.scales[block]));
    return exact_add(exact_mul(unit, w.absmax[block / W::NESTED]), w.offset);
  }
};
template <> struct Scale<INTEGER_SCALES> {
  template <class W> static TACIT_FN float of(W w, u64 block) {
    return exact_mul((float)w.scales[block], w.units[block / W::NESTED]);
  }
  template <class W> static TACIT_FN float bias(W w, u64 block) {
    return exact_mul((float)w.bias_codes[block], w.bias_units[block / W::NESTED]);
  }
};

// A scale with its bias.
struct Line {
  float scale, bias;
};
template <int BIASED> struct Lines {
  template <class W> static TACIT_FN Line of(W w, u64 block) { return Line{Scale<W::SCALING>::of(w, block), 0.0f}; }
  static TACIT_FN float value(float unit, Line line) { return exact_mul(unit, line.scale); }
};
template <> struct Lines<1> {
  template <class W> static TACIT_FN Line of(W w, u64 block) {
    return Line{Scale<W::SCALING>::of(w, block), Scale<W::SCALING>::bias(w, block)};
  }
  static TACIT_FN float value(float unit, Line line) { return exact_add(exact_mul(unit, line.scale), line.bias); }
};

// The block of an element. Where BLOCK is 0 its length is known only when the kernel runs.
template <int BLOCK> struct Blocks {
  template <class W> static TACIT_FN u64 of(W, u64 element) { return element / BLOCK; }
};
template <> struct Blocks<0> {
  template <class W> static TACIT_FN u64 of(W w, u64 element) { return element / w.block; }
};
template <class W> TACIT_FN Line line_of(W w, u64 element) {
  if (W::SCALING == NO_SCALES) return Line{1.0f, 0.0f};
  return Lines<W::BIASED>::of(w, Blocks<W::BLOCK>::of(w, element));
}
// A number times a scale that is not stored is itself, infinities and NaN as well.
template <class W> TACIT_FN float value_of(float unit, Line line) {
  return W::SCALING == NO_SCALES ? unit : Lines<W::BIASED>::value(unit, line);
}

template <class W> TACIT_FN u32 code_at(W w, u64 element) {
  if (W::BITS == 16) return w.codes[2 * element] | (u32)w.codes[2 * element + 1] << 8;
  u64 place = W::HIGH_FIRST ? element ^ (8 / W::BITS - 1) : element;
  u64 bit = place * W::BITS;
  u32 in_byte = (u32)(bit & 7), code = w.codes[bit >> 3];
  // A code that ends in the next byte; the last code of all never does.
  if (in_byte + W::BITS > 8) code |= (u32)w.codes[(bit >> 3) + 1] << 8;
  return code >> in_byte & ((1u << W::BITS) - 1);
}

// Any element.
template <class W> TACIT_FN float element(W w, u64 at) {
  return value_of<W>(Unit<W::CODING>::of(w, code_at(w, at) << Shift<W>::BITS), line_of(w, at));
}

// Codes of 8 STEPS elements whose first is a multiple of 8: these are whole bytes.
template <int BITS, int STEPS> struct Codes {
  enum { BYTES = BITS * STEPS, WORDS = (BYTES + 3) / 4 };
  u32 word[WORDS];
};

template <class W, int STEPS> TACIT_FN Codes<W::BITS, STEPS> load_codes(W w, u64 first, bool aligned) {
  Codes<W::BITS, STEPS> codes;
  enum { BYTES = Codes<W::BITS, STEPS>::BYTES, WORDS = Codes<W::BITS, STEPS>::WORDS };
  u64 at = first / 8 * W::BITS;
  if (BYTES % 16 == 0 && aligned) {
    TACIT_UNROLL
    for (int quad = 0; quad < WORDS / 4; ++quad) {
      Quad read = load128(w.codes + at + 16 * quad);
      TACIT_UNROLL
      for (int i = 0; i < 4; ++i) codes.word[4 * quad + i] = read.word[i];
    }
  } else if (BYTES % 4 == 0 && aligned) {
    TACIT_UNROLL
    for (int i = 0; i < WORDS; ++i) codes.word[i] = load32(w.codes + at + 4 * i);
  } else {
    TACIT_UNROLL
    for (int i = 0; i < WORDS; ++i) {
      u32 word = 0;
      TACIT_UNROLL
      for (int byte = 0; byte < 4; ++byte)
        if (4 * i + byte < BYTES) word |= (u32)w.codes[at + 4 * i + byte] << (8 * byte);
      codes.word[i] = word;
    }
  }
  return codes;
}

// Code `i` of them, shifted for its unit; with a constant `i` this is a shift and a mask.
template <class W, int STEPS> TACIT_FN u32 code_in(Codes<W::BITS, STEPS> codes, int i) {
  int place = W::HIGH_FIRST ? i ^ (8 / W::BITS - 1) : i;
  int bit = place * W::BITS, word = bit / 32, shift = bit % 32;
  if (shift + W::BITS > 32) {
    u32 code = codes.word[word] >> shift | codes.word[word + 1] << (32 - shift);
    return code << Shift<W>::BITS & Shift<W>::MASK;
  }
  u32 code = shift >= Shift<W>::BITS ? codes.word[word] >> (shift - Shift<W>::BITS)
                                     : codes.word[word] << (Shift<W>::BITS - shift);
  return code & Shift<W>::MASK;
}

// Units of eight of them, from eight times `step` on.
template <class W, int STEPS> TACIT_FN Eight units_in(W w, Codes<W::BITS, STEPS> codes, int step) {
  Eight units;
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) units.at[i] = Unit<W::CODING>::of(w, code_in<W, STEPS>(codes, 8 * step + i));
  return units;
}

// Values of eight elements, the first of which, a multiple of 8, is `first`.
template <class W> TACIT_FN Eight values_of(W w, Eight units, u64 first) {
  Line line = Line{1.0f, 0.0f};
  if (W::SPAN >= 8) line = line_of(w, first);
  TACIT_UNROLL
  for (int i = 0; i < 8; ++i) {
    if (W::SPAN < 8) line = line_of(w, first + i);
    units.at[i] = value_of<W>(units.at[i], line);
  }
  return units;
}

}  // namespace tacit
