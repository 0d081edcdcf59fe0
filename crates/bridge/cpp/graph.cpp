// Questions about a recorded graph. A graph may have 100,000 nodes in a row, so nothing here recurses.
#include "graph.h"

#include <unordered_set>

#include "description.h"
#include "marks.h"
#include "params.h"

namespace tacit {

namespace {

// How many handles there are on an array: those of users, of nodes, and of whoever asks.
long holders(const array& value) {
  return description(value).use_count() - 1;
}

// Tells whether arrays depend on one without data. What was found is marked, so that a function that asks again and again
// has its graph gone through once.
class TracedSearch {
 public:
  static bool depends(const array& root) {
    auto& walk = current();
    if (walk == 0) {
      walk = begin_walk();
    }
    auto known = find(root);
    if (known != kUnknown) {
      return known == kTraced;
    }
    std::vector<std::pair<const array*, size_t>> stack{{&root, 0}};
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == node->inputs().size()) {
        mark(*node, kNotTraced);
        stack.pop_back();
        continue;
      }
      const auto& input = node->inputs()[next++];
      known = find(input);
      if (known == kTraced) {
        for (const auto& [dependent, _] : stack) {
          mark(*dependent, kTraced);
        }
        return true;
      }
      if (known == kUnknown) {
        stack.emplace_back(&input, 0);
      }
    }
    return false;
  }

  // The walk whose marks hold on this thread; 0 for none.
  static uint64_t& current() {
    thread_local uint64_t walk = 0;
    return walk;
  }

 private:
  enum Known : uint64_t { kUnknown, kTraced, kNotTraced };

  static Known find(const array& value) {
    if (has_data(value)) {
      return kNotTraced;
    }
    if (!value.has_primitive()) {
      return kTraced;
    }
    // An eval has begun to compute it, which it does with nothing that depends on an array without data.
    if (!is_markable(value)) {
      return kNotTraced;
    }
    auto number = value.event().value() ^ current();
    return number == kTraced || number == kNotTraced ? static_cast<Known>(number) : kUnknown;
  }

  static void mark(const array& value, Known known) {
    value.event().set_value(current() | known);
  }
};

std::vector<array> constants(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  std::vector<array> found;
  each_reached(outputs, inputs, [&](const array& value) {
    if (has_data(value) && value.size() > 1) {
      found.push_back(value);
    }
    return true;
  });
  return found;
}

// The arrays that do not depend on `inputs` and that something which does takes, or that are outputs themselves.
std::vector<array> frontier(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  auto seen = ids_of(inputs);
  auto reached = outputs;
  each_dependent(inputs, outputs, [&](const array& node) {
    seen.insert(node.id());
    reached.insert(reached.end(), node.inputs().begin(), node.inputs().end());
  });
  std::erase_if(reached, [&](const array& value) { return !seen.insert(value.id()).second; });
  return reached;
}

// The arrays that do not depend on `inputs` and that somebody holds besides the nodes of the graph.
std::vector<array> held_elsewhere(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  std::unordered_set<uintptr_t> dependent;
  each_dependent(inputs, outputs, [&](const array& node) { dependent.insert(node.id()); });
  std::vector<const array*> independent;
  std::unordered_map<uintptr_t, long> edges;
  std::unordered_set<uintptr_t> counted;
  auto count = [&](const array& node) {
    if (!counted.insert(node.id()).second) {
      return;
    }
    for (const auto& input : node.inputs()) {
      ++edges[input.id()];
    }
    for (const auto& sibling : node.siblings()) {
      ++edges[sibling.id()];
    }
  };
  each_reached(outputs, inputs, [&](const array& node) {
    if (!dependent.contains(node.id())) {
      independent.push_back(&node);
    }
    count(node);
    for (const auto& sibling : node.siblings()) {
      count(sibling);
    }
    return true;
  });
  std::vector<array> found;
  for (const auto* value : independent) {
    if (holders(*value) > edges[value->id()]) {
      found.push_back(*value);
    }
  }
  return found;
}

