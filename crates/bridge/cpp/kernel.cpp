// A Rust kernel as an MLX primitive: evaluated by a Rust function, transformed by its decomposition.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bridge.h"
#include "mlx/backend/cpu/encoder.h"

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

// The Rust side of a kernel. A callback returns 0, or 1 after tacit_set_callback_error. `vjp` may return 2: the
// kernel has none of its own.
struct KernelTable {
  void (*release)(void* kernel);
  int (*eval)(void* kernel, const Buffer* inputs, size_t input_count, const Buffer* outputs, size_t output_count);
  int (*decompose)(void* kernel, const Handle* inputs, size_t count, Sink results);
  int (*vjp)(
      void* kernel, const Handle* primals, size_t primal_count, const Handle* cotangents, size_t cotangent_count,
      const int32_t* argnums, size_t argnum_count, Sink gradients);
  int (*avals)(void* kernel, const Handle* inputs, size_t count, Sink prototypes);
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

std::vector<Handle> borrow(const std::vector<array>& arrays) {
  std::vector<Handle> handles;
  handles.reserve(arrays.size());
  for (const auto& value : arrays) {
    handles.push_back(Handle{const_cast<array*>(&value)});
  }
  return handles;
}

// Collects what Rust pushes; the handles become arrays of ours.
class Collector {
 public:
  Sink sink() {
    return Sink{this, [](void* ctx, Handle handle) {
                  auto* value = static_cast<array*>(handle.ctx);
                  static_cast<Collector*>(ctx)->arrays.push_back(std::move(*value));
                  delete value;
                }};
  }
  std::vector<array> arrays;
};

void check(int status) {
  if (status == 1) {
    raise_callback_error();
  }
}

class HostKernel : public Primitive {
 public:
  HostKernel(mlx::core::Stream stream, std::shared_ptr<RustKernel> rust) : Primitive(stream), rust_(std::move(rust)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    for (auto& output : outputs) {
      output.set_data(mlx::core::allocator::malloc(output.nbytes()));
      encoder.set_output_array(output);
    }
    std::vector<array> reads, writes;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      reads.push_back(array::unsafe_weak_copy(input));
    }
    for (auto& output : outputs) {
      writes.push_back(array::unsafe_weak_copy(output));
    }
    encoder.dispatch([rust = rust_, reads = std::move(reads), writes = std::move(writes)]() mutable {
      std::vector<Buffer> from, to;
      for (auto& value : reads) {
        if (!value.flags().row_contiguous) {
          throw std::runtime_error("kernel " + rust->name + " was given an operand that is not row-major");
        }
        from.push_back(view(value));
      }
      for (auto& value : writes) {
        // Rust sees the buffer as numbers, which must not be whatever the allocator left there.
        if (value.nbytes() > 0) {
          std::memset(value.data<char>(), 0, value.nbytes());
        }
        to.push_back(view(value));
      }
      check(rust->table.eval(rust->kernel, from.data(), from.size(), to.data(), to.size()));
    });
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
    // Codes and indices have no gradient, and some ops refuse to be asked for one.
    auto inexact = only_inexact(primals, argnums);
    std::vector<array> gradients;
    if (!inexact.empty()) {
      gradients = mlx::core::vjp(over(primals, inexact), select(primals, inexact), cotangents).second;
    }
    std::vector<array> all;
    size_t taken = 0;
    for (auto argnum : argnums) {
      auto has_one = taken < inexact.size() && inexact[taken] == argnum;
      all.push_back(has_one ? gradients[taken++] : mlx::core::zeros_like(primals[argnum]));
    }
    return all;
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    auto inexact = only_inexact(primals, argnums);
    std::vector<array> chosen;
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (std::find(inexact.begin(), inexact.end(), argnums[i]) != inexact.end()) {
        chosen.push_back(tangents.at(i));
      }
    }
    return mlx::core::jvp(over(primals, inexact), select(primals, inexact), chosen).second;
  }

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto rust = rust_;
    auto outputs = mlx::core::vmap([rust](const std::vector<array>& args) { return decompose(*rust, args); }, axes)(inputs);
    auto count = outputs.size();
    return {std::move(outputs), std::vector<int>(count, 0)};
  }

  const char* name() const override {
    return rust_->name.c_str();
  }

  bool is_equivalent(const Primitive& other) const override {
    const auto* same = dynamic_cast<const HostKernel*>(&other);
    return same != nullptr && same->rust_ == rust_;
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    auto from = borrow(inputs);
    Collector prototypes;
    check(rust_->table.avals(rust_->kernel, from.data(), from.size(), prototypes.sink()));
    std::vector<Shape> shapes;
    for (const auto& prototype : prototypes.arrays) {
      shapes.push_back(prototype.shape());
    }
    return shapes;
  }

  static std::vector<array> decompose(const RustKernel& rust, const std::vector<array>& inputs) {
    auto from = borrow(inputs);
    Collector results;
    check(rust.table.decompose(rust.kernel, from.data(), from.size(), results.sink()));
    return std::move(results.arrays);
  }

 private:
  static Buffer view(array& value) {
    return Buffer{value.data<char>(), value.nbytes(), value.shape().data(), value.ndim(), code_of(value.dtype())};
  }

  static std::vector<array> select(const std::vector<array>& primals, const std::vector<int>& argnums) {
    std::vector<array> chosen;
    for (auto argnum : argnums) {
      chosen.push_back(primals.at(argnum));
    }
    return chosen;
  }

  static std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
    std::vector<int> chosen;
    for (auto argnum : argnums) {
      if (mlx::core::issubdtype(primals.at(argnum).dtype(), mlx::core::inexact)) {
        chosen.push_back(argnum);
      }
    }
    return chosen;
  }

  // The decomposition as a function of the chosen primals alone.
  std::function<std::vector<array>(const std::vector<array>&)> over(
      const std::vector<array>& primals, const std::vector<int>& argnums) const {
    auto rust = rust_;
    return [rust, primals, argnums](const std::vector<array>& chosen) {
      auto all = primals;
      for (size_t i = 0; i < argnums.size(); ++i) {
        all.at(argnums[i]) = chosen[i];
      }
      return decompose(*rust, all);
    };
  }

  std::shared_ptr<RustKernel> rust_;
};

