#include "poisoned.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bridge.h"
#include "description.h"

namespace tacit {

namespace {

using FailureRef = std::shared_ptr<const Failure>;

// What is let go under a lock and dropped after it: a failure holds a kernel, which may be anybody's, and its drop may
// evaluate.
using Dropped = std::vector<std::shared_ptr<const void>>;

constexpr uint32_t nothing = UINT32_MAX;

}  // namespace

// The arrays of one eval that come from kernels, in the order in which they are computed.
class Trail {
 public:
  Trail() {
    ++living;
  }
  Trail(const Trail&) = delete;
  Trail& operator=(const Trail&) = delete;
  ~Trail() {
    --living;
  }

  // How many there are, for tests.
  static inline std::atomic<size_t> living{0};

  struct Link {
    uint32_t child;
    const Trail* trail;
    uint32_t parent;
  };
  struct Noted {
    std::weak_ptr<const void> array;
    uintptr_t id;
    uint32_t note;
  };

  uint32_t find(uintptr_t id) const {
    auto place = places.find(id);
    return place == places.end() ? nothing : place->second;
  }

  // A note for the results of one primitive, if there is a kernel behind them.
  uint32_t add(const array& value, const Link* begin, const Link* end) {
    auto kernel = value.has_primitive() && is_ours(value.primitive());
    if (!kernel && begin == end) {
      return nothing;
    }
    auto note = static_cast<uint32_t>(failures.size());
    failures.emplace_back();
    for (auto link = begin; link != end; ++link) {
      links.push_back({note, link->trail, link->parent});
    }
    auto hold = [&](const array& result) {
      places[result.id()] = note;
      arrays.push_back({description(result), result.id(), note});
    };
    hold(value);
    std::for_each(value.siblings().begin(), value.siblings().end(), hold);
    return note;
  }

  // Hands failures on to what is computed from them.
  void spread(Dropped& dropped) {
    for (auto link = links.begin(); link != links.end();) {
      auto child = link->child;
      // The links of a child follow each other. The last one that brings a failure decides.
      const FailureRef* found = nullptr;
      for (; link != links.end() && link->child == child; ++link) {
        if (const auto& other = link->trail->failures[link->parent]; other != nullptr) {
          found = &other;
        }
      }
      if (auto& failure = failures[child]; found != nullptr && failure != *found) {
        dropped.push_back(std::exchange(failure, *found));
      }
    }
  }

  // Ends it: no failure can reach it any more. What it leads to is let go, or each eval would hold those before it for as
  // long as there are new ones.
  void end(Dropped& dropped) {
    over = true;
    links = {};
    dropped.insert(dropped.end(), earlier.begin(), earlier.end());
    earlier = {};
  }

  // The note of every array that was met.
  std::unordered_map<uintptr_t, uint32_t> places;
  std::vector<Noted> arrays;

  // What follows belongs to whoever holds the lock, once the eval has begun.
  std::vector<Link> links;
  // Those of other evals that links lead to.
  std::vector<std::shared_ptr<Trail>> earlier;
  // One for each note.
  std::vector<FailureRef> failures;
  // The kernels that run or wait, and the eval itself while it is under way.
  size_t running = 1;
  bool over = false;
};

namespace {

class Failures {
 public:
  static Failures& all() {
    // Arrays may be dropped and streams may run until the very end of the process.
    static auto* failures = new Failures;
    return *failures;
  }

  // Whether an eval need not be watched, and whether a read need not.
  bool idle() const {
    return kernels == 0 && quiet();
  }
  bool quiet() const {
    return !busy_;
  }

  // What `outputs` will be computed from; nothing if that is no kernel. Throws where it is poisoned.
  std::shared_ptr<Trail> follow(const std::vector<array>& outputs) {
    struct Frame {
      const array* value;
      const std::vector<array>* inputs;
      size_t next;
      size_t sources;
    };
    auto pending = this->pending();
    auto trail = std::make_shared<Trail>();
    trail->places.reserve(outputs.size());
    trail->arrays.reserve(outputs.size());
    std::vector<Frame> stack{{nullptr, &outputs, 0, 0}};
    std::vector<Trail::Link> sources;
    while (!stack.empty()) {
      auto& frame = stack.back();
      if (frame.next < frame.inputs->size()) {
        const auto& input = (*frame.inputs)[frame.next++];
        if (input.status() != array::Status::unscheduled) {
          check(input);
          for (const auto& other : pending) {
            if (auto note = other->find(input.id()); note != nothing) {
              if (std::find(trail->earlier.begin(), trail->earlier.end(), other) == trail->earlier.end()) {
                trail->earlier.push_back(other);
              }
              sources.push_back({nothing, other.get(), note});
            }
          }
          continue;
        }
        auto [place, unseen] = trail->places.try_emplace(input.id(), nothing);
        if (unseen) {
          stack.push_back({&input, &input.inputs(), 0, sources.size()});
        } else if (place->second != nothing) {
          sources.push_back({nothing, trail.get(), place->second});
        }
        continue;
      }
      auto [value, inputs, next, first] = frame;
      stack.pop_back();
      if (value != nullptr) {
        auto note = trail->add(*value, sources.data() + first, sources.data() + sources.size());
        sources.resize(first);
        if (note != nothing) {
          sources.push_back({nothing, trail.get(), note});
        }
      }
    }
    return trail->arrays.empty() ? nullptr : trail;
  }

  // Begins an eval.
  void begin(const std::shared_ptr<Trail>& trail) {
    std::lock_guard lock(mutex_);
    pending_.push_back(trail);
    news_ |= !trail->earlier.empty();
    busy_ = true;
  }

