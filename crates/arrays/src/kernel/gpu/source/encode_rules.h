// What a block of floats stores, and what the codes of its elements are, format by format: bit for bit the rules of the CPU's
// kernels. What these refuse is coded as plain ops code it: the scale of a block with a NaN or an infinity says so where it is a
// float, and a NaN takes the code 0.

namespace tacit {

// The rules, by the constant RULE.
enum {
  NEAREST_RULE, REACH_RULE, SYMMETRIC_RULE, INT8_RULE, AFFINE_RULE, MXFP4_RULE, MXFP8_RULE, NVFP4_RULE, TERNARY_RULE, BINARY_RULE,
  DRAWN_RULE
};
// How the exponent of a power of two is chosen, by the constant POWERS.
enum { CEIL_POWERS, ROUND_POWERS, FLOOR_POWERS };
// What is found of a block's elements: nothing where its scale is given.
enum { ABSMAX, RANGE, MEAN, GIVEN };
// What a block stores, by the constant STORAGE.
enum { FLOATS, BYTES, LINES };

// The least and the greatest element; of magnitudes, the greatest and their mean are both the second.
struct Found {
  float low, high;
};
// What a block stores: a float, a float with a bias, or a byte.
struct Stored {
  float scale, bias;
  u32 byte;
};
// What coding an element takes.
struct Coder {
  float first, second;
};

// E2M1 to the nearest, ties to even, where what rounds to zero is positive.
TACIT_FN u32 to_e2m1(float x) {
  float magnitude = from_bits(to_bits(x) & 0x7fffffffu);
  u32 code = (u32)(magnitude > 0.25f) + (u32)(magnitude >= 0.75f) + (u32)(magnitude > 1.25f) + (u32)(magnitude >= 1.75f) +
      (u32)(magnitude > 2.5f) + (u32)(magnitude >= 3.5f) + (u32)(magnitude > 5.0f);
  return code | (x < 0.0f && code != 0 ? 8u : 0u);
}

// E4M3 to the nearest, ties to even, at most 448.
TACIT_FN u32 to_e4m3(float x) {
  u32 sign = to_bits(x) >> 24 & 0x80, bits = to_bits(x) & 0x7fffffffu;
  if (bits > 0x7f800000u) return 0;
  if (bits > 0x43e00000u) bits = 0x43e00000u;
  // Below 2^-6 the step is 2^-9, which is also that of floats at 2^14: the sum rounds there.
  if (bits < 0x3c800000u) return sign | (to_bits(exact_add(from_bits(bits), 16384.0f)) - 0x46800000u);
  return sign | (((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3));
}

// The byte of the power of two of a block, of elements of at most MANTISSA / 2^23 times 2^EXPONENT.
template <int POWERS, int EXPONENT, int MANTISSA> TACIT_FN u32 power_of_two(float absmax) {
  u32 bits = to_bits(absmax), mantissa = bits & 0x7fffffu;
  int exponent = (int)(bits >> 23);
  if (bits == 0) return 127;
  // Plain ops take the first of the last powers by which the greatest element overflows.
  if (exponent == 255) return mantissa != 0 ? 0 : EXPONENT > 2 || POWERS == ROUND_POWERS ? 252 : 253;
  if (exponent == 0) {
    for (exponent = 1; !(mantissa & 0x800000u); --exponent) mantissa <<= 1;
  } else {
    mantissa |= 0x800000u;
  }
  // Squares of mantissas tell on which side of the middle between two powers the quotient is.
  u64 square = (u64)mantissa * mantissa, top = (u64)MANTISSA * MANTISSA;
  int up = POWERS == CEIL_POWERS ? (int)(mantissa > (u32)MANTISSA) : POWERS == ROUND_POWERS ? -(int)(2 * square < top) : 0;
  int byte = exponent - EXPONENT + up;
  return byte < 0 ? 0 : byte > 254 ? 254 : (u32)byte;
}

// In the lowest bits the integer nearest to a number from -2^22 to 2^22, of two the even one.
TACIT_FN u32 nearest_integer(float x) { return to_bits(exact_add(x, 12582912.0f)); }

// From `low` to `high`, and 0 of a NaN.
TACIT_FN float limited(float x, float low, float high) {
  if (x != x) return 0.0f;
  return x < low ? low : x > high ? high : x;
}

// The reciprocal of a scale of at least 1e-38, which a GPU may take for zero: its bits are compared, and its reciprocal is given.
// A scale that is given may be negative.
TACIT_FN float reciprocal_of_scale(float scale) {
  u32 bits = to_bits(scale), sign = bits & 0x80000000u;
  return (bits ^ sign) < 0x006ce3eeu ? from_bits(0x7e96769au | sign) : exact_div(1.0f, scale);
}

TACIT_FN float magnitude(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }

template <int RULE> struct Rule;

template <> struct Rule<NEAREST_RULE> {
  enum { FINDS = ABSMAX };
  template <class E> static TACIT_FN Stored stored(E e, Found found) { return Stored{exact_div(found.high, e.top()), 0.0f, 0}; }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{reciprocal_of_scale(stored.scale), 0.0f}; }
  template <class E> static TACIT_FN u32 code(E e, Coder coder, float x) { return e.nearest(exact_mul(x, coder.first)); }
};

template <> struct Rule<REACH_RULE> {
  enum { FINDS = RANGE };
  template <class E> static TACIT_FN Stored stored(E e, Found found) {
    float above = exact_div(found.high, e.top()), below = exact_div(found.low, e.bottom());
    // The scale of zeros is not negative.
    return Stored{exact_add(0.0f, above > below ? above : below), 0.0f, 0};
  }
  template <class E> static TACIT_FN Coder coder(E e, Stored stored) { return Rule<NEAREST_RULE>::coder(e, stored); }
  template <class E> static TACIT_FN u32 code(E e, Coder coder, float x) { return Rule<NEAREST_RULE>::code(e, coder, x); }
};

template <> struct Rule<SYMMETRIC_RULE> {
  enum { FINDS = RANGE };
  template <class E> static TACIT_FN Stored stored(E, Found found) {
    float edge = magnitude(found.low) > magnitude(found.high) ? found.low : found.high;
    return Stored{exact_add(0.0f, -exact_div(edge, (float)(1 << (E::BITS - 1)))), 0.0f, 0};
  }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{reciprocal_of_scale(stored.scale), 0.0f}; }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) {
    float middle = (float)(1 << (E::BITS - 1)), units = exact_mul(x, coder.first);
    if (units != units) return 0;
    return (nearest_integer(limited(units, -middle, middle - 1.0f)) + (1u << (E::BITS - 1))) & 0xffu;
  }
};

