// A primitive that stands in for another one and does as it does, but for what its own class says.
#pragma once

#include <tuple>

#include "bridge.h"

namespace tacit {

class Standing : public Primitive {
 public:
  explicit Standing(std::shared_ptr<Primitive> inner) : Primitive(inner->stream()), inner_(std::move(inner)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    inner_->eval_cpu(inputs, outputs);
  }

  void eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    inner_->eval_gpu(inputs, outputs);
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    return inner_->jvp(primals, tangents, argnums);
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<int>& argnums,
      const std::vector<array>& outputs) override {
    return inner_->vjp(primals, cotangents, argnums, outputs);
  }

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    return inner_->vmap(inputs, axes);
  }

  const char* name() const override {
    return inner_->name();
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    return inner_->output_shapes(inputs);
  }

  const std::shared_ptr<Primitive>& inner() const {
    return inner_;
  }

 protected:
  std::shared_ptr<Primitive> inner_;
};

// One that computes results of the avals of a node's.
class StandingAgain : public Standing {
 protected:
  explicit StandingAgain(const array& node) : Standing(node.primitive_ptr()) {
    std::tie(shapes_, dtypes_) = avals_of(node.outputs());
  }

  // The results of other operands of the same avals.
  std::vector<array> again(const std::vector<array>& operands) const {
    return array::make_arrays(shapes_, dtypes_, inner_, operands);
  }

  std::vector<Shape> shapes_;
  std::vector<Dtype> dtypes_;
};

}  // namespace tacit
