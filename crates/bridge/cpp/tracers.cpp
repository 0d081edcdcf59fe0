// The tracers of the transforms around one. MLX's vjp and jvp take the mark of a tracer from all that their results reach, also
// from what another transform around them has marked: what is computed of that afterwards would count as a constant.
#include "graph.h"

namespace tacit {

namespace {

// The tracers that `outputs` reach and that depend on no other, but for `inputs`, those of the transform itself.
std::vector<array> outer_tracers(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  // While MLX works out gradients everything counts as a tracer, and a transform around has taken its marks away.
  static const auto& unmarked = *new array(false);
  if (unmarked.is_tracer()) {
    return {};
  }
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

// Marks the tracers again, and what depends on them.
void mark_tracers(const std::vector<array>& outputs, std::vector<array> tracers) {
  for (auto& tracer : tracers) {
    tracer.set_tracer(true);
  }
  each_dependent(tracers, outputs, [](array& node) {
    node.set_tracer(true);
    for (auto& sibling : node.siblings()) {
      sibling.set_tracer(true);
    }
  });
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_outer_tracers(
    const Handle* outputs, size_t output_count, const Handle* inputs, size_t input_count, Sink found) {
  return guarded([&] { pour(outer_tracers(gather(outputs, output_count), gather(inputs, input_count)), found); });
}

int tacit_mark_tracers(const Handle* outputs, size_t output_count, const Handle* tracers, size_t tracer_count) {
  return guarded([&] { mark_tracers(gather(outputs, output_count), gather(tracers, tracer_count)); });
}
}
