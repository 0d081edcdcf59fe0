// The order of collectives in an eval.
//
// What does not depend on each other MLX evaluates in an order that follows from where it was told to begin, such as the
// entries of a hash map, which lie in another order in each process. Ranks would meet in different collectives. So before an
// eval each collective is made to wait for the one before it: that which was made first goes first, where it can.
//
// MLX's compile builds a recorded graph again at each call, of the same primitives. Two calls that are evaluated together
// would have one number for two collectives, and each rank would take another one first: so each call gets numbers of its own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <queue>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "door.h"
#include "graph.h"
#include "group.h"
#include "mlx/compile_impl.h"
#include "mlx/ops.h"

namespace tacit {

namespace {

struct Waiting {
  array value;
  size_t inputs = 0;
  std::vector<size_t> used_by;
};

// The nodes that an eval computes, by any of their results.
class Nodes {
 public:
  explicit Nodes(const std::vector<array>& outputs) {
    std::vector<array> stack(outputs);
    while (!stack.empty()) {
      auto value = std::move(stack.back());
      stack.pop_back();
      if (!is_computed(value) || places_.contains(value.id())) {
        continue;
      }
      collectives += collective_number(value.primitive()).has_value();
      auto place = nodes.size();
      for (const auto& result : value.outputs()) {
        places_.emplace(result.id(), place);
      }
      for (const auto& input : value.inputs()) {
        stack.push_back(input);
      }
      nodes.push_back({std::move(value), 0, {}});
    }
  }

  // Notes who waits for whom.
  void link() {
    for (size_t place = 0; place < nodes.size(); ++place) {
      for (const auto& input : nodes[place].value.inputs()) {
        if (auto found = places_.find(input.id()); found != places_.end()) {
          nodes[found->second].used_by.push_back(place);
          ++nodes[place].inputs;
        }
      }
    }
  }

  std::vector<Waiting> nodes;
  size_t collectives = 0;

 private:
  static bool is_computed(const array& value) {
    return value.status() == array::Status::unscheduled && value.has_primitive();
  }

  std::unordered_map<std::uintptr_t, size_t> places_;
};

// Not zero where a test wants ranks to differ.
std::atomic<uint64_t> disturbance{0};

// The next of a sequence of numbers by chance (splitmix64), by whose start ranks differ.
uint64_t by_chance() {
  auto mixed = disturbance.fetch_add(0x9E3779B97F4A7C15ull);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return mixed ^ (mixed >> 31);
}

}  // namespace

std::vector<array> disturbed(std::vector<array> outputs) {
  if (disturbance == 0) {
    return outputs;
  }
  for (auto count = outputs.size(); count > 1; --count) {
    std::swap(outputs[count - 1], outputs[by_chance() % count]);
  }
  if (auto wait = by_chance(); wait % 8 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(wait / 8 % 2000));
  }
  return outputs;
}

bool any_collective(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  auto found = false;
  each_reached(outputs, inputs, [&](const array& value) {
    found = value.has_primitive() && collective_number(value.primitive()).has_value();
    return !found;
  });
  return found;
}

bool comes_of_collective(const array& value) {
  return Group::any() && any_collective({}, {value});
}

void number_anew(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  std::vector<std::pair<uint64_t, array>> collectives;
  each_reached(outputs, inputs, [&](const array& value) {
    if (value.has_primitive()) {
      if (auto number = collective_number(value.primitive())) {
        collectives.emplace_back(*number, value);
      }
    }
    return true;
  });
  std::stable_sort(
      collectives.begin(), collectives.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [number, value] : collectives) {
    value.primitive_ptr() = of_another_call(value.primitive_ptr());
  }
}

void miss_collectives(const std::vector<array>& outputs) {
  if (!Group::any()) {
    return;
  }
  std::vector<array> unscheduled;
  auto traced = false;
  each_reached(outputs, {}, [&](const array& value) {
    if (value.status() == array::Status::unscheduled) {
      if (!value.has_primitive()) {
        // Such an eval, as of one that prints a traced array, asks for what no rank computes.
        traced = true;
      } else if (collective_number(value.primitive())) {
        unscheduled.push_back(value);
      }
    }
    return !traced;
  });
  if (!traced) {
    for (const auto& value : unscheduled) {
      miss(value.primitive());
    }
  }
}

void order_collectives(const std::vector<array>& outputs) {
  if (!Group::any()) {
    return;
  }
  Nodes found(outputs);
  if (found.collectives < 2) {
    return;
  }
  found.link();
  auto& nodes = found.nodes;
  std::vector<size_t> ready;
  // The collective that was made first is the greatest.
  std::priority_queue<std::pair<uint64_t, size_t>, std::vector<std::pair<uint64_t, size_t>>, std::greater<>> collectives;
  auto release = [&](size_t place) {
    if (auto number = collective_number(nodes[place].value.primitive())) {
      collectives.emplace(*number, place);
    } else {
      ready.push_back(place);
    }
  };
  for (size_t place = 0; place < nodes.size(); ++place) {
    if (nodes[place].inputs == 0) {
      release(place);
    }
  }
  std::optional<array> last;
  while (!ready.empty() || !collectives.empty()) {
    size_t place;
    if (!ready.empty()) {
      place = ready.back();
      ready.pop_back();
    } else {
      place = collectives.top().second;
      collectives.pop();
      auto& value = nodes[place].value;
      if (last) {
        // On the stream of the collectives, and no way for a gradient.
        value.inputs().push_back(mlx::core::stop_gradient(*last, value.primitive().stream()));
      }
      last = value;
    }
    for (auto user : nodes[place].used_by) {
      if (--nodes[user].inputs == 0) {
        release(user);
      }
    }
  }
}

}  // namespace tacit

extern "C" {

// For tests of ranks: from now on evals of this process begin where chance says, and some come late. 0 ends that.
void tacit_disturb(uint64_t seed) {
  tacit::disturbance = seed;
}
}

#ifdef TACIT_DOORS

// Through this door goes what mlx-rs compiles, and MLX itself: see poisoned.cpp.
namespace mlx::core::detail {

tacit::ArrayFunction compile(
    tacit::ArrayFunction fun, std::uintptr_t fun_id, bool shapeless, std::vector<uint64_t> constants) {
  using Signature = tacit::ArrayFunction(tacit::ArrayFunction, std::uintptr_t, bool, std::vector<uint64_t>);
  static auto* const original = tacit::next<Signature>(TACIT_MANGLED(
      "_ZN3mlx4core6detail7compileESt8functionIFSt6vectorINS0_5arrayESaIS4_EERKS6_EEmbS3_ImSaImEE",
      "_ZN3mlx4core6detail7compileENSt3__18functionIFNS2_6vectorINS0_5arrayENS2_9allocatorIS5_EEEERKS8_EEEmbNS4_IyNS6_"
      "IyEEEE"));
  auto compiled = original(std::move(fun), fun_id, shapeless, std::move(constants));
  return [compiled = std::move(compiled)](const std::vector<array>& inputs) {
    auto outputs = compiled(inputs);
    if (tacit::Group::any()) {
      tacit::number_anew(inputs, outputs);
    }
    return outputs;
  };
}

}  // namespace mlx::core::detail

#endif
