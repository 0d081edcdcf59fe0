// Whether two recorded graphs are the same program.
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "graph.h"
#include "params.h"

namespace tacit {

namespace {

// Constants with more elements are equal only if they are the same array.
constexpr size_t kCompared = 4096;

enum Reason : int { kInput = 1, kPrimitive, kOperands, kResult, kParameters, kConstant };

struct Difference {
  Reason reason;
  array a;
  array b;
};

bool same_constant(const array& a, const array& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape() || a.size() > kCompared) {
    return false;
  }
  auto readable = [](const array& value) {
    return has_readable_data(value) && value.flags().row_contiguous;
  };
  return readable(a) && readable(b) && std::memcmp(a.data<char>(), b.data<char>(), a.nbytes()) == 0;
}

class Comparison {
 public:
  Comparison(const std::vector<array>& a_inputs, const std::vector<array>& b_inputs) {
    for (size_t i = 0; i < a_inputs.size(); ++i) {
      a_inputs_.emplace(a_inputs[i].id(), i);
    }
    for (size_t i = 0; i < b_inputs.size(); ++i) {
      b_inputs_.emplace(b_inputs[i].id(), i);
    }
  }

  // Of the differences that it meets, one whose operands do not differ: the cause rather than a consequence.
  std::optional<Difference> walk(const std::vector<array>& a_outputs, const std::vector<array>& b_outputs) {
    for (size_t i = 0; i < a_outputs.size(); ++i) {
      enter(a_outputs[i], b_outputs[i]);
      while (!stack_.empty()) {
        auto& frame = stack_.back();
        if (frame.next < frame.operands) {
          auto operand = frame.next++;
          enter(frame.a->inputs()[operand], frame.b->inputs()[operand]);
          continue;
        }
        if (auto reason = frame.reason) {
          return Difference{*reason, *frame.a, *frame.b};
        }
        stack_.pop_back();
      }
    }
    return std::nullopt;
  }

 private:
  struct Frame {
    const array* a;
    const array* b;
    size_t next;
    size_t operands;
    std::optional<Reason> reason;
  };

  struct Pair {
    uintptr_t a, b;
    bool operator==(const Pair&) const = default;
  };

  struct Hash {
    size_t operator()(const Pair& pair) const {
      return pair.a * 0x9E3779B97F4A7C15ull ^ pair.b;
    }
  };

  void enter(const array& a, const array& b) {
    if (!seen_.insert({a.id(), b.id()}).second) {
      return;
    }
    auto a_input = a_inputs_.find(a.id());
    auto b_input = b_inputs_.find(b.id());
    auto a_is_input = a_input != a_inputs_.end();
    auto b_is_input = b_input != b_inputs_.end();
    if (a_is_input || b_is_input) {
      if (!a_is_input || !b_is_input || a_input->second != b_input->second) {
        stack_.push_back({&a, &b, 0, 0, kInput});
      }
      return;
    }
    auto a_is_leaf = has_data(a) || !a.has_primitive();
    auto b_is_leaf = has_data(b) || !b.has_primitive();
    if (a_is_leaf || b_is_leaf) {
      if (a.id() != b.id() && !(a_is_leaf && b_is_leaf && same_constant(a, b))) {
        stack_.push_back({&a, &b, 0, 0, kConstant});
      }
      return;
    }
    auto reason = compare(a, b);
    // Where the operands correspond, a difference among them comes first.
    auto walks = !reason || reason == kParameters;
    stack_.push_back({&a, &b, 0, walks ? a.inputs().size() : 0, reason});
  }

  static std::optional<Reason> compare(const array& a, const array& b) {
    if (std::strcmp(a.primitive().name(), b.primitive().name()) != 0) {
      return kPrimitive;
    }
    if (a.inputs().size() != b.inputs().size()) {
      return kOperands;
    }
    if (a.sibling_position() != b.sibling_position() || a.siblings().size() != b.siblings().size() ||
        a.dtype() != b.dtype()) {
      return kResult;
    }
    if (!same_primitive(a.primitive(), b.primitive()) && !is_shaped_by_operands(a)) {
      return kParameters;
    }
    return are_of_two_plans(a, b) ? std::optional(kConstant) : std::nullopt;
  }

  // Whether they are results of plans that have run, whose nodes have no elements that would tell them apart.
  static bool are_of_two_plans(const array& a, const array& b) {
    return is_planned(a) && has_data(a.inputs().front()) && a.inputs().front().id() != b.inputs().front().id();
  }

  // A broadcast with several operands takes its shape from these, and the one among its parameters is not looked at.
  static bool is_shaped_by_operands(const array& a) {
    return a.inputs().size() > 1 && made_by<mlx::core::Broadcast>(a);
  }

  std::unordered_map<uintptr_t, size_t> a_inputs_, b_inputs_;
  std::unordered_set<Pair, Hash> seen_;
  std::vector<Frame> stack_;
};

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// `reason` is 0 if there is no difference; else `a` and `b` are the arrays that differ.
int tacit_difference(
    Arrays a_outputs, Arrays b_outputs, Arrays a_inputs, Arrays b_inputs, int* reason, Handle* a, Handle* b) {
  return guarded([&] {
    auto left = gather(a_outputs);
    auto right = gather(b_outputs);
    Comparison comparison(gather(a_inputs), gather(b_inputs));
    if (auto found = comparison.walk(left, right)) {
      auto first = std::make_unique<array>(found->a);
      *b = own(found->b);
      *a = Handle{first.release()};
      *reason = found->reason;
    }
  });
}
}
