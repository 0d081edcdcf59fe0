// What the questions about graphs share.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "bridge.h"

namespace tacit {

inline bool has_data(const array& value) {
  return value.data_shared_ptr() != nullptr;
}

// What tells each of these arrays from every other.
inline std::unordered_set<uintptr_t> ids_of(const std::vector<array>& arrays) {
  std::unordered_set<uintptr_t> ids;
  for (const auto& value : arrays) {
    ids.insert(value.id());
  }
  return ids;
}

// Visits every array that `roots` depend on once, until `visit` returns false. Behind an array with data nothing
// is visited.
template <class Visit>
void each_reached(const std::vector<array>& roots, const std::vector<array>& boundaries, Visit visit) {
  auto seen = ids_of(boundaries);
  std::vector<const array*> stack;
  auto enter = [&](const array& value) {
    if (seen.insert(value.id()).second) {
      stack.push_back(&value);
    }
  };
  for (const auto& root : roots) {
    enter(root);
  }
  while (!stack.empty()) {
    const auto& value = *stack.back();
    stack.pop_back();
    if (!visit(value)) {
      return;
    }
    if (has_data(value) || !value.has_primitive()) {
      continue;
    }
    // Backwards, so that the first operand is visited first.
    const auto& inputs = value.inputs();
    for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
      enter(*input);
    }
  }
}

// Whether the data of an array may be read, which is waited for where it is still computed. Throws where that failed.
inline bool has_readable_data(const array& value) {
  if (!has_data(value) || value.status() == array::Status::unscheduled) {
    return false;
  }
  const_cast<array&>(value).wait();
  return true;
}

// Visits the arrays that `roots` come of, and these, operands first: those that `enters` says yes to when they are met, and
// still does once their operands were visited.
template <class Enters, class Visit>
void each_operand_first(const std::vector<array>& roots, Enters enters, Visit visit) {
  struct Frame {
    array node;
    size_t next;
  };
  std::vector<Frame> stack;
  auto enter = [&](const array& value) {
    if (enters(value)) {
      stack.push_back({value, 0});
    }
  };
  for (const auto& root : roots) {
    enter(root);
    while (!stack.empty()) {
      auto& frame = stack.back();
      if (frame.node.has_primitive() && frame.next < frame.node.inputs().size()) {
        enter(frame.node.inputs()[frame.next++]);
        continue;
      }
      auto node = std::move(frame.node);
      stack.pop_back();
      if (enters(node)) {
        visit(node);
      }
    }
  }
}

// Visits every node between `inputs` and `outputs`, operands first. Nodes that do not depend on an input are left out: they
// were there before and may be somebody else's. So are those that depend on one by way of `beyond` alone.
template <class Visit>
void each_dependent(
    const std::vector<array>& inputs, const std::vector<array>& outputs, Visit visit,
    const std::vector<array>& beyond = {}) {
  std::unordered_map<uintptr_t, bool> depends;
  for (const auto& end : beyond) {
    depends[end.id()] = false;
  }
  for (const auto& input : inputs) {
    depends[input.id()] = true;
  }
  auto enters = [&](const array& value) { return !depends.contains(value.id()); };
  each_operand_first(outputs, enters, [&](array& node) {
    const auto& from = node.inputs();
    auto reached = node.has_primitive() && std::any_of(from.begin(), from.end(), [&](const array& input) {
                     return depends[input.id()];
                   });
    depends.emplace(node.id(), reached);
    if (reached) {
      visit(node);
    }
  });
}

// A hash with one more value.
inline size_t mix(size_t hash, size_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

// The primitive of a node apart from it, for whoever frees it.
struct Recorded;
Recorded* record(const array& node);

// What the primitive of `node`, of one operand and one result, makes of another operand of the same aval.
array emit_again(const array& node, const array& operand);

// Makes `node` the result of what `other` is the result of, for all who hold it.
void become(array& node, const array& other);

}  // namespace tacit
