// A Rust kernel as an MLX primitive: evaluated by a Rust function, transformed by its own rules or its fallback.
#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "bridge.h"
#include "main_thread.h"
#include "mlx/backend/cpu/encoder.h"
#include "poisoned.h"

namespace tacit {

namespace {

// What a kernel sees of an array: dense row-major bytes.
struct Buffer {
  void* data;
  size_t bytes;
  const int32_t* shape;
  size_t ndim;
  int dtype;
};

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
  int (*eval)(void* kernel, const Buffer* inputs, size_t input_count, const Buffer* outputs, size_t output_count);
  int (*fallback)(void* kernel, FallbackReason reason, const Handle* inputs, size_t count, Sink results);
  int (*vjp)(
      void* kernel, const Handle* primals, size_t primal_count, const Handle* cotangents, size_t cotangent_count,
      const int32_t* argnums, size_t argnum_count, Sink gradients);
  int (*jvp)(
      void* kernel, const Handle* primals, size_t primal_count, const Handle* tangents, const int32_t* argnums,
      size_t argnum_count, Sink tangents_out);
  int (*avals)(void* kernel, const Handle* inputs, size_t count, Sink prototypes);
  int (*equal)(void* kernel, void* other);
  int (*vmap)(void* kernel, const Handle* inputs, const int32_t* axes, size_t count, Sink results, AxisSink result_axes);
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
  auto from = borrow(inputs);
  Collector prototypes;
  check(rust.table.avals(rust.kernel, from.data(), from.size(), prototypes.sink()));
  return std::move(prototypes.arrays);
}

class HostKernel : public Primitive {
 public:
  HostKernel(mlx::core::Stream stream, std::shared_ptr<RustKernel> rust, size_t results)
      : Primitive(stream), rust_(std::move(rust)), results_(results) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    for (auto& output : outputs) {
      output.set_data(mlx::core::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
    }
    dispatch(inputs, outputs, outputs.front(), {});
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("kernel " + rust_->name + " has no GPU source");
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<int>& argnums,
      const std::vector<array>&) override {
    auto from = borrow(primals);
    auto back = borrow(cotangents);
    Collector own;
    auto status = rust_->table.vjp(
        rust_->kernel, from.data(), from.size(), back.data(), back.size(), argnums.data(), argnums.size(), own.sink());
    check(status);
    if (status == 0) {
      return std::move(own.arrays);
    }
    return gradients_of(fallback({FallbackReason::kVjp, 0}), primals, cotangents, argnums);
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    auto from = borrow(primals);
    auto along = borrow(tangents);
    Collector own;
    auto status = rust_->table.jvp(
        rust_->kernel, from.data(), from.size(), along.data(), argnums.data(), argnums.size(), own.sink());
    check(status);
    if (status == 0) {
      return std::move(own.arrays);
    }
    return tangents_of(fallback({FallbackReason::kJvp, 0}), primals, tangents, argnums);
  }

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto from = borrow(inputs);
    Collector results;
    std::vector<int> result_axes;
    auto status = rust_->table.vmap(
        rust_->kernel, from.data(), axes.data(), from.size(), results.sink(), axis_sink(result_axes));
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

  // MLX's compile unites equal nodes by this, and loses results of those that have several.
  bool is_equivalent(const Primitive& other) const override {
    return results_ == 1 && same(other);
  }

  bool same(const Primitive& other) const {
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
    return shapes;
  }

  static std::vector<array> fallen_back(const RustKernel& rust, FallbackReason reason, const std::vector<array>& inputs) {
    auto from = borrow(inputs);
    Collector results;
    check(rust.table.fallback(rust.kernel, reason, from.data(), from.size(), results.sink()));
    return std::move(results.arrays);
  }

