// MLX compiles a source when it first runs, and keeps what it compiled by the name and the text.
#include "launch.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "mlx/backend/cuda/cuda.h"
#include "mlx/fast.h"

namespace tacit {

namespace {

// MLX's CUDA backend keeps 400 graphs that differ, and ends a process with an error when it has met twice as many since the
// process began, as every long run of training does. That only such a run is slower is no reason to end it. What is set stays.
[[maybe_unused]] const int unchecked = setenv("MLX_ENABLE_CACHE_THRASHING_CHECK", "0", 0);

std::vector<std::string> strings(const char* const* texts, size_t count) {
  return {texts, texts + count};
}

// Elements of the inputs that MLX is shown when it writes the head of the function: it declares an input of fewer in another
// address space of Metal's, and a scalar by reference.
constexpr int32_t kLong = 64;

// Integers reach a source as the shape of an input: a source has no other parameters that are not compiled into it. The
// elements, which nobody reads, are those of an input that is there.
array carrying(const Shape& sizes, const array& input) {
  array carrier(sizes, input.dtype(), nullptr, {});
  // As if the elements lay in rows, so that MLX copies none.
  array::Flags rows{true, true, true};
  carrier.copy_shared_buffer(input, mlx::core::Strides(sizes.size(), 1), rows, input.data_size());
  return carrier;
}

}  // namespace

Backend gpu_backend() {
  return mlx::core::cu::is_available() ? Backend::kCuda : Backend::kMetal;
}

Launched::Launched(
    const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs, mlx::core::Stream stream)
    : sizes_(launch.sizes, launch.sizes + launch.size_count) {
  auto names = strings(launch.inputs, launch.input_count);
  std::vector<array> given;
  if (!sizes_.empty()) {
    names.insert(names.begin(), "sizes");
    given.emplace_back(Shape(sizes_.size(), kLong), mlx::core::uint8, nullptr, std::vector<array>{});
  }
  std::vector<Shape> shapes;
  std::vector<Dtype> dtypes;
  for (const auto& output : outputs) {
    shapes.push_back(output.shape());
    dtypes.push_back(output.dtype());
  }
  for (const auto& input : inputs) {
    given.emplace_back(Shape{kLong}, input.dtype(), nullptr, std::vector<array>{});
    inputs_.emplace_back(input.shape(), input.dtype());
  }
  auto result_names = strings(launch.outputs, launch.output_count);
  auto function = gpu_backend() == Backend::kCuda
      ? mlx::core::fast::cuda_kernel(launch.name, names, result_names, launch.body, launch.header)
      : mlx::core::fast::metal_kernel(launch.name, names, result_names, launch.body, launch.header);
  auto triple = [](const int32_t* of) { return std::make_tuple(of[0], of[1], of[2]); };
  auto made =
      function(given, shapes, dtypes, triple(launch.grid), triple(launch.group), {}, std::nullopt, false, stream);
  primitive_ = made.at(0).primitive_ptr();
}

bool Launched::fits(const std::vector<array>& inputs) const {
  return std::equal(inputs.begin(), inputs.end(), inputs_.begin(), inputs_.end(), [](const auto& input, const auto& of) {
    return input.shape() == of.first && input.dtype() == of.second;
  });
}

void Launched::eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) const {
  if (sizes_.empty()) {
    primitive_->eval_gpu(inputs, outputs);
    return;
  }
  auto filled = std::find_if(inputs.begin(), inputs.end(), [](const array& input) { return input.size() > 0; });
  if (filled == inputs.end()) {
    throw std::invalid_argument("a GPU source with sizes needs an input that has elements");
  }
  std::vector<array> all{carrying(sizes_, *filled)};
  all.insert(all.end(), inputs.begin(), inputs.end());
  primitive_->eval_gpu(all, outputs);
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// The backend of the GPU that is here, or -1 for none.
int tacit_gpu() {
  return mlx::core::is_available(mlx::core::Device(mlx::core::Device::gpu)) ? static_cast<int>(gpu_backend()) : -1;
}
}
