// A compiled function: MLX's compile wrapped once, with a Rust function behind it that is only there while it is called.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bridge.h"
#include "distinct.h"
#include "graph.h"
#include "group.h"
#include "pages.h"
#include "params.h"
#include "plan.h"
#include "replay.h"
#include "shapeless.h"

namespace tacit {

namespace {

namespace detail = mlx::core::detail;

enum Outcome : int { kReplayed, kTraced, kInlined };

// MLX's compile keeps outputs as they are, and has them take the operands of its own graph: an array that others hold, and
// that another function or trace gives as well, would take the operands of that one. And it merges scalars of one value,
// forgets that an output may be one of them, and then looks it up in vain. A copy is followed to what is left.
void copy_captured(std::vector<array>& outputs) {
  for (auto& output : outputs) {
    if (!output.is_tracer() && (output.has_primitive() || output.ndim() == 0)) {
      output = mlx::core::copy(output, mlx::core::default_stream(mlx::core::default_device()));
    }
  }
}

// Puts in rows what a function splits of its inputs: another call may give one that goes backwards, and MLX takes each part of that
// for one number.
void split_in_rows(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  auto inputs = ids_of(tracers);
  std::vector<array> splits;
  each_reached(outputs, tracers, [&](const array& node) {
    if (made_by<mlx::core::Split>(node)) {
      const auto* from = &node.inputs()[0];
      // Every view has one operand.
      while (from->has_primitive() && from->inputs().size() == 1) {
        from = &from->inputs()[0];
      }
      if (inputs.contains(from->id())) {
        splits.push_back(node);
      }
    }
    return true;
  });
  for (auto& split : splits) {
    // Another part of it may have been met before.
    if (made_by<mlx::core::Contiguous>(split.inputs()[0])) {
      continue;
    }
    auto rows = mlx::core::contiguous(split.inputs()[0], false, split.primitive().stream());
    for (auto& part : split.outputs()) {
      part.inputs()[0] = rows;
    }
  }
}

// Whether the source of a kernel that MLX fuses has another number: written with one digit more than any text of the type keeps.
template <class T>
bool is_rounded(T number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*g", std::numeric_limits<T>::digits10 + 1, static_cast<double>(number));
  return std::isfinite(number) && static_cast<T>(std::strtod(text, nullptr)) != number;
}

// Whether an array is such a number. Half floats have few enough digits.
bool loses_digits(const array& value) {
  // MLX waits for a number that is still computed as well.
  if (value.size() != 1 || !is_inexact(value) || value.itemsize() < sizeof(float) || value.has_primitive() ||
      value.is_tracer() || !has_readable_data(value)) {
    return false;
  }
  switch (value.dtype().val()) {
    case Dtype::Val::float32:
      return is_rounded(value.item<float>());
    case Dtype::Val::float64:
      return is_rounded(value.item<double>());
    // MLX 0.32.4 still writes seven digits of each part, and all of a float.
    case Dtype::Val::complex64: {
      auto number = value.item<mlx::core::complex64_t>();
      return is_rounded(number.real()) || is_rounded(number.imag());
    }
    default:
      return false;
  }
}

// Has kernels read such numbers: what a node makes is not written into their source.
void keep_digits(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  std::vector<array> readers;
  each_reached(outputs, tracers, [&](const array& node) {
    if (std::any_of(node.inputs().begin(), node.inputs().end(), loses_digits)) {
      readers.push_back(node);
    }
    return true;
  });
  for (auto& reader : readers) {
    for (auto& input : reader.inputs()) {
      if (loses_digits(input)) {
        input = mlx::core::contiguous(input, false, reader.primitive().stream());
      }
    }
  }
}

bool any_tracer(const std::vector<array>& arrays) {
  return std::any_of(arrays.begin(), arrays.end(), [](const array& value) { return value.is_tracer(); });
}

class Program {
 public:
  // `replays` tells what to do if MLX refuses to compile: replay the recorded graph, or call the function each time.
  Program(bool shapeless, bool replays) : shapeless_(shapeless) {
    compiled_ = detail::compile(detail::ArrayFnWithExtra(Entry{this}), function_id(this), shapeless, {});
    // MLX hands the function back as it is when it will not compile.
    if (compiled_.target<Entry>() != nullptr) {
      mode_ = replays ? Mode::replayed : Mode::inlined;
      shapeless_ = false;
    }
  }

  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ~Program() {
    detail::compile_erase(cache_, function_id(this));
  }

  bool shapeless() const {
    return shapeless_;
  }

