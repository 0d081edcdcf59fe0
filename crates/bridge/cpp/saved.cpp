// What the vjps of a part of a graph read of its forward pass, held in another form between the two passes.
//
// The function that was recorded stays the graph that it is. Each float array of it gets a gate, a node that passes it on to
// all that read it, and each primitive whose vjp may read something is told to ask for it here. MLX then differentiates as
// ever. A vjp is given arrays without data for its operands and results; what of these its gradients turn out to depend on
// is held: its codes are made before the gate opens, and the array without data becomes what is decoded of them, no earlier
// than there are cotangents. So nothing is held that no gradient reads, and no list of primitives says what that is. Arrays of
// which a vjp divides by something stay as they are, for all that read them: small numbers become 0 in codes.
//
// What the gradients depend on by way of whole numbers alone, such as the mask of a maximum, is computed in the forward pass,
// and is exact.
#include <atomic>
#include <memory>

#include "function.h"
#include "marks.h"
#include "reading.h"

namespace tacit {

namespace {

// Whether anybody ever saved, so that who never does so pays nothing.
std::atomic<bool> any_saving{false};

// A primitive whose vjp reads what is held.
class Saving : public Standing {
 public:
  Saving(std::shared_ptr<Primitive> inner, std::shared_ptr<const Form> form)
      : Standing(std::move(inner)), form_(std::move(form)) {
    any_saving.store(true, std::memory_order_relaxed);
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<int>& argnums,
      const std::vector<array>& outputs) override {
    // Who differentiates looks at this node no more, and others look for the primitive itself: it goes back to its place.
    auto alive = outputs.at(0).primitive_ptr();
    Reading reading(*form_);
    // What a vjp calls again, such as a checkpoint, has whole numbers of its own.
    auto calls = std::strcmp(inner_->name(), "CustomTransforms") == 0;
    std::optional<array> result;
    auto stand_in_primals = primals;
    auto stand_in_outputs = outputs;
    std::vector<array> others;
    for (auto& primal : stand_in_primals) {
      if (gate_of(primal) != nullptr) {
        primal = reading.stand_in(primal);
      } else {
        others.push_back(primal);
      }
    }
    for (size_t i = 0; i < stand_in_outputs.size(); ++i) {
      if (auto gate = gates_.at(i).lock()) {
        auto of_result = described(stand_in_outputs[i], gate);
        stand_in_outputs[i] = reading.stand_in(of_result);
        if (!calls) {
          result = of_result;
        }
      } else {
        others.push_back(stand_in_outputs[i]);
      }
    }
    auto gradients = inner_->vjp(stand_in_primals, cotangents, argnums, stand_in_outputs);
    reading.resolve(gradients, cotangents, others, result);
    for (auto output : outputs) {
      output.primitive_ptr() = inner_;
    }
    return gradients;
  }

  // The descriptions of its results' gates. A gate holds its operand, so that this must not hold the gate.
  std::vector<std::weak_ptr<void>> gates_;

