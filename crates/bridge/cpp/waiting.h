// Arrays that are computed no earlier than others.
#pragma once

#include <algorithm>

#include "examples.h"
#include "standing.h"

namespace tacit {

// Who waits: the tasks that compute from the values, or also the thread that queues them. MLX allocates what a task makes when
// the task is queued, dozens of tasks ahead of the one that runs.
enum class Wait { tasks, queue };

std::vector<array> after(const std::vector<array>& values, const std::vector<array>& before, Wait wait = Wait::tasks);

// MLX's `Depends`, of whose operands the first `count` are passed on, with the rules that MLX has not.
class Waiting : public Standing {
 public:
  Waiting(std::shared_ptr<Primitive> inner, size_t count, Wait wait)
      : Standing(std::move(inner)), count_(count), wait_(wait) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (wait_ == Wait::queue) {
      mlx::core::synchronize(stream());
    }
    Standing::eval_cpu(inputs, outputs);
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) override {
    std::vector<array> result_tangents;
    for (size_t i = 0; i < count_; ++i) {
      auto at = std::find(argnums.begin(), argnums.end(), static_cast<int>(i)) - argnums.begin();
      auto has_one = static_cast<size_t>(at) < argnums.size();
      result_tangents.push_back(has_one ? tangents[at] : mlx::core::zeros_like(primals[i], stream()));
    }
    return result_tangents;
  }

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    // A result that is not mapped has an axis all the same: MLX maps what depends on it, some of which demands one.
    auto size = batch_size(inputs, axes);
    std::vector<array> values;
    std::vector<int> value_axes;
    for (size_t i = 0; i < count_; ++i) {
      auto is_mapped = axes[i] >= 0;
      values.push_back(is_mapped ? inputs[i] : spread(inputs[i], -1, size, stream()));
      value_axes.push_back(is_mapped ? axes[i] : 0);
    }
    return {after(values, {inputs.begin() + count_, inputs.end()}, wait_), std::move(value_axes)};
  }

 private:
  size_t count_;
  Wait wait_;
};

// The same values, which no eval computes from before `before` is computed.
inline std::vector<array> after(const std::vector<array>& values, const std::vector<array>& before, Wait wait) {
  if (values.empty() || before.empty()) {
    return values;
  }
  auto waiting = mlx::core::depends(values, before);
  auto primitive = std::make_shared<Waiting>(waiting[0].primitive_ptr(), values.size(), wait);
  for (auto& value : waiting) {
    value.primitive_ptr() = primitive;
  }
  return waiting;
}

// The same where some values are integers: these get no tangents by what they wait for, since indices must have none.
inline std::vector<array> after_apart(
    const std::vector<array>& values, const std::vector<array>& before, Wait wait = Wait::tasks) {
  std::vector<array> floats, others, apart;
  for (const auto& value : values) {
    (is_inexact(value) ? floats : others).push_back(value);
  }
  for (const auto& one : before) {
    apart.push_back(mlx::core::stop_gradient(one));
  }
  floats = after(floats, before, wait);
  others = after(others, apart, wait);
  std::vector<array> results;
  size_t taken = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    auto inexact = is_inexact(values[i]);
    results.push_back(inexact ? floats[taken] : others[i - taken]);
    taken += inexact;
  }
  return results;
}

}  // namespace tacit
