#include "group.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <stdexcept>

#include "description.h"
#include "main_thread.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/ops.h"
#include "mlx/scheduler.h"
#include "spoiled.h"

namespace tacit {

namespace {

// How long a wait goes on before the watcher is asked again.
constexpr auto patience = std::chrono::milliseconds(20);

mlx::core::Stream new_stream() {
  return mlx::core::new_thread_unsafe_stream(mlx::core::Device::cpu);
}

// MLX's group over MPI, which ends MPI in its destructor. A graph that is kept to the end of the process would keep it too,
// and `mpirun` takes a process that has not ended MPI for one that failed: so this reference stays, and we end MPI.
std::shared_ptr<mlx::core::distributed::detail::GroupImpl>* over_mpi = nullptr;

void end_mpi() {
  if (over_mpi == nullptr) {
    return;
  }
  const auto* given = std::getenv("MLX_MPI_LIBNAME");
#ifdef __APPLE__
  const auto* name = given != nullptr ? given : "libmpi.dylib";
#else
  const auto* name = given != nullptr ? given : "libmpi.so";
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

class Collective : public Primitive {
 public:
  Collective(std::shared_ptr<Group> group, mlx::core::Stream stream, Op op, int peer, Shape shape, Dtype dtype)
      : Primitive(stream),
        group_(std::move(group)),
        op_(op),
        peer_(peer),
        number_(op == Op::enter ? 0 : ++numbers),
        shape_(std::move(shape)),
        dtype_(dtype) {}

  // Nothing for what is no communication.
  std::optional<uint64_t> number() const {
    return number_ == 0 ? std::nullopt : std::optional(number_);
  }

  // The same once more, with a number of its own.
  std::shared_ptr<Primitive> anew() {
    return std::make_shared<Collective>(group_, stream(), op_, peer_, shape_, dtype_);
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& output = outputs.front();
    if (op_ == Op::enter) {
      output.copy_shared_buffer(inputs[0]);
      return;
    }
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    output.set_data(mlx::core::allocator::malloc(output.nbytes()));
    encoder.set_output_array(output);
    std::optional<Borrowed> read;
    // What stands behind the operand is only the collective before.
    if (op_ != Op::recv) {
      auto rows = row_major(inputs[0], stream());
      encoder.set_input_array(rows);
      read.emplace(rows);
    }
    auto run = std::make_shared<Run>(output);
    encoder.dispatch([group = group_, op = op_, peer = peer_, made = number_, run = std::move(run), read = std::move(read),
                      write = Borrowed(output)]() mutable {
      auto current = group->begin(op, peer, made, read ? read->value : write.value);
      try {
        group->run(current, read ? &*read : nullptr, write);
      } catch (const std::exception& error) {
        spoil(write.value);
        Failure failure = [group, current = std::move(current), text = std::string(error.what())](bool later) {
          group->raise(current, text, later);
        };
        if (!run->watched()) {
          failure(false);
        }
        run->fail(std::move(failure));
      }
      run.reset();
    });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU");
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents,
      const std::vector<int>& argnums, const std::vector<array>& outputs) override {
    std::vector<array> gradients;
    for (auto argnum : argnums) {
      gradients.push_back(
          argnum == 0 ? gradient(primals[0], cotangents[0], outputs[0]) : mlx::core::zeros_like(primals[argnum]));
    }
    return gradients;
  }

  array gradient(const array& x, const array& back, const array& output) const {
    // Each rule is what the reverse of the op is on all ranks together, so that its own reverse is right as well: what was
    // replicated enters into what each rank computes apart.
    switch (op_) {
      case Op::sum:
        return again(Op::enter, back);
      case Op::enter:
        return again(Op::sum, back);
      case Op::max:
      case Op::min: {
        auto at = mlx::core::equal(x, output);
        return mlx::core::where(at, again(Op::enter, back), mlx::core::zeros_like(back));
      }
      case Op::gather:
        return own_part(again(Op::enter, back), x.shape(0));
      case Op::gather_parts:
        return again(Op::scatter, back);
      case Op::scatter:
        return again(Op::gather_parts, back);
      default:
        throw std::invalid_argument(std::string(name()) + " has no gradient");
    }
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>&) override {
    const auto& along = tangents[0];
    if (op_ == Op::max || op_ == Op::min) {
      // Ranks that share the extreme share its tangent.
      auto at = mlx::core::equal(primals[0], again(op_, primals[0]));
      auto zero = mlx::core::zeros_like(along);
      auto sum = again(Op::sum, mlx::core::where(at, along, zero));
      return {mlx::core::divide(sum, again(Op::sum, mlx::core::astype(at, along.dtype())))};
    }
    if (op_ == Op::send || op_ == Op::recv) {
      throw std::invalid_argument(std::string(name()) + " has no tangent");
    }
    return {again(op_, along)};
  }

  std::pair<std::vector<array>, std::vector<int>> vmap(
      const std::vector<array>& inputs, const std::vector<int>& axes) override {
    if (op_ == Op::recv) {
      throw std::invalid_argument("what is received cannot be mapped");
    }
    auto joins = op_ == Op::gather || op_ == Op::gather_parts || op_ == Op::scatter;
    if (!joins || axes[0] < 0) {
      return {{again(op_, inputs[0])}, axes};
    }
    // The examples stand behind the axis along which parts are joined.
    return {{again(op_, mlx::core::moveaxis(inputs[0], axes[0], 1))}, {1}};
  }

  const char* name() const override {
    switch (op_) {
      case Op::sum:
        return "Sum AllReduce";
      case Op::max:
        return "Max AllReduce";
      case Op::min:
        return "Min AllReduce";
      case Op::gather:
      case Op::gather_parts:
        return "AllGather";
      case Op::scatter:
        return "Sum ReduceScatter";
      case Op::enter:
        return "Enter";
      case Op::send:
        return "Send";
      case Op::recv:
        return "Recv";
    }
    return "Collective";
  }

  // A message is one each time.
  bool is_equivalent(const Primitive& other) const override {
    const auto* same = dynamic_cast<const Collective*>(&other);
    return same != nullptr && same->group_ == group_ && same->op_ == op_ && op_ != Op::send && op_ != Op::recv;
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    if (op_ == Op::recv) {
      return {shape_};
    }
    return {shape_of(*group_, op_, inputs[0].shape())};
  }

  static Shape shape_of(const Group& group, Op op, Shape shape) {
    auto size = group.size();
    if (op == Op::gather || op == Op::gather_parts || op == Op::scatter) {
      if (shape.empty()) {
        throw std::invalid_argument("parts are joined along the first axis, and a scalar has none");
      }
      if (op == Op::scatter && shape[0] % size != 0) {
        throw std::invalid_argument(
            "the first of the axes, " + std::to_string(shape[0]) + " long, has no equal part for each of " +
            std::to_string(size) + " ranks");
      }
      shape[0] = op == Op::scatter ? shape[0] / size : shape[0] * size;
    }
    return shape;
  }

  static array emit(const std::shared_ptr<Group>& group, Op op, int peer, const array& input) {
    auto stream = op == Op::enter ? mlx::core::default_stream(mlx::core::default_device()) : group->stream();
    auto shape = shape_of(*group, op, input.shape());
    auto primitive = std::make_shared<Collective>(group, stream, op, peer, shape, input.dtype());
    return array(std::move(shape), input.dtype(), std::move(primitive), {input});
  }

  static array receive(const std::shared_ptr<Group>& group, int peer, Shape shape, Dtype dtype) {
    auto primitive = std::make_shared<Collective>(group, group->stream(), Op::recv, peer, shape, dtype);
    return array(std::move(shape), dtype, std::move(primitive), {});
  }

 private:
  array again(Op op, const array& input) const {
    return emit(group_, op, peer_, input);
  }

  array own_part(const array& whole, int extent) const {
    Shape start(whole.ndim(), 0), stop = whole.shape();
    start[0] = group_->rank() * extent;
    stop[0] = start[0] + extent;
    return mlx::core::slice(whole, std::move(start), std::move(stop));
  }

  std::shared_ptr<Group> group_;
  Op op_;
  int peer_;
  static inline std::atomic<uint64_t> numbers{0};
  uint64_t number_;
  Shape shape_;
  Dtype dtype_;
  Watched watched_;
};

std::atomic<int> groups{0};

}  // namespace

bool Group::any() {
  return groups > 0;
}

Group::Group(mlx::core::distributed::Group group, bool scatters, WatcherTable table, void* watcher)
    : group_(std::move(group)),
      rank_(group_.rank()),
      size_(group_.size()),
      scatters_(scatters),
      table_(table),
      watcher_(watcher),
      stream_(new_stream()),
      engine_(new_stream()) {
  ++groups;
}

Group::~Group() {
  --groups;
  table_.release(watcher_);
}

array Group::entered(const array& x, const std::function<array()>& make) {
  std::lock_guard lock(entering_);
  std::erase_if(entered_, [](const Entered& entry) { return entry.x.expired() || entry.made.expired(); });
  auto own = description(x);
  for (const auto& entry : entered_) {
    if (entry.x.lock() == own) {
      // What was evaluated since has lost its graph, and so its gradient.
      if (auto made = entry.made.lock()) {
        auto found = described(x, made);
        if (found.has_primitive()) {
          return found;
        }
      }
    }
  }
  auto made = make();
  entered_.push_back({own, description(made)});
  return made;
}

InFlight Group::view(const Current& current) {
  auto waited = std::chrono::steady_clock::now() - current.since;
  return InFlight{static_cast<int>(current.op),
                  current.peer,
                  current.number,
                  current.overtaken,
                  std::chrono::duration<double>(waited).count(),
                  current.shape.data(),
                  current.shape.size(),
                  code_of(current.dtype)};
}

void Group::poll(const Current& current) const {
  check(table_.poll(watcher_, view(current)));
}

uint64_t Group::overtaken(Op op, uint64_t made) {
  // A message is between two, which the others know nothing of.
  if (op == Op::send || op == Op::recv) {
    return 0;
  }
  auto place = std::upper_bound(ran_.begin(), ran_.end(), made);
  auto later = static_cast<uint64_t>(ran_.end() - place);
  // What is older than all that is known stays unknown, on every rank alike.
  constexpr size_t known = 4096;
  if (later < known) {
    ran_.insert(place, made);
  }
  if (ran_.size() > known) {
    ran_.pop_front();
  }
  return later;
}

void Group::raise(const Current& current, const std::string& text, bool later) const {
  auto of = current;
  of.since = std::chrono::steady_clock::now();
  check(table_.failed(watcher_, view(of), text.data(), text.size(), later));
}

void Group::dispatch(Op op, int peer, const array& input, array& output) {
  auto& engine = *group_.raw_group();
  switch (op) {
    case Op::sum:
      return engine.all_sum(input, output, engine_);
    case Op::max:
      return engine.all_max(input, output, engine_);
    case Op::min:
      return engine.all_min(input, output, engine_);
    case Op::gather:
    case Op::gather_parts:
      return engine.all_gather(input, output, engine_);
    case Op::scatter:
      return engine.sum_scatter(input, output, engine_);
    case Op::send:
      return engine.send(input, peer, engine_);
    case Op::recv:
      return engine.recv(output, peer, engine_);
    case Op::enter:
      return;
  }
}

Group::Current Group::begin(Op op, int peer, uint64_t made, const array& shown) {
  auto now = std::chrono::steady_clock::now();
  return Current{op, peer, ++collectives_, overtaken(op, made), shown.shape(), shown.dtype(), now};
}

void Group::run(const Current& current, Borrowed* input, Borrowed& output) {
  auto& shown = (input ? *input : output).value;
  {
    std::lock_guard lock(mutex_);
    current_ = current;
  }
  struct Leave {
    Group& group;
    ~Leave() {
      std::lock_guard lock(group.mutex_);
      group.current_.reset();
    }
  } leave{*this};
  poll(current);
  if (broken_) {
    throw std::runtime_error("an earlier collective of the group failed");
  }
  bytes_ += input ? shown.nbytes() : 0;
  // Where the engine has no scatter, a sum of which only a part is kept.
  auto whole = current.op == Op::scatter && !scatters_;
  auto from = shown, to = output.value;
  if (whole) {
    to = array(from.shape(), from.dtype(), nullptr, {});
    to.set_data(mlx::core::allocator::malloc(from.nbytes()));
  }
  mlx::core::scheduler::check_error(engine_);
  dispatch(whole ? Op::sum : current.op, current.peer, from, to);
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  // What the engine works on stays until it is done with it, also where nobody waits for that any more.
  mlx::core::scheduler::enqueue(
      engine_, [done, from, to, read = input ? input->hold() : nullptr, write = output.hold()] { done->set_value(); });
  try {
    while (future.wait_for(patience) != std::future_status::ready) {
      poll(current);
    }
    mlx::core::scheduler::check_error(engine_);
  } catch (...) {
    broken_ = true;
    throw;
  }
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

std::shared_ptr<Primitive> of_another_call(const std::shared_ptr<Primitive>& primitive) {
  return collective_number(*primitive) ? static_cast<Collective&>(*primitive).anew() : primitive;
}

bool is_collective(const Primitive& primitive) {
  return typeid(primitive) == typeid(Collective);
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// Joins the group that the environment describes for this engine, which may wait for the other ranks. Takes `watcher` over
// in every case. `name` is MLX's name of the engine.
int tacit_group_new(const char* name, WatcherTable table, void* watcher, std::shared_ptr<Group>** made) {
  return guarded([&] {
    std::unique_ptr<void, void (*)(void*)> owned(watcher, table.release);
    take_main_thread();
    auto group = mlx::core::distributed::init(true, name);
    if (std::strcmp(name, "mpi") == 0 && over_mpi == nullptr) {
      over_mpi = new std::shared_ptr(group.raw_group());
    }
    auto scatters = std::strcmp(name, "jaccl") == 0;
    auto joined = std::make_unique<Group>(std::move(group), scatters, table, watcher);
    owned.release();
    *made = new std::shared_ptr<Group>(std::move(joined));
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

// Calls `take` with what is under way, if something is.
bool tacit_group_in_flight(const std::shared_ptr<Group>* group, void* ctx, void (*take)(void* ctx, InFlight)) {
  return (*group)->in_flight([&](InFlight current) { take(ctx, current); });
}

int tacit_group_collective(
    const std::shared_ptr<Group>* group, int op, int peer, Handle x, Handle* result) {
  return guarded([&] {
    auto make = [&] { return Collective::emit(*group, static_cast<Op>(op), peer, get(x)); };
    *result = own(static_cast<Op>(op) == Op::enter ? (*group)->entered(get(x), make) : make());
  });
}

int tacit_group_receive(
    const std::shared_ptr<Group>* group, int peer, const int32_t* shape, size_t ndim, int dtype, Handle* result) {
  return guarded([&] { *result = own(Collective::receive(*group, peer, Shape(shape, shape + ndim), dtype_of(dtype))); });
}
}
