// MLX's ops as mlx-c calls them, where MLX does not check what its loops on a CPU take for granted.
//
// A division by an extent or an argument of 0 ends the process on x86, and what reaches outside of its array reads or writes memory
// of something else. This file stands in front of mlx-c's, which then say `checked` where they mean `core`: an op that is not
// declared here is MLX's own.

#pragma once

#include <algorithm>
#include <bit>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

// All of MLX that mlx-c includes, while `core` has its own name.
#include "mlx/mlx.h"

#include "mlx/compile_impl.h"
#include "mlx/graph_utils.h"
#include "mlx/primitives.h"
#include "mlx/transforms_impl.h"

namespace mlx::checked {

using namespace core;

inline void check(bool holds, std::string_view message) {
  if (!holds) {
    throw std::invalid_argument(std::string(message));
  }
}

// The argument that stands so many places before the last.
template <size_t before, typename... Args>
const auto& from_end(const Args&... args) {
  return std::get<sizeof...(Args) - 1 - before>(std::tie(args...));
}

// What was recorded, or zeros of its shape where its loops would divide by an extent of 0.
inline array or_zeros(array recorded, bool divides_by_zero, StreamOrDevice s) {
  return divides_by_zero ? zeros(recorded.shape(), recorded.dtype(), s) : recorded;
}

// Whether an extent is 0 of the axis that the argument names, or of one behind it: the product of those is the axis's stride. Without
// an axis the op goes along all elements.
template <typename First>
bool is_empty_along(const array& a, const First& first) {
  auto begin = a.shape().begin();
  if constexpr (std::is_same_v<First, int>) {
    begin += first < 0 ? first + static_cast<int>(a.ndim()) : first;
  }
  return std::find(begin, a.shape().end(), 0) != a.shape().end();
}

#define MLX_SYS_ALONG(op)                                                             \
  template <typename First, typename... Args>                                         \
  array op(const array& a, const First& first, const Args&... args) {                 \
    auto recorded = core::op(a, first, args...);                                      \
    return or_zeros(recorded, is_empty_along(a, first), from_end<0>(first, args...)); \
  }

MLX_SYS_ALONG(argsort)
MLX_SYS_ALONG(cummax)
MLX_SYS_ALONG(cummin)
MLX_SYS_ALONG(cumprod)
MLX_SYS_ALONG(cumsum)
MLX_SYS_ALONG(logcumsumexp)
MLX_SYS_ALONG(sort)

#undef MLX_SYS_ALONG

namespace linalg {

using namespace core::linalg;

inline bool is_empty(const array& matrices) {
  return matrices.shape(-1) == 0 || matrices.shape(-2) == 0;
}

#define MLX_SYS_OF_MATRICES(op)                                   \
  template <typename... Args>                                     \
  array op(const array& a, const Args&... args) {                 \
    auto recorded = core::linalg::op(a, args...);                 \
    return or_zeros(recorded, is_empty(a), from_end<0>(args...)); \
  }

MLX_SYS_OF_MATRICES(cholesky_inv)
MLX_SYS_OF_MATRICES(inv)
MLX_SYS_OF_MATRICES(solve)
MLX_SYS_OF_MATRICES(solve_triangular)
MLX_SYS_OF_MATRICES(tri_inv)

#undef MLX_SYS_OF_MATRICES

// Here the row indices of a matrix without columns are no zeros.
#define MLX_SYS_OF_ELEMENTS(op)                                              \
  inline auto op(const array& a, StreamOrDevice s) {                         \
    auto recorded = core::linalg::op(a, s);                                  \
    check(!is_empty(a), "[linalg::" #op "] The matrices have no elements."); \
    return recorded;                                                         \
  }

MLX_SYS_OF_ELEMENTS(lu)
MLX_SYS_OF_ELEMENTS(lu_factor)

#undef MLX_SYS_OF_ELEMENTS

} // namespace linalg

// The groups are the argument so many places before the last.
#define MLX_SYS_CONVOLUTION(op, place)                                                       \
  template <typename... Args>                                                                \
  array op(const array& x, const array& weight, const Args&... args) {                       \
    check(from_end<place>(args...) > 0, "[conv] The number of groups is not above 0.");      \
    return or_zeros(core::op(x, weight, args...), weight.size() == 0, from_end<0>(args...)); \
  }

MLX_SYS_CONVOLUTION(conv1d, 1)
MLX_SYS_CONVOLUTION(conv2d, 1)
MLX_SYS_CONVOLUTION(conv3d, 1)
MLX_SYS_CONVOLUTION(conv_general, 2)
MLX_SYS_CONVOLUTION(conv_transpose1d, 1)
MLX_SYS_CONVOLUTION(conv_transpose2d, 1)
MLX_SYS_CONVOLUTION(conv_transpose3d, 1)

#undef MLX_SYS_CONVOLUTION

// Whether there are scales for the rows of a quantized matrix, and numbers that MLX may divide by.
inline void check_quantized(
    const std::string& op,
    const array& w,
    const array& scales,
    std::optional<int> group_size,
    std::optional<int> bits) {
  check(group_size.value_or(1) > 0 && bits.value_or(1) > 0, op + " The group size or the bits are not above 0.");
  check(w.ndim() >= 2, op + " The weight has fewer than two axes.");
  auto fits = w.ndim() == scales.ndim() && std::equal(w.shape().begin(), w.shape().end() - 1, scales.shape().begin());
  check(fits, op + " The weight and the scales have not the same rows.");
}

inline array quantized_matmul(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    StreamOrDevice s) {
  check_quantized("[quantized_matmul]", w, scales, group_size, bits);
  // MLX takes the first matrix alone.
  auto is_one = w.ndim() == 2 || w.size() == static_cast<size_t>(w.shape(-1)) * w.shape(-2);
  check(is_one || x.ndim() > 2, "[quantized_matmul] There are several matrices, and the input has no axis for them.");
  auto recorded = core::quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, s);
  auto is_empty = x.shape(-1) == 0 || (x.ndim() > 1 && x.shape(-2) == 0);
  return or_zeros(recorded, is_empty, s);
}

inline array gather_qmm(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    const std::optional<array>& lhs_indices,
    const std::optional<array>& rhs_indices,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    bool sorted_indices,
    StreamOrDevice s) {
  if (!lhs_indices && !rhs_indices) {
    return checked::quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, s);
  }
  check_quantized("[gather_qmm]", w, scales, group_size, bits);
  return core::gather_qmm(
      x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode, sorted_indices, s);
}

