// Names of compiled functions in MLX's table.
#pragma once

#include <cstdint>

#include "mlx/compile_impl.h"

namespace tacit {

// The id of the function that `owner` stands for. The high bit keeps it out of the small numbers that mlx-rs counts
// up in the same table, wherever the heap lies.
inline std::uintptr_t function_id(const void* owner) {
  return reinterpret_cast<std::uintptr_t>(owner) | (std::uintptr_t{1} << (8 * sizeof(std::uintptr_t) - 1));
}

}  // namespace tacit
