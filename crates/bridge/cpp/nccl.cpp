// Collectives over NCCL, which takes part in the commands of a GPU's stream. MLX's own ops record them there, and the engine's thread
// evaluates these.
#include <cstring>
#include <stdexcept>

#include "group.h"
#include "mlx/distributed/ops.h"
#include "mlx/scheduler.h"

namespace tacit {

void Group::dispatch_on_gpu(Op op, const array& input, const array& output) {
  if (op == Op::enter) {
    return;
  }
  if (op == Op::send || op == Op::recv || op == Op::split) {
    throw std::invalid_argument("NCCL has no messages between two ranks in MLX");
  }
  mlx::core::scheduler::enqueue(lane_->engine, [op, group = group_, input, output = output]() mutable {
    namespace distributed = mlx::core::distributed;
    auto gpu = mlx::core::default_stream(mlx::core::Device::gpu);
    // Its elements are there, which an array that only borrows them does not say: MLX refuses to evaluate what has no primitive.
    input.set_status(array::Status::available);
    auto result = [&] {
      switch (op) {
        case Op::max:
          return distributed::all_max(input, group, gpu);
        case Op::min:
          return distributed::all_min(input, group, gpu);
        case Op::gather:
        case Op::gather_parts:
          return distributed::all_gather(input, group, gpu);
        case Op::scatter:
          return distributed::sum_scatter(input, group, gpu);
        default:
          return distributed::all_sum(input, group, gpu);
      }
    }();
    result.eval();
    std::memcpy(output.data<char>(), result.data<char>(), result.nbytes());
  });
}

}  // namespace tacit
