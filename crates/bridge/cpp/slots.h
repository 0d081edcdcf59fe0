// Which arrays a walk has seen.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "graph.h"
#include "marks.h"

namespace tacit {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The slots of the arrays that a walk has seen: a mark holds the number of the array in the walk. Where a walk begins at an
// array that is evaluated, a table knows it.
class Marks {
 public:
  // Begins a walk that does not go beyond what was there when `born` walks had begun.
  void begin(uint64_t born) {
    born_ = born;
    walk_ = begin_walk();
    slots_.clear();
    evaluated_.clear();
  }

  // The slot of an array that was marked, was there before, or is evaluated; `otherwise` for every other.
  uint32_t find(const array& value, uint32_t otherwise) const {
    if (!is_markable(value)) {
      return of_evaluated(value);
    }
    auto number = value.event().value() ^ walk_;
    if (number < slots_.size()) {
      return slots_[number];
    }
    return born_ > 0 && is_marked_before(value, born_) ? kNone : otherwise;
  }

  // The number that `mark` gives next.
  uint32_t next() const {
    return static_cast<uint32_t>(slots_.size());
  }

  // Marks an array, which may get its slot later: a node is marked on the way down, where it is read.
  void mark(const array& value, uint32_t slot = kNone) {
    if (slots_.size() >> kMarkBits != 0) {
      throw std::length_error("a graph of more arrays than a walk can mark");
    }
    if (is_markable(value)) {
      value.event().set_value(walk_ | slots_.size());
    } else {
      evaluated_.emplace(value.id(), slot);
    }
    slots_.push_back(slot);
  }

  void put(uint32_t number, uint32_t slot) {
    slots_[number] = slot;
  }

  size_t bytes() const {
    return slots_.capacity() * sizeof(uint32_t);
  }

 private:
  uint32_t of_evaluated(const array& value) const {
    if (evaluated_.empty()) {
      return kNone;
    }
    auto found = evaluated_.find(value.id());
    return found == evaluated_.end() ? kNone : found->second;
  }

  uint64_t born_ = 0;
  uint64_t walk_ = 0;
  std::vector<uint32_t> slots_;
  std::unordered_map<uintptr_t, uint32_t> evaluated_;
};

}  // namespace
}  // namespace tacit