// Those of `inputs` that `outputs` are or depend on, each once; what lies behind an input is not looked at.
std::vector<array> reached(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  auto sought = ids_of(inputs);
  std::vector<array> found;
  auto meet = [&](const array& value) {
    if (sought.erase(value.id()) > 0) {
      found.push_back(value);
    }
  };
  std::for_each(outputs.begin(), outputs.end(), meet);
  each_reached(outputs, inputs, [&](const array& node) {
    std::for_each(node.inputs().begin(), node.inputs().end(), meet);
    return !sought.empty();
  });
  return found;
}

// How deep MLX goes into itself where it walks the graph between the inputs and the outputs, one operand after the other.
size_t depth(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  auto seen = ids_of(inputs);
  std::vector<std::pair<const array*, size_t>> stack;
  size_t deepest = 0;
  for (const auto& output : outputs) {
    if (seen.insert(output.id()).second) {
      stack.emplace_back(&output, 0);
    }
    while (!stack.empty()) {
      deepest = std::max(deepest, stack.size());
      auto& [node, next] = stack.back();
      if (next == node->inputs().size()) {
        stack.pop_back();
        continue;
      }
      const auto& input = node->inputs()[next++];
      if (seen.insert(input.id()).second) {
        stack.emplace_back(&input, 0);
      }
    }
  }
  return deepest;
}

// The operand of the broadcasts that give the array; the array itself where none does.
const array& broadcast_source(const array& root) {
  auto source = &root;
  while (made_by<mlx::core::Broadcast>(*source)) {
    source = &source->inputs().front();
  }
  return *source;
}

// Whether a node has the elements of its operand, in their order.
bool reshapes(const array& node) {
  return made_by<mlx::core::Reshape>(node) || made_by<mlx::core::Flatten>(node) ||
         made_by<mlx::core::Unflatten>(node) || made_by<mlx::core::ExpandDims>(node) ||
         made_by<mlx::core::Squeeze>(node);
}

// The operand of the reshapes that give the array; the array itself where none does.
const array& reshape_source(const array& root) {
  auto source = &root;
  while (reshapes(*source)) {
    source = &source->inputs().front();
  }
  return *source;
}

// The array as it is reshaped from another source of the same aval.
array reshaped_again(const array& root, array source) {
  std::vector<const array*> nodes;
  for (auto node = &root; reshapes(*node); node = &node->inputs().front()) {
    nodes.push_back(node);
  }
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    source = emit_again(**node, source);
  }
  return source;
}

}  // namespace

void forget_traced() {
  TracedSearch::current() = 0;
}

void become(array& node, const array& other) {
  forget_traced();
  auto before = std::move(node.inputs());
  node.primitive_ptr() = other.primitive_ptr();
  node.inputs() = other.inputs();
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_is_traced(Handle root, bool* traced) {
  return guarded([&] { *traced = TracedSearch::depends(get(root)); });
}

int tacit_broadcast_source(Handle root, Handle* source) {
  return guarded([&] { *source = own(broadcast_source(get(root))); });
}

int tacit_reshape_source(Handle root, Handle* source) {
  return guarded([&] { *source = own(reshape_source(get(root))); });
}

int tacit_reshaped_again(Handle root, Handle source, Handle* reshaped) {
  return guarded([&] { *reshaped = own(reshaped_again(get(root), get(source))); });
}

int tacit_depth(Arrays outputs, Arrays inputs, size_t* found) {
  return guarded([&] { *found = depth(gather(outputs), gather(inputs)); });
}

int tacit_frontier(Arrays outputs, Arrays inputs, Sink sink) {
  return guarded([&] { pour(frontier(gather(outputs), gather(inputs)), sink); });
}

int tacit_held_elsewhere(Arrays outputs, Arrays inputs, Sink sink) {
  return guarded([&] { pour(held_elsewhere(gather(outputs), gather(inputs)), sink); });
}

int tacit_reached(Arrays outputs, Arrays inputs, Sink sink) {
  return guarded([&] { pour(reached(gather(outputs), gather(inputs)), sink); });
}

int tacit_holders(Handle value, size_t* count) {
  return guarded([&] { *count = static_cast<size_t>(holders(get(value))); });
}

int tacit_constants(Arrays outputs, Arrays inputs, Sink sink) {
  return guarded([&] { pour(constants(gather(outputs), gather(inputs)), sink); });
}
}
