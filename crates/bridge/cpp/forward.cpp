#include "forward.h"

#include <algorithm>
#include <exception>

#include "graph.h"
#include "params.h"
#include "standing.h"

namespace tacit {

namespace {

// Stands in for a primitive while tangents are worked out. One without a rule, or whose rule is wrong, has the tangent that its
// gradient says: the gradient is linear in its cotangents, and the gradient of that is the tangent.
class Forward : public StandingAgain {
 public:
  Forward(const array& node, bool has_right_rule) : StandingAgain(node), has_right_rule_(has_right_rule) {}

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    if (!has_right_rule_) {
      return transposed(primals, tangents, argnums);
    }
    std::exception_ptr refused;
    try {
      auto found = inner_->jvp(primals, in_rows(tangents), argnums);
      // MLX takes an inverse real transform of odd length for an even one.
      auto fits = [](const array& tangent, const Shape& shape) { return tangent.shape() == shape; };
      return std::equal(found.begin(), found.end(), shapes_.begin(), shapes_.end(), fits)
          ? found
          : transposed(primals, tangents, argnums);
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

 private:
  // MLX's rules of a view by strides and of a split take those of the tangent, which must lie in rows: it may be a number that is
  // broadcast, or go backwards.
  std::vector<array> in_rows(std::vector<array> tangents) const {
    if (as<mlx::core::AsStrided>(*inner_) != nullptr || as<mlx::core::Split>(*inner_) != nullptr) {
      for (auto& tangent : tangents) {
        tangent = mlx::core::contiguous(tangent, false, inner_->stream());
      }
    }
    return tangents;
  }

  std::vector<array> transposed(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) {
    auto outputs = again(primals);
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

}  // namespace

void ForwardRules::give(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  each_dependent(inputs, outputs, [&](array& node) {
    // MLX looks for a stop itself.
    if (is_of_mlx(node.primitive()) && !made_by<mlx::core::StopGradient>(node)) {
      node.primitive_ptr() = std::make_shared<Forward>(node, !has_wrong_rule(node));
      nodes_.push_back(node);
    }
  });
}

ForwardRules::~ForwardRules() {
  for (auto& node : nodes_) {
    if (auto* forward = dynamic_cast<Forward*>(&node.primitive())) {
      auto inner = forward->inner();
      node.primitive_ptr() = std::move(inner);
    }
  }
}

}  // namespace tacit
