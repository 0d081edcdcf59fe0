// Derivatives of a function that also has operands without one.
#include <algorithm>

#include "bridge.h"

namespace tacit {

std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<int> chosen;
  for (auto argnum : argnums) {
    if (mlx::core::issubdtype(primals.at(argnum).dtype(), mlx::core::inexact)) {
      chosen.push_back(argnum);
    }
  }
  return chosen;
}

std::vector<array> select(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<array> chosen;
  for (auto argnum : argnums) {
    chosen.push_back(primals.at(argnum));
  }
  return chosen;
}

ArrayFunction over(ArrayFunction function, const std::vector<array>& primals, const std::vector<int>& argnums) {
  return [function = std::move(function), primals, argnums](const std::vector<array>& chosen) {
    auto all = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all.at(argnums[i]) = chosen[i];
    }
    return function(all);
  };
}

std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> gradients;
  if (!inexact.empty()) {
    gradients = mlx::core::vjp(over(function, primals, inexact), select(primals, inexact), cotangents).second;
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
