// Marks on arrays that are not computed yet.
//
// MLX keeps an event beside each array and reads its value only once an eval has attached one, so until then the value has
// room for a mark of ours: the number of a walk, and a number of the walk's own. A look-up then reads the array that is read
// anyway, and nothing need be cleared, since no walk has the number of another. What is evaluated is never marked: other
// threads may have it too.
#pragma once

#include <atomic>

#include "graph.h"

namespace tacit {

// The bits of a mark that hold the walk's own number for the array; the number of the walk is in those above.
constexpr int kMarkBits = 28;

inline std::atomic<uint64_t>& walks_begun() {
  static std::atomic<uint64_t> walks{0};
  return walks;
}

// The number of a new walk, in the place that it has in a mark.
inline uint64_t begin_walk() {
  return (walks_begun().fetch_add(1, std::memory_order_relaxed) + 1) << kMarkBits;
}

inline bool is_markable(const array& value) {
  return !has_data(value) && !value.event().valid();
}

// Whether an array was marked by a walk that began before `walks` of them had; such an array was there by then.
inline bool is_marked_before(const array& value, uint64_t walks) {
  auto walk = value.event().value() >> kMarkBits;
  return walk != 0 && walk <= walks;
}

// To be called whenever edges of a graph or the placeholders are about to change: what depends on an array without data has
// to be found out anew.
void forget_traced();

}  // namespace tacit
