// A Rust kernel as an MLX primitive: evaluated by a Rust function, transformed by its own rules or its fallback.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge.h"
#include "launch.h"
#include "memory.h"
#include "mlx/backend/cpu/encoder.h"
#include "plan.h"
#include "poisoned.h"

namespace tacit {

namespace {

// Why plain ops stand for a kernel; `examples` are those of a vmap.
struct FallbackReason {
  enum Kind : int { kDevice, kVjp, kJvp, kVmap };
  int kind;
  size_t examples;
};

// The Rust side of a kernel. A callback returns 0, or 1 after tacit_set_callback_error. `vjp`, `jvp` and `vmap` may return
// 2: the kernel has none of its own. `equal` tells whether two kernels are the same function: 1 or 0.
struct KernelTable {
  void (*release)(void* kernel);
  int (*eval)(void* kernel, Span<Buffer> inputs, Span<Buffer> outputs);
  int (*fallback)(void* kernel, FallbackReason reason, Arrays inputs, Sink results);
  int (*vjp)(void* kernel, Arrays primals, Arrays cotangents, Integers argnums, Sink gradients);
  int (*jvp)(void* kernel, Arrays primals, Arrays tangents, Integers argnums, Sink tangents_out);
  int (*avals)(void* kernel, Arrays inputs, Sink prototypes);
  int (*equal)(void* kernel, void* other);
  int (*vmap)(void* kernel, Arrays inputs, Integers axes, Sink results, AxisSink result_axes);
  // Gives the launch of its GPU source on such inputs, or nothing if it has none for the backend.
  int (*launch)(void* kernel, Backend backend, Arrays inputs, LaunchSink launch);
  // Leaves the error of a failure with this text: of its eval, or of an array that came of it and is read later.
  int (*failed)(void* kernel, const char* text, size_t length, bool later);
};

struct RustKernel {
  KernelTable table;
  void* kernel;
  std::string name;

  RustKernel(KernelTable table, void* kernel, const char* name) : table(table), kernel(kernel), name(name) {}
  RustKernel(const RustKernel&) = delete;
  RustKernel& operator=(const RustKernel&) = delete;
  ~RustKernel() {
    table.release(kernel);
  }
};

// Arrays of the avals of a kernel's results.
std::vector<array> prototypes_of(const RustKernel& rust, const std::vector<array>& inputs) {
  Collector prototypes;
  check(rust.table.avals(rust.kernel, borrow(inputs), prototypes.sink()));
  return std::move(prototypes.arrays);
}

// The launch of a kernel's GPU source on such inputs; null if it has none.
std::shared_ptr<const Launched> launched_of(
    const RustKernel& rust, const std::vector<array>& inputs, const std::vector<array>& outputs,
    mlx::core::Stream stream) {
  struct Receiver {
    const std::vector<array>& inputs;
    const std::vector<array>& outputs;
    mlx::core::Stream stream;
    std::shared_ptr<const Launched> launched;
    std::exception_ptr failure;
  } receiver{inputs, outputs, stream, nullptr, nullptr};
  // No exception may pass the Rust that calls it.
  LaunchSink sink{&receiver, [](void* ctx, const Launch* launch) {
                    auto& to = *static_cast<Receiver*>(ctx);
                    try {
                      to.launched = std::make_shared<const Launched>(*launch, to.inputs, to.outputs, to.stream);
                    } catch (...) {
                      to.failure = std::current_exception();
                    }
                  }};
  check(rust.table.launch(rust.kernel, gpu_backend(), borrow(inputs), sink));
  if (receiver.failure != nullptr) {
    std::rethrow_exception(receiver.failure);
  }
  return std::move(receiver.launched);
}

// Whether a kernel has a GPU source for such inputs.
bool has_launch(const RustKernel& rust, const std::vector<array>& inputs, Backend backend) {
  auto found = false;
  LaunchSink sink{&found, [](void* ctx, const Launch*) { *static_cast<bool*>(ctx) = true; }};
  check(rust.table.launch(rust.kernel, backend, borrow(inputs), sink));
  return found;
}

// What a task keeps of an array that it reads or writes: MLX, or a plan beside the task, keeps the memory until it has run. A copy of
// the array would be two objects in the heap, and a step of a decoder has hundreds.
struct Operand {
  Memory memory;
  int64_t offset;
  size_t bytes;
  Shape shape;
  Dtype dtype;

