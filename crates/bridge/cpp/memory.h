// Memory of arrays that MLX's allocator did not give, in the words of the MLX at hand.
#pragma once

#include <functional>
#include <utility>

#include "bridge.h"

namespace tacit {

using Memory = mlx::core::allocator::Buffer;
using Drop = std::function<void(Memory)>;

// An array of what `buffer` holds, which `drop` gets when no array of it is left.
inline array array_over(Memory buffer, Shape shape, Dtype dtype, Drop drop) {
#ifdef MLX_HAS_OWNED_DATA
  return array(array::Data(buffer, std::move(drop)), std::move(shape), dtype);
#else
  return array(buffer, std::move(shape), dtype, std::move(drop));
#endif
}

// Has an array be what `buffer` holds.
inline void set_data_over(array& value, Memory buffer, Drop drop) {
#ifdef MLX_HAS_OWNED_DATA
  value.set_data(array::Data(buffer, std::move(drop)));
#else
  value.set_data(buffer, std::move(drop));
#endif
}

}  // namespace tacit
