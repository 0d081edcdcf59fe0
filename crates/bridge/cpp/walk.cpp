// Record and walk: placeholders, and the tape of the nodes that depend on them.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <unordered_map>

#include "graph.h"
#include "marks.h"
#include "memory.h"
#include "names.h"
#include "shapeless.h"
#include "slots.h"

namespace tacit {

namespace {

// The live placeholders of one trace. A placeholder has one input, a sentinel whose deleter counts down: an
// array's own reference count is private to MLX, and this tells as surely that the last reference is gone.
struct Scope {
  std::shared_ptr<std::atomic<int64_t>> live = std::make_shared<std::atomic<int64_t>>(0);
  // What a walk before this one has marked was there before the placeholders, and cannot depend on them.
  uint64_t born = walks_begun().load(std::memory_order_relaxed);
};

array make_placeholder(const Scope& scope, Shape shape, Dtype dtype) {
  auto live = scope.live;
  live->fetch_add(1);
  auto sentinel =
      array_over(Memory(nullptr), Shape{}, mlx::core::bool_, [live](Memory) { live->fetch_sub(1); });
  array placeholder(std::move(shape), dtype, nullptr, {std::move(sentinel)});
  placeholder.set_tracer(true);
  return placeholder;
}

struct Node {
  uint32_t primitive;
  uint32_t operand_start;
  uint32_t operand_count;
  uint32_t result_start;
  uint32_t result_count;
};

// The sibling at a position, the array itself included.
array& result_at(array& node, uint32_t position) {
  auto own_position = static_cast<uint32_t>(node.sibling_position());
  if (position == own_position) {
    return node;
  }
  return node.siblings().at(position < own_position ? position : position - 1);
}

// Whether anything but the reference at hand holds an array without data. MLX tells this of arrays with data only, so it
// has some for the length of the question. It is of MLX's own allocator: from 0.32.4 on MLX says of all other memory that it
// is held.
bool is_held(array& value) {
  thread_local auto data = std::make_shared<array::Data>(mlx::core::allocator::malloc(0));
  auto& own = const_cast<std::shared_ptr<array::Data>&>(value.data_shared_ptr());
  std::swap(own, data);
  auto alone = value.is_donatable();
  std::swap(own, data);
  return !alone;
}

// In a long graph each array that is read again is a cache miss, unless it was asked for some arrays before.
constexpr size_t kAhead = 12;

struct Edit {
  uint32_t node;
  uint32_t operand;
  Handle value;
};

struct Tape {
  std::vector<array> arrays;  // one output of each node; whoever else lets go of the node, it stays
  std::vector<Node> nodes;
  std::vector<uint32_t> operands;  // a slot for each operand, kNone where it does not depend on a placeholder
  std::vector<uint32_t> outputs;   // a slot for each walked output, likewise
  uint32_t slots = 0;

  // The walk does not go beyond `boundaries`, arrays that cannot depend on a placeholder, nor beyond what earlier walks met
  // before `scope` began, so that the history of what a function captured is walked once and not each time.
  void walk(const Scope* scope, Arrays outs, Arrays placeholders, Arrays boundaries) {
    marks_.begin(scope == nullptr ? 0 : scope->born);
    shapeless_ = Shapeless::is_traced();
    for (auto handle : boundaries) {
      if (const auto& boundary = get(handle); !has_data(boundary)) {
        marks_.mark(boundary);
      }
    }
    for (auto handle : placeholders) {
      marks_.mark(get(handle), slots++);
    }
    for (auto handle : outs) {
      outputs.push_back(visit(get(handle)));
    }
  }

  // Assigns new values to input edges, in every sibling, since each output of a node holds its own list of inputs.
  void rewire(const Edit* edits, size_t count);

  // Makes the recorded results of one node copies of other arrays where anybody holds them; without values, or where
  // nobody does, the node only lets go of its inputs if nobody holds it.
  void supersede(const Edit* edits, size_t count);

