// Floats as codes. A group takes whole blocks whose codes are whole bytes: its threads find what each block stores, and then code
// eight elements each, so that every byte has one writer. A generated `struct Encode` describes the format: the constants RULE,
// STORAGE, POWERS, BITS, HIGH_FIRST, PADDING, IS_GIVEN, IS_SUM, BLOCK, EIGHTS and TEAM, the elements, and the pointers to the
// results.

namespace tacit {

// Blocks of a group are this many at most.
enum { MOST_BLOCKS = 128 };

// The block, counted from the group's first, of an element counted likewise.
template <int BLOCK> struct BlockOf {
  template <class E> static TACIT_FN u32 of(E, u32 element) { return element / BLOCK; }
};
template <> struct BlockOf<0> {
  template <class E> static TACIT_FN u32 of(E e, u32 element) { return element / e.block; }
};

template <class E> TACIT_FN u32 length_of(E e, u64 block) { return block + 1 == e.blocks ? e.last : e.block; }

// The elements, which are there or, as `sum.h` has it, a sum.
template <int IS_SUM> struct Elements {
  template <class E> static TACIT_FN float at(E e, u64 element) { return to_float(e.x[element]); }
  template <class E> static TACIT_FN Eight eight(E e, u64 first) { return eight_floats(e.x + first, e.aligned); }
};

// Eight elements, of which `left` are there; the first stands for the others, which changes no range.
template <class E> TACIT_FN Eight eight_of(E e, u64 first, u32 left) {
  if (left >= 8) return Elements<E::IS_SUM>::eight(e, first);
  Eight values;
  TACIT_UNROLL
  for (u32 i = 0; i < 8; ++i) values.at[i] = Elements<E::IS_SUM>::at(e, first + (i < left ? i : 0));
  return values;
}

// What is found of several elements by one, and of two parts. A NaN stays.
template <int FINDS> struct Finding;
template <> struct Finding<ABSMAX> {
  static TACIT_FN Found nothing() { return Found{0.0f, 0.0f}; }
  // The bits of magnitudes order as they do, with infinities and NaN above all others.
  static TACIT_FN Found with(Found found, float x) {
    u32 magnitude = to_bits(x) & 0x7fffffffu, most = to_bits(found.high);
    return Found{0.0f, from_bits(magnitude > most ? magnitude : most)};
  }
  static TACIT_FN Found both(Found a, Found b) { return with(a, b.high); }
};
template <> struct Finding<RANGE> {
  static TACIT_FN Found nothing() { return Found{from_bits(0x7f800000u), from_bits(0xff800000u)}; }
  static TACIT_FN Found both(Found a, Found b) {
    return Found{b.low < a.low || b.low != b.low ? b.low : a.low, b.high > a.high || b.high != b.high ? b.high : a.high};
  }
  static TACIT_FN Found with(Found found, float x) { return both(found, Found{x, x}); }
};

// What coding the elements of the group's blocks takes, two floats each.
TACIT_FN void put_coder(TACIT_GROUP float* coders, u32 place, Coder coder) {
  coders[2 * place] = coder.first;
  coders[2 * place + 1] = coder.second;
}
TACIT_FN Coder coder_of(const TACIT_GROUP float* coders, u32 place) {
  return Coder{coders[2 * place], coders[2 * place + 1]};
}

template <class E> TACIT_FN void keep(E e, u64 block, Found found, TACIT_GROUP float* coders, u32 place) {
  Stored stored = Rule<E::RULE>::stored(e, found);
  Storage<E::STORAGE>::put(e, block, stored);
  put_coder(coders, place, Rule<E::RULE>::coder(e, stored));
}

// What the group's blocks store, from the block `first` on, and what coding their elements takes. `meeting` is where threads
// meet, of which TEAM have a block together.
template <int FINDS> struct Scales {
  template <class E, class Meeting>
  static TACIT_FN void find(E e, u64 first, u32 each, Place at, u32 threads, Meeting meeting, TACIT_GROUP float* coders) {
    u32 teams = threads / E::TEAM, team = at.id / E::TEAM, lane = at.id % E::TEAM;
    // All threads take as many turns: those of a warp look at each other's.
    for (u32 turn = 0; turn < each; turn += teams) {
      u32 place = turn + team;
      u64 block = first + place;
      Found found = Finding<FINDS>::nothing();
      bool exists = place < each;
      u32 length = exists ? length_of(e, block) : 0;
      for (u32 element = lane * 8; element < length; element += E::TEAM * 8) {
        Eight values = eight_of(e, block * e.block + element, length - element);
        TACIT_UNROLL
        for (int i = 0; i < 8; ++i) found = Finding<FINDS>::with(found, values.at[i]);
      }
      TACIT_UNROLL
      for (u32 mask = (E::TEAM < 32 ? E::TEAM : 32) / 2; mask > 0; mask /= 2)
        found = Finding<FINDS>::both(found, Found{shuffle_xor(found.low, mask), shuffle_xor(found.high, mask)});
      if (E::TEAM > 32) {
        if (at.lane == 0) {
          meeting[2 * at.warp] = found.low;
          meeting[2 * at.warp + 1] = found.high;
        }
        TACIT_BARRIER();
        for (u32 warp = 0; warp < E::TEAM / 32; ++warp)
          found = Finding<FINDS>::both(found, Found{meeting[2 * warp], meeting[2 * warp + 1]});
        TACIT_BARRIER();
      }
      if (exists && lane == 0) keep(e, block, found, coders, place);
    }
  }
};
// As the CPU sums them: every sixteenth element, these sums one after the other, and those left behind the last sixteen.
template <> struct Scales<MEAN> {
  template <class E, class Meeting>
  static TACIT_FN void find(E e, u64 first, u32 each, Place at, u32 threads, Meeting meeting, TACIT_GROUP float* coders) {
    for (u32 part = at.id; part < each * 16; part += threads) {
      u64 block = first + part / 16, from = block * e.block;
      u32 whole = length_of(e, block) / 16 * 16;
      u64 sum = 0;
      for (u32 element = part % 16; element < whole; element += 16) sum = add_wide(sum, magnitude(e, from + element));
      meeting[part] = sum;
    }
    TACIT_BARRIER();
    for (u32 place = at.id; place < each; place += threads) {
      u64 block = first + place, from = block * e.block;
      u32 length = length_of(e, block);
      u64 sum = 0, rest = 0;
      for (u32 part = 0; part < 16; ++part) sum = add_wide(sum, meeting[place * 16 + part]);
      for (u32 element = length / 16 * 16; element < length; ++element) rest = add_wide(rest, magnitude(e, from + element));
      keep(e, block, Found{0.0f, mean_of(add_wide(sum, rest), length)}, coders, place);
    }
  }
  template <class E> static TACIT_FN u64 magnitude(E e, u64 element) {
    return widened(from_bits(to_bits(Elements<E::IS_SUM>::at(e, element)) & 0x7fffffffu));
  }
};

template <> struct Scales<GIVEN> {
  template <class E, class Meeting>
  static TACIT_FN void find(E e, u64 first, u32 each, Place at, u32 threads, Meeting, TACIT_GROUP float* coders) {
    for (u32 place = at.id; place < each; place += threads)
      put_coder(coders, place, Rule<E::RULE>::coder(e, Storage<E::STORAGE>::get(e, first + place)));
  }
};

// The code of an element. Where it stands counts for nothing but codes that are drawn, as `draw.h` has them.
template <int RULE> struct CodeOf {
  template <class E> static TACIT_FN u32 of(E e, Coder coder, float x, u64) { return Rule<RULE>::code(e, coder, x); }
};

// The bytes of eight codes, of which `left` are there.
template <class E> TACIT_FN void write_codes(E e, u64 element, u32 left, u64 codes) {
  TACIT_DEVICE u8* to = e.codes + element * E::BITS / 8;
  if (E::BITS % 4 == 0 && E::EIGHTS && left >= 8 && is_aligned(e.codes)) {
    TACIT_UNROLL
    for (int word = 0; word < E::BITS / 4; ++word) store32(to + 4 * word, (u32)(codes >> (32 * word)));
  } else {
    u32 bytes = left >= 8 ? E::BITS : (left * E::BITS + 7) / 8;
    TACIT_UNROLL
    for (u32 byte = 0; byte < (u32)E::BITS; ++byte)
      if (byte < bytes) to[byte] = (u8)(codes >> (8 * byte));
  }
}

template <class E, class Meeting>
TACIT_FN void encode(E e, Place at, u32 threads, Meeting meeting, TACIT_GROUP float* coders) {
  u64 first = (u64)at.x * e.each;
  u32 each = e.blocks - first < e.each ? (u32)(e.blocks - first) : e.each;
  Scales<E::IS_GIVEN ? (int)GIVEN : (int)Rule<E::RULE>::FINDS>::find(e, first, each, at, threads, meeting, coders);
  TACIT_BARRIER();
  u64 from = first * e.block;
  u32 count = (each - 1) * e.block + length_of(e, first + each - 1);
  for (u32 run = at.id * 8; run < count; run += threads * 8) {
    u32 left = count - run;
    Eight values = eight_of(e, from + run, left);
    u64 codes = 0;
    TACIT_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      u32 code = E::PADDING;
      u32 place = BlockOf<E::BLOCK>::of(e, E::EIGHTS ? run : run + i);
      if (i < left) code = CodeOf<E::RULE>::of(e, coder_of(coders, place), values.at[i], from + run + i);
      codes |= (u64)(code & ((1u << E::BITS) - 1)) << ((E::HIGH_FIRST ? i ^ (8 / E::BITS - 1) : i) * E::BITS);
    }
    write_codes(e, from + run, left, codes);
  }
}

// Half floats that are stored as they are: each thread rounds eight elements.
template <class T, class X> TACIT_FN void round_to_halves(X x, TACIT_DEVICE T* out, u64 count, Place at, u32 threads) {
  u64 first = ((u64)at.x * threads + at.id) * 8;
  for (u64 i = first; i < first + 8 && i < count; ++i) out[i] = Round<T>::from(to_float(x[i]));
}

}  // namespace tacit
