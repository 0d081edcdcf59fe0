// Several processes that compute together, over MLX's own distributed engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bridge.h"
#include "mlx/distributed/distributed.h"

namespace tacit {

// What a group does, by the numbers that src/group.rs has. A split is no node of a graph.
enum class Op : int { sum, max, min, gather, gather_parts, scatter, enter, send, recv, split };

// A collective under way, or one that failed.
struct InFlight {
  int op;
  int peer;
  uint64_t number;
  uint64_t overtaken;
  uint64_t missed;
  double seconds;
  AvalView aval;
};

// The Rust side of a group. A callback returns 0, or 1 after tacit_set_callback_error.
struct WatcherTable {
  void (*release)(void* watcher);
  // Asked before a collective begins and every few milliseconds while it waits: 1 gives it up.
  int (*poll)(void* watcher, InFlight waiting);
  // Leaves the error of a failure with this text: of the eval that met it, or of an array that came of it.
  int (*failed)(void* watcher, InFlight of, const char* text, size_t length, bool later);
};

// An array whose memory is MLX's while a task on it is queued. A task that held it would keep MLX from giving the memory to
// a later result.
struct Borrowed {
  explicit Borrowed(const array& of) : value(array::unsafe_weak_copy(of)), data(of.data_shared_ptr()) {}

  // Keeps the memory.
  std::shared_ptr<array::Data> hold() const {
    return data.lock();
  }

  array value;
  std::weak_ptr<array::Data> data;
};

// What a group and those that were split off it have in common: their collectives run one at a time, in the order in which this
// process made them. An engine may be called by one thread alone, and ranks that began those of two groups in two orders would
// wait for each other.
struct Lane {
  Lane();

  // Where the collectives of this thread stand in the graph, apart from the stream that computes. It is the thread's own, as any
  // stream that MLX makes but one: an eval queues through the encoder of the stream, which counts what it is given and keeps
  // arrays without a lock, so that two threads that evaluated on one stream would write there at once.
  mlx::core::Stream stream() const {
    return mlx::core::stream_from_thread_local_stream(streams);
  }

  mlx::core::ThreadLocalStream streams;
  // Held while a collective runs, by the thread of whichever stream it stands on.
  std::mutex turn;
  // The engine's own, whose thread may be stuck for ever in a collective that was given up. It is that one, which any thread may
  // use: whoever has the turn does.
  mlx::core::Stream engine;
  std::atomic<bool> broken{false};
};

class Group {
 public:
  // `engine` is MLX's name of it.
  Group(
      mlx::core::distributed::Group group, std::string engine, std::shared_ptr<Lane> lane, WatcherTable table,
      void* watcher);
  // One that was split off another.
  Group(mlx::core::distributed::Group group, const Group& of, WatcherTable table, void* watcher)
      : Group(std::move(group), of.engine_, of.lane_, table, watcher) {}
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  // Whether this process is in any.
  static bool any();

  // Whether it is the stream of an engine, which may be stuck: only its group waits for it.
  static bool is_engine(mlx::core::Stream stream);

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  mlx::core::Stream stream() const {
    return lane_->stream();
  }

  // A collective of which a thread runs one at a time, or that failed.
  struct Current {
    Op op;
    int peer;
    // Among those that this rank has begun.
    uint64_t number;
    // How many of all ranks' ran before it though they were made after it: ranks that agree on that for each have run the same
    // ones in the same order, whatever else they have made.
    uint64_t overtaken;
    // How many of all ranks' that were made before it are left out here since their eval failed, and were not counted yet: a rank
    // that goes on alone runs it where the others run the first of these.
    uint64_t missed;
    Shape shape;
    Dtype dtype;
    std::chrono::steady_clock::time_point since;
  };

  // Throws where the engine cannot be told how many elements of this shape there are.
  void check_count(const Shape& shape) const;

  // Waits until no other thread runs a collective of the lane, which takes no longer than the watcher lets that one wait. Held
  // through `begin` and `run`.
  std::unique_lock<std::mutex> turn() const {
    return std::unique_lock(lane_->turn);
  }

  // Counts one collective, the `number`-th that this process made, on the thread that is about to run it. `shown` is what goes in,
  // or what comes out where nothing does.
  Current begin(Op op, int peer, uint64_t number, const array& shown);

