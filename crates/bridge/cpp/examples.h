// What rules of vmap share.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "bridge.h"

namespace tacit {

// The mapped axis first; for an operand that is not mapped, an axis of size 1.
inline array to_front(const array& value, int axis, const mlx::core::Stream& stream) {
  return axis < 0 ? mlx::core::expand_dims(value, 0, stream) : mlx::core::moveaxis(value, axis, 0, stream);
}

// As `to_front`, and `size` long.
inline array spread(const array& value, int axis, int size, const mlx::core::Stream& stream) {
  auto front = to_front(value, axis, stream);
  auto shape = front.shape();
  shape[0] = size;
  return mlx::core::broadcast_to(front, shape, stream);
}

// How many examples there are.
inline int batch_size(const std::vector<array>& inputs, const std::vector<int>& axes) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      return inputs[i].shape(axes[i]);
    }
  }
  throw std::invalid_argument("no operand is mapped");
}

}  // namespace tacit