  // As it was before the walk, but for the memory.
  void clear() {
    // From the first node on: the last one that held a node goes after it, and nothing recurses. An array that was moved
    // is nothing, and what is assigned nothing goes without its destructor, which would read the node.
    for (size_t i = 0; i < arrays.size(); ++i) {
      if (i + kAhead < arrays.size()) {
        // The count of references is before what they refer to.
        __builtin_prefetch(reinterpret_cast<const char*>(arrays[i + kAhead].id()) - 1, 1);
      }
      if (i > 0 && nodes[i].result_count == 1) {
        arrays[i].overwrite_descriptor(arrays[0]);
      } else {
        auto gone = std::move(arrays[i]);
      }
    }
    arrays.clear();
    nodes.clear();
    operands.clear();
    outputs.clear();
    stack_.clear();
    pending_.clear();
    slots = 0;
  }

  size_t bytes() const {
    return arrays.capacity() * sizeof(array) + nodes.capacity() * sizeof(Node) + stack_.capacity() * sizeof(Frame) +
           (operands.capacity() + outputs.capacity() + pending_.capacity()) * sizeof(uint32_t) + marks_.bytes();
  }

 private:
  static constexpr uint32_t kUnvisited = kNone - 1;

  // A node whose inputs are being visited. What closing it needs is read on the way down, so that the way up does not
  // touch the node again: in a long graph each touch is a cache miss.
  struct Frame {
    array node;
    const array* inputs;
    size_t first;       // where the slots of its inputs begin
    size_t next;        // the first of them that may be yet to be visited
    uint32_t name;
    uint32_t number;    // the mark of its first result
    uint32_t position;  // among its siblings
    uint32_t results;
  };

  // The slot of an array that was seen before, or of a leaf; kUnvisited for a node that is yet to be visited.
  uint32_t known(const array& value) const {
    return marks_.find(value, value.has_primitive() ? kUnvisited : kNone);
  }

  // Reads ahead in a long chain: its nodes were made one after the other, and so they lie, at about equal distances.
  void foresee(const array& value, const std::vector<array>& inputs) {
    constexpr std::ptrdiff_t kNodes = 6;
    auto ahead = [](const void* at, const void*& before) {
      auto now = reinterpret_cast<std::intptr_t>(at);
      auto distance = now - reinterpret_cast<std::intptr_t>(before);
      before = at;
      return now + kNodes * distance;
    };
    auto of = [&](const void* part, std::intptr_t next) {
      auto offset = reinterpret_cast<std::intptr_t>(part) - static_cast<std::intptr_t>(value.id());
      __builtin_prefetch(reinterpret_cast<const void*>(next + offset), 1);
    };
    auto next = ahead(reinterpret_cast<const void*>(value.id()), node_before_);
    of(reinterpret_cast<const char*>(value.id()) - 1, next);
    of(&value.event(), next);
    of(&inputs, next);
    of(&value.siblings(), next);
    __builtin_prefetch(reinterpret_cast<const void*>(ahead(inputs.data(), inputs_before_)));
    __builtin_prefetch(reinterpret_cast<const void*>(
        ahead(reinterpret_cast<const void*>(value.primitive_id()), primitive_before_)));
  }

  void open(const array& value) {
    if (shapeless_ && value.is_tracer()) {
      // Whoever takes the product is to see the operand as the function has it.
      free_flat_addmm(value);
    }
    const auto& inputs = value.inputs();
    if (stack_.size() > kLong) {
      foresee(value, inputs);
    }
    auto first = pending_.size();
    pending_.resize(first + inputs.size());
    auto slots = pending_.begin() + static_cast<std::ptrdiff_t>(first);
    for (const auto& input : inputs) {
      *slots++ = known(input);
    }
    auto number = marks_.next();
    auto position = static_cast<uint32_t>(value.sibling_position());
    auto results = static_cast<uint32_t>(value.siblings().size() + 1);
    stack_.push_back({value, inputs.data(), first, first, name_id(value.primitive().name()), number, position, results});
    for (uint32_t i = 0; i < results; ++i) {
      marks_.mark(i == position ? value : result_at(stack_.back().node, i));
    }
  }

