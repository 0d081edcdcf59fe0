#include "main_thread.h"

#include <future>
#include <system_error>
#include <thread>

#include "mlx/scheduler.h"

namespace tacit {

void take_main_thread() {
  static const bool taken = [] {
    try {
      std::promise<void> began;
      std::thread([&began] {
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