template <> struct Rule<INT8_RULE> {
  enum { FINDS = ABSMAX };
  template <class E> static TACIT_FN Stored stored(E, Found found) { return Stored{found.high, 0.0f, 0}; }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) {
    float factor = exact_div(127.0f, stored.scale), most = from_bits(0x7f7fffffu);
    return Coder{stored.scale == 0.0f ? 0.0f : factor > most ? most : factor, 0.0f};
  }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) {
    return nearest_integer(limited(exact_mul(x, coder.first), -127.0f, 127.0f));
  }
};

template <> struct Rule<AFFINE_RULE> {
  enum { FINDS = RANGE };
  template <class E> static TACIT_FN Stored stored(E, Found found) {
    float step = exact_div(exact_add(found.high, -found.low), (float)((1 << E::BITS) - 1));
    if (step < 1e-7f) step = 1e-7f;
    bool falls = magnitude(found.low) > magnitude(found.high);
    float edge = falls ? found.low : found.high, scale = falls ? step : -step;
    float zero = nearest_even(exact_div(edge, scale));
    // Both scale and bias are chosen again so that zero has a code.
    return zero == 0.0f ? Stored{scale, 0.0f, 0} : Stored{exact_div(edge, zero), edge, 0};
  }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{stored.scale, stored.bias}; }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) {
    float units = exact_div(exact_add(x, -coder.second), coder.first);
    return nearest_integer(limited(units, 0.0f, (float)((1 << E::BITS) - 1)));
  }
};

