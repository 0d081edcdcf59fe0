// The graph of a function, recorded without being compiled.
#include <memory>

#include "bridge.h"
#include "program.h"
#include "replay.h"
#include "shapeless.h"

namespace tacit {

namespace {

namespace detail = mlx::core::detail;

// Leaves MLX's compile when the graph is there.
struct Leave {};

// MLX records some ops in another way while it traces for shapeless, and exports no way to say so but its compile.
struct Recorder {
  const Function& function;
  Traced& traced;

  detail::ArraysAndExtra operator()(const std::vector<array>& tracers) const {
    Shapeless recording;
    traced.tracers = tracers;
    traced.outputs = function(tracers);
    free_addmm(tracers, traced.outputs);
    throw Leave{};
  }
};

struct Erased {
  std::uintptr_t id;
  ~Erased() {
    detail::compile_erase(detail::compile_cache(), id);
  }
};

Traced record_shapeless(const Function& function, const std::vector<array>& inputs) {
  auto traced = std::make_unique<Traced>();
  std::vector<array> avals;
  for (const auto& input : inputs) {
    avals.emplace_back(input.shape(), input.dtype(), nullptr, std::vector<array>{});
  }
  Erased erased{function_id(traced.get())};
  auto compiled = detail::compile(detail::ArrayFnWithExtra(Recorder{function, *traced}), erased.id, true, {});
  if (compiled.target<Recorder>() != nullptr) {
    return trace(function, inputs);
  }
  try {
    compiled(avals);
  } catch (const Leave&) {
  }
  return std::move(*traced);
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_record(Arrays inputs, bool shapeless, Function function, Sink tracers, Sink outputs) {
  return guarded([&] {
    auto arrays = gather(inputs);
    auto traced = shapeless ? record_shapeless(function, arrays) : trace(function, arrays);
    pour(traced.tracers, tracers);
    pour(traced.outputs, outputs);
  });
}
}
