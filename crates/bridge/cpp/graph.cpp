// Questions about a recorded graph. A graph may have 100,000 nodes in a row, so nothing here recurses.
#include "graph.h"

#include <unordered_set>

#include "params.h"

namespace tacit {

namespace {

bool is_traced(const array& root) {
  auto found = false;
  each_reached({root}, {}, [&](const array& value) {
    found = !has_data(value) && !value.has_primitive();
    return !found;
  });
  return found;
}

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
  std::unordered_set<uintptr_t> seen;
  for (const auto& input : inputs) {
    seen.insert(input.id());
  }
  auto reached = outputs;
  each_dependent(inputs, outputs, [&](const array& node) {
    seen.insert(node.id());
    reached.insert(reached.end(), node.inputs().begin(), node.inputs().end());
  });
  std::erase_if(reached, [&](const array& value) { return !seen.insert(value.id()).second; });
  return reached;
}

// What broadcasts made the array of; the array itself where none did.
const array& broadcast_source(const array& root) {
  auto source = &root;
  while (made_by<mlx::core::Broadcast>(*source)) {
    source = &source->inputs().front();
  }
  return *source;
}

}  // namespace

void become(array& node, const array& other) {
  auto before = std::move(node.inputs());
  node.primitive_ptr() = other.primitive_ptr();
  node.inputs() = other.inputs();
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_is_traced(Handle root, bool* traced) {
  return guarded([&] { *traced = is_traced(get(root)); });
}

int tacit_broadcast_source(Handle root, Handle* source) {
  return guarded([&] { *source = own(broadcast_source(get(root))); });
}

int tacit_frontier(
    const Handle* outputs, size_t output_count, const Handle* inputs, size_t input_count, Sink found) {
  return guarded([&] { pour(frontier(gather(outputs, output_count), gather(inputs, input_count)), found); });
}

int tacit_constants(
    const Handle* outputs, size_t output_count, const Handle* inputs, size_t input_count, Sink found) {
  return guarded([&] { pour(constants(gather(outputs, output_count), gather(inputs, input_count)), found); });
}
}
