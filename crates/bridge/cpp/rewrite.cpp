// What rewriting a recorded graph asks of it: equal nodes, scalars that are known, and where nodes run.
#include <unordered_map>
#include <unordered_set>

#include "graph.h"
#include "group.h"
#include "params.h"

namespace tacit {

namespace {

// The bits of a constant of one element; nothing for any other array. One that is still computed is waited for, so that a
// graph does not depend on when it was traced.
std::optional<uint64_t> scalar_bits(const array& value) {
  if (value.has_primitive() || value.size() != 1 || value.itemsize() > sizeof(uint64_t) || !has_readable_data(value)) {
    return std::nullopt;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, value.data<char>(), value.itemsize());
  return bits;
}

std::optional<double> scalar_value(const array& value) {
  if (!scalar_bits(value)) {
    return std::nullopt;
  }
  switch (value.dtype().val()) {
    case Dtype::Val::bool_:
      return *value.data<bool>() ? 1 : 0;
    case Dtype::Val::int32:
      return *value.data<int32_t>();
    case Dtype::Val::uint32:
      return *value.data<uint32_t>();
    case Dtype::Val::float32:
      return *value.data<float>();
    case Dtype::Val::float16:
      return static_cast<float>(*value.data<mlx::core::float16_t>());
    case Dtype::Val::bfloat16:
      return static_cast<float>(*value.data<mlx::core::bfloat16_t>());
    default:
      return std::nullopt;
  }
}

// What happens between machines happens each time, in MLX's collectives as in ours.
bool may_merge(const Primitive& primitive) {
  return !collective_number(primitive) &&
         std::string_view(typeid(primitive).name()).find("distributed") == std::string_view::npos;
}

// Points what depends on `inputs` to one of several equal nodes, in a graph of which nobody else holds anything that
// depends on them. What does not depend on them is compared as well, but stays as it is.
class Cse {
 public:
  Cse(const std::vector<array>& inputs) {
    for (const auto& input : inputs) {
      same_.emplace(input.id(), input);
      depends_.insert(input.id());
    }
  }

  array operator()(const array& root) {
    auto enters = [&](const array& value) { return !same_.contains(value.id()); };
    each_operand_first({root}, enters, [&](array& node) { close(node); });
    return same_.at(root.id());
  }

  size_t removed() const {
    return removed_;
  }

 private:
  void close(array& node) {
    if (!node.has_primitive()) {
      leaf(node);
      return;
    }
    auto depends = false;
    auto moved = false;
    auto& from = node.inputs();
    for (size_t i = 0; i < from.size(); ++i) {
      const auto& same = same_.at(from[i].id());
      depends |= depends_.contains(same.id());
      moved |= same.id() != from[i].id();
    }
    auto results = node.outputs();
    if (depends) {
      for (auto& result : results) {
        depends_.insert(result.id());
        for (size_t i = 0; moved && i < result.inputs().size(); ++i) {
          array same = same_.at(result.inputs()[i].id());
          std::swap(result.inputs()[i], same);
        }
      }
    }
    const auto& primitive = node.primitive();
    size_t hash = std::hash<std::string_view>()(typeid(primitive).name());
    // With its parameters, or all slices of one array would be compared with each other.
    params_.clear();
    if (tacit_write_params(node.primitive(), params_)) {
      const auto& bytes = params_.bytes();
      hash = mix(hash, std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    for (const auto& input : node.inputs()) {
      hash = mix(hash, same_.at(input.id()).id());
    }
    auto [first, last] = known_.equal_range(hash);
    for (; first != last; ++first) {
      if (equal(first->second, node)) {
        auto outputs = first->second.outputs();
        for (size_t i = 0; i < results.size(); ++i) {
          same_.emplace(results[i].id(), outputs[i]);
        }
        removed_ += depends;
        // Whoever asks by the address of what is dropped must not meet another array there.
        dropped_.push_back(node);
        return;
      }
    }
    for (auto& result : results) {
      same_.emplace(result.id(), result);
    }
    if (may_merge(node.primitive())) {
      known_.emplace(hash, node);
    }
  }

  void leaf(const array& value) {
    if (auto bits = scalar_bits(value)) {
      auto hash = mix(static_cast<size_t>(value.dtype().val()), *bits);
      auto [first, last] = scalars_.equal_range(hash);
      for (; first != last; ++first) {
        const auto& other = first->second;
        if (other.dtype() == value.dtype() && other.shape() == value.shape() && scalar_bits(other) == bits) {
          same_.emplace(value.id(), other);
          dropped_.push_back(value);
          return;
        }
      }
      scalars_.emplace(hash, value);
    }
    same_.emplace(value.id(), value);
  }

  bool equal(array& known, array& node) {
    const auto& from = known.inputs();
    const auto& to = node.inputs();
    if (from.size() != to.size() || known.siblings().size() != node.siblings().size() ||
        known.primitive().stream() != node.primitive().stream()) {
      return false;
    }
    for (size_t i = 0; i < from.size(); ++i) {
      if (same_.at(from[i].id()).id() != same_.at(to[i].id()).id()) {
        return false;
      }
    }
    auto results = known.outputs();
    auto others = node.outputs();
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].shape() != others[i].shape() || results[i].dtype() != others[i].dtype()) {
        return false;
      }
    }
    return same_primitive(known.primitive(), node.primitive());
  }

  std::unordered_map<uintptr_t, array> same_;
  std::unordered_set<uintptr_t> depends_;
  std::unordered_multimap<size_t, array> known_;
  std::unordered_multimap<size_t, array> scalars_;
  std::vector<array> dropped_;
  ParamWriter params_;
  size_t removed_ = 0;
};

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// Gives the outputs, each the one that is left of equal ones, and the number of nodes that gave way to one of them.
int tacit_cse(Arrays outputs, Arrays inputs, Sink sink, size_t* removed) {
  return guarded([&] {
    Cse cse(gather(inputs));
    auto roots = gather(outputs);
    for (auto& root : roots) {
      root = cse(root);
    }
    pour(roots, sink);
    *removed = cse.removed();
  });
}

int tacit_comes_of_collective(Handle handle, bool* comes) {
  return guarded([&] { *comes = comes_of_collective(get(handle)); });
}

int tacit_scalar_value(Handle handle, double* value, bool* known) {
  return guarded([&] {
    auto number = scalar_value(get(handle));
    *known = number.has_value();
    *value = number.value_or(0);
  });
}

// Whether what makes the array runs on a CPU stream, which is `chosen`, or the default one where that is empty.
int tacit_runs_on(Handle handle, Handle chosen, bool* runs) {
  return guarded([&] {
    const auto& value = get(handle);
    auto stream = stream_or_default(chosen);
    *runs = value.has_primitive() && stream.device == mlx::core::Device::cpu && value.primitive().stream() == stream;
  });
}
}
