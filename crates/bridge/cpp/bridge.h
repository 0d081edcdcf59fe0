// The C face of the bridge: what src/ffi.rs declares. Every function returns 0, or 1 with the reason in
// tacit_last_error(); no exception leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tacit {

using mlx::core::array;
using mlx::core::Dtype;
using mlx::core::Primitive;
using mlx::core::Shape;

// mlx-c's handle: its `mlx_array` is one pointer to an `array`.
struct Handle {
  void* ctx;
};

inline array& get(Handle handle) {
  if (handle.ctx == nullptr) {
    throw std::invalid_argument("the array handle is empty");
  }
  return *static_cast<array*>(handle.ctx);
}

inline Handle own(array value) {
  return Handle{new array(std::move(value))};
}

// A list that stays where it is for the length of a call.
template <class T>
struct Span {
  const T* data;
  size_t count;

  Span(const std::vector<T>& all) : data(all.data()), count(all.size()) {}

  const T* begin() const {
    return data;
  }

  const T* end() const {
    return data + count;
  }

  std::vector<T> copy() const {
    return std::vector<T>(begin(), end());
  }
};

using Arrays = Span<Handle>;
using Integers = Span<int32_t>;

Dtype dtype_of(int code);
int code_of(Dtype dtype);

// A shape and a dtype, while the shape lives.
struct AvalView {
  const int32_t* extents;
  size_t ndim;
  int code;

  static AvalView of(const Shape& shape, Dtype dtype) {
    return {shape.data(), shape.size(), code_of(dtype)};
  }

  Shape shape() const {
    return Shape(extents, extents + ndim);
  }

  Dtype dtype() const {
    return dtype_of(code);
  }
};

std::vector<array> gather(Arrays handles);

// Receives result arrays one by one; `push` takes ownership of the handle.
struct Sink {
  void* ctx;
  void (*push)(void* ctx, Handle handle);
};

void pour(const std::vector<array>& arrays, Sink sink);

// Handles of `arrays`, valid while these are.
std::vector<Handle> borrow(const std::vector<array>& arrays);

// Collects what Rust pushes; the handles become arrays of ours.
class Collector {
 public:
  Sink sink() {
    return Sink{this, [](void* ctx, Handle handle) {
                  auto* value = static_cast<array*>(handle.ctx);
                  static_cast<Collector*>(ctx)->arrays.push_back(std::move(*value));
                  delete value;
                }};
  }
  std::vector<array> arrays;
};

// Receives the axes of result arrays one by one.
struct AxisSink {
  void* ctx;
  void (*push)(void* ctx, int32_t axis);
};

inline AxisSink axis_sink(std::vector<int>& axes) {
  return AxisSink{&axes, [](void* ctx, int32_t axis) { static_cast<std::vector<int>*>(ctx)->push_back(axis); }};
}

using ArrayFunction = std::function<std::vector<array>(const std::vector<array>&)>;

// What a rule of vmap gives: results, and the mapped axis of each.
using Batched = std::pair<std::vector<array>, std::vector<int>>;

// The same values as nodes of their own.
std::vector<array> apart(const std::vector<array>& values);

// The shapes and the dtypes of arrays.
std::pair<std::vector<Shape>, std::vector<Dtype>> avals_of(const std::vector<array>& arrays);

// Whether an array may have a derivative.
inline bool is_inexact(const array& value) {
  return mlx::core::issubdtype(value.dtype(), mlx::core::inexact);
}

// The elements from `begin` to `end` of an axis.
inline array part_of(const array& whole, int axis, int begin, int end, mlx::core::StreamOrDevice stream = {}) {
  Shape from(whole.ndim(), 0);
  auto to = whole.shape();
  from[axis] = begin;
  to[axis] = end;
  return mlx::core::slice(whole, std::move(from), std::move(to), stream);
}

// What is added to many others, of whose sum a half type would lose the later ones.
inline array widened(const array& addend) {
  auto is_half = addend.dtype() == mlx::core::float16 || addend.dtype() == mlx::core::bfloat16;
  return is_half ? mlx::core::astype(addend, mlx::core::float32) : addend;
}

// Results that MLX can tell apart: one that is there already, or that a stop_gradient made, becomes a copy, which is only a
// node. MLX's vjp counts one array once and passes over a stop_gradient, so that cotangents go to the wrong results, and
// its vmap moves the axis of one array once for each result that it is.
std::vector<array> distinct(std::vector<array> results);

// `function` with such results.
ArrayFunction distinct_results(ArrayFunction function);

// Rewrites what MLX differentiates wrongly among the nodes between `inputs` and `outputs`, each to ops that it does rightly.
void make_differentiable(const std::vector<array>& inputs, const std::vector<array>& outputs);

// The same of what MLX maps wrongly in whatever dtype, and gives no rule of ours.
void make_mappable(const std::vector<array>& inputs, const std::vector<array>& outputs);

// MLX's vjp and jvp with what it has wrong or not at all put right; the primals are inexact, each cotangent or tangent one of a
// result or primal. What is computed of a transform around them keeps its marks.
std::vector<array> vjp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents);
std::vector<array> jvp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents);

// The vjp of `function` for the primals that `argnums` names; zeros for those that are not inexact.
std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums);

// The jvp of `function`, with a tangent for each primal that `argnums` names.
std::vector<array> tangents_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents,
    const std::vector<int>& argnums);

// `function` mapped over `axes` of the inputs, -1 for none; the results have the mapped axis first.
std::vector<array> vmap_to_front(
    const ArrayFunction& function, const std::vector<array>& inputs, const std::vector<int>& axes);

// A Rust function from arrays to arrays, borrowed for one call. It returns 0, or 1 after tacit_set_callback_error.
struct Function {
  void* ctx;
  int (*call)(void* ctx, Arrays args, Sink results);

  std::vector<array> operator()(const std::vector<array>& args) const;
};

void set_error(const char* text) noexcept;

template <class F>
int guarded(F&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    set_error(error.what());
  } catch (...) {
    set_error("an exception that is not a std::exception");
  }
  return 1;
}

// Raises the error that a Rust callback left behind.
[[noreturn]] void raise_callback_error();

// Throws what a Rust callback left behind, if its status says so.
void check(int status);

// The stream of mlx-c, or the default one for none.
mlx::core::Stream stream_or_default(Handle chosen);

// The Rust side of one of our own kernels; nothing for any other primitive.
void* host_kernel(const Primitive& primitive);

// Whether arrays may be tracers of MLX's now, also those that were none when they were made.
bool in_transform();

// Whether a plan makes an array.
bool is_planned(const array& value);

// Whether both are kernels that compute the same.
bool same_kernel(const Primitive& a, const Primitive& b);

// Whether a primitive is a collective of a group.
bool is_collective(const Primitive& primitive);

// Whether a primitive is MLX's, and no function of a user's.
bool is_of_mlx(const Primitive& primitive);

// Whether a primitive is one of ours: it checks its operands itself, and notes what its failures poison.
inline bool is_ours(const Primitive& primitive) {
  return host_kernel(primitive) != nullptr || is_collective(primitive);
}

// The evaluated input, or a copy in rows that lives until what is dispatched to `stream` next has run.
array row_major(const array& input, mlx::core::Stream stream);

// Writes what a failure leaves in the memory of an array, since what follows runs all the same: NaN in every float type, and 0 in
// every other, which is an index of anything.
void poison(void* data, size_t bytes, Dtype dtype);

}  // namespace tacit
