// `gather_qmm` as mlx-c 0.7.0 calls it: an MLX that takes a global scale has it in front of `sorted_indices`.

#pragma once

#include <optional>
#include <string>
#include <utility>

#include "mlx/ops.h"

namespace mlx::core {

inline array gather_qmm(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    std::optional<array> lhs_indices,
    std::optional<array> rhs_indices,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    bool sorted_indices,
    StreamOrDevice s) {
  return gather_qmm(
      x,
      w,
      scales,
      biases,
      std::move(lhs_indices),
      std::move(rhs_indices),
      transpose,
      group_size,
      bits,
      mode,
      std::nullopt,
      sorted_indices,
      s);
}

} // namespace mlx::core