  explicit Operand(const array& value)
      : memory(value.buffer()), offset(value.offset()), bytes(value.nbytes()), shape(value.shape()), dtype(value.dtype()) {}

  // On the thread of the task, behind what writes the memory: a GPU's may have to be brought here.
  Buffer buffer() {
    return {static_cast<char*>(memory.raw_ptr()) + offset, bytes, AvalView::of(shape, dtype)};
  }
};

using Operands = std::vector<Operand>;

class HostKernel : public Primitive {
 public:
  // `launched` is its launch on the inputs that it is made for, on a GPU.
  HostKernel(
      mlx::core::Stream stream, std::shared_ptr<RustKernel> rust, size_t results,
      std::shared_ptr<const Launched> launched = nullptr)
      : Primitive(stream), rust_(std::move(rust)), results_(results), launched_(std::move(launched)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    for (auto& output : outputs) {
      output.set_data(mlx::core::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
    }
    dispatch(inputs, {}, outputs, outputs.front(), nullptr);
  }

  void eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (std::all_of(outputs.begin(), outputs.end(), [](const array& output) { return output.size() == 0; })) {
      for (auto& output : outputs) {
        output.set_data(mlx::core::allocator::malloc(0));
      }
      return;
    }
    // A replay without shapes puts other inputs under the same primitive.
    auto launched = launched_ != nullptr && launched_->fits(inputs) ? launched_ : launched_of(*rust_, inputs, outputs, stream());
    if (launched == nullptr) {
      throw std::runtime_error("kernel " + rust_->name + " has no GPU source for these inputs");
    }
    launched->eval_gpu(inputs, outputs);
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<int>& argnums,
      const std::vector<array>&) override {
    Collector own;
    auto status = rust_->table.vjp(rust_->kernel, borrow(primals), borrow(cotangents), argnums, own.sink());
    check(status);
    if (status == 0) {
      return std::move(own.arrays);
    }
    return gradients_of(fallback({FallbackReason::kVjp, 0}), primals, cotangents, argnums);
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    Collector own;
    auto status = rust_->table.jvp(rust_->kernel, borrow(primals), borrow(tangents), argnums, own.sink());
    check(status);
    if (status == 0) {
      return std::move(own.arrays);
    }
    return tangents_of(fallback({FallbackReason::kJvp, 0}), primals, tangents, argnums);
  }

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    Collector results;
    std::vector<int> result_axes;
    auto status = rust_->table.vmap(rust_->kernel, borrow(inputs), axes, results.sink(), axis_sink(result_axes));
    check(status);
    if (status == 0) {
      return {std::move(results.arrays), std::move(result_axes)};
    }
    size_t examples = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (axes[i] >= 0) {
        examples = static_cast<size_t>(inputs[i].shape(axes[i]));
      }
    }
    auto outputs = vmap_to_front(fallback({FallbackReason::kVmap, examples}), inputs, axes);
    auto count = outputs.size();
    return {std::move(outputs), std::vector<int>(count, 0)};
  }

  const char* name() const override {
    return rust_->name.c_str();
  }

  // MLX's compile makes one of equal nodes by this, and loses results of those that have several.
  bool is_equivalent(const Primitive& other) const override {
    return results_ == 1 && same(other);
  }

