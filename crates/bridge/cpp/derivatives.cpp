// Derivatives of a function that also has operands without one.
#include <algorithm>
#include <unordered_set>

#include "forward.h"
#include "params.h"
#include "tracers.h"

namespace tacit {

namespace {

// Of `argnums`, those of arrays that can have a gradient: codes and indices have none, and some ops refuse to be asked
// for one.
std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<int> chosen;
  for (auto argnum : argnums) {
    if (is_inexact(primals.at(argnum))) {
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
ArrayFunction over(const ArrayFunction& function, const std::vector<array>& primals, const std::vector<int>& argnums) {
  return [&](const std::vector<array>& chosen) {
    auto args = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      args.at(argnums[i]) = chosen[i];
    }
    return function(args);
  };
}

}  // namespace

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

std::vector<array> vjp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents) {
  OuterTracers outer;
  auto prepared = [&](const std::vector<array>& args) {
    auto results = traced(function, args);
    make_differentiable(args, results);
    results = distinct(std::move(results));
    outer.see(args, results);
    return results;
  };
  return outer.mark(mlx::core::vjp(prepared, primals, cotangents).second);
}

std::vector<array> jvp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents) {
  OuterTracers outer;
  ForwardRules rules;
  auto prepared = [&](const std::vector<array>& args) {
    auto results = traced(function, args);
    make_differentiable(args, results);
    rules.give(args, results);
    outer.see(args, results);
    return results;
  };
  return outer.mark(mlx::core::jvp(prepared, primals, tangents).second);
}

std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> gradients;
  if (!inexact.empty()) {
    gradients = tacit::vjp(over(function, primals, inexact), select(primals, inexact), cotangents);
  }
  std::vector<array> padded;
  size_t taken = 0;
  for (auto argnum : argnums) {
    auto has_one = taken < inexact.size() && inexact[taken] == argnum;
    padded.push_back(has_one ? gradients[taken++] : mlx::core::zeros_like(primals[argnum]));
  }
  return padded;
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
  return tacit::jvp(over(function, primals, inexact), select(primals, inexact), chosen);
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_vjp(Arrays primals, Arrays cotangents, Function function, Sink gradients) {
  return guarded([&] { pour(tacit::vjp(function, gather(primals), gather(cotangents)), gradients); });
}

int tacit_jvp(Arrays primals, Arrays tangents, Function function, Sink changes) {
  return guarded([&] { pour(tacit::jvp(function, gather(primals), gather(tangents)), changes); });
}
}
