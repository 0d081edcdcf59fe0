// Rust functions with transforms of their own.
#include <memory>
#include <numeric>

#include "bridge.h"

namespace tacit {

namespace {

// A callback returns 0, or 1 after tacit_set_callback_error; `vjp`, `jvp` and `vmap` may return 2: the function has none
// of its own.
struct FunctionTable {
  void (*release)(void* function);
  int (*forward)(void* function, const Handle* args, size_t count, Sink results);
  int (*vjp)(
      void* function, const Handle* primals, size_t primal_count, const Handle* cotangents, size_t cotangent_count,
      const Handle* outputs, size_t output_count, Sink gradients);
  int (*jvp)(
      void* function, const Handle* primals, size_t primal_count, const Handle* tangents, const int32_t* argnums,
      size_t argnum_count, Sink tangents_out);
  int (*vmap)(
      void* function, const Handle* inputs, const int32_t* axes, size_t count, Sink results, AxisSink result_axes);
};

struct RustFunction {
  FunctionTable table;
  void* function;

  RustFunction(FunctionTable table, void* function) : table(table), function(function) {}
  RustFunction(const RustFunction&) = delete;
  RustFunction& operator=(const RustFunction&) = delete;
  ~RustFunction() {
    table.release(function);
  }
};

using Shared = std::shared_ptr<RustFunction>;

ArrayFunction forward_of(Shared rust) {
  return [rust = std::move(rust)](const std::vector<array>& args) {
    auto from = borrow(args);
    Collector outputs;
    check(rust->table.forward(rust->function, from.data(), from.size(), outputs.sink()));
    return std::move(outputs.arrays);
  };
}

std::vector<int> all_of(const std::vector<array>& primals) {
  std::vector<int> argnums(primals.size());
  std::iota(argnums.begin(), argnums.end(), 0);
  return argnums;
}

auto vjp_of(Shared rust) {
  return [rust = std::move(rust)](
             const std::vector<array>& primals, const std::vector<array>& cotangents,
             const std::vector<array>& outputs) {
    auto from = borrow(primals);
    auto back = borrow(cotangents);
    auto made = borrow(outputs);
    Collector gradients;
    auto status = rust->table.vjp(
        rust->function, from.data(), from.size(), back.data(), back.size(), made.data(), made.size(),
        gradients.sink());
    check(status);
    return status == 0 ? std::move(gradients.arrays)
                       : gradients_of(forward_of(rust), primals, cotangents, all_of(primals));
  };
}

auto jvp_of(Shared rust) {
  return [rust = std::move(rust)](
             const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) {
    auto from = borrow(primals);
    auto along = borrow(tangents);
    Collector made;
    auto status = rust->table.jvp(
        rust->function, from.data(), from.size(), along.data(), argnums.data(), argnums.size(), made.sink());
    check(status);
    return status == 0 ? std::move(made.arrays) : tangents_of(forward_of(rust), primals, tangents, argnums);
  };
}

auto vmap_of(Shared rust) {
  return [rust = std::move(rust)](const std::vector<array>& inputs, const std::vector<int>& axes) {
    auto from = borrow(inputs);
    Collector results;
    std::vector<int> result_axes;
    auto status = rust->table.vmap(
        rust->function, from.data(), axes.data(), from.size(), results.sink(), axis_sink(result_axes));
    check(status);
    if (status != 0) {
      results.arrays = vmap_to_front(forward_of(rust), inputs, axes);
      result_axes.assign(results.arrays.size(), 0);
    }
    return std::pair{std::move(results.arrays), std::move(result_axes)};
  };
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// Takes `function` over in every case.
int tacit_custom_function(FunctionTable table, void* function, const Handle* args, size_t count, Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustFunction>(table, function);
    auto custom = mlx::core::custom_function(forward_of(rust), vjp_of(rust), jvp_of(rust), vmap_of(rust));
    pour(custom(gather(args, count)), results);
  });
}

// Takes `function` over in every case. Like mlx::core::checkpoint, which also asks for gradients of operands that have
// none.
int tacit_checkpoint(FunctionTable table, void* function, const Handle* args, size_t count, Sink results) {
  return guarded([&] {
    auto forward = forward_of(std::make_shared<RustFunction>(table, function));
    auto backward = [forward](
                        const std::vector<array>& primals, const std::vector<array>& cotangents,
                        const std::vector<array>& outputs) {
      // The second pass must not begin before the first is over, or it saves no memory.
      return gradients_of(forward, mlx::core::depends(primals, outputs), cotangents, all_of(primals));
    };
    pour(mlx::core::custom_vjp(forward, backward)(gather(args, count)), results);
  });
}
}
