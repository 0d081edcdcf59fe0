#include "main_thread.h"

#include <future>
#include <system_error>
#include <thread>

#include "door.h"
#include "mlx/scheduler.h"

namespace tacit {

namespace {

thread_local bool is_main = false;

}  // namespace

void take_main_thread() {
  if (is_main) {
    return;
  }
  static const bool taken = [] {
    try {
      std::promise<void> began;
      std::thread([&began] {
        is_main = true;
        mlx::core::scheduler::scheduler();
        began.set_value();
        // It never ends: another thread would get its id.
        std::promise<void>().get_future().wait();
      }).detach();
      began.get_future().wait();
      return true;
    } catch (const std::system_error&) {
      // There can be no more threads. MLX's own, which it begins next, will say so.
      return false;
    }
  }();
  static_cast<void>(taken);
}

}  // namespace tacit

#ifdef TACIT_DOORS

// From 0.32.3 on MLX asks for its main thread where a thread gets its first stream, which is before any eval.
mlx::core::Stream mlx::core::new_stream(Device device) {
  static auto* const original = tacit::next<Stream(Device)>("_ZN3mlx4core10new_streamENS0_6DeviceE");
  tacit::take_main_thread();
  return original(device);
}

#endif
