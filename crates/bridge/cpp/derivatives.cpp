// Derivatives of a function that also has operands without one.
#include <algorithm>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "bridge.h"
#include "graph.h"
#include "params.h"
#include "ranges.h"
#include "standing.h"
#include "tracers.h"

namespace tacit {

namespace {

// Of `argnums`, those of arrays that can have a gradient: codes and indices have none, and some ops refuse to be asked
// for one.
std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<int> chosen;
  for (auto argnum : argnums) {
    if (mlx::core::issubdtype(primals.at(argnum).dtype(), mlx::core::inexact)) {
      chosen.push_back(argnum);
    }
  }
  return chosen;
}

// The primals that `argnums` names.
std::vector<array> select(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<array> chosen;
  for (auto argnum : argnums) {
    chosen.push_back(primals.at(argnum));
  }
  return chosen;
}

// `function` as a function of the chosen primals alone.
ArrayFunction over(const ArrayFunction& function, const std::vector<array>& primals, const std::vector<int>& argnums) {
  return [&](const std::vector<array>& chosen) {
    auto all = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all.at(argnums[i]) = chosen[i];
    }
    return function(all);
  };
}

// A pad with a width for every axis, which is how MLX's vjp reads the widths of any.
class Padding {
 public:
  explicit Padding(const array& padded)
      : stream_(padded.primitive().stream()), axes_(padded.ndim()), low_(padded.ndim(), 0), high_(padded.ndim(), 0) {
    std::iota(axes_.begin(), axes_.end(), 0);
    auto [axes, low, high] = static_cast<mlx::core::Pad&>(padded.primitive()).state();
    for (size_t i = 0; i < axes.size(); ++i) {
      auto axis = axes[i] < 0 ? axes[i] + static_cast<int>(padded.ndim()) : axes[i];
      low_[axis] += low[i];
      high_[axis] += high[i];
      of_all_axes_ &= axis == static_cast<int>(i);
    }
  }

  bool of_all_axes() const {
    return of_all_axes_;
  }

  array around(const array& x, const array& value) const {
    return mlx::core::pad(x, axes_, low_, high_, value, "constant", stream_);
  }

  // A choice between the array and the value: MLX's derivatives of a pad are those of its array alone, and go behind their lists
  // where the value has one.
  array choosing(const array& x, const array& value) const {
    auto inside = around(mlx::core::full(x.shape(), true, mlx::core::bool_, stream_), array(false));
    auto zero = mlx::core::zeros({}, x.dtype(), stream_);
    return mlx::core::where(inside, around(x, zero), value, stream_);
  }

 private:
  mlx::core::Stream stream_;
  std::vector<int> axes_;
  Shape low_;
  Shape high_;
  bool of_all_axes_ = true;
};

// A choice of the elements that the mask puts where they go: MLX counts those of all examples in one row, as if each used up its
// own.
array chosen_by_mask(const array& scattered) {
  const auto& into = scattered.inputs()[0];
  const auto& source = scattered.inputs()[2];
  auto stream = scattered.primitive().stream();
  auto rows = [&](const array& value) { return mlx::core::flatten(value, 1, -1, stream); };
  auto mask = mlx::core::stop_gradient(scattered.inputs()[1], stream);
  mask = rows(mlx::core::broadcast_to(mask, into.shape(), stream));
  if (source.size() == 0 || into.size() == 0) {
    return mlx::core::copy(into, stream);
  }
  auto elements = rows(source);
  auto last = array(static_cast<int>(elements.shape(1)) - 1);
  auto counted = mlx::core::cumsum(mlx::core::astype(mask, mlx::core::int32, stream), 1, false, false, stream);
  auto taken = mlx::core::take_along_axis(elements, mlx::core::minimum(counted, last, stream), 1, stream);
  return mlx::core::reshape(mlx::core::where(mask, taken, rows(into), stream), into.shape(), stream);
}

