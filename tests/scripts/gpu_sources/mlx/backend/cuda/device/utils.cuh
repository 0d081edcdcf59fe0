// What the sources may take of MLX's header of this name, which MLX has in its library.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;

namespace mlx::core::cu {

struct Shape {
  int extents[10];
  __device__ int operator[](int axis) const { return extents[axis]; }
};

}  // namespace mlx::core::cu
