// What MLX records wrongly while it traces for shapeless.
#pragma once

#include "bridge.h"

namespace tacit {

// While it lives, MLX traces for shapeless on this thread, which it tells nobody.
class Shapeless {
 public:
  Shapeless() {
    ++depth();
  }
  ~Shapeless() {
    --depth();
  }
  Shapeless(const Shapeless&) = delete;
  Shapeless& operator=(const Shapeless&) = delete;

  static bool is_traced() {
    return depth() > 0;
  }

 private:
  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
};

// Makes `node` a product and a sum, if it is an `addmm` of an operand with more than two axes: MLX writes its extents down
// to make it a matrix, and the result what it is. Must run while MLX traces.
void free_flat_addmm(array node);

// Replaces each `addmm` between `tracers` and `outputs` whose addend is broadcast by a product and a sum. MLX writes the
// extents of the addend down, and on other shapes it then reads beyond the addend's end. Must run while MLX traces, and
// the graph must be nobody else's.
void free_addmm(const std::vector<array>& tracers, const std::vector<array>& outputs);

}  // namespace tacit
