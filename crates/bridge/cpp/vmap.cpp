// vmap in its two halves, so that the graph between them can be made fit for the second.
#include "bridge.h"
#include "mlx/transforms_impl.h"
#include "quantized.h"

namespace tacit {

namespace {

// Chooses the mapped axis of each result, given the results of one example.
struct Placement {
  void* ctx;
  int (*call)(void* ctx, const Handle* outputs, size_t count, AxisSink axes);
};

template <class Place>
std::vector<array> vmap(
    const ArrayFunction& function, const std::vector<array>& inputs, const std::vector<int>& axes, Place place) {
  auto [tracers, outputs] = mlx::core::detail::vmap_trace(distinct_results(function), inputs, axes);
  std::vector<array> mapped;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      mapped.push_back(tracers[i]);
    }
  }
  make_quantized_batchable(mapped, outputs);
  return mlx::core::detail::vmap_replace(inputs, tracers, outputs, axes, place(outputs));
}

}  // namespace

std::vector<array> vmap_to_front(
    const ArrayFunction& function, const std::vector<array>& inputs, const std::vector<int>& axes) {
  return vmap(function, inputs, axes, [](const std::vector<array>& outputs) {
    return std::vector<int>(outputs.size(), 0);
  });
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// `axes` are in range; -1 is none.
int tacit_vmap(
    const Handle* inputs, const int32_t* axes, size_t count, Function function, Placement placement, Sink results) {
  return guarded([&] {
    auto body = [&](const std::vector<array>& args) { return apply_function(function, args); };
    auto place = [&](const std::vector<array>& outputs) {
      auto made = borrow(outputs);
      std::vector<int> out_axes;
      check(placement.call(placement.ctx, made.data(), made.size(), axis_sink(out_axes)));
      return out_axes;
    };
    pour(tacit::vmap(body, gather(inputs, count), std::vector<int>(axes, axes + count), place), results);
  });
}
}
