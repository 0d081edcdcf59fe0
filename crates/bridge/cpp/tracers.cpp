#include "tracers.h"

#include <algorithm>
#include <unordered_set>

#include "graph.h"

namespace tacit {

namespace {

// The tracers that `outputs` reach and that depend on no other, but for `inputs`.
std::vector<array> tracers_of(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  std::unordered_set<uintptr_t> own, seen;
  for (const auto& input : inputs) {
    own.insert(input.id());
  }
  std::vector<const array*> stack;
  auto enter = [&](const array& value) {
    auto marked = value.is_tracer();
    if (marked && seen.insert(value.id()).second) {
      stack.push_back(&value);
    }
    return marked;
  };
  std::for_each(outputs.begin(), outputs.end(), enter);
  std::vector<array> found;
  while (!stack.empty()) {
    const auto& node = *stack.back();
    stack.pop_back();
    auto follows = false;
    for (const auto& input : node.inputs()) {
      follows |= enter(input);
    }
    if (!follows && !own.contains(node.id())) {
      found.push_back(node);
    }
  }
  return found;
}

}  // namespace

bool in_transform() {
  static const auto& tracer = *[] {
    auto* value = new array(Shape{}, mlx::core::bool_, nullptr, {});
    value->set_tracer(true);
    return value;
  }();
  return tracer.is_tracer();
}

void OuterTracers::see(const std::vector<array>& results, const std::vector<array>& own) {
  // While MLX works out gradients everything counts as a tracer, and a transform around has taken its marks away.
  static const auto& unmarked = *new array(false);
  if (inside_ && !unmarked.is_tracer()) {
    tracers_ = tracers_of(results, own);
    reaching_ = results;
  }
}

std::vector<array> OuterTracers::mark(std::vector<array> derivatives) {
  if (!tracers_.empty()) {
    reaching_.insert(reaching_.end(), derivatives.begin(), derivatives.end());
  }
  mark_reached();
  return derivatives;
}

OuterTracers::~OuterTracers() {
  mark_reached();
}

void OuterTracers::mark_reached() {
  for (auto& tracer : tracers_) {
    tracer.set_tracer(true);
  }
  each_dependent(tracers_, reaching_, [](array& node) {
    node.set_tracer(true);
    for (auto& sibling : node.siblings()) {
      sibling.set_tracer(true);
    }
  });
  tracers_.clear();
  reaching_.clear();
}

}  // namespace tacit
