// Rules for tangents, for what MLX has none or a wrong one for.
#pragma once

#include "bridge.h"

namespace tacit {

// The rules that nodes have as long as this lives: others look for the primitives themselves.
class ForwardRules {
 public:
  ForwardRules() = default;
  ForwardRules(const ForwardRules&) = delete;
  ForwardRules& operator=(const ForwardRules&) = delete;

  // Gives rules to the nodes between `inputs` and `outputs`.
  void give(const std::vector<array>& inputs, const std::vector<array>& outputs);

  ~ForwardRules();

 private:
  std::vector<array> nodes_;
};

}  // namespace tacit
