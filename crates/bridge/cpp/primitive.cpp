// A primitive apart from the node it was recorded in, so that it can be emitted again with other operands.
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "function.h"
#include "graph.h"
#include "group.h"
#include "params.h"
#include "plan.h"

namespace tacit {

struct Recorded {
  struct Operand {
    Shape shape;
    Dtype dtype;
  };

  std::shared_ptr<Primitive> primitive;
  std::vector<Operand> operands;
  // Those of the results.
  std::vector<Shape> shapes;
  std::vector<Dtype> dtypes;

  bool all_have(const Shape& shape) const {
    auto has_it = [&](const Operand& operand) { return operand.shape == shape; };
    return std::all_of(operands.begin(), operands.end(), has_it) &&
        std::all_of(shapes.begin(), shapes.end(), [&](const Shape& of_result) { return of_result == shape; });
  }
};

bool is_of_mlx(const Primitive& primitive) {
  std::string_view name = typeid(primitive).name();
  return name.starts_with("N3mlx4core") && name.find("distributed") == std::string_view::npos &&
      name.find("CustomTransforms") == std::string_view::npos;
}

Recorded* record(const array& node) {
  if (!node.has_primitive()) {
    throw std::invalid_argument("the array has no primitive");
  }
  auto recorded = std::make_unique<Recorded>(Recorded{node.primitive_ptr(), {}, {}, {}});
  recorded->operands.reserve(node.inputs().size());
  for (const auto& input : node.inputs()) {
    recorded->operands.push_back({input.shape(), input.dtype()});
  }
  if (node.siblings().empty()) {
    recorded->shapes.push_back(node.shape());
    recorded->dtypes.push_back(node.dtype());
  } else {
    std::tie(recorded->shapes, recorded->dtypes) = avals_of(node.outputs());
  }
  return recorded.release();
}

namespace {

// Whether these are indices, which a primitive of this kind reads in any integer type.
bool are_indices(const Recorded& recorded, size_t operand, const array& input) {
  auto& primitive = *recorded.primitive;
  auto reads = as<mlx::core::Gather>(primitive) || as<mlx::core::GatherAxis>(primitive);
  auto writes = as<mlx::core::Scatter>(primitive) || as<mlx::core::ScatterAxis>(primitive);
  auto last = writes ? recorded.operands.size() - 1 : recorded.operands.size();
  auto whole = [](mlx::core::Dtype dtype) { return mlx::core::issubdtype(dtype, mlx::core::integer); };
  return (reads || writes) && operand > 0 && operand < last && whole(input.dtype()) &&
         whole(recorded.operands[operand].dtype);
}

// A primitive reads its operands as the recorded dtypes without a look, so these must be the same; one that only moves the
// elements of its first operand reads that as it is.
void check_operands(const Recorded& recorded, const std::vector<array>& inputs, bool moves) {
  std::string name = recorded.primitive->name();
  auto count = recorded.operands.size();
  if (inputs.size() != count) {
    throw std::invalid_argument(
        name + " was recorded with " + std::to_string(count) + " operands and was given " +
        std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    auto free = (moves && i == 0) || are_indices(recorded, i, inputs[i]);
    if (inputs[i].dtype() != recorded.operands[i].dtype && !free) {
      throw std::invalid_argument(
          "operand " + std::to_string(i) + " of " + name + " has another dtype than the recorded one");
    }
  }
}

bool is_product(const array& a, const array& b) {
  auto matrices = a.ndim() >= 2 && a.ndim() == b.ndim() && a.shape(-1) == b.shape(-2);
  return matrices && std::equal(a.shape().begin(), a.shape().end() - 2, b.shape().begin());
}

// Whether places along an axis are among the parameters, and those of the recorded extent may be beyond the given one.
bool has_other_places(Primitive& primitive, const Shape& recorded, const Shape& shape) {
  auto differs = [&](std::pair<int, int> place_and_axis) {
    return recorded.at(place_and_axis.second) != shape.at(place_and_axis.second);
  };
  if (auto* partition = as<mlx::core::Partition>(primitive)) {
    return differs(partition->state());
  }
  if (auto* partition = as<mlx::core::ArgPartition>(primitive)) {
    return differs(partition->state());
  }
  return as<mlx::core::SliceUpdate>(primitive) != nullptr;
}

// MLX's shape rules take the operands on trust, since `ops` has checked and broadcast them before: a primitive on other
// shapes than it was recorded with may read out of bounds. So only those are let through whose rules are checked here,
// and our own kernels, which check for themselves. `results` are the shapes that the rule gave.
void check_shapes(const Recorded& recorded, const std::vector<array>& inputs, const std::vector<Shape>& results) {
  std::string name = recorded.primitive->name();
  auto& primitive = *recorded.primitive;
  if (is_ours(primitive)) {
    return;
  }
  if (as<mlx::core::Matmul>(primitive) || as<mlx::core::AddMM>(primitive)) {
    if (!is_product(inputs[0], inputs[1]) || (inputs.size() > 2 && inputs[2].shape() != results[0])) {
      throw std::invalid_argument("the operands of " + name + " have shapes of which no product is made");
    }
    return;
  }
  if (as<mlx::core::Transpose>(primitive) && inputs[0].ndim() == recorded.operands[0].shape.size()) {
    return;
  }
  if (as<mlx::core::Compiled>(primitive)) {
    // Fused ops element by element, whose operands are as large as the results or single numbers.
    const auto& whole = recorded.shapes[0];
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& shape = recorded.operands[i].shape;
      auto single = inputs[i].size() == 1 && inputs[i].shape() == shape;
      if (!single && (shape != whole || inputs[i].shape() != results[0] || results[0].size() != whole.size())) {
        throw std::invalid_argument(name + " cannot be emitted on operands of other shapes than it was recorded with");
      }
    }
    return;
  }
  const auto& first = recorded.operands[0].shape;
  auto elementwise = recorded.all_have(first);
  // The rank stays, because an axis may be among the parameters.
  if (!elementwise || inputs[0].ndim() != first.size() || has_other_places(primitive, first, inputs[0].shape())) {
    throw std::invalid_argument(name + " cannot be emitted on operands of other shapes than it was recorded with");
  }
  const auto& shape = inputs[0].shape();
  if (!std::all_of(inputs.begin(), inputs.end(), [&](const array& input) { return input.shape() == shape; })) {
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

std::vector<Shape> shapes_of(Primitive& primitive, const std::vector<array>& inputs) {
  // A scan keeps its operand's shape, and does not say so.
  if (as<mlx::core::Scan>(primitive)) {
    return {inputs[0].shape()};
  }
  return primitive.output_shapes(inputs);
}

std::vector<array> emit(const Recorded& recorded, std::vector<array> inputs, bool moves) {
  if (gives_result(*recorded.primitive)) {
    throw std::invalid_argument("a result of a plan belongs to its node and cannot be emitted again");
  }
  check_operands(recorded, inputs, moves);
  auto same = true;
  for (size_t i = 0; same && i < inputs.size(); ++i) {
    same = inputs[i].shape() == recorded.operands[i].shape;
  }
  auto shapes = same ? recorded.shapes : shapes_of(*recorded.primitive, inputs);
  if (!same) {
    check_shapes(recorded, inputs, shapes);
  }
  if (auto node = inputs.size() == 1 ? made_anew(*recorded.primitive, inputs[0]) : std::nullopt) {
    return {std::move(*node)};
  }
  if (shapes.size() == 1) {
    auto dtype = moves ? inputs[0].dtype() : recorded.dtypes[0];
    return {array(std::move(shapes[0]), dtype, of_another_call(recorded.primitive), std::move(inputs))};
  }
  auto dtypes = recorded.dtypes;
  if (moves) {
    std::fill(dtypes.begin(), dtypes.end(), inputs[0].dtype());
  }
  return array::make_arrays(std::move(shapes), dtypes, recorded.primitive, inputs);
}

}  // namespace

array emit_again(const array& node, const array& operand) {
  std::unique_ptr<Recorded> recorded(record(node));
  return emit(*recorded, {operand}, false).at(0);
}

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

int tacit_primitive_emit(const Recorded* recorded, Arrays operands, bool moves, Sink results) {
  return guarded([&] { pour(emit(*recorded, gather(operands), moves), results); });
}

// How many operands of a checkpoint are arguments of its function; 0 for any other primitive.
size_t tacit_primitive_args(const Recorded* recorded) {
  const auto* again = called_again(*recorded->primitive);
  return again == nullptr ? 0 : again->args;
}

int tacit_primitive_call_again(const Recorded* recorded, Arrays args, Sink results) {
  return guarded([&] {
    const auto* again = called_again(*recorded->primitive);
    if (again == nullptr || again->args != args.count) {
      throw std::invalid_argument("the primitive is no checkpoint of so many arguments");
    }
    pour(again->function(gather(args)), results);
  });
}

// The Rust side of a kernel of ours, alive as long as `recorded`; null for any other primitive.
void* tacit_primitive_kernel(const Recorded* recorded) {
  return host_kernel(*recorded->primitive);
}

// `bytes.take` is called once, with no bytes when there are no parameters.
int tacit_primitive_params(const Recorded* recorded, Bytes bytes) {
  return guarded([&] {
    ParamWriter writer;
    tacit_write_params(*recorded->primitive, writer);
    bytes.take(bytes.ctx, writer.bytes().data(), writer.bytes().size());
  });
}
}
