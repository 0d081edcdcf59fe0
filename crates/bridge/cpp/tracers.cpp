#include "tracers.h"

#include <algorithm>
#include <unordered_set>

#include "graph.h"

namespace tacit {

namespace {

// The tracers that `outputs` reach and that depend on no other, but for `inputs`.
std::vector<array> tracers_of(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  auto input_ids = ids_of(inputs);
  std::unordered_set<uintptr_t> seen;
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
    if (!follows && !input_ids.contains(node.id())) {
      found.push_back(node);
    }
  }
  return found;
}

// Whether everything counts as a tracer now, as where MLX works out gradients.
bool all_are_tracers() {
  static const auto& unmarked = *new array(false);
  return unmarked.is_tracer();
}

// The tracers of the transforms of ours whose functions are called now, on this thread.
std::vector<const std::vector<array>*>& under_way() {
  thread_local std::vector<const std::vector<array>*> stack;
  return stack;
}

// Whether `value` depends on a tracer of a transform of ours, or on a placeholder of any.
bool depends_on_tracer(const array& value) {
  std::unordered_set<uintptr_t> tracers;
  for (const auto* entered : under_way()) {
    for (const auto& tracer : *entered) {
      tracers.insert(tracer.id());
    }
  }
  auto found = false;
  each_reached({value}, {}, [&](const array& node) {
    found = tracers.contains(node.id()) || (!node.has_primitive() && !has_data(node));
    return !found;
  });
  return found;
}

}  // namespace

std::vector<array> traced(const ArrayFunction& function, const std::vector<array>& tracers) {
  under_way().push_back(&tracers);
  struct Ended {
    ~Ended() {
      under_way().pop_back();
    }
  } ended;
  return function(tracers);
}

bool in_transform() {
  static const auto& tracer = *[] {
    auto* value = new array(Shape{}, mlx::core::bool_, nullptr, {});
    value->set_tracer(true);
    return value;
  }();
  return tracer.is_tracer();
}

void OuterTracers::see(const std::vector<array>& entered, const std::vector<array>& results) {
  // While MLX works out gradients a transform around has taken its marks away.
  if (inside_ && !all_are_tracers()) {
    tracers_ = tracers_of(entered, results);
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

using namespace tacit;

extern "C" {

bool tacit_holds_tracer(Arrays arrays) {
  auto is_one = [every = all_are_tracers()](const array& value) {
    return every ? depends_on_tracer(value) : value.is_tracer();
  };
  return std::any_of(arrays.begin(), arrays.end(), [&](Handle handle) { return is_one(get(handle)); });
}
}