  // Begins a run of a kernel.
  void begin(Trail& trail) {
    std::lock_guard lock(mutex_);
    ++trail.running;
  }

  // Ends either.
  void end(std::shared_ptr<Trail>& trail) {
    std::lock_guard lock(mutex_);
    --trail->running;
    // While it is pending still: the thread of a kernel is not the last to let go of it, and of its failures.
    trail.reset();
  }

  void fail(Trail& trail, uint32_t note, Failure failure) {
    auto held_failure = std::make_shared<Failure>(std::move(failure));
    std::lock_guard lock(mutex_);
    dropped_.push_back(std::exchange(trail.failures[note], std::move(held_failure)));
    news_ = true;
  }

  // Whether a failure has come to a note.
  bool reached(const Trail& trail, uint32_t note) {
    std::lock_guard lock(mutex_);
    if (news_) {
      for (const auto& other : pending_) {
        other->spread(dropped_);
      }
    }
    return trail.failures[note] != nullptr;
  }

  // Finds out what was poisoned since, and what need not be noted any more.
  void settle() {
    // Goes last, without the lock.
    Dropped dropped;
    std::lock_guard lock(mutex_);
    dropped.swap(dropped_);
    std::erase_if(poisoned_, [&](const auto& entry) {
      auto expired = entry.second.array.expired();
      if (expired) {
        dropped.push_back(entry.second.failure);
      }
      return expired;
    });
    if (std::exchange(news_, false)) {
      spread(dropped);
    }
    std::erase_if(pending_, [&](const auto& trail) {
      auto over = [](const auto& other) { return other->over; };
      if (trail->running == 0 && std::all_of(trail->earlier.begin(), trail->earlier.end(), over)) {
        trail->end(dropped);
        dropped.push_back(trail);
      }
      return trail->over;
    });
    poisons_ = !poisoned_.empty();
    busy_ = !pending_.empty() || poisons_;
  }

  // Throws if the array is poisoned.
  void check(const array& value, bool later = true) {
    FailureRef failure;
    if (poisons_) {
      std::lock_guard lock(mutex_);
      if (auto found = poisoned_.find(value.id()); found != poisoned_.end() && !found->second.array.expired()) {
        failure = found->second.failure;
      }
    }
    if (failure != nullptr) {
      (*failure)(later);
    }
  }

  std::atomic<int> kernels{0};

 private:
  struct Poisoned {
    std::weak_ptr<const void> array;
    FailureRef failure;
  };

  std::vector<std::shared_ptr<Trail>> pending() {
    if (quiet()) {
      return {};
    }
    std::lock_guard lock(mutex_);
    return pending_;
  }

  void spread(Dropped& dropped) {
    for (const auto& trail : pending_) {
      trail->spread(dropped);
      for (const auto& [array, id, note] : trail->arrays) {
        if (trail->failures[note] != nullptr && !array.expired()) {
          auto before = std::exchange(poisoned_[id], Poisoned{array, trail->failures[note]});
          dropped.push_back(std::move(before.failure));
        }
      }
    }
  }

  std::mutex mutex_;
  // The evals under way, in the order of their beginning.
  std::vector<std::shared_ptr<Trail>> pending_;
  std::unordered_map<uintptr_t, Poisoned> poisoned_;
  // What was let go since: threads that compute drop none of it, as nothing that it has them compute would come.
  Dropped dropped_;
  // Whether a failure was reported, or may be one of what a new trail leads to.
  bool news_ = false;
  std::atomic<bool> busy_{false};
  // Whether an array is poisoned: evals ask for each that they read and give.
  std::atomic<bool> poisons_{false};
};

// Whether this thread is in an eval that is watched, and its trail.
thread_local bool inside = false;
thread_local std::shared_ptr<Trail> current;

struct Entered {
  explicit Entered(const std::shared_ptr<Trail>& trail) {
    inside = true;
    current = trail;
    if (trail != nullptr) {
      Failures::all().begin(trail);
    }
  }
  ~Entered() {
    inside = false;
    if (auto trail = std::exchange(current, nullptr)) {
      Failures::all().end(trail);
    }
  }
};

}  // namespace

Run::Run(const array& output) : trail_(current), note_(current == nullptr ? nothing : current->find(output.id())) {
  if (note_ == nothing) {
    trail_ = nullptr;
  } else {
    Failures::all().begin(*trail_);
  }
}

Run::~Run() {
  if (watched()) {
    Failures::all().end(trail_);
  }
}

bool Run::poisoned() const {
  return watched() && Failures::all().reached(*trail_, note_);
}

void Run::fail(Failure failure) {
  Failures::all().fail(*trail_, note_, std::move(failure));
}

bool is_watched() {
  return inside;
}

bool nothing_fails() {
  return Failures::all().idle();
}

void watched(const std::vector<array>& arrays, const std::function<void()>& body) {
  auto& failures = Failures::all();
  failures.settle();
  auto trail = failures.follow(arrays);
  {
    Entered entered(trail);
    body();
  }
  failures.settle();
  for (const auto& value : arrays) {
    failures.check(value, trail == nullptr);
  }
}

bool nothing_poisoned() {
  auto& failures = Failures::all();
  if (!failures.quiet()) {
    failures.settle();
  }
  return failures.quiet();
}

Watched::Watched() {
  ++Failures::all().kernels;
}

Watched::~Watched() {
  --Failures::all().kernels;
}

}  // namespace tacit

extern "C" int tacit_array_check(tacit::Handle value) {
  return tacit::guarded([&] {
    if (!tacit::nothing_poisoned()) {
      tacit::Failures::all().follow({tacit::get(value)});
    }
  });
}

extern "C" size_t tacit_evals_noted() {
  return tacit::Trail::living;
}
