#include "replay.h"

#include <string_view>
#include <unordered_map>

#include "bridge.h"
#include "group.h"
#include "mlx/transforms_impl.h"
#include "plan.h"

namespace tacit {

namespace {

// What does not depend on the inputs is computed once and kept, but for arrays of more bytes than these.
constexpr size_t kMostKept = 1 << 20;

// What another process sends is new in each call, whatever this one gives.
bool happens_anew(const Primitive& primitive) {
  return is_collective(primitive) ||
      std::string_view(typeid(primitive).name()).find("distributed") != std::string_view::npos;
}

}  // namespace

Replay::Replay(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  std::unordered_map<uintptr_t, Source> sources;
  for (const auto& tracer : tracers) {
    sources.emplace(tracer.id(), static_cast<Source>(values_++));
  }
  auto constant = [&](const array& value) {
    constants_.push_back(value);
    return ~static_cast<Source>(constants_.size() - 1);
  };
  struct Frame {
    const array* node;
    size_t next;
  };
  std::vector<Frame> stack;
  auto enter = [&](const array& value) {
    if (sources.contains(value.id())) {
      return;
    }
    if (value.has_primitive()) {
      stack.push_back({&value, 0});
    } else {
      sources.emplace(value.id(), constant(value));
    }
  };
  for (const auto& output : outputs) {
    enter(output);
    while (!stack.empty()) {
      auto& frame = stack.back();
      const auto& node = *frame.node;
      if (frame.next < node.inputs().size()) {
        enter(node.inputs()[frame.next++]);
        continue;
      }
      stack.pop_back();
      if (sources.contains(node.id())) {
        continue;  // reached by way of a sibling in the meantime
      }
      Step step{node.primitive_ptr(), {}, {}, {}};
      auto depends = happens_anew(node.primitive());
      collective_ |= depends;
      for (const auto& result : node.outputs()) {
        depends |= result.nbytes() > kMostKept;
      }
      for (const auto& input : node.inputs()) {
        step.operands.push_back(sources.at(input.id()));
        depends |= step.operands.back() >= 0;
      }
      for (const auto& result : node.outputs()) {
        step.shapes.push_back(result.shape());
        step.dtypes.push_back(result.dtype());
        sources.emplace(result.id(), depends ? static_cast<Source>(values_++) : constant(result));
      }
      if (depends) {
        steps_.push_back(std::move(step));
      }
    }
    outputs_.push_back(sources.at(output.id()));
  }
}

std::vector<array> Replay::operator()(const std::vector<array>& inputs) const {
  std::vector<array> values;
  values.reserve(values_);
  values.insert(values.end(), inputs.begin(), inputs.end());
  auto value = [&](Source source) { return source < 0 ? constants_[~source] : values[source]; };
  for (const auto& step : steps_) {
    std::vector<array> operands;
    operands.reserve(step.operands.size());
    for (auto source : step.operands) {
      operands.push_back(value(source));
    }
    auto primitive = with_residents(step.primitive, operands);
    if (step.shapes.size() == 1) {
      values.emplace_back(step.shapes[0], step.dtypes[0], std::move(primitive), std::move(operands));
    } else {
      for (auto& result : array::make_arrays(step.shapes, step.dtypes, primitive, operands)) {
        values.push_back(std::move(result));
      }
    }
  }
  std::vector<array> results;
  results.reserve(outputs_.size());
  for (auto source : outputs_) {
    results.push_back(value(source));
  }
  if (collective_) {
    number_anew(inputs, results);
  }
  return results;
}

Traced trace(const Function& function, const std::vector<array>& inputs) {
  Traced traced;
  for (const auto& input : inputs) {
    array tracer(input.shape(), input.dtype(), nullptr, {});
    tracer.set_tracer(true);
    traced.tracers.push_back(std::move(tracer));
  }
  // MLX exports no way to say that a trace is going on, but a vmap over nothing is one.
  auto body = [&](const std::vector<array>&) { return apply_function(function, traced.tracers); };
  traced.outputs = mlx::core::detail::vmap_trace(body, {}, {}).second;
  return traced;
}

}  // namespace tacit
