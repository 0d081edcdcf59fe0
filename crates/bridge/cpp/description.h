// What an array is apart from the handles on it.
//
// An array keeps its description for itself. Whoever held the array would keep MLX from giving its memory to a result; a
// weak reference to the description does not, and its address is no other array's while there is one.
#pragma once

#include <memory>

#include "mlx/array.h"

namespace tacit {

template <auto Member>
struct Opened {
  friend std::shared_ptr<void> description(const mlx::core::array& value) {
    return value.*Member;
  }

  // The array of this description; `value` is any other.
  friend mlx::core::array described(mlx::core::array value, const std::shared_ptr<void>& description) {
    using Description = typename std::remove_reference_t<decltype(value.*Member)>::element_type;
    value.*Member = std::static_pointer_cast<Description>(description);
    return value;
  }
};
template struct Opened<&mlx::core::array::array_desc_>;
std::shared_ptr<void> description(const mlx::core::array& value);
mlx::core::array described(mlx::core::array value, const std::shared_ptr<void>& description);

}  // namespace tacit
