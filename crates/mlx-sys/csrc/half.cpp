// The half-precision accessors of mlx-c, which its headers declare on Arm only. The values cross as their 16 bits.

#include <cstdint>
#include <cstring>
#include <exception>

#include "mlx/c/array.h"
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"

namespace {

template <typename T>
int item(uint16_t* result, const mlx_array array) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  try {
    const T value = mlx_array_get_(array).item<T>();
    std::memcpy(result, &value, sizeof value);
    return 0;
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
}

template <typename T>
const uint16_t* data(const mlx_array array) {
  try {
    return reinterpret_cast<const uint16_t*>(mlx_array_get_(array).data<T>());
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

} // namespace

extern "C" {

int mlx_array_item_float16(uint16_t* result, const mlx_array array) {
  return item<mlx::core::float16_t>(result, array);
}

int mlx_array_item_bfloat16(uint16_t* result, const mlx_array array) {
  return item<mlx::core::bfloat16_t>(result, array);
}

const uint16_t* mlx_array_data_float16(const mlx_array array) {
  return data<mlx::core::float16_t>(array);
}

const uint16_t* mlx_array_data_bfloat16(const mlx_array array) {
  return data<mlx::core::bfloat16_t>(array);
}

} // extern "C"