// A slice whose ends are not those of what it leaves, with its own; nothing for any other node.
std::optional<array> of_own_ends(const array& node) {
  const auto& from = node.inputs();
  if (auto* slice = made_by<mlx::core::Slice>(node)) {
    auto [start, end, strides] = slice->state();
    if (Ranges::are_said(start, end, strides, from[0].shape(), node.shape())) {
      return std::nullopt;
    }
    auto own = Ranges::of(start, strides, from[0].shape(), node.shape());
    return mlx::core::slice(from[0], own.from, own.to, own.by, slice->stream());
  }
  auto* update = made_by<mlx::core::SliceUpdate>(node);
  if (update == nullptr) {
    return std::nullopt;
  }
  auto [kind, start, end, strides] = update->state();
  if (Ranges::are_said(start, end, strides, node.shape(), from[1].shape())) {
    return std::nullopt;
  }
  auto own = Ranges::of(start, strides, node.shape(), from[1].shape());
  auto put = [&, kind = kind](auto with) { return with(from[0], from[1], own.from, own.to, own.by, update->stream()); };
  namespace mx = mlx::core;
  using Put = array (*)(const array&, const array&, Shape, Shape, Shape, mx::StreamOrDevice);
  switch (kind) {
    case mx::SliceUpdate::Sum:
      return put(static_cast<Put>(mx::slice_update_add));
    case mx::SliceUpdate::Prod:
      return put(static_cast<Put>(mx::slice_update_prod));
    case mx::SliceUpdate::Max:
      return put(static_cast<Put>(mx::slice_update_max));
    case mx::SliceUpdate::Min:
      return put(static_cast<Put>(mx::slice_update_min));
    default:
      return put(static_cast<Put>(mx::slice_update));
  }
}

// The extent of a Hadamard transform's axis without its factors of two: MLX has matrices of 12, 20 and 28 as well.
int odd_part(const array& node) {
  auto extent = node.shape(-1);
  while (extent % 2 == 0) {
    extent /= 2;
  }
  return extent;
}

// A Hadamard transform whose matrix is not symmetric, which MLX takes every one for where it transposes it, as a product with
// that matrix and one that is.
array by_factors(const array& transformed) {
  auto& hadamard = static_cast<mlx::core::Hadamard&>(transformed.primitive());
  auto stream = hadamard.stream();
  auto rows = 4 * odd_part(transformed);
  auto apart = transformed.shape();
  apart.back() = rows;
  apart.push_back(transformed.shape(-1) / rows);
  auto x = mlx::core::reshape(transformed.inputs()[0], apart, stream);
  x = mlx::core::hadamard_transform(x, hadamard.state(), stream);
  auto matrix = mlx::core::hadamard_transform(mlx::core::eye(rows, x.dtype(), stream), 1.0f, stream);
  auto product = mlx::core::matmul(mlx::core::transpose(matrix, {1, 0}, stream), x, stream);
  return mlx::core::reshape(product, transformed.shape(), stream);
}

// A product of blocks that float masks multiply, as the products that it is: MLX multiplies the gradient of the mask of the
// result by the mask.
std::optional<array> of_whole_masks(const array& node) {
  auto* masked = made_by<mlx::core::BlockMaskedMM>(node);
  const auto& from = node.inputs();
  if (masked == nullptr ||
      std::all_of(from.begin() + 2, from.end(), [](const array& mask) { return mask.dtype() == mlx::core::bool_; })) {
    return std::nullopt;
  }
  auto stream = masked->stream();
  auto block = masked->state();
  auto times = [&](const array& matrix, const array& mask) {
    auto whole = mlx::core::repeat(mlx::core::repeat(mask, block, -2, stream), block, -1, stream);
    auto end = whole.shape();
    std::copy(matrix.shape().end() - 2, matrix.shape().end(), end.end() - 2);
    whole = mlx::core::slice(whole, Shape(end.size(), 0), end, stream);
    return mlx::core::multiply(matrix, mlx::core::astype(whole, matrix.dtype(), stream), stream);
  };
  auto [left, right] = std::pair(from[0], from[1]);
  if (from.size() > 3) {
    left = times(left, from[from.size() - 2]);
    right = times(right, from[from.size() - 1]);
  }
  auto product = mlx::core::matmul(left, right, stream);
  return from.size() % 2 == 1 ? times(product, from[2]) : product;
}