 protected:
  // Has the kernel run on these arrays when their turn comes. Who is told of a failure holds `watched`; `kept` lives until
  // then.
  void dispatch(
      const std::vector<array>& inputs, const std::vector<array>& outputs, const array& watched,
      std::vector<std::shared_ptr<array::Data>> kept) {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    std::vector<array> reads, writes;
    reads.reserve(inputs.size());
    for (const auto& input : inputs) {
      auto read = row_major(input, stream());
      encoder.set_input_array(read);
      reads.push_back(array::unsafe_weak_copy(read));
    }
    for (const auto& output : outputs) {
      writes.push_back(array::unsafe_weak_copy(output));
    }
    auto run = std::make_shared<Run>(watched);
    encoder.dispatch([rust = rust_, run = std::move(run), reads = std::move(reads), writes = std::move(writes),
                      kept = std::move(kept)]() mutable {
      try {
        evaluate(*rust, reads, writes);
      } catch (const std::exception& error) {
        std::for_each(writes.begin(), writes.end(), poison);
        Failure failure = [rust, text = std::string(error.what())](bool later) {
          check(rust->table.failed(rust->kernel, text.data(), text.size(), later));
        };
        if (!run->watched()) {
          failure(false);
        }
        run->fail(std::move(failure));
      }
      run.reset();
    });
  }

  std::shared_ptr<RustKernel> rust_;

 private:
  static Buffer view(array& value) {
    return Buffer{value.data<char>(), value.nbytes(), value.shape().data(), value.ndim(), code_of(value.dtype())};
  }

  static void evaluate(const RustKernel& rust, std::vector<array>& reads, std::vector<array>& writes) {
    std::vector<Buffer> from, to;
    for (auto& value : reads) {
      from.push_back(view(value));
    }
    for (auto& value : writes) {
      to.push_back(view(value));
    }
    check(rust.table.eval(rust.kernel, from.data(), from.size(), to.data(), to.size()));
  }

  ArrayFunction fallback(FallbackReason reason) const {
    return [rust = rust_, reason](const std::vector<array>& args) { return fallen_back(*rust, reason, args); };
  }

  size_t results_;
  Watched watched_;
};

// Arrays that one node computes and other nodes give.
struct Results {
  std::vector<std::optional<array>> arrays;
};

// A kernel of many inputs and many results. MLX has each result of a node hold all its inputs; so this one has a single
// result without elements, which stands for all of them, and a `PlanResult` takes each from it.
class PlanKernel : public HostKernel {
 public:
  PlanKernel(
      mlx::core::Stream stream, std::shared_ptr<RustKernel> rust, std::vector<std::pair<size_t, size_t>> donated,
      std::vector<array> prototypes)
      : HostKernel(stream, std::move(rust), 1), donated_(std::move(donated)), prototypes_(std::move(prototypes)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    std::vector<array> made;
    for (const auto& prototype : prototypes_) {
      made.emplace_back(prototype.shape(), prototype.dtype(), nullptr, std::vector<array>{});
    }
    for (auto [to, from] : donated_) {
      const auto& given = inputs[from];
      auto& result = made[to];
      auto lies_alike = given.shape() == result.shape() && given.flags().row_contiguous &&
          given.data_size() == given.size() &&
          reinterpret_cast<uintptr_t>(given.data<char>()) % std::max<size_t>(given.itemsize(), 1) == 0;
      if (lies_alike && given.is_donatable()) {
        result.copy_shared_buffer(given);
      }
    }
    std::vector<std::shared_ptr<array::Data>> kept;
    auto results = std::make_unique<Results>();
    for (auto& result : made) {
      if (result.data_shared_ptr() == nullptr) {
        result.set_data(mlx::core::allocator::malloc(result.nbytes()));
      }
      encoder.set_output_array(result);
      kept.push_back(result.data_shared_ptr());
      results->arrays.emplace_back(result);
    }
    dispatch(inputs, made, outputs.front(), std::move(kept));
    outputs.front().set_data(mlx::core::allocator::Buffer(results.release()), [](mlx::core::allocator::Buffer held) {
      delete static_cast<Results*>(held.ptr());
    });
  }

  bool is_equivalent(const Primitive&) const override {
    return false;
  }