  // `known` are in their order, and the handles those of the inputs between.
  bool matches(Arrays handles, const std::vector<const Known*>& known = {}) const {
    // What is known is no tracer by itself, but all is one while MLX differentiates.
    if (!known.empty() && (replay_ == nullptr || in_transform())) {
      return false;
    }
    // Another one has other steps.
    if (!std::all_of(known.begin(), known.end(), [&](const Known* some) { return replay_->serves(*some); })) {
      return false;
    }
    if (!ready_ || mlx::core::default_device() != device_ || mlx::core::default_stream(device_) != stream_) {
      return false;
    }
    size_t number = 0;
    auto next = known.begin();
    for (auto handle : handles) {
      for (; next != known.end() && (*next)->first == number; ++next) {
        number = (*next)->end();
      }
      if (number >= key_.size()) {
        return false;
      }
      const auto& input = get(handle);
      if (!fits(input, key_[number++]) || input.is_tracer()) {
        return false;
      }
    }
    for (; next != known.end() && (*next)->first == number; ++next) {
      number = (*next)->end();
    }
    return number == key_.size() && next == known.end();
  }

  // What a later call need not be given again; null where that cannot be, or does not pay.
  std::unique_ptr<Known> know(size_t first, Arrays handles) const {
    if (!ready_ || replay_ == nullptr || collective_ || in_transform()) {
      return nullptr;
    }
    auto arrays = gather(handles);
    if (first > key_.size() || arrays.size() > key_.size() - first) {
      return nullptr;
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      if (!fits(arrays[i], key_[first + i])) {
        return nullptr;
      }
    }
    return replay_->know(first, std::move(arrays));
  }

  // Replays on inputs, some of them known; false where they do not match.
  bool call_beside(const std::vector<const Known*>& known, Arrays handles, Sink outputs) const {
    if (function_ != nullptr || replay_ == nullptr || !matches(handles, known)) {
      return false;
    }
    pour((*replay_)(gather(handles), known), outputs);
    return true;
  }

  int call(Arrays handles, const Function& function, Sink outputs) {
    if (function_ != nullptr) {
      throw std::runtime_error("a program was called while it runs");
    }
    Running running(*this, function);
    for (auto handle : handles) {
      inputs_.push_back(get(handle));
    }
    try {
      pour(run(), outputs);
    } catch (...) {
      if (traced_) {
        forget();
      }
      throw;
    }
    if (!traced_) {
      return kReplayed;
    }
    if (mode_ == Mode::inlined || any_tracer(inputs_)) {
      return kInlined;
    }
    remember();
    return kTraced;
  }

 private:
  enum class Mode { compiled, replayed, inlined };

  struct Input {
    Shape shape;
    Dtype dtype;
  };

  // A replay gives its results the shapes that were recorded, whatever MLX would make of others.
  bool fits(const array& input, const Input& recorded) const {
    auto any_extents = shapeless_ && replay_ == nullptr;
    auto alike = any_extents ? input.ndim() == recorded.shape.size() : input.shape() == recorded.shape;
    return alike && input.dtype() == recorded.dtype;
  }

  // What MLX calls to trace.
  struct Entry {
    Program* program;
    detail::ArraysAndExtra operator()(const std::vector<array>& tracers) const {
      program->traced_ = true;
      std::optional<Shapeless> recording;
      if (program->shapeless_ && !any_tracer(program->inputs_)) {
        recording.emplace();
      }
      auto outputs = (*program->function_)(tracers);
      if (recording) {
        free_addmm(tracers, outputs);
      }
      program->capture(results_before(tracers, outputs));
      copy_captured(outputs);
      program->collective_ |= Group::any() && any_collective(tracers, outputs);
      if (any_tracer(program->inputs_)) {
        return {std::move(outputs), nullptr};
      }
      split_in_rows(tracers, outputs);
      // There is nothing left for MLX to simplify then, and it would take long: by the product of the inputs and the users.
      if (std::any_of(outputs.begin(), outputs.end(), is_planned)) {
        program->replay_ = std::make_unique<Replay>(tracers, outputs);
        outputs.clear();
      }
      keep_digits(tracers, outputs);
      program->distinct_.part(outputs);
      return {std::move(outputs), nullptr};
    }
  };

  // The function and the inputs are there for the length of a call: the inputs must not be kept from being donated.
  struct Running {
    Program& program;
    Running(Program& program, const Function& function) : program(program) {
      program.function_ = &function;
      program.traced_ = false;
    }
    ~Running() {
      program.function_ = nullptr;
      program.distinct_.restore();
      program.inputs_.clear();
    }
  };