// A running maximum or minimum as the elements that it is: MLX's gradient writes behind its array where an element is NaN, and its
// tangent has no rule.
std::optional<array> by_places(const array& node) {
  namespace mx = mlx::core;
  auto* scan = made_by<mx::Scan>(node);
  if (scan == nullptr || node.size() == 0) {
    return std::nullopt;
  }
  auto [kind, axis, reverse, inclusive] = scan->state();
  if (kind != mx::Scan::Max && kind != mx::Scan::Min) {
    return std::nullopt;
  }
  auto stream = scan->stream();
  const auto& x = node.inputs()[0];
  using Running = array (*)(const array&, int, bool, bool, mx::StreamOrDevice);
  Running most = mx::cummax, least = mx::cummin;
  auto running = kind == mx::Scan::Max ? most : least;
  auto constant = mx::stop_gradient(x, stream);
  auto found = running(constant, axis, reverse, true, stream);
  auto nan = mx::logical_and(mx::isnan(constant, stream), mx::isnan(found, stream), stream);
  auto is_found = mx::logical_or(mx::equal(constant, found, stream), nan, stream);
  auto count = x.shape(axis);
  Shape along(x.ndim(), 1);
  along[axis] = count;
  auto places = mx::reshape(mx::arange(0, count, mx::int32, stream), along, stream);
  auto first = array(reverse ? count - 1 : 0);
  auto latest = reverse ? least : most;
  auto taken = latest(mx::where(is_found, places, first, stream), axis, reverse, true, stream);
  auto elements = mx::take_along_axis(x, taken, axis, stream);
  if (inclusive) {
    return elements;
  }
  Shape from(x.ndim(), 0);
  auto to = x.shape();
  (reverse ? from[axis] : to[axis]) += reverse ? 1 : -1;
  auto others = mx::slice(elements, from, to, stream);
  along = x.shape();
  along[axis] = 1;
  auto before = std::numeric_limits<float>::infinity() * (kind == mx::Scan::Max ? -1 : 1);
  auto none = mx::full(along, array(before, x.dtype()), stream);
  return mx::concatenate(
      reverse ? std::vector<array>{others, none} : std::vector<array>{none, others}, axis, stream);
}

// Whether integers, or what a cast makes of floats, come of what may have a derivative: MLX takes cotangents back through casts,
// and refuses indices that come of an argument.
bool is_step(const array& node) {
  return !mlx::core::issubdtype(node.dtype(), mlx::core::inexact) && node.siblings().empty() &&
      is_of_mlx(node.primitive()) && (node.dtype() != mlx::core::bool_ || made_by<mlx::core::AsType>(node));
}

// The same behind a stop.
array stopped(const array& node) {
  auto same = array(node.shape(), node.dtype(), node.primitive_ptr(), node.inputs());
  return mlx::core::stop_gradient(same, node.primitive().stream());
}

// MLX multiplies the gradient of what fills an array by that itself.
array copied(const array& filled) {
  auto stream = filled.primitive().stream();
  return mlx::core::copy(mlx::core::astype(filled.inputs()[0], filled.dtype(), stream), stream);
}

