// vmap in its two halves, so that the graph between them can be made fit for the second.
#include <algorithm>

#include "bridge.h"
#include "examples.h"
#include "graph.h"
#include "mlx/transforms_impl.h"
#include "params.h"
#include "quantized.h"
#include "ranges.h"
#include "standing.h"

namespace tacit {

namespace {

// Chooses the mapped axis of each result, given the results of one example.
struct Placement {
  void* ctx;
  int (*call)(void* ctx, Arrays outputs, AxisSink axes);
};

// Stands in for an elementwise primitive between the two halves of a vmap, or for one that makes as many matrices of as many. The
// operands are of one shape, since MLX records every broadcast, so the rule is the same for all: the mapped axis goes first.
class Elementwise : public StandingAgain {
 public:
  explicit Elementwise(const array& node) : StandingAgain(node) {}

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto size = batch_size(inputs, axes);
    std::vector<array> operands;
    for (size_t i = 0; i < inputs.size(); ++i) {
      operands.push_back(spread(inputs[i], axes[i], size, stream()));
    }
    std::vector<Shape> shapes(dtypes_.size(), operands[0].shape());
    return {
        array::make_arrays(std::move(shapes), dtypes_, inner_, operands), std::vector<int>(dtypes_.size(), 0)};
  }
};

// Stands in for a slice. MLX's own rule gives what was recorded to `slice` again, where an end before the first element reads as one
// counted from the last, and one that is not that of what is left leaves more.
class ByRanges : public Standing {
 public:
  explicit ByRanges(const array& node) : Standing(node.primitive_ptr()), shape_(node.shape()) {}

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto x = mlx::core::moveaxis(inputs[0], axes[0], 0, stream());
    auto [start, end, strides] = static_cast<mlx::core::Slice&>(*inner_).state();
    auto [from, to, by] = Ranges::of(start, strides, Shape(x.shape().begin() + 1, x.shape().end()), shape_);
    from.insert(from.begin(), 0);
    to.insert(to.begin(), x.shape(0));
    by.insert(by.begin(), 1);
    return {{mlx::core::slice(x, from, to, by, stream())}, {0}};
  }

 private:
  Shape shape_;
};

using Adjust = void (*)(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream);

// Stands in for any other primitive of MLX's. Where its own rule is right for some operands and mapped axes alone, others are made
// such; what it has no rule for is computed one example after the other.
class Mapped : public StandingAgain {
 public:
  Mapped(const array& node, Adjust adjust) : StandingAgain(node), adjust_(adjust) {}

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto count = batch_size(inputs, axes);
    // MLX ends the process on some operands without elements.
    if (count == 0) {
      return one_by_one(inputs, axes);
    }
    auto operands = inputs;
    auto places = axes;
    if (adjust_ != nullptr) {
      adjust_(operands, places, stream());
    }
    try {
      auto found = inner_->vmap(operands, places);
      if (are_of_examples(found.first, found.second, count)) {
        return found;
      }
    } catch (const std::invalid_argument&) {
    } catch (const std::runtime_error&) {
    }
    return one_by_one(inputs, axes);
  }

 private:
  // Whether results have the shapes of those of one example, so many times: MLX's own rule for real transforms of odd length gives
  // others.
  bool are_of_examples(const std::vector<array>& results, const std::vector<int>& axes, int count) const {
    for (size_t i = 0; i < results.size(); ++i) {
      auto shape = shapes_[i];
      if (axes[i] >= 0) {
        shape.insert(shape.begin() + std::min<size_t>(axes[i], shape.size()), count);
      }
      if (results[i].shape() != shape) {
        return false;
      }
    }
    return true;
  }

  Batched one_by_one(const std::vector<array>& inputs, const std::vector<int>& axes) {
    auto count = batch_size(inputs, axes);
    std::vector<std::vector<array>> examples(shapes_.size());
    for (int example = 0; example < count; ++example) {
      std::vector<array> operands;
      for (size_t i = 0; i < inputs.size(); ++i) {
        operands.push_back(axes[i] < 0 ? inputs[i] : example_of(inputs[i], axes[i], example));
      }
      auto results = again(operands);
      for (size_t i = 0; i < results.size(); ++i) {
        examples[i].push_back(std::move(results[i]));
      }
    }
    std::vector<array> results;
    for (size_t i = 0; i < examples.size(); ++i) {
      auto none = shapes_[i];
      none.insert(none.begin(), 0);
      results.push_back(
          count > 0 ? mlx::core::stack(examples[i], 0, stream()) : mlx::core::zeros(none, dtypes_[i], stream()));
    }
    return {results, std::vector<int>(results.size(), 0)};
  }

  // In rows, which some primitives ask of their operands.
  array example_of(const array& examples, int axis, int example) {
    auto one = part_of(examples, axis, example, example + 1, stream());
    return mlx::core::contiguous(mlx::core::squeeze(one, axis, stream()), false, stream());
  }

  Adjust adjust_;
};

// Stands in for a view by strides, which are those of the elements of one example.
class ByStrides : public Standing {
 public:
  using Standing::Standing;

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    auto x = mlx::core::moveaxis(inputs[0], axes[0], 0, stream());
    auto [shape, strides, offset] = static_cast<mlx::core::AsStrided&>(*inner_).state();
    int64_t elements = x.shape(0) > 0 ? x.size() / x.shape(0) : 0;
    shape.insert(shape.begin(), x.shape(0));
    strides.insert(strides.begin(), elements);
    return {{mlx::core::as_strided(x, shape, strides, offset, stream())}, {0}};
  }
};

// A scatter puts the axis of the examples before those of its slices, a view counts the bytes of the last axis, and new axes are
// counted from where the mapped one was before the first of them.
void put_in_front(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (axes[i] > 0) {
      operands[i] = mlx::core::moveaxis(operands[i], axes[i], 0, stream);
      axes[i] = 0;
    }
  }
}

