// Nodes that MLX's compile takes for one, and that are not.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bridge.h"

namespace tacit {

// Gives nodes primitives that are like no other, as long as it is there, where MLX would take two for one: it compares their
// operands and what they say of themselves. An inverse Fourier transform does not say its length, floats of 8 bits not what they are
// widened to, and a function that MLX fused not what it computes.
class Distinct {
 public:
  // Those that outputs depend on. Must run while MLX traces.
  void part(const std::vector<array>& outputs);
  void restore();
  ~Distinct() {
    restore();
  }

 private:
  std::vector<std::pair<array, std::shared_ptr<Primitive>>> before_;
};

}  // namespace tacit
