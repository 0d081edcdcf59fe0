// The door to MLX's reductions: one over axes of one element each is a change of the type.
//
// Outside of a function without shapes MLX leaves such a reduction out. In one it stays, as the axis may be longer in the next call,
// and MLX then reads the last stride of axes of which it has dropped all: it writes anywhere.
#include <algorithm>
#include <vector>

#include "door.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

// On a Mac calls within MLX stay there.
#if defined(TACIT_DOORS) && defined(__linux__)

#define TACIT_REDUCE "_ZN3mlx4core6Reduce8eval_cpuERKSt6vectorINS0_5arrayESaIS3_EERS3_"

namespace tacit {

using EvalCpu = void(mlx::core::Reduce*, const std::vector<mlx::core::array>&, mlx::core::array&);

// By its mangled name: where a class has its first virtual function a compiler puts its table of them, and libmlx has that.
EvalCpu reduce asm(TACIT_REDUCE);

void reduce(mlx::core::Reduce* self, const std::vector<mlx::core::array>& inputs, mlx::core::array& output) {
  static auto* const original = next<EvalCpu>(TACIT_REDUCE);
  const auto& x = inputs[0];
  const auto axes = self->state().second;
  if (std::any_of(axes.begin(), axes.end(), [&](int axis) { return x.shape(axis) != 1; })) {
    original(self, inputs, output);
  } else if (auto cast = mlx::core::astype(x, output.dtype(), self->stream()); cast.id() == x.id()) {
    output.copy_shared_buffer(x);
  } else {
    std::vector<mlx::core::array> outputs{output};
    cast.primitive().eval_cpu(inputs, outputs);
  }
}

}  // namespace tacit

#undef TACIT_REDUCE

#endif
