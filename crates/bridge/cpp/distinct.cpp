#include "distinct.h"

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <unordered_map>

#include "graph.h"
#include "standing.h"

namespace tacit {

namespace {

bool same_avals(const std::vector<array>& a, const std::vector<array>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const array& a, const array& b) {
    return a.dtype() == b.dtype() && a.shape() == b.shape();
  });
}

// What nodes of the same class with operands of the same avals have in common: others are not taken for one.
size_t kind_of(const array& node) {
  const auto& primitive = node.primitive();
  auto kind = std::hash<std::string_view>()(typeid(primitive).name());
  for (const auto& input : node.inputs()) {
    kind = mix(kind, static_cast<size_t>(input.dtype().val()));
    for (auto extent : input.shape()) {
      kind = mix(kind, static_cast<size_t>(extent));
    }
  }
  return kind;
}

bool is_taken_for(const array& a, const array& b) {
  return a.primitive().is_equivalent(b.primitive());
}

}  // namespace

void Distinct::part(const std::vector<array>& outputs) {
  // Of each kind one node for each of the avals that results have.
  std::unordered_map<size_t, std::vector<array>> kinds;
  each_reached(outputs, {}, [&](const array& node) {
    if (!node.has_primitive() || has_data(node)) {
      return true;
    }
    auto is_fused = as<mlx::core::Compiled>(node.primitive()) != nullptr;
    auto& known = kinds[kind_of(node)];
    auto results = node.outputs();
    auto alike = std::find_if(known.begin(), known.end(), [&](const array& other) {
      return same_avals(other.outputs(), results);
    });
    if (alike != known.end() && !is_fused) {
      return true;
    }
    if (std::any_of(known.begin(), known.end(), [&](const array& other) { return is_taken_for(other, node); })) {
      auto apart = std::make_shared<Standing>(node.primitive_ptr());
      for (const auto& result : results) {
        before_.emplace_back(result, result.primitive_ptr());
        result.primitive_ptr() = apart;
      }
      return true;
    }
    known.push_back(node);
    return true;
  });
}

void Distinct::restore() {
  for (auto& [node, primitive] : before_) {
    node.primitive_ptr() = std::move(primitive);
  }
  before_.clear();
}

}  // namespace tacit
