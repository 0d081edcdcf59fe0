// The C face of the bridge: what src/ffi.rs declares. Every function returns 0, or 1 with the reason in
// tacit_last_error(); no exception leaves.
#pragma once

#include <cstddef>
#include <cstdint>
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

std::vector<array> gather(const Handle* handles, size_t count);

// Receives result arrays one by one; `push` takes ownership of the handle.
struct Sink {
  void* ctx;
  void (*push)(void* ctx, Handle handle);
};

void pour(const std::vector<array>& arrays, Sink sink);

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

// Whether this is one of our own kernels.
bool is_host_kernel(const Primitive& primitive);

Dtype dtype_of(int code);
int code_of(Dtype dtype);

}  // namespace tacit
