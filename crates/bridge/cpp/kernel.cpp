// Rust kernels in the graph, and what all kernels do with the memory of arrays.
#include "host_kernel.h"

#include <cstring>

#include "main_thread.h"

namespace tacit {

// How an array lies is known only now: a node for the copy in the graph would be there for every input that is not
// computed yet.
array row_major(const array& input, mlx::core::Stream stream) {
  auto& encoder = mlx::core::cpu::get_command_encoder(stream);
  if (input.flags().row_contiguous) {
    // A view of bytes as wider elements may begin anywhere.
    if (input.size() == 0 || reinterpret_cast<uintptr_t>(input.data<char>()) % input.itemsize() == 0) {
      return input;
    }
    array copied(input.shape(), input.dtype(), nullptr, {});
    copied.set_data(mlx::core::allocator::malloc(input.nbytes()));
    encoder.set_input_array(input);
    encoder.set_output_array(copied);
    encoder.dispatch([from = array::unsafe_weak_copy(input), to = array::unsafe_weak_copy(copied)]() mutable {
      std::memcpy(to.data<char>(), from.data<char>(), to.nbytes());
    });
    encoder.add_temporary(copied);
    return copied;
  }
  auto copied = mlx::core::contiguous(input, false, stream);
  auto outputs = copied.outputs();
  copied.primitive().eval_cpu(copied.inputs(), outputs);
  copied.detach();
  encoder.add_temporary(copied);
  return copied;
}

void poison(void* data, size_t bytes, Dtype dtype) {
  std::memset(data, mlx::core::issubdtype(dtype, mlx::core::inexact) ? 0xff : 0, bytes);
}

bool same_kernel(const Primitive& a, const Primitive& b) {
  const auto* kernel = dynamic_cast<const HostKernel*>(&a);
  return kernel != nullptr && kernel->same(b);
}

void* host_kernel(const Primitive& primitive) {
  const auto* kernel = dynamic_cast<const HostKernel*>(&primitive);
  return kernel == nullptr ? nullptr : kernel->kernel();
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// An array that only carries a shape and a dtype back from Rust.
int tacit_prototype(AvalView aval, Handle* value) {
  return guarded([&] { *value = own(array(aval.shape(), aval.dtype(), nullptr, {})); });
}

// Takes `kernel` over in every case. `chosen` is mlx-c's stream, or empty for the default one. On a GPU for which it has no
// source, or whose sources nobody asks for if `sourceless` is set, it runs on the CPU if `host` is set, and else its fallback
// is the result. `traced_for` is the backend of a GPU that the device here stands in for, or -1. `placed` tells where it went.
int tacit_kernel_apply(
    KernelTable table, void* kernel, const char* name, Handle chosen, bool host, bool sourceless, int traced_for,
    Arrays inputs, Sink results, Placed* placed) {
  return guarded([&] {
    auto rust = std::make_shared<RustKernel>(table, kernel, name);
    take_main_thread();
    auto arrays = gather(inputs);
    auto stream = stream_or_default(chosen);
    auto prototypes = prototypes_of(*rust, arrays);
    std::shared_ptr<const Launched> launched;
    *placed = Placed::kCpu;
    if (stream.device != mlx::core::Device::cpu || traced_for >= 0) {
      auto is_on_gpu = stream.device != mlx::core::Device::cpu;
      if (is_on_gpu && !sourceless) {
        launched = launched_of(*rust, arrays, prototypes, stream);
      }
      auto has_source = launched != nullptr;
      if (traced_for >= 0) {
        has_source = !sourceless && has_launch(*rust, arrays, static_cast<Backend>(traced_for));
      }
      *placed = has_source ? Placed::kGpu : host ? Placed::kHost : Placed::kPlain;
      if (*placed == Placed::kPlain) {
        pour(HostKernel::fallen_back(*rust, {FallbackReason::kDevice, 0}, arrays), results);
        return;
      }
      // The GPU that is here may have no source where that which is traced for has one.
      if (*placed == Placed::kHost || (is_on_gpu && launched == nullptr)) {
        stream = mlx::core::default_stream(mlx::core::Device::cpu);
      }
    }
    auto [shapes, dtypes] = avals_of(prototypes);
    auto primitive = std::make_shared<HostKernel>(stream, rust, shapes.size(), std::move(launched));
    if (shapes.size() == 1) {
      pour({array(std::move(shapes[0]), dtypes[0], std::move(primitive), std::move(arrays))}, results);
    } else {
      pour(array::make_arrays(std::move(shapes), dtypes, primitive, arrays), results);
    }
  });
}
}
