// What a vjp reads of a forward pass, and what is held in its place.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "description.h"
#include "graph.h"
#include "names.h"
#include "params.h"
#include "waiting.h"

namespace tacit {

namespace {

// What Rust says of a primitive by the table: its vjp reads nothing; it gives the elements of its operand in another place,
// shape or dtype; its vjp divides by something of what it reads.
constexpr uint8_t kLinear = 1, kView = 2, kDivides = 4;

struct Form {
  // Takes an array, and the cotangents before which nothing is decoded; gives the decoded array, then its codes.
  ArrayFunction hold;
  uint8_t (*kind)(uint32_t name);

  uint8_t kind_of(const array& node) const {
    return node.has_primitive() ? kind(name_id(node.primitive().name())) : 0;
  }
};

bool is_float(const array& value) {
  return mlx::core::issubdtype(value.dtype(), mlx::core::floating);
}

// Passes its first operand on once the others are there.
class Gate : public tacit::Waiting {
 public:
  explicit Gate(std::shared_ptr<Primitive> inner) : tacit::Waiting(std::move(inner), 1, Wait::tasks) {}

  // The description of what stands for its operand in gradients. That depends on cotangents, and these on what the gate has
  // passed on, so that a gate must not hold it; what reads it does.
  std::weak_ptr<void> decoded;
};

Gate* gate_of(const array& value) {
  return value.has_primitive() ? dynamic_cast<Gate*>(&value.primitive()) : nullptr;
}

array gated(const array& value) {
  auto gate = mlx::core::depends({value}, {})[0];
  gate.primitive_ptr() = std::make_shared<Gate>(gate.primitive_ptr());
  return gate;
}

// Has `gate` wait for what is held. No cotangent goes that way.
void keep(array gate, const array& value) {
  gate.inputs().push_back(mlx::core::stop_gradient(value));
}

// What stands for the array of `gate` in gradients: decoded once, whoever reads it. A view has no codes of its own: it is the
// view of what stands for its operand.
array decoded(const Form& form, const array& gate, const std::vector<array>& cotangents) {
  auto is_view = [&](const array& raw) {
    return (form.kind_of(raw) & kView) != 0 && raw.inputs().size() == 1 && raw.siblings().empty() &&
           gate_of(raw.inputs()[0]) != nullptr && raw.inputs()[0].size() <= raw.size();
  };
  std::vector<array> chain{gate};
  while (gate_of(chain.back())->decoded.expired() && is_view(chain.back().inputs()[0])) {
    chain.push_back(chain.back().inputs()[0].inputs()[0]);
  }
  auto value = chain.back();
  if (auto known = gate_of(value)->decoded.lock()) {
    value = described(value, known);
  } else {
    std::vector<array> args{value.inputs()[0]};
    args.insert(args.end(), cotangents.begin(), cotangents.end());
    auto arrays = form.hold(args);
    std::for_each(arrays.begin() + 1, arrays.end(), [&](const array& code) { keep(chain.back(), code); });
    value = arrays.at(0);
  }
  gate_of(chain.back())->decoded = description(value);
  for (auto view = chain.rbegin() + 1; view != chain.rend(); ++view) {
    value = emit_again(view->inputs()[0], value);
    gate_of(*view)->decoded = description(value);
  }
  return value;
}

// An array without data in the place of one that a vjp may read.
struct StandIn {
  array value;
  array gate;
  bool read;
  bool awaited;
};

// The gradients of one primitive while what they read is found out.
class Reading {
 public:
  explicit Reading(const Form& form) : form_(form) {}

  array stand_in(const array& gate) {
    for (const auto& known : stand_ins_) {
      if (known.gate.id() == gate.id()) {
        return known.value;
      }
    }
    array value(gate.shape(), gate.dtype(), nullptr, {});
    value.set_tracer(gate.is_tracer());
    stand_ins_.push_back({value, gate, false, false});
    return value;
  }

