// What MLX records wrongly while it traces for shapeless.
#pragma once

#include "bridge.h"

namespace tacit {

// Replaces each `addmm` between `tracers` and `outputs` whose addend is broadcast by a product and a sum. MLX writes the
// extents of the addend down, and on other shapes it then reads beyond the addend's end. Must run while MLX traces, and
// the graph must be nobody else's.
void free_addmm(const std::vector<array>& tracers, const std::vector<array>& outputs);

}  // namespace tacit