// An array that only carries a shape and a dtype back from Rust.
array prototype(const int32_t* shape, size_t ndim, int dtype) {
  return array(Shape(shape, shape + ndim), dtype_of(dtype), nullptr, {});
}

array row_major(const array& value) {
  auto ready = value.status() != array::Status::unscheduled && value.flags().row_contiguous;
  return ready ? value : mlx::core::contiguous(value);
}

// The Rust side of a custom vjp.
struct GradientTable {
  void (*release)(void* function);
  int (*forward)(void* function, const Handle* args, size_t count, Sink results);
  int (*backward)(
      void* function, const Handle* primals, size_t primal_count, const Handle* cotangents, size_t cotangent_count,
      const Handle* outputs, size_t output_count, Sink gradients);
};

struct RustFunction {
  GradientTable table;
  void* function;

  RustFunction(GradientTable table, void* function) : table(table), function(function) {}
  RustFunction(const RustFunction&) = delete;
  RustFunction& operator=(const RustFunction&) = delete;
  ~RustFunction() {
    table.release(function);
  }
};

}  // namespace

bool is_host_kernel(const Primitive& primitive) {
  return dynamic_cast<const HostKernel*>(&primitive) != nullptr;
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_prototype(const int32_t* shape, size_t ndim, int dtype, Handle* value) {
  return guarded([&] { *value = own(prototype(shape, ndim, dtype)); });
}

// Takes `kernel` over in every case. On a device without a source the decomposition is the result.
int tacit_kernel_apply(
    KernelTable table, void* kernel, const char* name, const Handle* inputs, size_t count, Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustKernel>(table, kernel, name);
    auto arrays = gather(inputs, count);
    if (mlx::core::default_device() != mlx::core::Device::cpu) {
      pour(HostKernel::decompose(*rust, arrays), results);
      return;
    }
    auto from = borrow(arrays);
    Collector prototypes;
    check(table.avals(rust->kernel, from.data(), from.size(), prototypes.sink()));
    std::vector<Shape> shapes;
    std::vector<Dtype> dtypes;
    for (const auto& value : prototypes.arrays) {
      shapes.push_back(value.shape());
      dtypes.push_back(value.dtype());
    }
    for (auto& value : arrays) {
      value = row_major(value);
    }
    auto primitive = std::make_shared<HostKernel>(mlx::core::default_stream(mlx::core::default_device()), rust);
    if (shapes.size() == 1) {
      pour({array(std::move(shapes[0]), dtypes[0], std::move(primitive), std::move(arrays))}, results);
    } else {
      pour(array::make_arrays(std::move(shapes), dtypes, primitive, arrays), results);
    }
  });
}

// Takes `function` over in every case.
int tacit_custom_vjp(GradientTable table, void* function, const Handle* args, size_t count, Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustFunction>(table, function);
    auto forward = [rust](const std::vector<array>& args) {
      auto from = borrow(args);
      Collector outputs;
      check(rust->table.forward(rust->function, from.data(), from.size(), outputs.sink()));
      return std::move(outputs.arrays);
    };
    auto backward = [rust](
                        const std::vector<array>& primals, const std::vector<array>& cotangents,
                        const std::vector<array>& outputs) {
      auto from = borrow(primals);
      auto back = borrow(cotangents);
      auto made = borrow(outputs);
      Collector gradients;
      check(rust->table.backward(
          rust->function, from.data(), from.size(), back.data(), back.size(), made.data(), made.size(),
          gradients.sink()));
      return std::move(gradients.arrays);
    };
    pour(mlx::core::custom_vjp(forward, backward)(gather(args, count)), results);
  });
}
}
