// Kernels given as source to the GPU that MLX runs on.
#pragma once

#include <memory>
#include <vector>

#include "bridge.h"

namespace tacit {

// Which language of MLX's a source is in, as src/kernel/launch.rs counts.
enum class Backend : int { kMetal, kCuda };

// Where a kernel went, as src/kernel/launch.rs counts.
enum class Placed : int { kCpu, kGpu, kHost, kPlain };

// The backend of the GPUs of this library: CUDA's if it was built with that.
Backend gpu_backend();

// One launch of a source, alive for the call that hands it over.
struct Launch {
  const char* name;
  const char* header;
  const char* body;
  Span<const char*> inputs;
  Span<const char*> outputs;
  Integers sizes;
  int32_t grid[3];
  int32_t group[3];
  int32_t memory;
};

// Receives a launch, or nothing where the kernel has no source.
struct LaunchSink {
  void* ctx;
  void (*give)(void* ctx, const Launch* launch);
};

// MLX's primitive of a launch, for inputs and results of these shapes and dtypes.
class Launched {
 public:
  Launched(const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs, mlx::core::Stream stream);

  // Whether it was made for such inputs.
  bool fits(const std::vector<array>& inputs) const;

  void eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) const;

 private:
  std::vector<array> for_cuda(
      const Launch& launch, const std::vector<array>& inputs, const std::vector<array>& outputs,
      const std::vector<Shape>& shapes, const std::vector<Dtype>& dtypes, mlx::core::Stream stream);
  std::vector<array> for_metal(
      const Launch& launch, const std::vector<array>& inputs, const std::vector<Shape>& shapes,
      const std::vector<Dtype>& dtypes, mlx::core::Stream stream);

  std::shared_ptr<Primitive> primitive_;
  // What is carried to a source on Metal.
  Shape sizes_;
  std::vector<std::pair<Shape, Dtype>> inputs_;
};

}  // namespace tacit