  uint32_t visit(const array& root) {
    if (auto slot = known(root); slot != kUnvisited) {
      return slot;
    }
    open(root);
    for (;;) {
      auto& frame = stack_.back();
      while (frame.next < pending_.size() && pending_[frame.next] != kUnvisited) {
        frame.next++;
      }
      if (frame.next < pending_.size()) {
        const auto& input = frame.inputs[frame.next - frame.first];
        // It may have been visited since, by way of the inputs before it.
        if (auto slot = known(input); slot != kUnvisited) {
          pending_[frame.next] = slot;
        } else {
          open(input);
        }
        continue;
      }
      auto slot = close(frame);
      stack_.pop_back();
      if (stack_.empty()) {
        return slot;
      }
      pending_[stack_.back().next] = slot;
    }
  }

  // Puts the node on the tape if it depends on a placeholder; the slot of the output that the walk came by.
  uint32_t close(Frame& frame) {
    auto from = pending_.begin() + static_cast<std::ptrdiff_t>(frame.first);
    auto depends = std::any_of(from, pending_.end(), [](uint32_t slot) { return slot != kNone; });
    auto first = slots;
    auto slot = [&](uint32_t position) { return depends ? first + position : kNone; };
    for (uint32_t i = 0; i < frame.results; ++i) {
      marks_.put(frame.number + i, slot(i));
    }
    if (depends) {
      auto start = static_cast<uint32_t>(operands.size());
      operands.insert(operands.end(), from, pending_.end());
      nodes.push_back({frame.name, start, static_cast<uint32_t>(operands.size()) - start, first, frame.results});
      arrays.push_back(std::move(frame.node));
      slots += frame.results;
    }
    pending_.resize(frame.first);
    return slot(frame.position);
  }

  // Frames from which on a chain is longer than the nearest caches.
  static constexpr size_t kLong = 2048;

  Marks marks_;
  // Whether MLX traces for shapeless.
  bool shapeless_ = false;
  std::vector<Frame> stack_;
  std::vector<uint32_t> pending_;
  const void* node_before_ = nullptr;
  const void* inputs_before_ = nullptr;
  const void* primitive_before_ = nullptr;
};

// Tapes whose memory the next walks of this thread use again: one for each that was in use at a time, as the walks inside
// handlers are.
std::vector<std::unique_ptr<Tape>>& spares() {
  thread_local std::vector<std::unique_ptr<Tape>> tapes;
  return tapes;
}

std::unique_ptr<Tape> take_spare() {
  auto& tapes = spares();
  if (tapes.empty()) {
    return std::make_unique<Tape>();
  }
  auto tape = std::move(tapes.back());
  tapes.pop_back();
  return tape;
}

// What a spare tape may hold, in bytes.
constexpr size_t kMostSpare = size_t{64} << 20;

// Only the destructor of an array breaks the cycle of a node with several outputs, its assignment does not.
void assign(array& edge, const array& value) {
  if (edge.siblings().empty()) {
    edge.overwrite_descriptor(value);
    return;
  }
  array before = std::move(edge);
  edge = value;
}

void Tape::rewire(const Edit* edits, size_t count) {
  forget_traced();
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count && edits[i + kAhead].node < arrays.size()) {
      __builtin_prefetch(&arrays[edits[i + kAhead].node].inputs());
    }
    if (i + kAhead / 2 < count && edits[i + kAhead / 2].node < arrays.size()) {
      __builtin_prefetch(arrays[edits[i + kAhead / 2].node].inputs().data(), 1);
    }
    auto& node = arrays.at(edits[i].node);
    const auto& value = get(edits[i].value);
    assign(node.inputs().at(edits[i].operand), value);
    for (auto& sibling : node.siblings()) {
      assign(sibling.inputs().at(edits[i].operand), value);
    }
  }
}

