#include "group.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "collective.h"
#include "description.h"
#include "main_thread.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/ops.h"
#include "mlx/scheduler.h"
#include "poisoned.h"

namespace tacit {

namespace {

// How long a wait goes on before the watcher is asked again.
constexpr auto patience = std::chrono::milliseconds(20);

// A process that comes to itself again so much later has not run meanwhile.
constexpr auto gap = std::chrono::seconds(1);

// MLX's group over MPI, which ends MPI in its destructor. A graph that is kept to the end of the process would keep it too,
// and `mpirun` takes a process that has not ended MPI for one that failed: so this reference stays, and we end MPI.
std::shared_ptr<mlx::core::distributed::detail::GroupImpl>* over_mpi = nullptr;

void end_mpi() {
  if (over_mpi == nullptr) {
    return;
  }
  const auto* from_environment = std::getenv("MLX_MPI_LIBNAME");
#ifdef __APPLE__
  const auto* name = from_environment != nullptr ? from_environment : "libmpi.dylib";
#else
  const auto* name = from_environment != nullptr ? from_environment : "libmpi.so";
#endif
  auto* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return;
  }
  auto* ended = reinterpret_cast<int (*)(int*)>(dlsym(library, "MPI_Finalized"));
  auto* end = reinterpret_cast<int (*)()>(dlsym(library, "MPI_Finalize"));
  int over = 1;
  if (ended != nullptr && end != nullptr && ended(&over) == 0 && over == 0) {
    end();
  }
}

std::atomic<int> groups{0};

// The numbers of the engines' streams. Streams stay, also when their group goes. The lock is held wherever collectives
// read MLX's table of the streams of any thread, which has none, and wherever it grows. (MLX also looks there before it refuses a
// stream of another thread.)
struct Engines {
  std::mutex mutex;
  std::vector<int> streams;
};

Engines& engines() {
  static auto& instance = *new Engines;
  return instance;
}

mlx::core::Stream engine_stream() {
  std::lock_guard lock(engines().mutex);
  auto stream = mlx::core::new_thread_unsafe_stream(mlx::core::Device::cpu);
  engines().streams.push_back(stream.index);
  return stream;
}

// Keeps a group of MLX's for the life of the process.
void keep(const mlx::core::distributed::Group& group) {
  static auto& kept = *new std::vector<mlx::core::distributed::Group>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  kept.push_back(group);
}

// A ring as the environment describes it now.
mlx::core::distributed::Group new_ring() {
  // MLX gives the ring that it knows, and knows the new one then: we hold each ourselves, and it is to know none.
  mlx::core::distributed::clear_backends();
  auto ring = mlx::core::distributed::init(true, "ring");
  mlx::core::distributed::clear_backends();
  return ring;
}

}  // namespace

Lane::Lane() : streams(mlx::core::new_thread_local_stream(mlx::core::Device::cpu)), engine(engine_stream()) {}

bool Group::any() {
  return groups > 0;
}

bool Group::is_engine(mlx::core::Stream stream) {
  std::lock_guard lock(engines().mutex);
  const auto& streams = engines().streams;
  return std::find(streams.begin(), streams.end(), stream.index) != streams.end();
}

Group::Group(
    mlx::core::distributed::Group group, std::string engine, std::shared_ptr<Lane> lane, WatcherTable table,
    void* watcher)
    : group_(std::move(group)),
      engine_(std::move(engine)),
      lane_(std::move(lane)),
      rank_(group_.rank()),
      size_(group_.size()),
      table_(table),
      watcher_(watcher) {
  ++groups;
}

Group::~Group() {
  --groups;
  // The end of a group is a call of MPI's, which only the engine's thread makes; and where that is stuck, it still uses it.
  if (engine_ == "mpi" || lane_->broken) {
    keep(group_);
  }
  table_.release(watcher_);
}

void Group::check_count(const Shape& shape) const {
  // MLX tells MPI by an `int`. Of a larger number it would pass on the low bits, and most of the result would be left unwritten.
  constexpr size_t most = std::numeric_limits<int>::max();
  size_t size = 1;
  for (auto extent : shape) {
    size *= static_cast<size_t>(extent);
  }
  if (engine_ == "mpi" && size > most) {
    throw std::invalid_argument(
        "MPI takes at most " + std::to_string(most) + " elements at once, not " + std::to_string(size));
  }
}

array Group::entered(const array& x, const std::function<array()>& make) {
  std::lock_guard lock(entering_);
  std::erase_if(entered_, [](const Entered& entry) { return entry.x.expired() || entry.value.expired(); });
  auto id = description(x);
  for (const auto& entry : entered_) {
    if (entry.x.lock() == id) {
      // What was evaluated since has lost its graph, and so its gradient.
      if (auto value = entry.value.lock()) {
        auto found = described(x, value);
        if (found.has_primitive()) {
          return found;
        }
      }
    }
  }
  auto value = make();
  entered_.push_back({id, description(value)});
  return value;
}

