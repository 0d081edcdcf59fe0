#include "bridge.h"

#include <array>
#include <stdexcept>

namespace tacit {

namespace {
thread_local std::string last_error;
thread_local std::string callback_error;

// The order of mlx-c's `mlx_dtype`, which mlx-rs's `Dtype` repeats.
const std::array<Dtype, 14>& dtypes() {
  static const std::array<Dtype, 14> table{
      mlx::core::bool_,   mlx::core::uint8,   mlx::core::uint16,  mlx::core::uint32,
      mlx::core::uint64,  mlx::core::int8,    mlx::core::int16,   mlx::core::int32,
      mlx::core::int64,   mlx::core::float16, mlx::core::float32, mlx::core::float64,
      mlx::core::bfloat16, mlx::core::complex64};
  return table;
}
}  // namespace

std::vector<array> gather(Arrays handles) {
  std::vector<array> arrays;
  arrays.reserve(handles.count);
  for (auto handle : handles) {
    arrays.push_back(get(handle));
  }
  return arrays;
}

mlx::core::Stream stream_or_default(Handle chosen) {
  return chosen.ctx == nullptr ? mlx::core::default_stream(mlx::core::default_device())
                               : *static_cast<mlx::core::Stream*>(chosen.ctx);
}

void pour(const std::vector<array>& arrays, Sink sink) {
  for (const auto& value : arrays) {
    sink.push(sink.ctx, own(value));
  }
}

std::vector<Handle> borrow(const std::vector<array>& arrays) {
  std::vector<Handle> handles;
  handles.reserve(arrays.size());
  for (const auto& value : arrays) {
    handles.push_back(Handle{const_cast<array*>(&value)});
  }
  return handles;
}

std::vector<array> apart(const std::vector<array>& values) {
  std::vector<array> others;
  others.reserve(values.size());
  for (const auto& value : values) {
    others.push_back(mlx::core::copy(value, mlx::core::default_stream(mlx::core::default_device())));
  }
  return others;
}

std::pair<std::vector<Shape>, std::vector<Dtype>> avals_of(const std::vector<array>& arrays) {
  std::pair<std::vector<Shape>, std::vector<Dtype>> avals;
  for (const auto& value : arrays) {
    avals.first.push_back(value.shape());
    avals.second.push_back(value.dtype());
  }
  return avals;
}

std::vector<array> Function::operator()(const std::vector<array>& args) const {
  Collector results;
  check(call(ctx, borrow(args), results.sink()));
  return std::move(results.arrays);
}

void set_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
}

void raise_callback_error() {
  throw std::runtime_error(std::move(callback_error));
}

void check(int status) {
  if (status == 1) {
    raise_callback_error();
  }
}

Dtype dtype_of(int code) {
  return dtypes().at(static_cast<size_t>(code));
}

int code_of(Dtype dtype) {
  for (size_t i = 0; i < dtypes().size(); ++i) {
    if (dtypes()[i] == dtype) {
      return static_cast<int>(i);
    }
  }
  throw std::invalid_argument("an unknown dtype");
}

}  // namespace tacit

extern "C" {

const char* tacit_last_error() {
  return tacit::last_error.c_str();
}

void tacit_set_callback_error(const char* text, size_t length) {
  try {
    tacit::callback_error.assign(text, length);
  } catch (...) {
    tacit::callback_error.clear();
  }
}
}
