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
  int (*forward)(void* function, Arrays args, Sink results);
  int (*vjp)(void* function, Arrays primals, Arrays cotangents, Arrays outputs, Sink gradients);
  int (*jvp)(void* function, Arrays primals, Arrays tangents, Integers argnums, Sink tangents_out);
  int (*vmap)(void* function, Arrays inputs, Integers axes, Sink results, AxisSink result_axes);
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
    Collector outputs;
    check(rust->table.forward(rust->function, borrow(args), outputs.sink()));
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