// Stands in for a primitive while tangents are worked out. One without a rule, or whose rule is wrong, has the tangent that its
// gradient says: the gradient is linear in its cotangents, and the gradient of that is the tangent.
class Forward : public Standing {
 public:
  Forward(const array& node, bool has_right_rule) : Standing(node.primitive_ptr()), has_right_rule_(has_right_rule) {
    for (const auto& result : node.outputs()) {
      shapes_.push_back(result.shape());
      dtypes_.push_back(result.dtype());
    }
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    if (!has_right_rule_) {
      return transposed(primals, tangents, argnums);
    }
    std::exception_ptr refused;
    try {
      return inner_->jvp(primals, tangents, argnums);
    } catch (const std::invalid_argument&) {
      refused = std::current_exception();
    } catch (const std::runtime_error&) {
      refused = std::current_exception();
    }
    try {
      return transposed(primals, tangents, argnums);
    } catch (const std::exception&) {
      std::rethrow_exception(refused);
    }
  }

  const std::shared_ptr<Primitive>& inner() const {
    return inner_;
  }

 private:
  std::vector<array> transposed(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) {
    auto outputs = array::make_arrays(shapes_, dtypes_, inner_, primals);
    auto gradient = distinct_results([&](const std::vector<array>& cotangents) {
      return inner_->vjp(primals, cotangents, argnums, outputs);
    });
    // What is linear has one gradient everywhere; MLX computes some by the logarithms of the cotangents.
    std::vector<array> anywhere;
    for (const auto& output : outputs) {
      anywhere.push_back(mlx::core::ones(output.shape(), output.dtype(), stream()));
    }
    return mlx::core::vjp(gradient, anywhere, tangents).second;
  }

  bool has_right_rule_;
  std::vector<Shape> shapes_;
  std::vector<Dtype> dtypes_;
};

// MLX's rule leaves the factors of `addmm` out, and takes the tangent of one of several greatest elements, whose gradients are shared.
bool has_wrong_rule(const array& node) {
  if (auto* addmm = made_by<mlx::core::AddMM>(node)) {
    return addmm->state() != std::pair(1.0f, 1.0f);
  }
  auto* reduce = made_by<mlx::core::Reduce>(node);
  return reduce != nullptr &&
      (reduce->state().first == mlx::core::Reduce::Max || reduce->state().first == mlx::core::Reduce::Min);
}

// The rules for tangents that nodes have as long as this lives: others look for the primitives themselves.
class ForwardRules {
 public:
  ForwardRules() = default;
  ForwardRules(const ForwardRules&) = delete;
  ForwardRules& operator=(const ForwardRules&) = delete;

  void give(const std::vector<array>& inputs, const std::vector<array>& outputs) {
    each_dependent(inputs, outputs, [&](array& node) {
      // MLX looks for a stop itself.
      if (is_of_mlx(node.primitive()) && !made_by<mlx::core::StopGradient>(node)) {
        node.primitive_ptr() = std::make_shared<Forward>(node, !has_wrong_rule(node));
        nodes_.push_back(node);
      }
    });
  }

  ~ForwardRules() {
    for (auto& node : nodes_) {
      if (auto* forward = dynamic_cast<Forward*>(&node.primitive())) {
        auto inner = forward->inner();
        node.primitive_ptr() = std::move(inner);
      }
    }
  }

 private:
  std::vector<array> nodes_;
};

}  // namespace