InFlight Group::view(const Current& current) {
  auto waited = std::chrono::steady_clock::now() - current.since;
  return InFlight{static_cast<int>(current.op),
                  current.peer,
                  current.number,
                  current.overtaken,
                  current.missed,
                  std::chrono::duration<double>(waited).count(),
                  AvalView::of(current.shape, current.dtype)};
}

void Group::poll(const Current& current) const {
  check(table_.poll(watcher_, view(current)));
}

void Group::check_whole(const Current& current) const {
  poll(current);
  if (lane_->broken) {
    throw std::runtime_error("an earlier collective of the group failed");
  }
}

template <class T>
void Group::wait(Current current, const std::future<T>& future) {
  or_end([&] {
    auto polled = std::chrono::steady_clock::now();
    while (future.wait_for(patience) != std::future_status::ready) {
      auto now = std::chrono::steady_clock::now();
      // Nobody waits while this process does not run: it is stopped, or the machine sleeps.
      if (now - polled > gap) {
        current.since += now - polled;
      }
      polled = now;
      poll(current);
    }
  });
}

mlx::core::distributed::Group Group::split(bool ring, int color, int key) {
  using Task = std::packaged_task<mlx::core::distributed::Group()>;
  auto task = std::make_shared<Task>([this, ring, color, key] { return split_now(ring, color, key); });
  auto part = task->get_future();
  mlx::core::scheduler::enqueue(lane_->stream(), [task] { (*task)(); });
  return part.get();
}

mlx::core::distributed::Group Group::split_now(bool ring, int color, int key) {
  auto lock = turn();
  auto now = std::chrono::steady_clock::now();
  Current current{Op::split, 0, collectives_, 0, 0, Shape{}, mlx::core::int32, now};
  check_whole(current);
  using Task = std::packaged_task<mlx::core::distributed::Group()>;
  auto task = std::make_shared<Task>([group = group_, ring, color, key] {
    auto part = ring ? new_ring() : group.split(color, key);
    // MLX asks the engine for these once, which has to be here.
    part.rank();
    part.size();
    return part;
  });
  auto part = task->get_future();
  mlx::core::scheduler::enqueue(lane_->engine, [task] { (*task)(); });
  wait(current, part);
  return part.get();
}

uint64_t Group::overtaken(Op op, uint64_t number) {
  // A message is between two, which the others know nothing of.
  if (op == Op::send || op == Op::recv) {
    return 0;
  }
  auto place = std::upper_bound(ran_.begin(), ran_.end(), number);
  auto later = static_cast<uint64_t>(ran_.end() - place);
  // What is older than all that is known stays unknown, on every rank alike.
  constexpr size_t known = 4096;
  if (later < known) {
    ran_.insert(place, number);
  }
  if (ran_.size() > known) {
    ran_.pop_front();
  }
  return later;
}

void Group::miss(uint64_t number) {
  std::lock_guard lock(missing_);
  missed_.insert(number);
}

uint64_t Group::missed(Op op, uint64_t number) {
  if (op == Op::send || op == Op::recv) {
    return 0;
  }
  std::lock_guard lock(missing_);
  missed_.erase(number);
  auto behind = missed_.lower_bound(number);
  auto count = static_cast<uint64_t>(std::distance(missed_.begin(), behind));
  missed_.erase(missed_.begin(), behind);
  return count;
}

void Group::raise(const Current& current, const std::string& text, bool later) const {
  auto of = current;
  of.since = std::chrono::steady_clock::now();
  check(table_.failed(watcher_, view(of), text.data(), text.size(), later));
}

void Group::dispatch(Op op, int peer, const array& input, array& output) {
  if (engine_ == "nccl") {
    return dispatch_on_gpu(op, input, output);
  }
  auto& engine = *group_.raw_group();
  // It only queues: the engine works on its own thread.
  std::lock_guard lock(engines().mutex);
  switch (op) {
    case Op::sum:
      return engine.all_sum(input, output, lane_->engine);
    case Op::max:
      return engine.all_max(input, output, lane_->engine);
    case Op::min:
      return engine.all_min(input, output, lane_->engine);
    case Op::gather:
    case Op::gather_parts:
      return engine.all_gather(input, output, lane_->engine);
    case Op::scatter:
      return engine.sum_scatter(input, output, lane_->engine);
    case Op::send:
      return engine.send(input, peer, lane_->engine);
    case Op::recv:
      return engine.recv(output, peer, lane_->engine);
    case Op::enter:
      return;
    case Op::split:
      throw std::invalid_argument("a split is no node of a graph");
  }
}

Group::Current Group::begin(Op op, int peer, uint64_t number, const array& shown) {
  auto now = std::chrono::steady_clock::now();
  return Current{
      op, peer, ++collectives_, overtaken(op, number), missed(op, number), shown.shape(), shown.dtype(), now};
}

