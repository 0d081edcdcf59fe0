#include "replay.h"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <unordered_map>

#include "bridge.h"
#include "graph.h"
#include "group.h"
#include "mlx/transforms_impl.h"
#include "plan.h"
#include "poisoned.h"

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

uint64_t Replay::next_number() {
  static std::atomic<uint64_t> numbers{0};
  return numbers.fetch_add(1, std::memory_order_relaxed);
}

Replay::Replay(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  std::unordered_map<uintptr_t, Source> sources;
  for (const auto& tracer : tracers) {
    sources.emplace(tracer.id(), static_cast<Source>(values_++));
  }
  inputs_ = values_;
  auto constant = [&](const array& value) {
    constants_.push_back(value);
    return ~static_cast<Source>(constants_.size() - 1);
  };
  auto enters = [&](const array& value) { return !sources.contains(value.id()); };
  each_operand_first(outputs, enters, [&](array& node) {
    if (!node.has_primitive()) {
      sources.emplace(node.id(), constant(node));
      return;
    }
    Step step{node.primitive_ptr(), {}, {}, {}};
    auto depends = happens_anew(node.primitive());
    collective_ |= depends;
    for (const auto& result : node.outputs()) {
      // A plan gives each of its results once: that which was captured is kept with the plan.
      depends |= result.nbytes() > kMostKept && !is_planned(result);
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
  });
  for (const auto& output : outputs) {
    outputs_.push_back(sources.at(output.id()));
  }
}

std::vector<array> Replay::operator()(
    const std::vector<array>& others, const std::vector<const Known*>& known) const {
  std::vector<const array*> inputs;
  inputs.reserve(inputs_);
  auto other = others.begin();
  auto add_others = [&](size_t end) {
    while (inputs.size() < end) {
      inputs.push_back(&*other++);
    }
  };
  for (const auto* some : known) {
    add_others(some->first);
    for (const auto& input : some->arrays) {
      inputs.push_back(&input);
    }
  }
  add_others(inputs_);
  std::vector<array> computed;
  computed.reserve(values_ - inputs_);
  auto value = [&](Source source) -> const array& {
    if (source < 0) {
      return constants_[~source];
    }
    auto number = static_cast<size_t>(source);
    return number < inputs_ ? *inputs[number] : computed[number - inputs_];
  };
  auto resides = nothing_poisoned();
  for (size_t number = 0; number < steps_.size(); ++number) {
    const auto& step = steps_[number];
    std::vector<Residents> residents;
    std::vector<std::vector<Resident>::const_iterator> next;
    for (const auto* some : known) {
      if (const auto& of_step = some->residents[number]; resides && of_step != nullptr) {
        residents.push_back(of_step);
        next.push_back(of_step->begin());
      }
    }
    auto resident = [&](size_t place) {
      for (size_t i = 0; i < next.size(); ++i) {
        if (next[i] != residents[i]->end() && next[i]->place == place) {
          ++next[i];
          return true;
        }
      }
      return false;
    };
    std::vector<array> operands;
    operands.reserve(residents.empty() ? step.operands.size() : 0);
    for (size_t place = 0; place < step.operands.size(); ++place) {
      if (!resident(place)) {
        operands.push_back(value(step.operands[place]));
      }
    }
    auto primitive = residents.empty() ? with_residents(step.primitive, operands)
                                       : with_known(*step.primitive, std::move(residents));
    if (step.shapes.size() == 1) {
      computed.emplace_back(step.shapes[0], step.dtypes[0], std::move(primitive), std::move(operands));
    } else {
      for (auto& result : array::make_arrays(step.shapes, step.dtypes, primitive, operands)) {
        computed.push_back(std::move(result));
      }
    }
  }
  std::vector<array> results;
  results.reserve(outputs_.size());
  for (auto source : outputs_) {
    results.push_back(value(source));
  }
  if (collective_) {
    number_anew(others, results);
  }
  return results;
}

std::unique_ptr<Known> Replay::know(size_t first, std::vector<array> arrays) const {
  auto is_there = [](const array& value) { return value.is_available() && !value.is_tracer(); };
  // What comes of a collective is told apart by the inputs of a call.
  if (collective_ || !std::all_of(arrays.begin(), arrays.end(), is_there)) {
    return nullptr;
  }
  auto known = std::make_unique<Known>(Known{number_, first, std::move(arrays), {}});
  for (const auto& step : steps_) {
    std::vector<Resident> residents;
    for (size_t place = 0; place < step.operands.size(); ++place) {
      auto source = step.operands[place];
      auto number = static_cast<size_t>(source);
      if (source < 0 || number < first || number >= known->end()) {
        continue;
      }
      const auto& value = known->arrays[number - first];
      if (may_be_resident(*step.primitive, place, value)) {
        residents.emplace_back(place, value);
      }
    }
    known->residents.push_back(
        residents.empty() ? nullptr : std::make_shared<const std::vector<Resident>>(std::move(residents)));
  }
  return known;
}

Traced trace(const Function& function, const std::vector<array>& inputs) {
  Traced traced;
  for (const auto& input : inputs) {
    array tracer(input.shape(), input.dtype(), nullptr, {});
    tracer.set_tracer(true);
    traced.tracers.push_back(std::move(tracer));
  }
  // MLX exports no way to say that a trace is going on, but a vmap over nothing is one.
  auto body = [&](const std::vector<array>&) { return function(traced.tracers); };
  traced.outputs = mlx::core::detail::vmap_trace(body, {}, {}).second;
  return traced;
}

}  // namespace tacit
