// Plans: many kernels as one node of the graph.
#include "plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <unordered_set>

#include "description.h"
#include "graph.h"
#include "host_kernel.h"
#include "main_thread.h"
#include "memory.h"

namespace tacit {

namespace {

// Arrays that one node computes and other nodes give.
struct Results {
  std::vector<std::optional<array>> arrays;
};

// The memory of the results of a plan, which its task holds until it has run, sorted: a plan of a training step has hundreds, and
// looks for each of its inputs among those of the plan before it.
using Kept = std::vector<std::shared_ptr<array::Data>>;

// Those of the tasks of a stream that have not run yet.
class Queued {
 public:
  using All = std::vector<std::shared_ptr<const Kept>>;

  static All on(mlx::core::Stream stream) {
    std::lock_guard lock(mutex());
    auto& queued = by_stream()[stream.index];
    std::erase_if(queued, [](const auto& kept) { return kept.expired(); });
    All live;
    for (const auto& weak : queued) {
      if (auto kept = weak.lock()) {
        live.push_back(std::move(kept));
      }
    }
    return live;
  }

  static void add(mlx::core::Stream stream, const std::shared_ptr<const Kept>& kept) {
    std::lock_guard lock(mutex());
    by_stream()[stream.index].push_back(kept);
  }

 private:
  // Streams may run until the very end of the process.
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::map<int, std::vector<std::weak_ptr<const Kept>>>& by_stream() {
    static auto& by_stream = *new std::map<int, std::vector<std::weak_ptr<const Kept>>>;
    return by_stream;
  }
};

// Whether nobody but its owner will look at an array once the tasks that are queued have run.
bool is_donatable_behind(const array& value, const Queued::All& queued) {
  const auto& data = value.data_shared_ptr();
  auto holds = [&](const auto& kept) { return std::binary_search(kept->begin(), kept->end(), data); };
  // The array itself and the reference that was asked for.
  return description(value).use_count() == 2 &&
      data.use_count() == 1 + std::count_if(queued.begin(), queued.end(), holds);
}

// Whether a kernel can read the elements where they are; they are there.
bool lies_row_by_row(const array& value) {
  return value.flags().row_contiguous &&
      reinterpret_cast<uintptr_t>(value.data<char>()) % std::max<size_t>(value.itemsize(), 1) == 0;
}

bool is_readable(const array& value) {
  return value.is_available() && !value.is_tracer() && lies_row_by_row(value);
}

// A kernel of many inputs and many results. MLX has each result of a node hold all its inputs; so this one has a single
// result without elements, which stands for all of them, and a `PlanResult` takes each from it.
class PlanKernel : public HostKernel {
 public:
  // What all nodes of a plan have in common.
  struct Face {
    // Outputs that may have the memory of an input, each with that input: it has that of the first one that nobody else holds.
    std::vector<std::pair<size_t, size_t>> donated;
    // Of each input, whether it is one of those.
    std::vector<bool> is_donated;
    std::vector<array> prototypes;
  };

  PlanKernel(
      mlx::core::Stream stream, std::shared_ptr<RustKernel> rust, std::shared_ptr<const Face> face,
      std::vector<Residents> residents)
      : HostKernel(stream, std::move(rust), 1), face_(std::move(face)), residents_(std::move(residents)) {}

  // The same plan with all inputs for residents that may be one; they leave `inputs`.
  std::shared_ptr<Primitive> with_residents(std::vector<array>& inputs) {
    std::vector<Resident> residents;
    std::vector<array> others;
    residents.reserve(inputs.size());
    for (size_t place = 0; place < inputs.size(); ++place) {
      if (may_be_resident(place, inputs[place])) {
        residents.emplace_back(place, std::move(inputs[place]));
      } else {
        others.push_back(std::move(inputs[place]));
      }
    }
    inputs = std::move(others);
    return with_known({std::make_shared<const std::vector<Resident>>(std::move(residents))});
  }

  std::shared_ptr<Primitive> with_known(std::vector<Residents> residents) {
    return std::make_shared<PlanKernel>(stream(), rust_, face_, std::move(residents));
  }

  // Whether this input can be read as it lies, by whoever holds it.
  bool may_be_resident(size_t place, const array& input) const {
    return !face_->is_donated[place] && is_readable(input);
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    auto& node = outputs.front();
    std::vector<size_t> taken;
    auto results = begun(inputs, Queued::on(stream()), &taken);
    auto memory = std::make_shared<Kept>();
    memory->reserve(results.size());
    for (auto& result : results) {
      encoder.set_output_array(result);
      memory->push_back(result.data_shared_ptr());
    }
    std::sort(memory->begin(), memory->end());
    // A copy: what holds the graph, as a compiled function that has captured a result, may run it again.
    dispatch(inputs, residents_, results, node, memory);
    Queued::add(stream(), memory);
    // MLX holds the memory of inputs until the task has run, and a plan that is begun before could not write into it.
    for (auto number : taken) {
      node.inputs()[number] = face_->prototypes.front();
    }
    give(std::move(results), node);
  }

