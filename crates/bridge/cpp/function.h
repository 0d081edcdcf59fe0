// Functions of Rust that a graph holds.
#pragma once

#include <memory>
#include <utility>

#include "bridge.h"

namespace tacit {

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

inline ArrayFunction forward_of(std::shared_ptr<RustFunction> rust) {
  return [rust = std::move(rust)](const std::vector<array>& args) {
    auto from = borrow(args);
    Collector outputs;
    check(rust->table.forward(rust->function, from.data(), from.size(), outputs.sink()));
    return std::move(outputs.arrays);
  };
}

// The function of a checkpoint, and how many of the node's operands are its arguments; its results are the others.
struct CalledAgain {
  ArrayFunction function;
  size_t args;
};

// What a primitive calls again for its gradient; null for any other.
const CalledAgain* called_again(const Primitive& primitive);

}  // namespace tacit