template <typename... Args>
std::vector<array> quantize(const array& w, std::optional<int> group_size, const Args&... args) {
  check(group_size.value_or(1) > 0, "[quantize] The group size is not above 0.");
  return core::quantize(w, group_size, args...);
}

// MLX throws what is no `std::exception`.
inline void check_integral(const array& indices) {
  check(indices.dtype() != bool_, "[scatter] Boolean indices not supported.");
}

inline void check_integral(const std::vector<array>& indices) {
  for (const auto& each : indices) {
    check_integral(each);
  }
}

#define MLX_SYS_SCATTER(op)                                               \
  template <typename Indices, typename... Args>                           \
  array op(const array& a, const Indices& indices, const Args&... args) { \
    check_integral(indices);                                              \
    return core::op(a, indices, args...);                                 \
  }

MLX_SYS_SCATTER(scatter)
MLX_SYS_SCATTER(scatter_add)
MLX_SYS_SCATTER(scatter_max)
MLX_SYS_SCATTER(scatter_min)
MLX_SYS_SCATTER(scatter_prod)

#undef MLX_SYS_SCATTER

// For an assignment mlx-rs asks this itself.
inline array slice(const array& a, const Shape& start, const Shape& stop, const Shape& strides, StreamOrDevice s) {
  check(std::find(strides.begin(), strides.end(), 0) == strides.end(), "[slice] A stride is 0.");
  return core::slice(a, start, stop, strides, s);
}

inline array
slice(const array& a, const array& start, const std::vector<int>& axes, const Shape& size, StreamOrDevice s) {
  return core::slice(a, start, axes, size, s);
}