// The reciprocal of a power of two is one, and 2^127 at most.
TACIT_FN float reciprocal_of_power(u32 byte) { return e8m0(byte > 254 ? 0 : 254 - byte); }

template <> struct Rule<MXFP4_RULE> {
  enum { FINDS = ABSMAX };
  template <class E> static TACIT_FN Stored stored(E, Found found) {
    return Stored{0.0f, 0.0f, power_of_two<E::POWERS, 2, 0xc00000>(found.high)};
  }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{reciprocal_of_power(stored.byte), 0.0f}; }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) { return to_e2m1(exact_mul(x, coder.first)); }
};

template <> struct Rule<MXFP8_RULE> {
  enum { FINDS = ABSMAX };
  template <class E> static TACIT_FN Stored stored(E, Found found) {
    return Stored{0.0f, 0.0f, power_of_two<E::POWERS, 8, 0xe00000>(found.high)};
  }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{reciprocal_of_power(stored.byte), 0.0f}; }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) { return to_e4m3(exact_mul(x, coder.first)); }
};

template <> struct Rule<NVFP4_RULE> {
  enum { FINDS = ABSMAX };
  template <class E> static TACIT_FN Stored stored(E e, Found found) {
    return Stored{0.0f, 0.0f, to_e4m3(exact_mul(exact_div(found.high, 6.0f), e.factor))};
  }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{e4m3(stored.byte), 0.0f}; }
  template <class E> static TACIT_FN u32 code(E e, Coder coder, float x) {
    if (coder.first == 0.0f) return 0;
    return to_e2m1(exact_mul(exact_div(x, coder.first), e.factor));
  }
};

template <> struct Rule<TERNARY_RULE> {
  enum { FINDS = MEAN };
  template <class E> static TACIT_FN Stored stored(E, Found found) { return Stored{found.high, 0.0f, 0}; }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{stored.scale, 0.0f}; }
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) {
    // Zero by a scale of zero is NaN, and no comparison with it holds.
    float units = exact_div(x, coder.first);
    return 1u + (u32)(units > 0.5f) - (u32)(units < -0.5f);
  }
};

template <> struct Rule<BINARY_RULE> {
  enum { FINDS = MEAN };
  template <class E> static TACIT_FN Stored stored(E, Found found) { return Stored{found.high, 0.0f, 0}; }
  template <class E> static TACIT_FN Coder coder(E, Stored stored) { return Coder{stored.scale, 0.0f}; }
  // By the bits: a GPU may take a subnormal number for a zero. A scale that is given may be negative.
  template <class E> static TACIT_FN u32 code(E, Coder coder, float x) {
    u32 bits = to_bits(x) ^ (coder.first < 0.0f ? 0x80000000u : 0u);
    return (u32)(bits <= 0x7f800000u || bits == 0x80000000u);
  }
};

// How a block's scale lies in memory.
template <int STORAGE> struct Storage;
template <> struct Storage<FLOATS> {
  template <class E> static TACIT_FN void put(E e, u64 block, Stored stored) { e.scales[block] = stored.scale; }
  template <class E> static TACIT_FN Stored get(E e, u64 block) { return Stored{e.scales[block], 0.0f, 0}; }
};
template <> struct Storage<BYTES> {
  template <class E> static TACIT_FN void put(E e, u64 block, Stored stored) { e.scales[block] = (u8)stored.byte; }
  template <class E> static TACIT_FN Stored get(E e, u64 block) { return Stored{0.0f, 0.0f, e.scales[block]}; }
};
template <> struct Storage<LINES> {
  template <class E> static TACIT_FN void put(E e, u64 block, Stored stored) {
    e.scales[block] = stored.scale;
    e.biases[block] = stored.bias;
  }
  template <class E> static TACIT_FN Stored get(E e, u64 block) { return Stored{e.scales[block], e.biases[block], 0}; }
};

// How many of 255 thresholds that ascend a number is greater than.
TACIT_FN u32 far_rank(const TACIT_GROUP float* thresholds, float x) {
  u32 rank = 0;
  TACIT_UNROLL
  for (u32 step = 128; step > 0; step /= 2)
    if (x > thresholds[rank + step - 1]) rank += step;
  return rank;
}

}  // namespace tacit