 private:
  std::shared_ptr<const Form> form_;
};

bool is_saving(const array& node) {
  return dynamic_cast<Saving*>(&node.primitive()) != nullptr;
}

// The ends of a part of a graph.
struct Ends {
  std::vector<array> inputs;
  std::vector<array> outputs;
  // Results of other parts, behind which nothing is of this one.
  std::vector<array> beyond;
};

// The gates by what they pass on: one for each array, however many parts read it.
using Gates = std::unordered_map<uintptr_t, array>;

void save(const std::shared_ptr<const Form>& form, const Ends& ends, Gates& gates) {
  auto inside = ids_of(ends.inputs);
  // What has no gate.
  std::unordered_set<uintptr_t> plain;
  auto through = [&](const array& value) {
    if (!inside.contains(value.id()) || plain.contains(value.id()) || !is_float(value) || gate_of(value) != nullptr) {
      return value;
    }
    auto gate = gates.find(value.id());
    return (gate == gates.end() ? gates.emplace(value.id(), gated(value)).first : gate)->second;
  };
  std::vector<array> nodes;
  auto collect = [&](const array& node) {
    if (inside.contains(node.id())) {
      return;
    }
    nodes.push_back(node);
    auto divides = (form->kind_of(node) & kDivides) != 0;
    for (const auto& result : node.outputs()) {
      inside.insert(result.id());
      if (divides) {
        plain.insert(result.id());
      }
    }
    if (divides) {
      for (const auto& operand : node.inputs()) {
        plain.insert(operand.id());
      }
    }
  };
  each_dependent(ends.inputs, ends.outputs, collect, ends.beyond);
  std::vector<std::pair<array, std::shared_ptr<Saving>>> saving;
  for (const auto& node : nodes) {
    // What is saved in a form already stays in that form.
    if (gate_of(node) != nullptr) {
      continue;
    }
    auto results = node.outputs();
    std::vector<array> operands;
    for (const auto& operand : node.inputs()) {
      operands.push_back(through(operand));
    }
    for (auto& result : results) {
      result.inputs() = operands;
    }
    auto reads_no_codes =
        (form->kind_of(node) & (kLinear | kDivides)) != 0 || made_by<mlx::core::StopGradient>(node) != nullptr;
    if (!is_saving(node) && !reads_no_codes && std::any_of(results.begin(), results.end(), is_float)) {
      auto primitive = std::make_shared<Saving>(node.primitive_ptr(), form);
      for (auto& result : results) {
        result.primitive_ptr() = primitive;
      }
      saving.emplace_back(node, primitive);
    }
  }
  for (auto& [node, primitive] : saving) {
    for (const auto& result : node.outputs()) {
      auto gate = gates.find(result.id());
      primitive->gates_.push_back(gate == gates.end() ? std::weak_ptr<void>() : description(gate->second));
    }
  }
}

// Puts the primitive of a node that is told to save back into its place.
void forget_saving(array& node) {
  if (auto* saving = dynamic_cast<Saving*>(&node.primitive())) {
    auto inner = saving->inner();
    for (auto result : node.outputs()) {
      result.primitive_ptr() = inner;
    }
  }
}

// Takes out of a graph that nothing differentiates any more what only a vjp would ask for.
void settle(const std::vector<array>& outputs) {
  if (!any_saving.load(std::memory_order_relaxed)) {
    return;
  }
  std::vector<array> nodes;
  each_reached(outputs, {}, [&](const array& value) {
    if (value.has_primitive()) {
      nodes.push_back(value);
    }
    return true;
  });
  for (auto& node : nodes) {
    forget_saving(node);
    for (auto& input : node.inputs()) {
      while (gate_of(input) != nullptr && input.inputs().size() == 1) {
        input = array(input.inputs()[0]);
      }
    }
  }
  forget_traced();
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// The ends of a part as Rust gives them.
struct EndsView {
  Arrays inputs;
  Arrays outputs;
  Arrays beyond;
};

// Takes `function` over in every case.
int tacit_saved(
    FunctionTable table, void* function, uint8_t (*kind)(uint32_t name), Span<EndsView> parts) {
  return guarded([&] {
    auto hold = forward_of(std::make_shared<RustFunction>(table, function));
    auto form = std::make_shared<const Form>(Form{std::move(hold), kind});
    Gates gates;
    for (const auto& part : parts) {
      save(form, {gather(part.inputs), gather(part.outputs), gather(part.beyond)}, gates);
    }
    forget_traced();
  });
}

int tacit_settle(Arrays outputs) {
  return guarded([&] { settle(gather(outputs)); });
}

int tacit_apart(Arrays values, Sink results) {
  return guarded([&] { pour(apart(gather(values)), results); });
}

int tacit_after(Arrays values, Arrays before, Sink results) {
  return guarded([&] { pour(after(gather(values), gather(before)), results); });
}
}