  virtual bool same(const Primitive& other) const {
    const auto* same = dynamic_cast<const HostKernel*>(&other);
    return same != nullptr && (same->rust_ == rust_ || rust_->table.equal(rust_->kernel, same->rust_->kernel) != 0);
  }

  void* kernel() const {
    return rust_->kernel;
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    std::vector<Shape> shapes;
    for (const auto& prototype : prototypes_of(*rust_, inputs)) {
      shapes.push_back(prototype.shape());
    }
    // MLX reads a recorded dtype for each of them.
    if (shapes.size() != results_) {
      throw std::invalid_argument(
          "kernel " + rust_->name + " has " + std::to_string(shapes.size()) + " results for these inputs and had " +
          std::to_string(results_) + " when it was recorded");
    }
    return shapes;
  }

  static std::vector<array> fallen_back(const RustKernel& rust, FallbackReason reason, const std::vector<array>& inputs) {
    Collector results;
    check(rust.table.fallback(rust.kernel, reason, borrow(inputs), results.sink()));
    return std::move(results.arrays);
  }

 protected:
  // Has the kernel run on these arrays when their turn comes. `residents` are inputs too, which are there already. Who is
  // told of a failure holds `watched`; `kept` lives until then.
  void dispatch(
      const std::vector<array>& inputs, std::vector<Residents> residents, const std::vector<array>& outputs,
      const array& watched, std::shared_ptr<const void> kept) {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    Operands reads, writes(outputs.begin(), outputs.end());
    reads.reserve(inputs.size());
    for (const auto& input : inputs) {
      auto read = row_major(input, stream());
      encoder.set_input_array(read);
      reads.emplace_back(read);
    }
    auto run = std::make_shared<Run>(watched);
    encoder.dispatch([rust = rust_, run = std::move(run), reads = std::move(reads), residents = std::move(residents),
                      writes = std::move(writes), kept = std::move(kept)]() mutable {
      if (auto failure = failure_of(rust, reads, residents, writes)) {
        if (!run->watched()) {
          failure(false);
        }
        run->fail(std::move(failure));
      }
      run.reset();
    });
  }

  // Runs the kernel on these arrays now, and gives its failure, if it fails.
  static Failure failure_of(
      const std::shared_ptr<RustKernel>& rust, Operands& reads, const std::vector<Residents>& residents, Operands& writes) {
    try {
      evaluate(*rust, reads, residents, writes);
      return nullptr;
    } catch (const std::exception& error) {
      for (auto& write : writes) {
        poison(write.buffer().data, write.bytes, write.dtype);
      }
      return [rust, text = std::string(error.what())](bool later) {
        check(rust->table.failed(rust->kernel, text.data(), text.size(), later));
      };
    }
  }

  std::shared_ptr<RustKernel> rust_;

 private:
  static void evaluate(
      const RustKernel& rust, Operands& reads, const std::vector<Residents>& residents, Operands& writes) {
    auto count = reads.size();
    for (const auto& some : residents) {
      count += some->size();
    }
    // A buffer without a shape is one that is not filled yet: that of a scalar points somewhere too.
    std::vector<Buffer> from(count, Buffer{nullptr, 0, {nullptr, 0, 0}}), to;
    to.reserve(writes.size());
    for (const auto& some : residents) {
      for (const auto& resident : *some) {
        from.at(resident.place) = resident.buffer;
      }
    }
    auto read = reads.begin();
    for (auto& buffer : from) {
      if (buffer.aval.extents == nullptr) {
        buffer = (read++)->buffer();
      }
    }
    for (auto& write : writes) {
      to.push_back(write.buffer());
    }
    check(rust.table.eval(rust.kernel, from, to));
  }

  ArrayFunction fallback(FallbackReason reason) const {
    return [rust = rust_, reason](const std::vector<array>& args) { return fallen_back(*rust, reason, args); };
  }

  size_t results_;
  std::shared_ptr<const Launched> launched_;
  Watched watched_;
};

}  // namespace
}  // namespace tacit
