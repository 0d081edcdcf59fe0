// A primitive apart from the node it was recorded in, so that it can be emitted again with other operands.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "bridge.h"
#include "params.h"

namespace tacit {

namespace {

struct Recorded {
  std::shared_ptr<Primitive> primitive;
  std::vector<Shape> operand_shapes;
  std::vector<Dtype> operand_dtypes;
  std::vector<Shape> result_shapes;
  std::vector<Dtype> result_dtypes;
};

Recorded* record(const array& node) {
  if (!node.has_primitive()) {
    throw std::invalid_argument("the array has no primitive");
  }
  auto recorded = std::make_unique<Recorded>();
  recorded->primitive = node.primitive_ptr();
  for (const auto& input : node.inputs()) {
    recorded->operand_shapes.push_back(input.shape());
    recorded->operand_dtypes.push_back(input.dtype());
  }
  for (const auto& output : node.outputs()) {
    recorded->result_shapes.push_back(output.shape());
    recorded->result_dtypes.push_back(output.dtype());
  }
  return recorded.release();
}

// A primitive reads its operands as the recorded dtypes without a look, so these must be the same.
void check_operands(const Recorded& recorded, const std::vector<array>& inputs) {
  std::string name = recorded.primitive->name();
  auto count = recorded.operand_dtypes.size();
  if (inputs.size() != count) {
    throw std::invalid_argument(
        name + " was recorded with " + std::to_string(count) + " operands and was given " +
        std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    if (inputs[i].dtype() != recorded.operand_dtypes[i]) {
      throw std::invalid_argument(
          "operand " + std::to_string(i) + " of " + name + " has another dtype than the recorded one");
    }
  }
}

bool is_product(const array& a, const array& b) {
  auto matrices = a.ndim() >= 2 && a.ndim() == b.ndim() && a.shape(-1) == b.shape(-2);
  return matrices && std::equal(a.shape().begin(), a.shape().end() - 2, b.shape().begin());
}

// MLX's shape rules take the operands on trust, since `ops` has checked and broadcast them before: a primitive on other
// shapes than it was recorded with may read out of bounds. So only those are let through whose rules are checked here,
// and our own kernels, which check for themselves. `results` are the shapes that the rule gave.
void check_shapes(const Recorded& recorded, const std::vector<array>& inputs, const std::vector<Shape>& results) {
  std::string name = recorded.primitive->name();
  auto& primitive = *recorded.primitive;
  if (is_host_kernel(primitive)) {
    return;
  }
  if (as<mlx::core::Matmul>(primitive) || as<mlx::core::AddMM>(primitive)) {
    if (!is_product(inputs[0], inputs[1]) || (inputs.size() > 2 && inputs[2].shape() != results[0])) {
      throw std::invalid_argument("the operands of " + name + " have shapes of which no product is made");
    }
    return;
  }
  if (as<mlx::core::Transpose>(primitive) && inputs[0].ndim() == recorded.operand_shapes[0].size()) {
    return;
  }
  auto all = [](const auto& items, const Shape& shape, auto shape_of) {
    return std::all_of(items.begin(), items.end(), [&](const auto& item) { return shape_of(item) == shape; });
  };
  auto itself = [](const Shape& shape) { return shape; };
  const auto& first = recorded.operand_shapes[0];
  auto elementwise = all(recorded.operand_shapes, first, itself) && all(recorded.result_shapes, first, itself);
  // The rank stays, because an axis may be among the parameters.
  if (!elementwise || inputs[0].ndim() != first.size()) {
    throw std::invalid_argument(name + " cannot be emitted on operands of other shapes than it was recorded with");
  }
  if (!all(inputs, inputs[0].shape(), [](const array& input) { return input.shape(); })) {
    throw std::invalid_argument(
        "the operands of " + name + " were recorded with one shape and are given with several");
  }
}

// MLX maps these three by changing them, so that a second node of one would be mapped with the axis of the first: each
// node gets a primitive of its own, which only MLX's ops can make.
std::optional<array> made_anew(Primitive& primitive, const array& input) {
  if (auto* transpose = as<mlx::core::Transpose>(primitive)) {
    return mlx::core::transpose(input, transpose->state(), primitive.stream());
  }
  if (auto* reshape = as<mlx::core::Reshape>(primitive)) {
    return mlx::core::reshape(input, reshape->state(), primitive.stream());
  }
  if (auto* broadcast = as<mlx::core::Broadcast>(primitive)) {
    return mlx::core::broadcast_to(input, broadcast->state(), primitive.stream());
  }
  return std::nullopt;
}

std::vector<array> emit(const Recorded& recorded, std::vector<array> inputs) {
  check_operands(recorded, inputs);
  auto same = true;
  for (size_t i = 0; same && i < inputs.size(); ++i) {
    same = inputs[i].shape() == recorded.operand_shapes[i];
  }
  auto shapes = same ? recorded.result_shapes : recorded.primitive->output_shapes(inputs);
  if (!same) {
    check_shapes(recorded, inputs, shapes);
  }
  if (auto made = inputs.size() == 1 ? made_anew(*recorded.primitive, inputs[0]) : std::nullopt) {
    return {std::move(*made)};
  }
  if (shapes.size() == 1) {
    return {array(std::move(shapes[0]), recorded.result_dtypes[0], recorded.primitive, std::move(inputs))};
  }
  return array::make_arrays(std::move(shapes), recorded.result_dtypes, recorded.primitive, inputs);
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// `node` is an output of the primitive.
int tacit_primitive_of(Handle node, Recorded** recorded) {
  return guarded([&] { *recorded = record(get(node)); });
}

void tacit_primitive_free(Recorded* recorded) {
  delete recorded;
}

int tacit_primitive_emit(const Recorded* recorded, const Handle* operands, size_t count, Sink results) {
  return guarded([&] { pour(emit(*recorded, gather(operands, count)), results); });
}

// The Rust side of a kernel of ours, alive as long as `recorded`; null for any other primitive.
void* tacit_primitive_kernel(const Recorded* recorded) {
  return host_kernel(*recorded->primitive);
}

// `bytes.take` is called once, with no bytes when there are no parameters.
int tacit_primitive_params(const Recorded* recorded, Bytes bytes) {
  return guarded([&] { give_params(*recorded->primitive, bytes); });
}
}
