// Slices that begin where an array says.
#include "graph.h"
#include "mlx/ops.h"

using namespace tacit;

extern "C" {

// `chosen`, the stream, may be empty, as in the next.
int tacit_dynamic_slice(Handle a, Handle start, Integers axes, Integers size, Handle chosen, Handle* result) {
  return guarded([&] {
    Shape shape(size.begin(), size.end());
    *result = own(mlx::core::slice(get(a), get(start), axes.copy(), shape, stream_or_default(chosen)));
  });
}

int tacit_dynamic_slice_update(
    Handle a, Handle update, Handle start, Integers axes, Handle chosen, Handle* result) {
  return guarded([&] {
    *result =
        own(mlx::core::slice_update(get(a), get(update), get(start), axes.copy(), stream_or_default(chosen)));
  });
}
}
