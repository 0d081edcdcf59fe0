// The door to MLX's allocator: memory that the system does not give is an error. MLX's allocator for CPUs gives a null pointer in
// its place, into which ops write; those for GPUs throw by themselves.
#include <stdexcept>
#include <string>

#include "door.h"
#include "mlx/allocator.h"

// On a Mac MLX's allocator is that of Metal, or calls within MLX stay there.
#if defined(TACIT_DOORS) && defined(__linux__)

namespace tacit {

namespace {

class CheckedAllocator final : public mlx::core::allocator::Allocator {
 public:
  using Buffer = mlx::core::allocator::Buffer;

  explicit CheckedAllocator(mlx::core::allocator::Allocator& original) : original_(original) {}

  // MLX has counted what it did not get as memory in use, and goes on doing so: evals may wait for their own tasks more often then.
  Buffer malloc(size_t size) override {
    auto buffer = original_.malloc(size);
    if (buffer.ptr() == nullptr && size > 0) {
      // As MLX says it on GPUs.
      throw std::runtime_error("[malloc] Unable to allocate " + std::to_string(size) + " bytes.");
    }
    return buffer;
  }

  void free(Buffer buffer) override {
    original_.free(buffer);
  }

  size_t size(Buffer buffer) const override {
    return original_.size(buffer);
  }

  Buffer make_buffer(void* ptr, size_t size) override {
    return original_.make_buffer(ptr, size);
  }

  void release(Buffer buffer) override {
    original_.release(buffer);
  }

 private:
  mlx::core::allocator::Allocator& original_;
};

}  // namespace

}  // namespace tacit

mlx::core::allocator::Allocator& mlx::core::allocator::allocator() {
  static auto* const original = tacit::next<mlx::core::allocator::Allocator&()>("_ZN3mlx4core9allocator9allocatorEv");
  // Arrays may be dropped until the very end of the process.
  static auto* const checked = new tacit::CheckedAllocator(original());
  return *checked;
}

#endif