  // Notes that the `number`-th collective that this process made was not begun, since its eval failed before.
  void miss(uint64_t number);

  // Runs it to its end, on a thread of MLX's; throws when it fails or is given up, after which the group is of no more use. The
  // other ranks get NaN of an input that is `poisoned`, since it came of a failure here.
  void run(const Current& current, Borrowed* input, Borrowed& output, bool poisoned);

  // The part of it that this process is in: a ring that the environment describes, or the ranks that give this color, in the
  // order of their keys. Every rank calls it, and it waits for them between two collectives; throws as `run` does.
  mlx::core::distributed::Group split(bool ring, int color, int key);

  // Ends the groups of the lane where `f` throws: a rank that fails alone is one collective behind the others from then on, and
  // would take part in the wrong ones.
  template <class F>
  void or_end(F&& f) const {
    try {
      f();
    } catch (...) {
      lane_->broken = true;
      throw;
    }
  }

  // Leaves the error of a failure behind and throws it.
  void raise(const Current& of, const std::string& text, bool later) const;

  // `x` entered: the same array again while it and `x` are in use, so that the gradients of all its uses are one sum over
  // the ranks.
  array entered(const array& x, const std::function<array()>& make);

  uint64_t collectives() const {
    return collectives_;
  }
  uint64_t bytes() const {
    return bytes_;
  }

 private:
  static InFlight view(const Current& current);
  void poll(const Current& current) const;
  // Throws where nothing can begin any more.
  void check_whole(const Current& current) const;
  // Waits for the engine; throws when that is given up, after which no group of the lane is of use.
  template <class T>
  void wait(Current current, const std::future<T>& future);
  mlx::core::distributed::Group split_now(bool ring, int color, int key);
  void dispatch(Op op, int peer, const array& input, array& output);
  void dispatch_on_gpu(Op op, const array& input, const array& output);
  // How many that were made after this one have run, which has run now too.
  uint64_t overtaken(Op op, uint64_t number);
  // How many were missed before this one, which runs now, and not counted before.
  uint64_t missed(Op op, uint64_t number);

  mlx::core::distributed::Group group_;
  std::string engine_;
  std::shared_ptr<Lane> lane_;
  int rank_;
  int size_;
  WatcherTable table_;
  void* watcher_;
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> bytes_{0};
  // The last made of those that ran, in the order in which they were made.
  std::deque<uint64_t> ran_;
  std::mutex missing_;
  std::set<uint64_t> missed_;
  struct Entered {
    std::weak_ptr<void> x;
    std::weak_ptr<void> value;
  };
  std::mutex entering_;
  std::vector<Entered> entered_;
};

// The number of a collective among those that this process made, in the order in which it made them. It is that of one call:
// whatever makes a second node of a primitive makes a collective anew.
std::optional<uint64_t> collective_number(const Primitive& primitive);

// Whether both are the same collective, of two graphs. Two of one graph are never one: see `may_merge`.
bool same_collective(const Primitive& a, const Primitive& b);

// A collective with the next number; any other primitive as it is.
std::shared_ptr<Primitive> of_another_call(const std::shared_ptr<Primitive>& primitive);

// Whether one is reached from `outputs` before `inputs` are.
bool any_collective(const std::vector<array>& inputs, const std::vector<array>& outputs);

// Whether a collective is among what an array is computed from.
bool comes_of_collective(const array& value);

// Gives the collectives of a replay, which has the primitives of what was recorded, numbers of their own, in the order of
// the recording.
void number_anew(const std::vector<array>& inputs, const std::vector<array>& outputs);

// Notes that a collective of all ranks was not begun, since its eval failed before; nothing of any other primitive.
void miss(const Primitive& primitive);

// Notes it of those that a failed eval of `outputs` left. It may be evaluated again, and is not missed then.
void miss_collectives(const std::vector<array>& outputs);

// Makes the collectives that an eval of `outputs` computes run in one order on every rank.
void order_collectives(const std::vector<array>& outputs);

// What an eval is given, as it is; where a test wants ranks to differ, in an order by chance and after a while.
std::vector<array> disturbed(std::vector<array> outputs);

}  // namespace tacit
