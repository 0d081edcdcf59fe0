// A primitive apart from the node it was recorded in, so that it can be emitted again with other operands.
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

std::vector<array> emit(const Recorded& recorded, std::vector<array> inputs) {
  check_operands(recorded, inputs);
  auto same = true;
  for (size_t i = 0; same && i < inputs.size(); ++i) {
    same = inputs[i].shape() == recorded.operand_shapes[i];
  }
  auto shapes = same ? recorded.result_shapes : recorded.primitive->output_shapes(inputs);
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

// `bytes.take` is called once, with no bytes when there are no parameters.
int tacit_primitive_params(const Recorded* recorded, Bytes bytes) {
  return guarded([&] { give_params(*recorded->primitive, bytes); });
}
}
