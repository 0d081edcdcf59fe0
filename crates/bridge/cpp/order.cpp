// The order of collectives in an eval.
//
// What does not depend on each other MLX evaluates in an order that follows from where it was told to begin, such as the
// entries of a hash map, which lie in another order in each process. Ranks would meet in different collectives. So before an
// eval each collective is made to wait for the one before it: that which was made first goes first, where it can.
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "group.h"
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

}  // namespace

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
