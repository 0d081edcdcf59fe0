#include "quantized.h"

#include <algorithm>
#include <optional>

#include "examples.h"
#include "graph.h"
#include "params.h"
#include "standing.h"

namespace tacit {

namespace {

namespace mx = mlx::core;

bool any_mapped(const std::vector<int>& axes, size_t begin, size_t end) {
  return std::any_of(axes.begin() + begin, axes.begin() + end, [](int axis) { return axis >= 0; });
}

// Operands: x, w, scales and, where the mode has them, biases.
Batched batch(mx::QuantizedMatmul& primitive, const std::vector<array>& inputs, const std::vector<int>& axes) {
  auto [group_size, bits, mode, transpose] = primitive.state();
  auto stream = primitive.stream();
  auto product = [&, group_size = group_size, bits = bits, mode = mode, transpose = transpose](
                     const array& x, const std::vector<array>& weight) {
    auto biases = weight.size() > 2 ? std::optional(weight[2]) : std::nullopt;
    return mx::quantized_matmul(
        x, weight[0], weight[1], biases, transpose, group_size, bits, mode_text(mode), stream);
  };
  std::vector<array> weight(inputs.begin() + 1, inputs.end());
  if (!any_mapped(axes, 1, axes.size()) && weight[0].ndim() == 2) {
    return {{product(to_front(inputs[0], axes[0], stream), weight)}, {0}};
  }
  auto size = batch_size(inputs, axes);
  auto x = spread(inputs[0], axes[0], size, stream);
  for (size_t i = 0; i < weight.size(); ++i) {
    weight[i] = spread(weight[i], axes[i + 1], size, stream);
  }
  // A product pairs the leading axes of both sides, so both need as many, and x its rows.
  auto vector = x.ndim() == 2;
  if (vector) {
    x = mx::expand_dims(x, 1, stream);
  }
  auto pad = [stream](array value, size_t ndim) {
    while (value.ndim() < ndim) {
      value = mx::expand_dims(value, 1, stream);
    }
    return value;
  };
  for (auto& part : weight) {
    part = pad(part, x.ndim());
  }
  auto result = product(pad(x, weight[0].ndim()), weight);
  return {{vector ? mx::squeeze(result, -2, stream) : result}, {0}};
}

// Operands: x, w, scales, biases where the mode has them, and the indices of matrices of x and of w. The mapped axis
// becomes one more axis of matrices to choose from, and the indices of each example point to its own.
Batched batch(mx::GatherQMM& primitive, const std::vector<array>& inputs, const std::vector<int>& axes) {
  auto [group_size, bits, mode, transpose, left_sorted, right_sorted] = primitive.state();
  auto stream = primitive.stream();
  auto size = batch_size(inputs, axes);
  auto indices = inputs.size() - 2;
  auto choose = [&](size_t operand, bool mapped, const array& matrices) {
    auto chosen = spread(inputs[operand], axes[operand], size, stream);
    if (!mapped) {
      return chosen;
    }
    auto count = 1;
    for (size_t i = 1; i + 2 < matrices.ndim(); ++i) {
      count *= matrices.shape(i);
    }
    Shape shape(chosen.ndim(), 1);
    shape[0] = size;
    auto first = mx::reshape(mx::arange(0, size * count, count, mx::uint32, stream), shape, stream);
    return mx::add(mx::astype(chosen, mx::uint32, stream), first, stream);
  };
  auto x_mapped = axes[0] >= 0;
  auto w_mapped = any_mapped(axes, 1, indices);
  auto x = x_mapped ? mx::moveaxis(inputs[0], axes[0], 0, stream) : inputs[0];
  std::vector<array> weight;
  for (size_t i = 1; i < indices; ++i) {
    weight.push_back(w_mapped ? spread(inputs[i], axes[i], size, stream) : inputs[i]);
  }
  auto left = choose(indices, x_mapped, x);
  auto right = choose(indices + 1, w_mapped, weight[0]);
  auto biases = weight.size() > 2 ? std::optional(weight[2]) : std::nullopt;
  auto result = mx::gather_qmm(
      x, weight[0], weight[1], biases, left, right, transpose, group_size, bits, mode_text(mode),
#ifdef MLX_HAS_GATHER_QMM_SCALE
      std::nullopt,
#endif
      false, stream);
  return {{result}, {0}};
}

// Stands in for a quantized product between the two halves of a vmap, and is gone after it.
class Batchable : public Standing {
 public:
  using Standing::Standing;

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    if (auto* gathering = as<mx::GatherQMM>(*inner_)) {
      return batch(*gathering, inputs, axes);
    }
    return batch(static_cast<mx::QuantizedMatmul&>(*inner_), inputs, axes);
  }
};

}  // namespace

void make_quantized_batchable(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  each_dependent(inputs, outputs, [](array& node) {
    if (made_by<mx::QuantizedMatmul>(node) || made_by<mx::GatherQMM>(node)) {
      node.primitive_ptr() = std::make_shared<Batchable>(node.primitive_ptr());
    }
  });
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// `biases` and `chosen`, the stream, may be empty.
int tacit_quantized_matmul(
    Handle x, Handle codes, Handle scales, Handle biases, bool transpose, int group_size, int bits, const char* mode,
    Handle chosen, Handle* result) {
  return guarded([&] {
    auto stream = stream_or_default(chosen);
    *result = own(mlx::core::quantized_matmul(
        get(x), get(codes), get(scales), biases.ctx == nullptr ? std::nullopt : std::optional(get(biases)), transpose,
        group_size, bits, mode, stream));
  });
}
}
