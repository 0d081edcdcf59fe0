// What all ways of attention share: masks, and a softmax that goes on from token to token.
//
// With `max` the greatest score so far, a row keeps `sum(exp(s - max))` and `sum(exp(s - max) v)`; when a greater one comes, both
// are scaled. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

namespace tacit {

// Nothing is hidden; numbers are added to the scores; bytes say which scores are visible.
enum { NO_MASK, ADDED_MASK, VISIBLE_MASK };

// A mask: its numbers, the score of what is not visible, and how far it is to the next query and to the next token.
template <class P> struct Hiding {
  P values;
  float hidden;
  u32 row, column;
};

TACIT_FN bool is_nan(float value) { return (to_bits(value) & 0x7fffffffu) > 0x7f800000u; }
TACIT_FN float no_score() { return from_bits(0xff800000u); }

template <int MASK> struct Masked;
template <> struct Masked<NO_MASK> {
  template <class H> static TACIT_FN float number(H, u64) { return 0.0f; }
  static TACIT_FN bool sees(float) { return true; }
  static TACIT_FN float score(float score, float, float) { return score; }
  static TACIT_FN bool counts_hidden(float, float) { return false; }
};
template <> struct Masked<ADDED_MASK> {
  template <class H> static TACIT_FN float number(H hiding, u64 at) { return to_float(hiding.values[at]); }
  // Scores that are less than this count for nothing beside one that is not.
  static TACIT_FN bool sees(float number) { return number > -1e30f || is_nan(number); }
  // What counts for nothing may be NaN. `hidden` is another number where all tokens count.
  static TACIT_FN float score(float score, float number, float hidden) {
    return hidden == no_score() && !sees(number) ? hidden : score + number;
  }
  static TACIT_FN bool counts_hidden(float max, float) { return max <= -0.5e30f; }
};
template <> struct Masked<VISIBLE_MASK> {
  template <class H> static TACIT_FN float number(H hiding, u64 at) { return hiding.values[at] ? 1.0f : 0.0f; }
  static TACIT_FN bool sees(float number) { return number != 0.0f; }
  static TACIT_FN float score(float score, float number, float hidden) { return number != 0.0f ? score : hidden; }
  // Minus infinity gives NaN where there is nothing else, as no sum does.
  static TACIT_FN bool counts_hidden(float max, float hidden) {
    return is_nan(hidden) || (hidden != no_score() && hidden >= max - 87.0f);
  }
};

// The greatest of two numbers, NaN left out.
TACIT_FN float greater(float a, float b) { return b > a ? b : a; }

// What sums up to `from` are multiplied by when `to` is the greatest score.
TACIT_FN float rescaling(float from, float to) { return from == to ? 1.0f : exp_of(from - to); }

// The weight of a score beside the greatest. Where there is none but minus infinity, NaN alone counts.
TACIT_FN float weight_of(float score, float max) {
  if (max == no_score()) return is_nan(score) ? score : 0.0f;
  return exp_of(score - max);
}

// Whether any thread of a group says so. `flag` is read by nobody else.
TACIT_FN bool any_of_group(bool own, TACIT_GROUP float* flag, u32 id) {
  TACIT_BARRIER();
  if (id == 0) *flag = 0.0f;
  TACIT_BARRIER();
  if (own) *flag = 1.0f;
  TACIT_BARRIER();
  return *flag != 0.0f;
}

}  // namespace tacit
