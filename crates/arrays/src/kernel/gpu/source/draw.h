// Codes that are drawn: an element takes one of the two values around it, by a random number of its own. Bit for bit those of the
// CPU's kernels, and the numbers are those of MLX: Threefry-2x32 of 20 rounds.

namespace tacit {

struct Words {
  u32 a, b;
};
TACIT_FN Words mixed(Words words, u32 by) {
  words.a += words.b;
  words.b = (words.b << by | words.b >> (32 - by)) ^ words.a;
  return words;
}
TACIT_FN Words hashed(Words key, Words words) {
  const u32 keys[3] = {key.a, key.b, key.a ^ key.b ^ 0x1bd11bdau};
  words.a += keys[0];
  words.b += keys[1];
  TACIT_UNROLL
  for (u32 four = 0; four < 5; ++four) {
    const bool odd = four % 2 != 0;
    words = mixed(words, odd ? 17 : 13);
    words = mixed(words, odd ? 29 : 15);
    words = mixed(words, odd ? 16 : 26);
    words = mixed(words, odd ? 24 : 6);
    words.a += keys[(four + 1) % 3];
    words.b += keys[(four + 2) % 3] + four + 1;
  }
  return words;
}

// The number of an element of so many, from 0 to below 1 and of 24 bits. A hash gives two, the second of them to an element of the
// latter part; of an odd count the one in the middle has no partner.
TACIT_FN float random_number(Words key, u64 count, u64 element) {
  const u32 pairs = (u32)(count / 2), middle = (u32)(count - count / 2), at = (u32)element;
  const bool is_first = at < middle;
  const Words words = hashed(key, Words{is_first ? at : at - middle, !is_first ? at : at < pairs ? at + middle : 0});
  const float number = exact_mul((float)(is_first ? words.a : words.b), from_bits(0x2f800000u));
  // The greatest words would round to 1.
  return number < 1.0f ? number : from_bits(0x3f7fffffu);
}

// Whether an element between two values takes the greater one. Beyond them its share is below 0 or above 1; where both are one
// value it is no number, or infinite.
TACIT_FN bool is_raised(float x, float low, float high, float number) {
  return exact_div(exact_add(x, -low), exact_add(high, -low)) > number;
}

// In units of the scale the values are found; they are compared as they are decoded.
template <> struct Rule<DRAWN_RULE> {
  enum { FINDS = GIVEN };
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{stored.scale, stored.bias}; }
};
template <> struct CodeOf<DRAWN_RULE> {
  template <class E> static TACIT_FN float value(E e, Coder line, u32 rank) {
    return exact_add(exact_mul(e.decoded(e.code_of(rank)), line.first), line.second);
  }
  template <class E> static TACIT_FN u32 of(E e, Coder line, float x, u64 element) {
    const u32 rank = e.rank_of(exact_div(exact_add(x, -line.second), line.first == 0.0f ? 1.0f : line.first));
    const u64 count = (u64)(e.blocks - 1) * e.block + e.last;
    const float number = random_number(Words{e.key[0], e.key[1]}, count, element);
    return e.code_of(rank + (u32)is_raised(x, value(e, line, rank), value(e, line, rank + 1), number));
  }
};

// The bits of the greatest number of a type that is not above a magnitude, by its bits, and the number of such bits.
template <class T> struct Below;
template <> struct Below<f16> {
  static TACIT_FN u32 bits(u32 x) {
    if (x > 0x7f800000u) return 0x7e00u;
    if (x >= 0x47800000u) return x == 0x7f800000u ? 0x7c00u : 0x7bffu;
    // Below the normal numbers all are multiples of 2^-24.
    return x < 0x38800000u ? (u32)exact_mul(from_bits(x), 16777216.0f) : (x >> 13) - (112u << 10);
  }
  static TACIT_FN float number(u32 bits) { return half_from_bits(bits); }
};
template <> struct Below<bf16> {
  static TACIT_FN u32 bits(u32 x) { return x > 0x7f800000u ? 0x7fc0u : x >> 16; }
  static TACIT_FN float number(u32 bits) { return from_bits(bits << 16); }
};

// Half floats that are stored as they are: each thread draws eight.
template <class T, class X, class Key>
TACIT_FN void draw_halves(X x, Key key, TACIT_DEVICE u16* out, u64 count, Place at, u32 threads) {
  const u64 first = ((u64)at.x * threads + at.id) * 8;
  for (u64 i = first; i < first + 8 && i < count; ++i) {
    const u32 bits = to_bits(to_float(x[i])), magnitude = bits & 0x7fffffffu, low = Below<T>::bits(magnitude);
    const float number = random_number(Words{key[0], key[1]}, count, i);
    const bool raised = is_raised(from_bits(magnitude), Below<T>::number(low), Below<T>::number(low + 1), number);
    out[i] = (u16)((bits >> 16 & 0x8000u) | (low + (u32)raised));
  }
}

}  // namespace tacit
