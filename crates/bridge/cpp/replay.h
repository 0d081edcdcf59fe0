// A recorded graph that is built again on other inputs: what MLX's compile does after it has fused, for where it
// refuses because no compiler is installed, and for graphs of plans, which leave it nothing to do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bridge.h"
#include "plan.h"

namespace tacit {

// Inputs that follow each other and stay what they are, replay after replay. They are there already. Nothing in it changes, so
// that any thread may let it go.
struct Known {
  // The number of the replay that they serve.
  uint64_t replay;
  // Their number among all inputs.
  size_t first;
  std::vector<array> arrays;
  // Of each step, those that it reads where they lie; null where there are none.
  std::vector<Residents> residents;

  size_t end() const {
    return first + arrays.size();
  }
};

class Replay {
 public:
  // The graph from `tracers` to `outputs`. What does not depend on a tracer is kept as it is, where it is small.
  Replay(const std::vector<array>& tracers, const std::vector<array>& outputs);

  // The graph on inputs that have the avals of the tracers: those that are known, in their order, and the others between.
  std::vector<array> operator()(
      const std::vector<array>& others, const std::vector<const Known*>& known = {}) const;

  // What a replay need not be given again; null where it does not pay, or an array is not there yet. The arrays are inputs
  // from `first` on, of the avals of the tracers.
  std::unique_ptr<Known> know(size_t first, std::vector<array> arrays) const;

  // Whether these are inputs of this replay, and not of another program or trace.
  bool serves(const Known& known) const {
    return known.replay == number_;
  }

 private:
  static uint64_t next_number();

  // A value of a run if not negative, else a constant: ~constant.
  using Source = int64_t;

  struct Step {
    std::shared_ptr<Primitive> primitive;
    std::vector<Source> operands;
    std::vector<Shape> shapes;
    std::vector<Dtype> dtypes;
  };

  uint64_t number_ = next_number();
  std::vector<Step> steps_;
  std::vector<array> constants_;
  std::vector<Source> outputs_;
  size_t inputs_ = 0;
  // The inputs and what is computed.
  size_t values_ = 0;
  bool collective_ = false;
};

// Calls `function` on tracers of the avals of `inputs`, as MLX does while it traces: an eval of them is an error.
struct Traced {
  std::vector<array> tracers;
  std::vector<array> outputs;
};

Traced trace(const Function& function, const std::vector<array>& inputs);

}  // namespace tacit
