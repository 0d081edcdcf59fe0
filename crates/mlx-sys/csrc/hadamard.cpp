// `mlx_hadamard_transform` of a row that has a Hadamard matrix.
//
// MLX takes every length that 12, 20 or 28 divides, such as 520, and asks nothing of the rest. Its loops are for a rest that is a
// power of two: for any other they write behind the array. A length that none of the three divides it refuses in the eval.
// mlx-c's own function is compiled under the name `mlx_sys_hadamard_transform`.

#include <array>
#include <bit>
#include <exception>
#include <string>

#include "mlx/c/error.h"
#include "mlx/c/ops.h"
#include "mlx/c/private/mlx.h"

#undef mlx_hadamard_transform

namespace {

bool has_matrix(unsigned length) {
  for (unsigned rows : std::array{1, 12, 20, 28}) {
    if (length % rows == 0 && std::has_single_bit(length / rows)) {
      return true;
    }
  }
  return false;
}

} // namespace

extern "C" int mlx_hadamard_transform(
    mlx_array* res,
    const mlx_array a,
    mlx_optional_float scale,
    const mlx_stream s) {
  try {
    const auto& value = mlx_array_get_(a);
    // MLX has a message of its own for an array without elements.
    if (value.ndim() > 0 && value.size() > 0 && !has_matrix(value.shape(-1))) {
      auto length = std::to_string(value.shape(-1));
      auto message = "[hadamard_transform] The last axis has " + length +
          " elements, which is not m * 2^k with an m of 1, 12, 20 or 28.";
      mlx_error(message.c_str());
      return 1;
    }
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return mlx_sys_hadamard_transform(res, a, scale, s);
}