 private:
  // Outputs that begin as an input, each with its input.
  std::vector<std::pair<size_t, size_t>> donated_;
  std::vector<array> prototypes_;
};

// One of the results of a plan.
class PlanResult : public Primitive {
 public:
  PlanResult(mlx::core::Stream stream, size_t place) : Primitive(stream), place_(place) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& result = static_cast<Results*>(const_cast<array&>(inputs[0]).buffer().ptr())->arrays[place_];
    if (!result) {
      throw std::runtime_error("a result of a plan was taken twice");
    }
    outputs[0].copy_shared_buffer(*result);
    result.reset();
    mlx::core::cpu::get_command_encoder(stream()).set_output_array(outputs[0]);
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("a plan has no GPU source");
  }

  const char* name() const override {
    return "PlanResult";
  }

 private:
  size_t place_;
};

// An array that only carries a shape and a dtype back from Rust.
array prototype(const int32_t* shape, size_t ndim, int dtype) {
  return array(Shape(shape, shape + ndim), dtype_of(dtype), nullptr, {});
}

}  // namespace

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
  auto made = copied.outputs();
  copied.primitive().eval_cpu(copied.inputs(), made);
  copied.detach();
  encoder.add_temporary(copied);
  return copied;
}

void poison(array& value) {
  auto floats = mlx::core::issubdtype(value.dtype(), mlx::core::inexact);
  std::memset(value.data<char>(), floats ? 0xff : 0, value.nbytes());
}

bool is_planned(const array& value) {
  return value.has_primitive() && typeid(value.primitive()) == typeid(PlanResult);
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

int tacit_prototype(const int32_t* shape, size_t ndim, int dtype, Handle* value) {
  return guarded([&] { *value = own(prototype(shape, ndim, dtype)); });
}

// Takes `kernel` over in every case. `chosen` is mlx-c's stream, or empty for the default one. On a device without a
// source the fallback is the result.
int tacit_kernel_apply(
    KernelTable table, void* kernel, const char* name, Handle chosen, const Handle* inputs, size_t count,
    Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustKernel>(table, kernel, name);
    take_main_thread();
    auto arrays = gather(inputs, count);
    auto stream = stream_or_default(chosen);
    if (stream.device != mlx::core::Device::cpu) {
      pour(HostKernel::fallen_back(*rust, {FallbackReason::kDevice, 0}, arrays), results);
      return;
    }
    auto prototypes = prototypes_of(*rust, arrays);
    std::vector<Shape> shapes;
    std::vector<Dtype> dtypes;
    for (const auto& value : prototypes) {
      shapes.push_back(value.shape());
      dtypes.push_back(value.dtype());
    }
    auto primitive = std::make_shared<HostKernel>(stream, rust, shapes.size());
    if (shapes.size() == 1) {
      pour({array(std::move(shapes[0]), dtypes[0], std::move(primitive), std::move(arrays))}, results);
    } else {
      pour(array::make_arrays(std::move(shapes), dtypes, primitive, arrays), results);
    }
  });
}

// Takes `kernel` over in every case, a plan for a CPU stream. `donated` are pairs of an output and the input that it begins
// as, one after the other.
int tacit_plan_apply(
    KernelTable table, void* kernel, const char* name, Handle chosen, const Handle* inputs, size_t count,
    const size_t* donated, size_t donated_count, Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustKernel>(table, kernel, name);
    take_main_thread();
    auto arrays = gather(inputs, count);
    auto stream = stream_or_default(chosen);
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t i = 0; i < donated_count; i += 2) {
      pairs.emplace_back(donated[i], donated[i + 1]);
    }
    auto prototypes = prototypes_of(*rust, arrays);
    auto primitive = std::make_shared<PlanKernel>(stream, rust, std::move(pairs), prototypes);
    array all(Shape{0}, mlx::core::bool_, std::move(primitive), std::move(arrays));
    std::vector<array> made;
    for (size_t i = 0; i < prototypes.size(); ++i) {
      auto taken = std::make_shared<PlanResult>(stream, i);
      made.emplace_back(prototypes[i].shape(), prototypes[i].dtype(), std::move(taken), std::vector<array>{all});
    }
    pour(made, results);
  });
}
}
