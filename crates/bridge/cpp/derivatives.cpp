// Derivatives of a function that also has operands without one.
#include <algorithm>
#include <unordered_set>

#include "bridge.h"
#include "graph.h"
#include "params.h"

namespace tacit {

namespace {

// Of `argnums`, those of arrays that can have a gradient: codes and indices have none, and some ops refuse to be asked
// for one.
std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<int> chosen;
  for (auto argnum : argnums) {
    if (mlx::core::issubdtype(primals.at(argnum).dtype(), mlx::core::inexact)) {
      chosen.push_back(argnum);
    }
  }
  return chosen;
}

// The primals that `argnums` names.
std::vector<array> select(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<array> chosen;
  for (auto argnum : argnums) {
    chosen.push_back(primals.at(argnum));
  }
  return chosen;
}

// `function` as a function of the chosen primals alone.
ArrayFunction over(ArrayFunction function, const std::vector<array>& primals, const std::vector<int>& argnums) {
  return [function = std::move(function), primals, argnums](const std::vector<array>& chosen) {
    auto all = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all.at(argnums[i]) = chosen[i];
    }
    auto results = function(all);
    choose_in_pads(results, chosen);
    return results;
  };
}

}  // namespace

void choose_in_pads(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  std::unordered_set<uintptr_t> reached;
  for (const auto& input : inputs) {
    reached.insert(input.id());
  }
  std::vector<array> pads;
  each_dependent(inputs, outputs, [&](const array& node) {
    reached.insert(node.id());
    if (made_by<mlx::core::Pad>(node) && reached.contains(node.inputs()[1].id())) {
      pads.push_back(node);
    }
  });
  for (auto& padded : pads) {
    const auto& pad = static_cast<const mlx::core::Pad&>(padded.primitive());
    auto stream = padded.primitive().stream();
    auto [axes, low, high] = pad.state();
    const auto& x = padded.inputs()[0];
    auto within = [&](const array& value, const array& around) {
      return mlx::core::pad(value, axes, low, high, around, "constant", stream);
    };
    auto inside = within(mlx::core::full(x.shape(), true, mlx::core::bool_, stream), array(false));
    auto zero = mlx::core::zeros({}, x.dtype(), stream);
    become(padded, mlx::core::where(inside, within(x, zero), padded.inputs()[1], stream));
  }
}

std::vector<array> distinct(std::vector<array> results) {
  std::unordered_set<uintptr_t> seen;
  for (auto& result : results) {
    if (!seen.insert(result.id()).second || made_by<mlx::core::StopGradient>(result)) {
      auto stream = result.has_primitive() ? result.primitive().stream()
                                           : mlx::core::default_stream(mlx::core::default_device());
      result = mlx::core::copy(result, stream);
    }
  }
  return results;
}

ArrayFunction distinct_results(ArrayFunction function) {
  return [function = std::move(function)](const std::vector<array>& args) { return distinct(function(args)); };
}

std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> gradients;
  if (!inexact.empty()) {
    auto chosen = distinct_results(over(function, primals, inexact));
    gradients = mlx::core::vjp(chosen, select(primals, inexact), cotangents).second;
  }
  std::vector<array> all;
  size_t taken = 0;
  for (auto argnum : argnums) {
    auto has_one = taken < inexact.size() && inexact[taken] == argnum;
    all.push_back(has_one ? gradients[taken++] : mlx::core::zeros_like(primals[argnum]));
  }
  return all;
}

std::vector<array> tangents_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> chosen;
  for (size_t i = 0; i < argnums.size(); ++i) {
    if (std::find(inexact.begin(), inexact.end(), argnums[i]) != inexact.end()) {
      chosen.push_back(tangents.at(i));
    }
  }
  return mlx::core::jvp(over(function, primals, inexact), select(primals, inexact), chosen).second;
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_choose_in_pads(const Handle* outputs, size_t output_count, const Handle* inputs, size_t input_count) {
  return guarded([&] { choose_in_pads(gather(outputs, output_count), gather(inputs, input_count)); });
}

int tacit_distinct(const Handle* results, size_t count, Sink found) {
  return guarded([&] { pour(distinct(gather(results, count)), found); });
}
}