void Tape::supersede(const Edit* edits, size_t count) {
  forget_traced();
  auto& node = arrays.at(edits[0].node);
  if (count > node.siblings().size() + 1) {
    throw std::out_of_range("the node has fewer results");
  }
  auto single = node.siblings().empty();
  if (single && !is_held(node)) {
    auto before = std::move(node.inputs());
    node.inputs().clear();
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (edits[i].value.ctx == nullptr) {
      return;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    auto& result = result_at(node, edits[i].operand);
    become(result, mlx::core::copy(get(edits[i].value), result.primitive().stream()));
  }
  if (!single) {
    for (auto& result : node.outputs()) {
      result.set_siblings({}, 0);
    }
  }
}

struct TapeView {
  Span<Node> nodes;
  Span<uint32_t> operands;
  Span<uint32_t> outputs;
  uint32_t slots;
};

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_scope_new(Scope** scope) {
  return guarded([&] {
    forget_traced();
    *scope = new Scope();
  });
}

void tacit_scope_free(Scope* scope) {
  delete scope;
}

int64_t tacit_scope_live(const Scope* scope) {
  return scope->live->load();
}

int tacit_scope_placeholder(const Scope* scope, AvalView aval, Handle* placeholder) {
  return guarded([&] { *placeholder = own(make_placeholder(*scope, aval.shape(), aval.dtype())); });
}

// `scope` is that of the placeholders, or null.
int tacit_tape_new(
    const Scope* scope, Arrays outputs, Arrays placeholders, Arrays boundaries, Tape** tape, TapeView* view) {
  return guarded([&] {
    auto fresh = take_spare();
    fresh->walk(scope, outputs, placeholders, boundaries);
    *view = TapeView{fresh->nodes, fresh->operands, fresh->outputs, fresh->slots};
    *tape = fresh.release();
  });
}

void tacit_tape_free(Tape* tape) {
  guarded([&] {
    std::unique_ptr<Tape> own(tape);
    own->clear();
    if (own->bytes() <= kMostSpare) {
      spares().push_back(std::move(own));
    }
  });
}

int tacit_tape_operand(const Tape* tape, uint32_t node, uint32_t operand, Handle* value) {
  return guarded([&] { *value = own(tape->arrays.at(node).inputs().at(operand)); });
}

int tacit_tape_result(Tape* tape, uint32_t node, uint32_t result, Handle* value) {
  return guarded([&] { *value = own(result_at(tape->arrays.at(node), result)); });
}

// The aval of a result; its shape lives as long as the tape does.
int tacit_tape_aval(Tape* tape, uint32_t node, uint32_t result, AvalView* aval) {
  return guarded([&] {
    const auto& value = result_at(tape->arrays.at(node), result);
    *aval = AvalView::of(value.shape(), value.dtype());
  });
}

int tacit_tape_primitive(const Tape* tape, uint32_t node, Recorded** recorded) {
  return guarded([&] { *recorded = record(tape->arrays.at(node)); });
}

int tacit_tape_rewire(Tape* tape, const Edit* edits, size_t count) {
  return guarded([&] { tape->rewire(edits, count); });
}

// An edit's operand is the position of the result; its value is null where there is no array to give. All results of a
// node are given, since they are siblings no more. From the last node to the first: one that goes lets go of what it
// takes.
int tacit_tape_supersede(Tape* tape, const Edit* edits, size_t count) {
  return guarded([&] {
    while (count > 0) {
      auto first = count - 1;
      while (first > 0 && edits[first - 1].node == edits[first].node) {
        --first;
      }
      tape->supersede(edits + first, count - first);
      count = first;
    }
  });
}

const void* tacit_array_id(Handle handle) {
  return handle.ctx == nullptr ? nullptr : reinterpret_cast<const void*>(get(handle).id());
}
}
