// The vmap of quantized products, for which MLX has none.
#pragma once

#include "bridge.h"

namespace tacit {

// Gives each quantized product between `inputs` and `outputs` a vmap. The graph must be nobody else's.
void make_quantized_batchable(const std::vector<array>& inputs, const std::vector<array>& outputs);

}  // namespace tacit
