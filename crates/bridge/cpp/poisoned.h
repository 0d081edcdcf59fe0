// What a failed kernel poisons: every array that was computed from what it left behind.
//
// MLX marks an array evaluated when it schedules it, and drops its graph. After a failure a read would so find whatever
// the buffers hold. While there are kernels, `eval` and `async_eval` therefore note which arrays come from which kernels,
// and when one fails these arrays are errors to every read and every eval until nobody holds them any more. MLX itself
// does not learn of the failure, which it would report to whoever uses the stream next; the notes hold arrays weakly, so
// that it writes results into their memory as ever.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mlx/array.h"

namespace tacit {

// Throws the error of a failure: that of the eval that met it, or of an array that came of it and is read later.
using Failure = std::function<void(bool later)>;

class Trail;

// One run of a kernel.
class Run {
 public:
  // Begins the run that computes `output`, on the thread that evaluates.
  explicit Run(const mlx::core::array& output);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();

  // Whether somebody is told of a failure.
  bool watched() const {
    return trail_ != nullptr;
  }

  // Whether what it reads came of a run that failed. On the thread of the kernel, before it reads.
  bool poisoned() const;

  // On the thread of the kernel, before its stream goes on.
  void fail(Failure failure);

 private:
  std::shared_ptr<Trail> trail_;
  uint32_t note_;
};

// Whether no array that somebody holds is poisoned, and none can be any more. Where this is false, an eval finds out.
bool nothing_poisoned();

// Whether this thread is in an eval that is watched.
bool is_watched();

// Whether an eval need not be watched, since there is no kernel and nothing is poisoned.
bool nothing_fails();

// Calls `body`, which evaluates or waits for `arrays`, and throws the failure of any of them.
void watched(const std::vector<mlx::core::array>& arrays, const std::function<void()>& body);

// Evals are watched while one of these lives.
struct Watched {
  Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched();
};

}  // namespace tacit
