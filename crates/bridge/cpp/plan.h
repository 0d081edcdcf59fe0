// Plans in a graph that is built again and again.
#pragma once

#include <memory>
#include <vector>

#include "bridge.h"

namespace tacit {

// Takes those of `inputs` out that a plan can read where they lie, and gives the plan that knows them. MLX takes about a
// microsecond for each input of a node, and a step of a decoder has hundreds of weights. What is no plan, and a plan while
// an array may be poisoned, keeps its inputs: only an eval tells of that.
std::shared_ptr<Primitive> with_residents(const std::shared_ptr<Primitive>& primitive, std::vector<array>& inputs);

}  // namespace tacit
