// A graph made such that MLX differentiates and maps it rightly: what it has wrong is written as other ops.
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "bridge.h"
#include "graph.h"
#include "params.h"
#include "ranges.h"

namespace tacit {

namespace {

// A pad with a width for every axis, which is how MLX's vjp reads the widths of any, and its vmap the axes.
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
      of_all_axes_ &= axes[i] == static_cast<int>(i);
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
  if (source.size() == 0 || into.size() == 0) {
    return mlx::core::copy(into, stream);
  }
  auto examples = into.shape(0);
  auto rows = [&](const array& value) { return mlx::core::reshape(value, {examples, -1}, stream); };
  auto mask = mlx::core::stop_gradient(scattered.inputs()[1], stream);
  mask = rows(mlx::core::broadcast_to(mask, into.shape(), stream));
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
    auto ranges = Ranges::of(start, strides, from[0].shape(), node.shape());
    return mlx::core::slice(from[0], ranges.from, ranges.to, ranges.by, slice->stream());
  }
  auto* update = made_by<mlx::core::SliceUpdate>(node);
  if (update == nullptr) {
    return std::nullopt;
  }
  auto [kind, start, end, strides] = update->state();
  if (Ranges::are_said(start, end, strides, node.shape(), from[1].shape())) {
    return std::nullopt;
  }
  auto ranges = Ranges::of(start, strides, node.shape(), from[1].shape());
  auto put = [&](auto with) { return with(from[0], from[1], ranges.from, ranges.to, ranges.by, update->stream()); };
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

// Parts of an array along an axis, counted in the order in which a scan takes them.
class ScanOrder {
 public:
  ScanOrder(int axis, bool reverse, mlx::core::Stream stream) : axis_(axis), reverse_(reverse), stream_(stream) {}

  array part(const array& x, int from, int to) const {
    auto count = x.shape(axis_);
    return reverse_ ? part_of(x, axis_, count - to, count - from, stream_) : part_of(x, axis_, from, to, stream_);
  }

  array joined(const array& first, const array& rest) const {
    return mlx::core::concatenate(
        reverse_ ? std::vector<array>{rest, first} : std::vector<array>{first, rest}, axis_, stream_);
  }

  // What is found before each element, which is `none` for the first one.
  array exclusive(const array& inclusive, float none) const {
    auto one = inclusive.shape();
    one[axis_] = 1;
    auto first = mlx::core::full(one, array(none, inclusive.dtype()), stream_);
    return joined(first, part(inclusive, 0, inclusive.shape(axis_) - 1));
  }

