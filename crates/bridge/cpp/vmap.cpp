// vmap in its two halves, so that the graph between them can be made fit for the second.
#include <algorithm>

#include "bridge.h"
#include "graph.h"
#include "mlx/transforms_impl.h"
#include "params.h"
#include "quantized.h"
#include "standing.h"

namespace tacit {

namespace {

// Chooses the mapped axis of each result, given the results of one example.
struct Placement {
  void* ctx;
  int (*call)(void* ctx, const Handle* outputs, size_t count, AxisSink axes);
};

// Stands in for an elementwise primitive between the two halves of a vmap. The operands are of one shape, since MLX records
// every broadcast, so the rule is the same for all: the mapped axis goes first.
class Elementwise : public Standing {
 public:
  Elementwise(const array& node) : Standing(node.primitive_ptr()) {
    for (const auto& result : node.outputs()) {
      dtypes_.push_back(result.dtype());
    }
  }

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto mapped = std::find_if(axes.begin(), axes.end(), [](int axis) { return axis >= 0; }) - axes.begin();
    auto front = [&](size_t operand) { return mlx::core::moveaxis(inputs[operand], axes[operand], 0, stream()); };
    auto shape = front(mapped).shape();
    std::vector<array> operands;
    for (size_t i = 0; i < inputs.size(); ++i) {
      operands.push_back(axes[i] >= 0 ? front(i) : mlx::core::broadcast_to(inputs[i], shape, stream()));
    }
    std::vector<Shape> shapes(dtypes_.size(), shape);
    return {
        array::make_arrays(std::move(shapes), dtypes_, inner_, operands), std::vector<int>(dtypes_.size(), 0)};
  }

 private:
  std::vector<mlx::core::Dtype> dtypes_;
};

// Stands in for a slice that goes backwards. MLX's own rule gives what was recorded to `slice` again, where an end before
// the first element reads as one counted from the last.
class Backwards : public Standing {
 public:
  Backwards(const array& node) : Standing(node.primitive_ptr()), shape_(node.shape()) {}

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto x = mlx::core::moveaxis(inputs[0], axes[0], 0, stream());
    auto [start, end, strides] = static_cast<mlx::core::Slice&>(*inner_).state();
    Shape from{0}, to{x.shape(0)}, by{1};
    for (size_t i = 0; i < shape_.size(); ++i) {
      auto several = shape_[i] > 1;
      auto last = start[i] + (several ? (shape_[i] - 1) * strides[i] : 0);
      auto back = several && strides[i] < 0;
      from.push_back(shape_[i] == 0 ? 0 : start[i]);
      by.push_back(several ? strides[i] : 1);
      // The place before the first one, counted from behind.
      to.push_back(shape_[i] == 0 ? 0 : !back ? last + 1 : last > 0 ? last - 1 : -x.shape(i + 1) - 1);
    }
    return {{mlx::core::slice(x, from, to, by, stream())}, {0}};
  }

 private:
  Shape shape_;
};

// Stands in for a primitive whose own rule is right for some operands and mapped axes alone: others are made such.
class Adjusted : public Standing {
 public:
  using Adjust = void (*)(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream);

  Adjusted(const array& node, Adjust adjust) : Standing(node.primitive_ptr()), adjust_(adjust) {}

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto operands = inputs;
    auto places = axes;
    adjust_(operands, places, stream());
    return inner_->vmap(operands, places);
  }

 private:
  Adjust adjust_;
};

// A scatter puts the axis of the examples before those of its slices, and a view counts the bytes of the last axis.
void put_in_front(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (axes[i] > 0) {
      operands[i] = mlx::core::moveaxis(operands[i], axes[i], 0, stream);
      axes[i] = 0;
    }
  }
}

// An assignment to a range gives an update that is not mapped to the first example alone, and reads behind it for the others.
void repeat_update(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  if (axes[0] >= 0 && axes[1] < 0) {
    auto update = mlx::core::expand_dims(operands[1], axes[0], stream);
    auto shape = update.shape();
    shape[axes[0]] = operands[0].shape(axes[0]);
    operands[1] = mlx::core::broadcast_to(update, shape, stream);
    axes[1] = axes[0];
  }
}

bool goes_back(const array& node) {
  auto* slice = made_by<mlx::core::Slice>(node);
  if (slice == nullptr) {
    return false;
  }
  auto [start, end, strides] = slice->state();
  return std::any_of(end.begin(), end.end(), [](auto place) { return place < 0; });
}

// MLX's own rule for DivMod names the mapped axis of the quotient alone, so that the one of the remainder is read from
// behind the list; its rule for NotEqual names that of the first operand, which may have none.
void give_own_rules(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  each_dependent(inputs, outputs, [](array& node) {
    if (made_by<mlx::core::DivMod>(node) || made_by<mlx::core::NotEqual>(node)) {
      node.primitive_ptr() = std::make_shared<Elementwise>(node);
    } else if (made_by<mlx::core::Scatter>(node) || made_by<mlx::core::View>(node)) {
      node.primitive_ptr() = std::make_shared<Adjusted>(node, put_in_front);
    } else if (made_by<mlx::core::SliceUpdate>(node) || made_by<mlx::core::DynamicSliceUpdate>(node)) {
      node.primitive_ptr() = std::make_shared<Adjusted>(node, repeat_update);
    } else if (goes_back(node)) {
      node.primitive_ptr() = std::make_shared<Backwards>(node);
    }
  });
}

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
  make_differentiable(mapped, outputs);
  make_quantized_batchable(mapped, outputs);
  give_own_rules(mapped, outputs);
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