// Makes an operand that is not mapped one that is.
void repeat(std::vector<array>& operands, std::vector<int>& axes, size_t operand, mlx::core::Stream stream) {
  operands[operand] = spread(operands[operand], -1, batch_size(operands, axes), stream);
  axes[operand] = 0;
}

// An assignment to a range gives an update that is not mapped to the first example alone, and reads behind it for the others.
void repeat_update(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  if (axes[0] >= 0 && axes[1] < 0) {
    put_in_front(operands, axes, stream);
    repeat(operands, axes, 1, stream);
  }
}

// A mapped addend is refused beside factors of which none is.
void repeat_factor(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  if (axes[0] < 0 && axes[1] < 0) {
    repeat(operands, axes, 0, stream);
  }
}

// The examples of the weights of a convolution become output channels of it, which groups take in another order. A broadcast that is
// recorded without shapes has the arrays whose shape it takes as operands, and MLX looks at the axis of the first one alone.
void repeat_input(std::vector<array>& operands, std::vector<int>& axes, mlx::core::Stream stream) {
  if (axes[0] < 0) {
    repeat(operands, axes, 0, stream);
  }
}

// The operand of a split may go backwards, and MLX takes each part of that for one number.
void put_in_rows(std::vector<array>& operands, std::vector<int>&, mlx::core::Stream stream) {
  operands[0] = mlx::core::contiguous(operands[0], false, stream);
}

// How the operands of a primitive are adjusted before its own rule sees them.
Adjust adjustment(const array& node) {
  if (made_by<mlx::core::Scatter>(node) || made_by<mlx::core::View>(node) || made_by<mlx::core::ExpandDims>(node)) {
    return put_in_front;
  }
  if (made_by<mlx::core::SliceUpdate>(node) || made_by<mlx::core::DynamicSliceUpdate>(node)) {
    return repeat_update;
  }
  if (made_by<mlx::core::AddMM>(node)) {
    return repeat_factor;
  }
  if (made_by<mlx::core::Split>(node)) {
    return put_in_rows;
  }
  return made_by<mlx::core::Convolution>(node) || made_by<mlx::core::Broadcast>(node) ? repeat_input : nullptr;
}

// MLX's own rule for DivMod names the mapped axis of the quotient alone, so that the one of the remainder is read from
// behind the list; its rule for NotEqual names that of the first operand, which may have none; its rule for Equal forgets whether NaN
// is equal to NaN. It has none for FP8.
bool is_elementwise_without_rule(const array& node) {
  return made_by<mlx::core::DivMod>(node) || made_by<mlx::core::NotEqual>(node) || made_by<mlx::core::Equal>(node) ||
      made_by<mlx::core::fast::ConvertFP8>(node);
}

// A primitive that takes matrices, as many as there are, and gives as many of their shape: MLX's own rule inverts triangles as whole
// matrices.
bool takes_many(const array& node) {
  return made_by<mlx::core::Inverse>(node);
}

// Whether there are primitives that are not MLX's, such as functions with rules of their own.
bool give_own_rules(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  auto has_others = false;
  each_dependent(inputs, outputs, [&](array& node) {
    auto& primitive = node.primitive_ptr();
    if (is_elementwise_without_rule(node) || takes_many(node)) {
      primitive = std::make_shared<Elementwise>(node);
    } else if (made_by<mlx::core::AsStrided>(node)) {
      primitive = std::make_shared<ByStrides>(node.primitive_ptr());
    } else if (made_by<mlx::core::Slice>(node)) {
      primitive = std::make_shared<ByRanges>(node);
    } else if (is_of_mlx(node.primitive())) {
      primitive = std::make_shared<Mapped>(node, adjustment(node));
    } else {
      has_others = true;
    }
  });
  return has_others;
}

// Whether the results still depend on tracers: MLX replaces what was recorded alone, and a function that is called again on what it
// is mapped over has what it captured as that was.
bool has_captured(
    const std::vector<array>& tracers, const std::vector<array>& inputs, const std::vector<array>& results) {
  auto ids = ids_of(tracers);
  auto found = false;
  each_reached(results, inputs, [&](const array& node) {
    found = ids.contains(node.id());
    return !found;
  });
  return found;
}

template <class Place>
std::vector<array> vmap(
    const ArrayFunction& function,
    const std::vector<array>& inputs,
    const std::vector<int>& axes,
    Place place,
    bool* captured = nullptr) {
  auto [tracers, outputs] = mlx::core::detail::vmap_trace(distinct_results(function), inputs, axes);
  std::vector<array> mapped;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] >= 0) {
      mapped.push_back(tracers[i]);
    }
  }
  make_mappable(mapped, outputs);
  make_quantized_batchable(mapped, outputs);
  auto has_others = give_own_rules(mapped, outputs);
  auto results = mlx::core::detail::vmap_replace(inputs, tracers, outputs, axes, place(outputs));
  if (captured) {
    *captured = has_others && has_captured(mapped, inputs, results);
  }
  return results;
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

// `axes` are in range, or -1 for an input that is not mapped. `captured` is whether no eval can compute the results, as a
// function with a derivative of its own captured what is mapped.
int tacit_vmap(
    Arrays inputs, Integers axes, Function function, Placement placement, bool* captured, Sink results) {
  return guarded([&] {
    auto place = [&](const std::vector<array>& outputs) {
      std::vector<int> out_axes;
      check(placement.call(placement.ctx, borrow(outputs), axis_sink(out_axes)));
      return out_axes;
    };
    pour(tacit::vmap(function, gather(inputs), axes.copy(), place, captured), results);
  });
}
}
