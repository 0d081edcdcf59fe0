// The doors through which MLX evaluates and reads. (What libmlx evaluates by itself on a Mac, as where it writes a file, goes past
// these, and reads what a failed kernel left: NaN where that is floats.)
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "bridge.h"
#include "door.h"
#include "group.h"
#include "main_thread.h"
#include "plan.h"
#include "poisoned.h"

namespace tacit {

namespace {

using Clock = std::chrono::steady_clock;

// What the latest eval of this thread took, in seconds.
thread_local double encoded = 0, waited = 0;

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// What handing the nodes over takes, and then waiting for them.
void evaluate_timed(std::vector<array> outputs) {
  auto start = Clock::now();
  // A tracer of a gradient may be evaluated, but not begun.
  if (std::none_of(outputs.begin(), outputs.end(), [](const array& output) { return output.is_tracer(); })) {
    mlx::core::async_eval(outputs);
  }
  auto begun = Clock::now();
  mlx::core::eval(std::move(outputs));
  encoded = seconds(begun - start);
  waited = seconds(Clock::now() - begun);
}

// Evaluates results of plans on this thread, which would only wait for another one; false where there is more to do.
bool evaluated_here(std::vector<array>& outputs) {
  auto plans = plans_of(outputs);
  if (!plans) {
    return false;
  }
  auto start = Clock::now();
  std::vector<std::pair<array, Failure>> failed;
  failed.reserve(plans->size());
  for (auto& plan : *plans) {
    if (auto failure = run_here(plan)) {
      failed.emplace_back(plan, std::move(failure));
    } else {
      // At once: should the next not begin, this one must not run again, on memory that it wrote into.
      make_available(plan);
    }
  }
  encoded = 0;
  waited = seconds(Clock::now() - start);
  if (failed.empty()) {
    take_here(outputs);
  } else {
    watched(outputs, [&] {
      for (auto& [plan, failure] : failed) {
        Run(plan).fail(std::move(failure));
        make_available(plan);
      }
      take_here(outputs);
    });
  }
  return true;
}

// As a program ends, MLX destroys its allocator while its threads still compute what was begun and nobody waits for: from now on
// that is waited for first.
void finish_at_exit() {
  static const auto registered = std::atexit([] {
    for (auto stream : mlx::core::get_streams()) {
      if (Group::is_engine(stream)) {
        continue;
      }
      try {
        mlx::core::synchronize(stream);
      } catch (const std::exception&) {
        // What failed has ended, and nobody is there to be told.
      }
    }
  });
  static_cast<void>(registered);
}

void evaluate_by(void (*original)(std::vector<array>), std::vector<array> outputs, bool waits) {
  if (waits) {
    original(std::move(outputs));
    return;
  }
  original(to_begin(outputs));
  take_begun(outputs);
}

// `waits` is false where the caller goes on before the results are there.
void evaluate(void (*original)(std::vector<array>), std::vector<array> outputs, bool waits) {
  take_main_thread();
  if (!is_watched()) {
    outputs = disturbed(std::move(outputs));
    order_collectives(outputs);
    if (waits && nothing_poisoned() && evaluated_here(outputs)) {
      return;
    }
  }
  if (is_watched() || nothing_fails()) {
    evaluate_by(original, std::move(outputs), waits);
  } else {
    try {
      watched(outputs, [&] { evaluate_by(original, outputs, waits); });
    } catch (...) {
      miss_collectives(outputs);
      throw;
    }
  }
  // After the first call: what MLX has made by then outlives this.
  if (!waits) {
    finish_at_exit();
  }
}

}  // namespace

}  // namespace tacit

#ifdef TACIT_DOORS

namespace mlx::core {

void eval(std::vector<array> outputs) {
  static auto* const original = tacit::next<void(std::vector<array>)>(TACIT_MANGLED(
      "_ZN3mlx4core4evalESt6vectorINS0_5arrayESaIS2_EE",
      "_ZN3mlx4core4evalENSt3__16vectorINS0_5arrayENS1_9allocatorIS3_EEEE"));
  tacit::evaluate(original, std::move(outputs), true);
}

void async_eval(std::vector<array> outputs) {
  static auto* const original = tacit::next<void(std::vector<array>)>(TACIT_MANGLED(
      "_ZN3mlx4core10async_evalESt6vectorINS0_5arrayESaIS2_EE",
      "_ZN3mlx4core10async_evalENSt3__16vectorINS0_5arrayENS1_9allocatorIS3_EEEE"));
  tacit::evaluate(original, std::move(outputs), false);
}

void array::wait() {
  static auto* const original = tacit::next<void(array*)>("_ZN3mlx4core5array4waitEv");
  if (tacit::is_watched() || tacit::nothing_poisoned()) {
    original(this);
  } else {
    tacit::watched({*this}, [&] { original(this); });
  }
}

#ifdef __APPLE__
// As in MLX, whose own would call past the two above.
void array::eval() {
  if (status() == Status::unscheduled) {
    mlx::core::eval({*this});
  } else {
    wait();
  }
}
#endif

}  // namespace mlx::core

#endif

extern "C" int tacit_eval(tacit::Arrays arrays, double* encode, double* wait) {
  return tacit::guarded([&] {
    auto outputs = tacit::gather(arrays);
    // One eval, so that a failure is told as it is, and not as that of an eval before.
    tacit::evaluate(tacit::evaluate_timed, std::move(outputs), true);
    *encode = tacit::encoded;
    *wait = tacit::waited;
  });
}