  // Runs the plan on this thread, and gives its failure, if it fails; `node` is its node.
  Failure run_here(array& node) {
    auto results = begun(node.inputs(), {}, nullptr);
    Operands reads(node.inputs().begin(), node.inputs().end()), writes(results.begin(), results.end());
    auto failure = failure_of(rust_, reads, residents_, writes);
    give(std::move(results), node);
    return failure;
  }

  bool is_equivalent(const Primitive&) const override {
    return false;
  }

  // Its node tells nothing of residents: two plans may have the same inputs without them.
  bool same(const Primitive& other) const override {
    const auto* plan = dynamic_cast<const PlanKernel*>(&other);
    return plan != nullptr && HostKernel::same(other) && resident_ids() == plan->resident_ids();
  }

  bool has_residents() const {
    return !residents_.empty();
  }

  std::vector<Shape> output_shapes(const std::vector<array>&) override {
    return {Shape{0}};
  }

 private:
  // By their places.
  std::map<size_t, uintptr_t> resident_ids() const {
    std::map<size_t, uintptr_t> ids;
    for (const auto& some : residents_) {
      for (const auto& resident : *some) {
        ids.emplace(resident.place, resident.value.id());
      }
    }
    return ids;
  }

  // Of each input that is no resident, its number among those of the node.
  std::vector<size_t> numbers() const {
    std::vector<size_t> numbers(face_->is_donated.size(), 1);
    for (const auto& some : residents_) {
      for (const auto& resident : *some) {
        numbers[resident.place] = 0;
      }
    }
    std::exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), size_t{0});
    return numbers;
  }

  // The memory of the results, some of it that of inputs, whose numbers go to `taken`; tasks that are queued run before this plan.
  std::vector<array> begun(
      const std::vector<array>& inputs, const Queued::All& queued, std::vector<size_t>* taken) const {
    std::vector<array> results;
    results.reserve(face_->prototypes.size());
    for (const auto& prototype : face_->prototypes) {
      results.emplace_back(prototype.shape(), prototype.dtype(), nullptr, std::vector<array>{});
    }
    auto numbers = this->numbers();
    for (auto [to, from] : face_->donated) {
      const auto& input = inputs[numbers[from]];
      auto& result = results[to];
      if (result.data_shared_ptr() != nullptr) {
        continue;
      }
      auto lies_alike = input.shape() == result.shape() && lies_row_by_row(input) && input.data_size() == input.size();
      // As MLX has it: a small part of a large buffer would keep all of that.
      auto is_most = input.buffer_size() <= result.nbytes() + 16384;
      if (lies_alike && is_most && is_donatable_behind(input, queued)) {
        result.copy_shared_buffer(input);
        if (taken != nullptr) {
          taken->push_back(numbers[from]);
        }
      }
    }
    for (auto& result : results) {
      if (result.data_shared_ptr() == nullptr) {
        result.set_data(mlx::core::allocator::malloc(result.nbytes()));
      }
    }
    return results;
  }

  // Has the node stand for the results.
  static void give(std::vector<array> arrays, array& node) {
    auto results = std::make_unique<Results>();
    results->arrays.assign(std::make_move_iterator(arrays.begin()), std::make_move_iterator(arrays.end()));
    set_data_over(node, Memory(results.release()), [](Memory held) { delete static_cast<Results*>(held.ptr()); });
  }

  std::shared_ptr<const Face> face_;
  std::vector<Residents> residents_;
};

// One of the results of a plan.
class PlanResult : public Primitive {
 public:
  PlanResult(mlx::core::Stream stream, size_t place, Shape shape)
      : Primitive(stream), place_(place), shape_(std::move(shape)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    // First what another thread is refused, which takes nothing then.
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    take(inputs[0], outputs[0]);
    encoder.set_output_array(outputs[0]);
  }

  // Has `output` be the result; `node` is the plan's node, which has run.
  void take(const array& node, array& output) const {
    auto& result = static_cast<Results*>(const_cast<array&>(node).buffer().ptr())->arrays[place_];
    if (!result) {
      throw std::runtime_error("a result of a plan was taken twice");
    }
    output.copy_shared_buffer(*result);
    result.reset();
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("a plan has no GPU source");
  }

  const char* name() const override {
    return "PlanResult";
  }

  // Of a plan that a function without shapes captured.
  std::vector<Shape> output_shapes(const std::vector<array>&) override {
    return {shape_};
  }

 private:
  size_t place_;
  Shape shape_;
};

// Whether it is a result of a plan that is yet to be taken. What is there already has been, also where MLX let it keep its primitive,
// as a gradient has it do.
bool is_untaken(const array& value) {
  return value.status() == array::Status::unscheduled && is_planned(value);
}

}  // namespace

void make_available(array& value) {
  value.set_status(array::Status::available);
  value.detach();
}