void Group::run(const Current& current, Borrowed* input, Borrowed& output, bool poisoned) {
  auto& shown = (input ? *input : output).value;
  check_whole(current);
  bytes_ += input ? shown.nbytes() : 0;
  // Where the engine has no scatter, a sum of which only a part is kept.
  auto whole = current.op == Op::scatter && engine_ != "jaccl" && engine_ != "nccl";
  auto from = shown, to = output.value;
  or_end([&] {
    if (poisoned && input != nullptr) {
      // The other ranks wait for it and know of no failure here. All bits make NaN of floats, and of other numbers what no index
      // is; what was left behind might look right.
      from = array(shown.shape(), shown.dtype(), nullptr, {});
      from.set_data(mlx::core::allocator::malloc(shown.nbytes()));
      std::memset(from.data<char>(), 0xff, from.nbytes());
    }
    if (whole) {
      to = array(from.shape(), from.dtype(), nullptr, {});
      to.set_data(mlx::core::allocator::malloc(from.nbytes()));
    }
    mlx::core::scheduler::check_error(lane_->engine);
  });
  // What the engine refuses here, such as a dtype, it refuses on every rank, and none is behind.
  dispatch(whole ? Op::sum : current.op, current.peer, from, to);
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  // What the engine works on stays until it is done with it, also where nobody waits for that any more.
  mlx::core::scheduler::enqueue(
      lane_->engine,
      [done, from, to, read = input ? input->hold() : nullptr, write = output.hold()] { done->set_value(); });
  wait(current, future);
  or_end([&] { mlx::core::scheduler::check_error(lane_->engine); });
  auto* result = output.value.data<char>();
  if (whole) {
    std::memcpy(result, to.data<char>() + static_cast<size_t>(rank_) * output.value.nbytes(), output.value.nbytes());
  }
  if (current.op == Op::send) {
    std::memcpy(result, from.data<char>(), output.value.nbytes());
  }
}

std::optional<uint64_t> collective_number(const Primitive& primitive) {
  return is_collective(primitive) ? static_cast<const Collective&>(primitive).number() : std::nullopt;
}

bool same_collective(const Primitive& a, const Primitive& b) {
  return is_collective(a) && static_cast<const Collective&>(a).does_the_same(b);
}

std::shared_ptr<Primitive> of_another_call(const std::shared_ptr<Primitive>& primitive) {
  return collective_number(*primitive) ? static_cast<Collective&>(*primitive).anew() : primitive;
}

void miss(const Primitive& primitive) {
  if (is_collective(primitive)) {
    static_cast<const Collective&>(primitive).miss();
  }
}

bool is_collective(const Primitive& primitive) {
  return typeid(primitive) == typeid(Collective);
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// Joins the group that the environment describes for this engine, which may wait for the other ranks. Takes `watcher` over
// in every case. `name` is MLX's name of the engine.
int tacit_group_new(const char* name, WatcherTable table, void* watcher, std::shared_ptr<Group>** out) {
  return guarded([&] {
    std::unique_ptr<void, void (*)(void*)> owned(watcher, table.release);
    take_main_thread();
    auto group = mlx::core::distributed::init(true, name);
    if (std::strcmp(name, "mpi") == 0 && over_mpi == nullptr) {
      over_mpi = new std::shared_ptr(group.raw_group());
    }
    auto joined = std::make_unique<Group>(std::move(group), name, std::make_shared<Lane>(), table, watcher);
    owned.release();
    *out = new std::shared_ptr<Group>(std::move(joined));
  });
}

// Splits off the part of a group that this process is in. Takes `watcher` over in every case.
int tacit_group_split(
    const std::shared_ptr<Group>* group, bool ring, int color, int key, WatcherTable table, void* watcher,
    std::shared_ptr<Group>** out) {
  return guarded([&] {
    std::unique_ptr<void, void (*)(void*)> owned(watcher, table.release);
    auto part = std::make_unique<Group>((*group)->split(ring, color, key), **group, table, watcher);
    owned.release();
    *out = new std::shared_ptr<Group>(std::move(part));
  });
}

// Ends MPI, if a group is over it: at the end of the process.
void tacit_end_mpi() {
  guarded(end_mpi);
}

void tacit_group_free(std::shared_ptr<Group>* group) {
  delete group;
}

int tacit_group_rank(const std::shared_ptr<Group>* group) {
  return (*group)->rank();
}

int tacit_group_size(const std::shared_ptr<Group>* group) {
  return (*group)->size();
}

uint64_t tacit_group_collectives(const std::shared_ptr<Group>* group) {
  return (*group)->collectives();
}

uint64_t tacit_group_bytes(const std::shared_ptr<Group>* group) {
  return (*group)->bytes();
}

int tacit_group_collective(
    const std::shared_ptr<Group>* group, int op, int peer, Handle x, Handle* result) {
  return guarded([&] {
    auto emit = [&] { return Collective::emit(*group, static_cast<Op>(op), peer, get(x)); };
    *result = own(static_cast<Op>(op) == Op::enter ? (*group)->entered(get(x), emit) : emit());
  });
}

int tacit_group_receive(const std::shared_ptr<Group>* group, int peer, AvalView aval, Handle* result) {
  return guarded([&] { *result = own(Collective::receive(*group, peer, aval.shape(), aval.dtype())); });
}
}