void make_differentiable(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  // What has a derivative by the inputs.
  std::unordered_set<uintptr_t> reached;
  for (const auto& input : inputs) {
    reached.insert(input.id());
  }
  std::vector<std::pair<array, array>> rewritten;
  each_dependent(inputs, outputs, [&](const array& node) {
    const auto& from = node.inputs();
    if (std::none_of(from.begin(), from.end(), [&](const array& input) { return reached.contains(input.id()); })) {
      return;
    }
    if (is_step(node)) {
      rewritten.emplace_back(node, stopped(node));
      return;
    }
    reached.insert(node.id());
    if (made_by<mlx::core::Pad>(node)) {
      Padding padding(node);
      if (reached.contains(from[1].id())) {
        rewritten.emplace_back(node, padding.choosing(from[0], from[1]));
      } else if (!padding.of_all_axes()) {
        rewritten.emplace_back(node, padding.around(from[0], from[1]));
      }
    } else if (made_by<mlx::core::MaskedScatter>(node)) {
      rewritten.emplace_back(node, chosen_by_mask(node));
    } else if (made_by<mlx::core::Full>(node)) {
      rewritten.emplace_back(node, copied(node));
    } else if (made_by<mlx::core::Hadamard>(node) && odd_part(node) > 1) {
      rewritten.emplace_back(node, by_factors(node));
    } else if (auto whole = of_whole_masks(node)) {
      rewritten.emplace_back(node, *whole);
    } else if (auto elements = by_places(node)) {
      rewritten.emplace_back(node, *elements);
    } else if (auto own = of_own_ends(node)) {
      rewritten.emplace_back(node, *own);
    }
  });
  std::vector<array> evaluated;
  for (auto& [node, other] : rewritten) {
    if (!other.has_primitive()) {
      other = mlx::core::copy(other, node.primitive().stream());
    }
    // Nothing is computed behind an array with data.
    if (has_data(node)) {
      evaluated.push_back(other);
    }
  }
  mlx::core::eval(evaluated);
  for (auto& [node, other] : rewritten) {
    become(node, other);
  }
}

std::vector<array> distinct(std::vector<array> results) {
  std::unordered_set<uintptr_t> seen;
  for (auto& result : results) {
    if (!seen.insert(result.id()).second || made_by<mlx::core::StopGradient>(result)) {
      auto stream = result.has_primitive() ? result.primitive().stream()
                                           : mlx::core::default_stream(mlx::core::default_device());
      result = mlx::core::copy(result, stream);
    }
  }
  return results;
}

ArrayFunction distinct_results(ArrayFunction function) {
  return [function = std::move(function)](const std::vector<array>& args) { return distinct(function(args)); };
}

std::vector<array> vjp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents) {
  OuterTracers outer;
  auto prepared = [&](const std::vector<array>& given) {
    auto results = traced(function, given);
    make_differentiable(given, results);
    results = distinct(std::move(results));
    outer.see(given, results);
    return results;
  };
  return outer.mark(mlx::core::vjp(prepared, primals, cotangents).second);
}

std::vector<array> jvp(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents) {
  OuterTracers outer;
  ForwardRules rules;
  auto prepared = [&](const std::vector<array>& given) {
    auto results = traced(function, given);
    make_differentiable(given, results);
    rules.give(given, results);
    outer.see(given, results);
    return results;
  };
  return outer.mark(mlx::core::jvp(prepared, primals, tangents).second);
}

std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> gradients;
  if (!inexact.empty()) {
    gradients = tacit::vjp(over(function, primals, inexact), select(primals, inexact), cotangents);
  }
  std::vector<array> all;
  size_t taken = 0;
  for (auto argnum : argnums) {
    auto has_one = taken < inexact.size() && inexact[taken] == argnum;
    all.push_back(has_one ? gradients[taken++] : mlx::core::zeros_like(primals[argnum]));
  }
  return all;
}

std::vector<array> tangents_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> chosen;
  for (size_t i = 0; i < argnums.size(); ++i) {
    if (std::find(inexact.begin(), inexact.end(), argnums[i]) != inexact.end()) {
      chosen.push_back(tangents.at(i));
    }
  }
  return tacit::jvp(over(function, primals, inexact), select(primals, inexact), chosen);
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_vjp(
    const Handle* primals, size_t primal_count, const Handle* cotangents, size_t cotangent_count, Function function,
    Sink gradients) {
  return guarded([&] {
    auto body = [&](const std::vector<array>& args) { return apply_function(function, args); };
    pour(tacit::vjp(body, gather(primals, primal_count), gather(cotangents, cotangent_count)), gradients);
  });
}

int tacit_jvp(
    const Handle* primals, const Handle* tangents, size_t count, Function function, Sink changes) {
  return guarded([&] {
    auto body = [&](const std::vector<array>& args) { return apply_function(function, args); };
    pour(tacit::jvp(body, gather(primals, count), gather(tangents, count)), changes);
  });
}
}