std::optional<std::vector<array>> plans_of(const std::vector<array>& outputs) {
  std::vector<array> plans;
  std::optional<mlx::core::Stream> common;
  for (const auto& output : outputs) {
    if (output.is_available()) {
      continue;
    }
    if (output.status() != array::Status::unscheduled || output.is_tracer() || !is_planned(output)) {
      return std::nullopt;
    }
    // MLX refuses an array of another thread, which may evaluate it as well.
    if (auto stream = output.primitive().stream(); !common || *common != stream) {
      mlx::core::cpu::get_command_encoder(stream);
      common = stream;
    }
    const auto& node = output.inputs().front();
    auto known = std::any_of(plans.begin(), plans.end(), [&](const array& plan) { return plan.id() == node.id(); });
    if (known || node.is_available()) {
      continue;
    }
    if (node.status() != array::Status::unscheduled || !std::all_of(node.inputs().begin(), node.inputs().end(), is_readable)) {
      return std::nullopt;
    }
    plans.push_back(node);
  }
  return plans;
}

Failure run_here(array& plan) {
  return dynamic_cast<PlanKernel&>(plan.primitive()).run_here(plan);
}

void take_here(std::vector<array>& outputs) {
  for (auto& output : outputs) {
    if (is_untaken(output)) {
      auto node = output.inputs().front();
      static_cast<const PlanResult&>(output.primitive()).take(node, output);
      make_available(output);
    }
  }
}

std::vector<array> to_begin(const std::vector<array>& outputs) {
  std::vector<array> all;
  std::unordered_set<uintptr_t> known;
  for (const auto& output : outputs) {
    auto waits = is_untaken(output) && !output.is_tracer() &&
        output.inputs().front().status() == array::Status::unscheduled;
    if (!waits) {
      all.push_back(output);
    } else if (const auto& plan = output.inputs().front(); known.insert(plan.id()).second) {
      all.push_back(plan);
    }
  }
  return all;
}

void take_begun(std::vector<array>& outputs) {
  for (auto& output : outputs) {
    if (is_untaken(output) && !output.is_tracer()) {
      auto all = output.inputs().front();
      static_cast<const PlanResult&>(output.primitive()).take(all, output);
      // As MLX has it for all that it computes on a stream.
      output.attach_event(all.event());
      output.set_status(array::Status::evaluated);
      output.detach();
    }
  }
}

std::vector<array> results_before(const std::vector<array>& inputs, const std::vector<array>& outputs) {
  std::vector<array> found;
  each_reached(outputs, inputs, [&](const array& node) {
    if (is_untaken(node)) {
      found.push_back(node);
    }
    return true;
  });
  return found;
}

void take_ready(std::vector<array>& results) {
  std::vector<array> ready;
  // It throws where a plan has failed: the results are then as they were.
  std::copy_if(results.begin(), results.end(), std::back_inserter(ready), [](const array& result) {
    return is_untaken(result) && has_readable_data(result.inputs().front());
  });
  take_here(ready);
  std::erase_if(results, [](const array& result) { return !is_untaken(result); });
}

bool gives_result(const Primitive& primitive) {
  return typeid(primitive) == typeid(PlanResult);
}

bool is_planned(const array& value) {
  return value.has_primitive() && gives_result(value.primitive());
}

std::shared_ptr<Primitive> with_residents(const std::shared_ptr<Primitive>& primitive, std::vector<array>& inputs) {
  auto* plan = dynamic_cast<PlanKernel*>(primitive.get());
  // One that was captured has its own already, and `inputs` are the rest.
  auto keeps = plan == nullptr || plan->has_residents() || in_transform() || !nothing_poisoned();
  return keeps ? primitive : plan->with_residents(inputs);
}

bool may_be_resident(const Primitive& primitive, size_t place, const array& value) {
  const auto* plan = dynamic_cast<const PlanKernel*>(&primitive);
  return plan != nullptr && plan->may_be_resident(place, value);
}

std::shared_ptr<Primitive> with_known(Primitive& plan, std::vector<Residents> residents) {
  return dynamic_cast<PlanKernel&>(plan).with_known(std::move(residents));
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// Takes `kernel` over in every case, a plan for a CPU stream. `donated` are pairs of an output and an input whose memory it may
// have, one after the other.
int tacit_plan_apply(
    KernelTable table, void* kernel, const char* name, Handle chosen, Arrays inputs, Span<size_t> donated,
    Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustKernel>(table, kernel, name);
    take_main_thread();
    auto arrays = gather(inputs);
    auto stream = stream_or_default(chosen);
    auto face = std::make_shared<PlanKernel::Face>();
    face->is_donated.resize(inputs.count);
    for (size_t i = 0; i < donated.count; i += 2) {
      face->donated.emplace_back(donated.data[i], donated.data[i + 1]);
      face->is_donated.at(donated.data[i + 1]) = true;
    }
    face->prototypes = prototypes_of(*rust, arrays);
    const auto& prototypes = face->prototypes;
    auto primitive = std::make_shared<PlanKernel>(stream, rust, face, std::vector<Residents>{});
    array node(Shape{0}, mlx::core::bool_, std::move(primitive), std::move(arrays));
    std::vector<array> result_arrays;
    for (size_t i = 0; i < prototypes.size(); ++i) {
      auto taken = std::make_shared<PlanResult>(stream, i, prototypes[i].shape());
      result_arrays.emplace_back(prototypes[i].shape(), prototypes[i].dtype(), std::move(taken), std::vector<array>{node});
    }
    pour(result_arrays, results);
  });
}
}