  std::vector<array> run() {
    if (mode_ != Mode::replayed) {
      auto inside = mode_ == Mode::inlined || any_tracer(inputs_);
      if (replay_ != nullptr) {
        if (matches(borrow(inputs_))) {
          return (*replay_)(inputs_);
        }
        forget();
      }
      // MLX refuses to trace a function that holds one of the inputs themselves, as it may when a state has become an array that
      // the function captured.
      auto inputs = ready_ || inside ? inputs_ : apart(inputs_);
      if (!inside) {
        // Somebody may have had their plans run since the trace.
        take_ready(captured_);
      }
      // From 0.32.3 on MLX finds a trace by the stream that the thread has already, and a trace gives it one.
      mlx::core::default_stream(mlx::core::default_device());
      auto outputs = compiled_(inputs).first;
      if (replay_ != nullptr) {
        return (*replay_)(inputs_);
      }
      if (collective_ && !inside) {
        number_anew(inputs, outputs);
      }
      return outputs;
    }
    if (any_tracer(inputs_)) {
      traced_ = true;
      return (*function_)(inputs_);
    }
    if (!matches(borrow(inputs_))) {
      traced_ = true;
      auto graph = trace(*function_, inputs_);
      split_in_rows(graph.tracers, graph.outputs);
      replay_ = std::make_unique<Replay>(graph.tracers, graph.outputs);
    }
    return (*replay_)(inputs_);
  }

  // Takes what a trace captured of plans that have run, and notes what is to be taken of others once they have.
  void capture(std::vector<array> results) {
    take_ready(results);
    // What depends on a tracer is made anew in each call.
    std::erase_if(results, [](const array& result) { return result.is_tracer(); });
    captured_.insert(captured_.end(), results.begin(), results.end());
  }

  void remember() {
    key_.clear();
    for (const auto& input : inputs_) {
      key_.push_back({input.shape(), input.dtype()});
    }
    device_ = mlx::core::default_device();
    stream_ = mlx::core::default_stream(device_);
    ready_ = true;
  }

  // MLX keeps an entry whose trace went well, also when it then cannot build the outputs.
  void forget() {
    detail::compile_erase(cache_, function_id(this));
    replay_.reset();
    captured_.clear();
    ready_ = false;
  }

  bool shapeless_;
  Mode mode_ = Mode::compiled;
  detail::ArrayFnWithExtra compiled_;
  detail::CompileCacheWeakPtr cache_ = detail::compile_cache();
  std::unique_ptr<Replay> replay_;
  Distinct distinct_;

  const Function* function_ = nullptr;
  std::vector<array> inputs_;
  bool traced_ = false;
  // Results of plans that MLX's traces hold, and that are not there yet.
  std::vector<array> captured_;
  // Whether any trace had a collective.
  bool collective_ = false;

  bool ready_ = false;
  std::vector<Input> key_;
  mlx::core::Device device_ = mlx::core::Device::cpu;
  mlx::core::Stream stream_{0, device_};
};

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_program_new(bool shapeless, bool replays, Program** program) {
  return guarded([&] { *program = new Program(shapeless, replays); });
}

void tacit_program_free(Program* program) {
  guarded([&] { delete program; });
}

bool tacit_program_shapeless(const Program* program) {
  return program->shapeless();
}

// `known` are in the order of the inputs, of which `others` are the rest.
bool tacit_program_matches(const Program* program, Span<const Known*> known, Arrays others) {
  auto matches = false;
  guarded([&] { matches = program->matches(others, known.copy()); });
  return matches;
}

// Inputs that follow each other and stay what they are; null where a call must be given them.
int tacit_program_know(const Program* program, size_t first, Arrays inputs, Known** known) {
  return guarded([&] {
    auto remembered = program->know(first, inputs);
    if (remembered != nullptr) {
      join_pages(remembered->arrays);
    }
    *known = remembered.release();
  });
}

void tacit_known_free(Known* known) {
  guarded([&] { delete known; });
}

int tacit_known_get(const Known* known, size_t number, Handle* value) {
  return guarded([&] { *value = own(known->arrays.at(number)); });
}

int tacit_program_call_beside(
    const Program* program, Span<const Known*> known, Arrays others, Sink outputs, bool* matches) {
  return guarded([&] { *matches = program->call_beside(known.copy(), others, outputs); });
}

int tacit_program_call(Program* program, Arrays inputs, Function function, Sink outputs, int* outcome) {
  return guarded([&] { *outcome = program->call(inputs, function, outputs); });
}

bool tacit_in_transform() {
  return in_transform();
}

bool tacit_any_tracer(Arrays arrays) {
  auto found = false;
  guarded([&] {
    found = std::any_of(arrays.begin(), arrays.end(), [](Handle handle) { return get(handle).is_tracer(); });
  });
  return found;
}

void tacit_set_no_fuse() {
  mlx::core::set_compile_mode(mlx::core::CompileMode::no_fuse);
}
}
