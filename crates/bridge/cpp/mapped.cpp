// Arrays that are parts of a file in memory, and the bytes of arrays.
#include <algorithm>
#include <cstring>
#include <memory>

#include "memory.h"

namespace tacit {

namespace {

namespace allocator = mlx::core::allocator;

// Whether a buffer's first word is its size and its data follow, as MLX's allocator for the CPU has it.
bool buffers_begin_with_their_size() {
  static const bool sized = [] {
    array probe(Shape{64}, mlx::core::uint8, nullptr, {});
    probe.set_data(allocator::malloc(probe.nbytes()));
    auto buffer = probe.buffer();
    auto* start = static_cast<char*>(buffer.ptr());
    return buffer.raw_ptr() == start + sizeof(size_t) &&
        *reinterpret_cast<size_t*>(start) == allocator::allocator().size(buffer);
  }();
  return sized;
}

// The flags of an array whose elements are row by row.
array::Flags rows_of(const array& value) {
  size_t longest = 1;
  for (auto extent : value.shape()) {
    longest = std::max(longest, static_cast<size_t>(extent));
  }
  return {true, true, value.size() <= 1 || value.size() == longest};
}

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

// An array without elements that keeps the memory from `data` on, of whole pages and one word before them, or an empty
// handle where MLX cannot use memory that is not its own. `payload` is released when no array of the memory is left.
int tacit_mapped_new(void* data, size_t bytes, void* payload, void (*release)(void*), Handle* base) {
  return guarded([&] {
    std::shared_ptr<void> owner(payload, release);
    auto buffer = allocator::make_buffer(data, bytes);
    if (buffer.ptr() != nullptr) {
      auto drop = [owner](Memory memory) { allocator::release(memory); };
      *base = own(array_over(buffer, Shape{0}, mlx::core::uint8, drop));
    } else if (buffers_begin_with_their_size()) {
      // A size below that of any array in it: to MLX a buffer is too large to be shared, not too small.
      auto* size = static_cast<size_t*>(data) - 1;
      *size = 0;
      *base = own(array_over(Memory(size), Shape{0}, mlx::core::uint8, [owner](Memory) {}));
    } else {
      *base = Handle{nullptr};
    }
  });
}

// The array whose elements are at `data`, which is `offset` bytes into the memory of `base`: a part of it where there is a
// base and the elements are aligned, otherwise a copy.
int tacit_mapped_array(Handle base, const void* data, size_t offset, AvalView aval, Handle* out) {
  return guarded([&] {
    auto type = aval.dtype();
    array value(aval.shape(), type, nullptr, {});
    if (base.ctx != nullptr && offset % size_of(type) == 0) {
      auto start = static_cast<int64_t>(offset / size_of(type));
      value.copy_shared_buffer(get(base), value.strides(), rows_of(value), value.size(), start);
    } else {
      value.set_data(allocator::malloc(value.nbytes()));
      if (value.nbytes() > 0) {
        std::memcpy(value.data<char>(), data, value.nbytes());
      }
    }
    value.set_status(array::Status::available);
    *out = own(std::move(value));
  });
}

// The elements of an evaluated array, row by row. `rows` keeps them: the array itself, or a copy that has them so.
int tacit_array_rows(Handle evaluated, Handle* rows, const void** data) {
  return guarded([&] {
    auto value = get(evaluated);
    if (!value.flags().row_contiguous) {
      value = mlx::core::contiguous(value);
      value.eval();
    }
    *data = value.size() == 0 ? nullptr : value.data<char>();
    *rows = own(std::move(value));
  });
}
}
