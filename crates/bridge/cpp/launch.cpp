// A source is compiled when its kernel goes into a graph on a GPU for the first time.
#include "launch.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

#include "mlx/backend/cuda/cuda.h"
#include "mlx/fast.h"
#include "nvrtc.h"

namespace tacit {

namespace {

// MLX's CUDA backend keeps 400 graphs that differ, and ends a process with an error when it has met twice as many since the
// process began, as every long run of training does. That only such a run is slower is no reason to end it. What is set stays.
[[maybe_unused]] const bool unchecked =
    has_cuda_compiler() && setenv("MLX_ENABLE_CACHE_THRASHING_CHECK", "0", 0) == 0;

std::vector<std::string> strings(Span<const char*> texts) {
  return {texts.begin(), texts.end()};
}

// Elements of the inputs that MLX is shown when it writes the head of the function: it declares an input of fewer in another
// address space of Metal's, and a scalar by reference.
constexpr int32_t kLong = 64;

// On Metal integers reach a source as the shape of an input: a source has no other parameters there that are not compiled into
// it. The elements, which nobody reads, are those of an input that is there.
array carrying(const Shape& sizes, const array& input) {
  array carrier(sizes, input.dtype(), nullptr, {});
  // As if the elements lay in rows, so that MLX copies none.
  array::Flags rows{true, true, true};
  carrier.copy_shared_buffer(input, mlx::core::Strides(sizes.size(), 1), rows, input.data_size());
  return carrier;
}

// The bytes of an input along a last axis of their own, as if they did not lie in rows, so that MLX copies them: a source reads
// them from where its elements may begin.
array bytes_to_copy(const array& input) {
  auto size = static_cast<int32_t>(input.itemsize());
  auto shape = input.shape();
  auto strides = input.strides();
  for (auto& stride : strides) {
    stride *= size;
  }
  shape.push_back(size);
  strides.push_back(1);
  array bytes(std::move(shape), mlx::core::uint8, nullptr, {});
  bytes.copy_shared_buffer(input, strides, {false, false, false}, input.data_size() * input.itemsize());
  return bytes;
}

// An input as MLX's primitive takes it.
array passed(const array& input) {
  // A view of bytes as wider elements may begin anywhere. Buffers begin where every element may.
  if (input.size() > 0 && input.offset() % static_cast<int64_t>(input.itemsize()) != 0) {
    return bytes_to_copy(input);
  }
  // Metal's head was written for inputs that have an axis. Of a scalar MLX sets no shape, though it declared that of `s` where
  // the text has `sizes_shape`.
  return input.ndim() == 0 ? carrying(Shape{1}, input) : input;
}

std::tuple<int, int, int> triple(const int32_t* of) {
  return {of[0], of[1], of[2]};
}

// What a CUDA source has for elements of a dtype: half floats are their bits, since their types need headers.
const char* cuda_type(Dtype dtype) {
  switch (dtype.val()) {
    case Dtype::Val::bool_:
      return "bool";
    case Dtype::Val::int8:
      return "signed char";
    case Dtype::Val::uint8:
      return "unsigned char";
    case Dtype::Val::int16:
      return "short";
    case Dtype::Val::uint16:
    case Dtype::Val::float16:
    case Dtype::Val::bfloat16:
      return "unsigned short";
    case Dtype::Val::int32:
      return "int";
    case Dtype::Val::uint32:
      return "unsigned int";
    case Dtype::Val::int64:
      return "long long";
    case Dtype::Val::uint64:
      return "unsigned long long";
    case Dtype::Val::float32:
      return "float";
    case Dtype::Val::float64:
      return "double";
    case Dtype::Val::complex64:
      return "float2";
  }
  throw std::invalid_argument("a GPU source has no type for such elements");
}

// The text of a whole CUDA source: the parameters are inputs, results and sizes.
std::string cuda_text(const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs) {
  std::string text = std::string(launch.header) + "\nextern \"C\" __global__ void " + launch.name + "(";
  const char* comma = "";
  auto add = [&](const std::string& type, const std::string& name) {
    text += comma + type + " " + name;
    comma = ", ";
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    add(std::string("const ") + cuda_type(inputs[i].dtype()) + "*", launch.inputs.data[i]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    add(std::string(cuda_type(outputs[i].dtype())) + "*", launch.outputs.data[i]);
  }
  std::string list;
  for (size_t i = 0; i < launch.sizes.count; ++i) {
    auto name = "tacit_size_" + std::to_string(i);
    add("int", name);
    list += (i == 0 ? "" : ", ") + name;
  }
  text += ") {\n";
  if (!list.empty()) {
    text += "const int sizes_shape[] = {" + list + "};\n";
  }
  return text + launch.body + "\n}\n";
}

}  // namespace

Backend gpu_backend() {
  return mlx::core::cu::is_available() ? Backend::kCuda : Backend::kMetal;
}

Launched::Launched(
    const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs, mlx::core::Stream stream) {
  if (launch.inputs.count != inputs.size() || launch.outputs.count != outputs.size()) {
    throw std::invalid_argument(
        std::string("the GPU source ") + launch.name + " does not name each input and each result of its kernel");
  }
  for (const auto& input : inputs) {
    inputs_.emplace_back(input.shape(), input.dtype());
  }
  auto [shapes, dtypes] = avals_of(outputs);
  auto results = gpu_backend() == Backend::kCuda ? for_cuda(launch, inputs, outputs, shapes, dtypes, stream)
                                              : for_metal(launch, inputs, shapes, dtypes, stream);
  primitive_ = results.at(0).primitive_ptr();
}

std::vector<array> Launched::for_cuda(
    const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs,
    const std::vector<Shape>& shapes, const std::vector<Dtype>& dtypes, mlx::core::Stream stream) {
  const auto& code = compiled_for(
      stream.device, launch.name, [&] { return cuda_text(launch, inputs, outputs); });
  std::vector<mlx::core::fast::ScalarArg> sizes(launch.sizes.begin(), launch.sizes.end());
  return mlx::core::fast::precompiled_cuda_kernel(
      launch.name, code, inputs, shapes, dtypes, sizes, triple(launch.grid), triple(launch.group), launch.memory,
      std::nullopt, true, stream);
}

std::vector<array> Launched::for_metal(
    const Launch& launch, const std::vector<array>& inputs, const std::vector<Shape>& shapes,
    const std::vector<Dtype>& dtypes, mlx::core::Stream stream) {
  auto names = strings(launch.inputs);
  std::vector<array> operands;
  sizes_ = Shape(launch.sizes.begin(), launch.sizes.end());
  if (!sizes_.empty()) {
    names.insert(names.begin(), "sizes");
    operands.emplace_back(Shape(sizes_.size(), kLong), mlx::core::uint8, nullptr, std::vector<array>{});
  }
  for (const auto& input : inputs) {
    operands.emplace_back(Shape{kLong}, input.dtype(), nullptr, std::vector<array>{});
  }
  auto function = mlx::core::fast::metal_kernel(
      launch.name, names, strings(launch.outputs), launch.body, launch.header);
  return function(operands, shapes, dtypes, triple(launch.grid), triple(launch.group), {}, std::nullopt, false, stream);
}

bool Launched::fits(const std::vector<array>& inputs) const {
  return std::equal(inputs.begin(), inputs.end(), inputs_.begin(), inputs_.end(), [](const auto& input, const auto& of) {
    return input.shape() == of.first && input.dtype() == of.second;
  });
}

void Launched::eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) const {
  std::vector<array> operands;
  if (!sizes_.empty()) {
    auto filled = std::find_if(inputs.begin(), inputs.end(), [](const array& input) { return input.size() > 0; });
    if (filled == inputs.end()) {
      throw std::invalid_argument("a GPU source with sizes needs an input that has elements");
    }
    operands.push_back(carrying(sizes_, *filled));
  }
  std::transform(inputs.begin(), inputs.end(), std::back_inserter(operands), passed);
  try {
    primitive_->eval_gpu(operands, outputs);
  } catch (const std::runtime_error& error) {
    // Metal compiles a source only now.
    throw std::runtime_error(
        std::string(error.what()) + "\nhelp: if the GPU's compiler refuses the source, TACIT_GPU_SOURCES=off runs without it");
  }
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// The backend of the GPU that is here, or -1 for none.
int tacit_gpu() {
  return mlx::core::is_available(mlx::core::Device(mlx::core::Device::gpu)) ? static_cast<int>(gpu_backend()) : -1;
}

// The compute capability of CUDA's GPU, such as 90, or 0 where there is none.
int tacit_cuda_capability(uint32_t* capability) {
  return guarded([&] {
    mlx::core::Device gpu(mlx::core::Device::gpu);
    *capability = mlx::core::cu::is_available() ? static_cast<uint32_t>(cuda_capability(gpu)) : 0;
  });
}
}
