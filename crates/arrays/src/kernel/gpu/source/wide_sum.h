// Sums of magnitudes as `double` has them, by integers, as Metal has no such type: every rounding is to the nearest, ties to even.

namespace tacit {

// The bits of a double that equals a float, which is no negative one.
TACIT_FN u64 widened(float magnitude) {
  u32 bits = to_bits(magnitude), exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  if (bits == 0) return 0;
  if (exponent == 255) return (u64)2047 << 52 | (u64)mantissa << 29;
  // A subnormal float is a normal double.
  if (exponent == 0) {
    u32 shift = 1;
    while (!((mantissa << shift) & 0x800000u)) ++shift;
    return ((u64)(897 - shift) << 52) | (u64)((mantissa << shift) & 0x7fffffu) << 29;
  }
  return (u64)(exponent + 896) << 52 | (u64)mantissa << 29;
}

// A mantissa with its leading one and two more bits, the lower of which says whether anything is left below, rounded and put
// together with the exponent, into which it may carry.
TACIT_FN u64 rounded_to_bits(u64 exponent, u64 mantissa) {
  u32 below = (u32)mantissa & 3;
  mantissa >>= 2;
  if (below > 2 || (below == 2 && (mantissa & 1))) ++mantissa;
  return (exponent << 52) + (mantissa - ((u64)1 << 52));
}

TACIT_FN u64 add_wide(u64 a, u64 b) {
  if (a < b) {
    u64 other = a;
    a = b;
    b = other;
  }
  u64 exponent = a >> 52, one = (u64)1 << 52;
  if (b == 0 || exponent == 2047) return a;
  u64 more = ((a & (one - 1)) | one) << 2, less = ((b & (one - 1)) | one) << 2;
  u32 apart = (u32)(exponent - (b >> 52));
  if (apart > 60) return a;
  u64 lost = less & (((u64)1 << apart) - 1);
  u64 sum = more + (less >> apart | (lost != 0 ? 1 : 0));
  if (sum >> 55) {
    sum = sum >> 1 | (sum & 1);
    ++exponent;
  }
  return rounded_to_bits(exponent, sum);
}

// The quotient of a sum and a count as a float, rounded to a double first.
TACIT_FN float mean_of(u64 sum, u32 count) {
  if (sum == 0) return 0.0f;
  u64 one = (u64)1 << 52, exponent = sum >> 52;
  if (exponent == 2047) return from_bits(sum & (one - 1) ? 0x7fc00000u : 0x7f800000u);
  u64 mantissa = (sum & (one - 1)) | one, quotient = mantissa / count, rest = mantissa % count;
  // Two more bits than are kept.
  exponent += 2;
  while (!(quotient >> 54)) {
    rest <<= 1;
    quotient <<= 1;
    if (rest >= count) {
      rest -= count;
      quotient |= 1;
    }
    --exponent;
  }
  u64 mean = rounded_to_bits(exponent, quotient | (rest != 0 ? 1 : 0));
  // As a float: 29 bits fewer, or more where it is subnormal.
  int single = (int)(mean >> 52) - 896;
  u32 dropped = 29 + (single < 1 ? (u32)(1 - single) : 0);
  if (dropped > 54) return 0.0f;
  mantissa = (mean & (one - 1)) | one;
  u64 kept = mantissa >> dropped, middle = (u64)1 << (dropped - 1), lost = mantissa & ((middle << 1) - 1);
  if (lost > middle || (lost == middle && (kept & 1))) ++kept;
  return from_bits(single < 1 ? (u32)kept : ((u32)single << 23) + ((u32)kept - (1u << 23)));
}

}  // namespace tacit
