// Slices that begin where an array says.
#include "graph.h"
#include "mlx/ops.h"

using namespace tacit;

namespace {

std::vector<int> integers(const int* first, size_t count) {
  return std::vector<int>(first, first + count);
}

}  // namespace

extern "C" {

// `chosen`, the stream, may be empty, as in the next.
int tacit_dynamic_slice(
    Handle a, Handle start, const int* axes, size_t axes_count, const int* size, size_t size_count, Handle chosen,
    Handle* result) {
  return guarded([&] {
    Shape shape(size, size + size_count);
    *result =
        own(mlx::core::slice(get(a), get(start), integers(axes, axes_count), shape, stream_or_default(chosen)));
  });
}

int tacit_dynamic_slice_update(
    Handle a, Handle update, Handle start, const int* axes, size_t axes_count, Handle chosen, Handle* result) {
  return guarded([&] {
    *result = own(mlx::core::slice_update(
        get(a), get(update), get(start), integers(axes, axes_count), stream_or_default(chosen)));
  });
}
}