  // `others` are what the vjp was given besides cotangents and stand-ins. Whole numbers are computed before `result` opens, the
  // gate of a result: nothing that a vjp reads depends on it. Without one they are decoded like everything else.
  void resolve(
      const std::vector<array>& gradients, const std::vector<array>& cotangents, const std::vector<array>& others,
      const std::optional<array>& result) {
    if (stand_ins_.empty()) {
      return;
    }
    if (result) {
      hold_whole_numbers(gradients, cotangents, others, *result);
    }
    auto bounds = others;
    bounds.insert(bounds.end(), cotangents.begin(), cotangents.end());
    bounds.insert(bounds.end(), whole_.begin(), whole_.end());
    find_read(gradients, bounds);
    for (auto& one : stand_ins_) {
      if (one.read) {
        become(one.value, decoded(form_, one.gate, cotangents));
        gate_of(one.gate)->decoded = description(one.value);
      } else if (one.awaited) {
        auto nothing = mlx::core::broadcast_to(array(0.0f, one.value.dtype()), one.value.shape());
        become(one.value, after({nothing}, cotangents)[0]);
      }
    }
  }

 private:
  static constexpr uint8_t kOfStandIns = 1, kOfCotangents = 2;

  const StandIn* find(const array& value) const {
    auto found = std::find_if(stand_ins_.begin(), stand_ins_.end(), [&](const StandIn& one) {
      return one.value.id() == value.id();
    });
    return found == stand_ins_.end() ? nullptr : &*found;
  }

  // Finds the nodes that depend on stand-ins and on no cotangent, and are whole numbers: these are computed forward.
  void hold_whole_numbers(
      const std::vector<array>& gradients, const std::vector<array>& cotangents, const std::vector<array>& others,
      const array& result) {
    std::unordered_map<uintptr_t, uint8_t> from;
    for (const auto& other : others) {
      from[other.id()] = 0;
    }
    for (const auto& cotangent : cotangents) {
      from[cotangent.id()] = kOfCotangents;
    }
    for (const auto& one : stand_ins_) {
      from[one.value.id()] = kOfStandIns;
    }
    auto enters = [&](const array& value) { return !from.contains(value.id()); };
    each_operand_first(gradients, enters, [&](array& node) {
      uint8_t sources = 0;
      for (const auto& input : node.inputs()) {
        sources |= from[input.id()];
      }
      auto is_whole = !is_inexact(node) || made_by<mlx::core::Sign>(node) != nullptr;
      if (sources == kOfStandIns && is_whole && node.siblings().empty() && hold_whole(node, from, result)) {
        whole_.push_back(node);
        sources = 0;
      }
      from[node.id()] = sources;
    });
  }

  // Computes a node that depends on stand-ins of what they stand for.
  bool hold_whole(array& node, std::unordered_map<uintptr_t, uint8_t>& from, const array& result) {
    std::unordered_map<uintptr_t, array> forward;
    auto enters = [&](const array& value) {
      if (const auto* one = find(value)) {
        forward.emplace(value.id(), one->gate.inputs()[0]);
      } else if (value.id() != node.id() && (from[value.id()] & kOfStandIns) == 0) {
        forward.emplace(value.id(), value);
      }
      return !forward.contains(value.id());
    };
    auto alone = true;
    each_operand_first({node}, enters, [&](array& member) {
      alone &= member.siblings().empty();
      std::vector<array> inputs;
      for (const auto& input : member.inputs()) {
        inputs.push_back(forward.at(input.id()));
      }
      forward.emplace(member.id(), array(member.shape(), member.dtype(), member.primitive_ptr(), std::move(inputs)));
    });
    if (!alone) {
      return false;
    }
    auto value = forward.at(node.id());
    if (is_float(node)) {
      // The signs, which are three numbers.
      value = mlx::core::astype(value, mlx::core::int8);
      keep(result, value);
      become(node, mlx::core::astype(value, node.dtype()));
      return true;
    }
    become(node, value);
    keep(result, node);
    return true;
  }

  void find_read(const std::vector<array>& gradients, const std::vector<array>& bounds) {
    auto meet = [&](const array& value, bool awaited) {
      if (const auto* found = find(value)) {
        auto& one = stand_ins_[found - stand_ins_.data()];
        (awaited ? one.awaited : one.read) = true;
      }
    };
    for (const auto& gradient : gradients) {
      meet(gradient, false);
    }
    each_reached(gradients, bounds, [&](const array& node) {
      auto waits = node.has_primitive() && std::strcmp(node.primitive().name(), "Depends") == 0;
      auto passed = waits ? node.siblings().size() + 1 : node.inputs().size();
      for (size_t i = 0; i < node.inputs().size(); ++i) {
        meet(node.inputs()[i], i >= passed);
      }
      return true;
    });
  }

  const Form& form_;
  std::vector<StandIn> stand_ins_;
  std::vector<array> whole_;
};

}  // namespace
}  // namespace tacit