 private:
  int axis_;
  bool reverse_;
  mlx::core::Stream stream_;
};

// A running maximum or minimum as the elements that it is: MLX's gradient writes behind its array where an element is NaN, and its
// tangent has no rule.
array by_places(const array& node, mlx::core::Scan& scan) {
  namespace mx = mlx::core;
  auto [kind, axis, reverse, inclusive] = scan.state();
  auto stream = scan.stream();
  const auto& x = node.inputs()[0];
  using Running = array (*)(const array&, int, bool, bool, mx::StreamOrDevice);
  Running most = mx::cummax, least = mx::cummin;
  auto running = kind == mx::Scan::Max ? most : least;
  auto constant = mx::stop_gradient(x, stream);
  auto extremes = running(constant, axis, reverse, true, stream);
  auto nan = mx::logical_and(mx::isnan(constant, stream), mx::isnan(extremes, stream), stream);
  auto is_extreme = mx::logical_or(mx::equal(constant, extremes, stream), nan, stream);
  auto count = x.shape(axis);
  Shape along(x.ndim(), 1);
  along[axis] = count;
  auto places = mx::reshape(mx::arange(0, count, mx::int32, stream), along, stream);
  auto first = array(reverse ? count - 1 : 0);
  auto latest = reverse ? least : most;
  auto taken = latest(mx::where(is_extreme, places, first, stream), axis, reverse, true, stream);
  auto elements = mx::take_along_axis(x, taken, axis, stream);
  auto before = std::numeric_limits<float>::infinity() * (kind == mx::Scan::Max ? -1 : 1);
  return inclusive ? elements : ScanOrder(axis, reverse, stream).exclusive(elements, before);
}

// The logarithm of the sum of two exponentials, whose derivatives are finite where neither operand is NaN.
array log_add_exp(const array& a, const array& b, mlx::core::Stream stream) {
  namespace mx = mlx::core;
  auto zero = mx::zeros({}, a.dtype(), stream);
  auto most = mx::stop_gradient(mx::maximum(a, b, stream), stream);
  auto is_whole = mx::isinf(most, stream);
  auto of = [&](const array& x) {
    return mx::exp(mx::where(is_whole, zero, mx::subtract(x, mx::where(is_whole, zero, most, stream), stream), stream), stream);
  };
  auto sum = mx::add(most, mx::log(mx::add(of(a), of(b), stream), stream), stream);
  return mx::where(is_whole, most, sum, stream);
}

// A running product, or logarithm of a sum of exponentials, from parts that are twice as long each time.
array by_doubling(const array& x, mlx::core::Scan& scan) {
  namespace mx = mlx::core;
  auto [kind, axis, reverse, inclusive] = scan.state();
  auto is_product = kind == mx::Scan::Prod;
  auto stream = scan.stream();
  ScanOrder order(axis, reverse, stream);
  auto running = mx::copy(x, stream);
  auto count = running.shape(axis);
  for (auto length = 1; length < count; length *= 2) {
    auto before = order.part(running, 0, count - length);
    auto after = order.part(running, length, count);
    auto both = is_product ? mx::multiply(before, after, stream) : log_add_exp(before, after, stream);
    running = order.joined(order.part(running, 0, length), both);
  }
  return inclusive ? running : order.exclusive(running, is_product ? 1 : -std::numeric_limits<float>::infinity());
}

// The gradient of a function of one result, of its primals and the cotangent behind them.
ArrayFunction gradient_of(ArrayFunction function) {
  return [function](const std::vector<array>& args) {
    return tacit::vjp(function, {args.begin(), args.end() - 1}, {args.back()});
  };
}

// A function with this gradient, and with the tangents of another one, which computes the same.
ArrayFunction with_rules(ArrayFunction value, ArrayFunction gradient, ArrayFunction other) {
  auto backward = [gradient](
                      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<array>&) {
    auto args = primals;
    args.push_back(cotangents[0]);
    return gradient(args);
  };
  auto forward = [other](
                     const std::vector<array>& primals, const std::vector<array>& tangents,
                     const std::vector<int>& argnums) { return tangents_of(other, primals, tangents, argnums); };
  return mlx::core::custom_function(std::move(value), backward, forward, std::nullopt);
}

// A running product. MLX's gradient is right, and divides by elements, so that its own derivatives are NaN behind a zero, as is MLX's
// tangent: these are those of parts that are doubled, which may be out of range where the product is not.
array of_products(const array& node) {
  auto primitive = node.primitive_ptr();
  auto scan = [primitive](const std::vector<array>& x) -> std::vector<array> {
    return {array(x[0].shape(), x[0].dtype(), primitive, x)};
  };
  auto doubled = [primitive](const std::vector<array>& x) -> std::vector<array> {
    return {by_doubling(x[0], static_cast<mlx::core::Scan&>(*primitive))};
  };
  auto primitive_gradient = [primitive, scan](const std::vector<array>& both) {
    return primitive->vjp({both[0]}, {both[1]}, {0}, scan({both[0]}));
  };
  auto of_doubled = gradient_of(doubled);
  auto gradient = with_rules(primitive_gradient, gradient_of(of_doubled), of_doubled);
  return with_rules(scan, gradient, doubled)(node.inputs())[0];
}

// What stands for a scan, but for sums and for logarithms of complex numbers.
std::optional<array> of_scan(const array& node) {
  using mlx::core::Scan;
  auto* scan = made_by<Scan>(node);
  if (scan == nullptr || node.size() == 0) {
    return std::nullopt;
  }
  auto is_real = mlx::core::issubdtype(node.dtype(), mlx::core::floating);
  switch (std::get<0>(scan->state())) {
    case Scan::Max:
    case Scan::Min:
      return by_places(node, *scan);
    case Scan::LogAddExp:
      // MLX's gradient takes logarithms of cotangents, so that its own derivatives are NaN behind a zero.
      return is_real ? std::optional(by_doubling(node.inputs()[0], *scan)) : std::nullopt;
    case Scan::Prod:
      return is_real ? of_products(node) : by_doubling(node.inputs()[0], *scan);
    default:
      return std::nullopt;
  }
}

// Whether integers, or what a cast makes of floats, come of what may have a derivative: MLX takes cotangents back through casts,
// and refuses indices that come of an argument.
bool is_step(const array& node) {
  return !is_inexact(node) && node.siblings().empty() &&
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

// What stands for a node that MLX maps wrongly.
std::optional<array> mappable(const array& node) {
  if (made_by<mlx::core::Pad>(node)) {
    Padding padding(node);
    return padding.of_all_axes() ? std::nullopt : std::optional(padding.around(node.inputs()[0], node.inputs()[1]));
  }
  return made_by<mlx::core::MaskedScatter>(node) ? chosen_by_mask(node) : of_own_ends(node);
}

// A product of gathered matrices of the left, in the order in which they come, as one in any order: of the first MLX's gradients
// neither gather nor scatter. Nothing for any other node.
std::optional<array> in_any_order(const array& node) {
  auto* product = made_by<mlx::core::GatherMM>(node);
  if (product == nullptr || !product->state().first) {
    return std::nullopt;
  }
  const auto& from = node.inputs();
  return mlx::core::gather_mm(from[0], from[1], from[2], from[3], false, product->stream());
}

// What stands for a node that MLX differentiates wrongly; `reached` is what has a derivative.
std::optional<array> differentiable(const array& node, const std::unordered_set<uintptr_t>& reached) {
  const auto& from = node.inputs();
  if (made_by<mlx::core::Pad>(node) && reached.contains(from[1].id())) {
    return Padding(node).choosing(from[0], from[1]);
  }
  if (made_by<mlx::core::Full>(node)) {
    return copied(node);
  }
  if (made_by<mlx::core::Hadamard>(node) && odd_part(node) > 1) {
    return by_factors(node);
  }
  if (auto whole = of_whole_masks(node)) {
    return whole;
  }
  if (auto found = of_scan(node)) {
    return found;
  }
  if (auto product = in_any_order(node)) {
    return product;
  }
  // A gradient of a take from nothing ends the process, and one of the weights of a convolution of no examples may.
  auto taken = made_by<mlx::core::Gather>(node) || made_by<mlx::core::GatherAxis>(node);
  auto of_weights = made_by<mlx::core::Convolution>(node) && reached.contains(from[1].id());
  if (node.size() == 0 && (taken || of_weights)) {
    return mlx::core::zeros(node.shape(), node.dtype(), node.primitive().stream());
  }
  return mappable(node);
}

// Makes nodes the results of what stands for them.
void replace(std::vector<std::pair<array, array>> rewritten) {
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

}  // namespace

void make_differentiable(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  // What has a derivative by the inputs.
  auto reached = ids_of(inputs);
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
    if (auto other = differentiable(node, reached)) {
      rewritten.emplace_back(node, *other);
    }
  });
  replace(std::move(rewritten));
}

void make_mappable(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  std::vector<std::pair<array, array>> rewritten;
  each_dependent(inputs, outputs, [&](const array& node) {
    if (auto other = mappable(node)) {
      rewritten.emplace_back(node, *other);
    }
  });
  replace(std::move(rewritten));
}

}  // namespace tacit