inline array unflatten(const array& a, int axis, const Shape& shape, StreamOrDevice s) {
  auto has = [&](int extent) { return std::find(shape.begin(), shape.end(), extent) != shape.end(); };
  check(!has(0) || !has(-1), "[unflatten] Cannot infer the shape of an empty array.");
  return core::unflatten(a, axis, shape, s);
}

inline array as_strided(const array& a, const Shape& shape, const Strides& strides, size_t offset, StreamOrDevice s) {
  check(shape.size() == strides.size(), "[as_strided] The shape and the strides have not the same axes.");
  // As floats, in which no product overflows: those that are rounded are far outside.
  double first = offset, last = offset;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    auto reach = (static_cast<double>(shape[axis]) - 1) * static_cast<double>(strides[axis]);
    (reach < 0 ? first : last) += reach;
  }
  // MLX has a message of its own for extents below 0.
  auto reads_none = std::any_of(shape.begin(), shape.end(), [](auto extent) { return extent <= 0; });
  auto is_within = first >= 0 && last < static_cast<double>(a.size());
  check(
      reads_none || is_within,
      "[as_strided] The view reaches outside of the " + std::to_string(a.size()) + " elements.");
  // MLX asks for rows one after the other, and takes the flat view of elements in steps, or of one element repeated, for such.
  return core::as_strided(core::contiguous(core::flatten(a, s), false, s), shape, strides, offset, s);
}

// The primitive, if its class has this name in the ABI: libmlx exports no more of its classes, and a name that a primitive gives
// itself may be that of another one.
template <typename C>
C* as(Primitive& primitive, std::string_view mangled) {
  return typeid(primitive).name() == mangled ? static_cast<C*>(&primitive) : nullptr;
}

// Whether an axis may go backwards, as far as the array tells, or what it may be a view of.
inline bool may_go_backwards(const array& a) {
  auto any_backwards = [](const auto& steps) {
    return std::any_of(steps.begin(), steps.end(), [](auto step) { return step < 0; });
  };
  const auto* view = &a;
  while (view->status() == array::Status::unscheduled && view->has_primitive()) {
    auto& primitive = view->primitive();
    if (auto* strided = as<AsStrided>(primitive, "N3mlx4core9AsStridedE")) {
      return any_backwards(std::get<1>(strided->state()));
    }
    auto* slice = as<Slice>(primitive, "N3mlx4core5SliceE");
    if (slice != nullptr && any_backwards(std::get<2>(slice->state()))) {
      return true;
    }
    // Every view has one operand, the floor of integers as well, which they are already.
    if (view->inputs().size() != 1) {
      return false;
    }
    view = &view->inputs()[0];
  }
  return any_backwards(view->strides());
}

// MLX takes a part of which no axis goes forwards for one number that is broadcast, and reads behind it.
template <typename Where>
std::vector<array> split(const array& a, const Where& where, int axis, StreamOrDevice s) {
  return core::split(may_go_backwards(a) ? core::contiguous(a, false, s) : a, where, axis, s);
}

inline array segmented_mm(const array& a, const array& b, const array& segments, StreamOrDevice s) {
  auto recorded = core::segmented_mm(a, b, segments, s);
  check(a.shape(1) == b.shape(0), "[segmented_mm] The inner axes of the inputs have not the same extent.");
  return recorded;
}

// Whether a row has a Hadamard matrix. MLX takes every length that 12, 20 or 28 divides, such as 520, and asks nothing of the rest.
// Its loops are for a rest that is a power of two: for any other they write behind the array. A length that none of the three
// divides it refuses in the eval.
inline bool has_matrix(unsigned length) {
  auto has = [=](unsigned rows) { return length % rows == 0 && std::has_single_bit(length / rows); };
  return has(1) || has(12) || has(20) || has(28);
}

inline array hadamard_transform(const array& a, std::optional<float> scale, StreamOrDevice s) {
  // MLX has a message of its own for an array without elements.
  if (a.ndim() > 0 && a.size() > 0) {
    check(
        has_matrix(a.shape(-1)),
        "[hadamard_transform] The last axis has " + std::to_string(a.shape(-1)) +
            " elements, which is not m * 2^k with an m of 1, 12, 20 or 28.");
  }
  return core::hadamard_transform(a, scale, s);
}

} // namespace mlx::checked

#define core checked
