// NVIDIA's compiler of CUDA C++ at run time, which MLX's library brings with it where it is built for CUDA.
#pragma once

#include <functional>
#include <string>

#include "mlx/mlx.h"

namespace tacit {

// Whether it is there, without asking for a GPU.
bool has_cuda_compiler();

// The compute capability of a GPU, such as 90 for 9.0.
size_t cuda_capability(const mlx::core::Device& device);

// The machine code of a text for a GPU: that of the function `name`. Kept by the name for the life of the process; the text is
// asked for only where there is none yet.
const std::string& compiled_for(
    const mlx::core::Device& device, const std::string& name, const std::function<std::string()>& text);

}  // namespace tacit
