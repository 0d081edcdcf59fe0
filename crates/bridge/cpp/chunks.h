// A function of rows as one that is called with some of the rows at a time.
#pragma once

#include "bridge.h"

namespace tacit {

// The first `sliced` arguments have rows along axis 0, as the results do; each call is given the other arguments whole.
struct Chunks {
  size_t sliced;
  int rows;
};

// Calls `function` with a chunk after the other, and joins what it makes.
ArrayFunction in_chunks(ArrayFunction function, Chunks chunks);

// The gradients of `in_chunks` for the primals that `argnums` names. The function is called again, with a chunk after the
// other: nothing of a chunk is alive when the next begins, but for its gradients.
std::vector<array> gradients_in_chunks(
    const ArrayFunction& function, Chunks chunks, const std::vector<array>& primals,
    const std::vector<array>& cotangents, const std::vector<array>& outputs, const std::vector<int>& argnums);

}  // namespace tacit
