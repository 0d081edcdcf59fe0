// Record and walk: placeholders, and the tape of the nodes that depend on them.
#include <atomic>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "graph.h"

namespace tacit {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The live placeholders of one trace. A placeholder has one input, a sentinel whose deleter counts down: an
// array's own reference count is private to MLX, and this tells as surely that the last reference is gone.
struct Scope {
  std::shared_ptr<std::atomic<int64_t>> live = std::make_shared<std::atomic<int64_t>>(0);
};

array make_placeholder(const Scope& scope, Shape shape, Dtype dtype) {
  auto live = scope.live;
  live->fetch_add(1);
  array sentinel(
      mlx::core::allocator::Buffer(nullptr), Shape{}, mlx::core::bool_,
      [live](mlx::core::allocator::Buffer) { live->fetch_sub(1); });
  array placeholder(std::move(shape), dtype, nullptr, {std::move(sentinel)});
  placeholder.set_tracer(true);
  return placeholder;
}

// Names of primitives as small numbers, the same on every thread.
class Names {
 public:
  uint32_t intern(const char* name) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto [entry, fresh] = ids_.try_emplace(name, static_cast<uint32_t>(texts_.size()));
    if (fresh) {
      texts_.push_back(std::make_unique<std::string>(name));
    }
    return entry->second;
  }

  const char* text(uint32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    return texts_.at(id)->c_str();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::unique_ptr<std::string>> texts_;
};

Names& names() {
  static Names* instance = new Names();  // never destroyed: threads may outlive static destruction
  return *instance;
}

// Most names are string literals: their address finds the id, and a comparison guards against a name that was
// built at run time and whose memory was used again.
uint32_t name_id(const char* name) {
  struct Line {
    const char* address = nullptr;
    const char* text = nullptr;
    uint32_t id = 0;
  };
  thread_local Line lines[256];
  auto& line = lines[(reinterpret_cast<uintptr_t>(name) >> 3) & 255];
  if (line.address == name && std::strcmp(line.text, name) == 0) {
    return line.id;
  }
  line.id = names().intern(name);
  line.address = name;
  line.text = names().text(line.id);
  return line.id;
}

// Maps array ids to slots by open addressing; a walk does one look-up an edge, and this is what it costs.
class SlotMap {
 public:
  SlotMap() : keys_(1024, 0), values_(1024, 0) {}

  const uint32_t* find(uintptr_t key) const {
    for (size_t i = index(key);; i = (i + 1) & (keys_.size() - 1)) {
      if (keys_[i] == key) {
        return &values_[i];
      }
      if (keys_[i] == 0) {
        return nullptr;
      }
    }
  }

  void put(uintptr_t key, uint32_t value) {
    if (2 * (count_ + 1) > keys_.size()) {
      grow();
    }
    size_t i = index(key);
    while (keys_[i] != 0 && keys_[i] != key) {
      i = (i + 1) & (keys_.size() - 1);
    }
    count_ += keys_[i] == 0;
    keys_[i] = key;
    values_[i] = value;
  }

 private:
  size_t index(uintptr_t key) const {
    return ((key * 0x9E3779B97F4A7C15ull) >> 20) & (keys_.size() - 1);
  }

  void grow() {
    auto keys = std::move(keys_);
    auto values = std::move(values_);
    keys_.assign(keys.size() * 4, 0);
    values_.assign(values.size() * 4, 0);
    count_ = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] != 0) {
        put(keys[i], values[i]);
      }
    }
  }

  std::vector<uintptr_t> keys_;
  std::vector<uint32_t> values_;
  size_t count_ = 0;
};

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

struct Tape {
  std::vector<array> arrays;  // one output of each node; whoever else lets go of the node, it stays
  std::vector<Node> nodes;
  std::vector<uint32_t> operands;  // a slot for each operand, kNone where it does not depend on a placeholder
  std::vector<uint32_t> outputs;   // a slot for each walked output, likewise
  uint32_t slots = 0;

  // The walk does not go beyond `boundaries`, arrays that cannot depend on a placeholder.
  void walk(
      const Handle* outs, size_t out_count, const Handle* placeholders, size_t placeholder_count,
      const Handle* boundaries, size_t boundary_count) {
    for (size_t i = 0; i < boundary_count; ++i) {
      map_.put(get(boundaries[i]).id(), kNone);
    }
    for (size_t i = 0; i < placeholder_count; ++i) {
      map_.put(get(placeholders[i]).id(), slots++);
    }
    for (size_t i = 0; i < out_count; ++i) {
      outputs.push_back(visit(get(outs[i])));
    }
    map_ = SlotMap();
    stack_ = {};
    pending_ = {};
  }

 private:
  // A node whose inputs are being visited. What closing it needs is read on the way down, so that the way up does not
  // touch the node again: in a long graph each touch is a cache miss.
  struct Frame {
    array* node;
    std::vector<array>* inputs;
    uint32_t next;      // the input to visit
    uint32_t pending;   // where the slots of its inputs begin
    uint32_t name;
    uint32_t position;  // among its siblings
    uint32_t results;
    bool depends;
  };

  // The slot of an array that was seen before, or of a leaf; nothing for a node that is yet to be visited.
  const uint32_t* known(array& value) {
    if (const auto* slot = map_.find(value.id())) {
      return slot;
    }
    return value.has_primitive() ? nullptr : &kNone;
  }

  void open(array& value) {
    stack_.push_back(
        {&value, &value.inputs(), 0, static_cast<uint32_t>(pending_.size()), name_id(value.primitive().name()),
         static_cast<uint32_t>(value.sibling_position()), static_cast<uint32_t>(value.siblings().size() + 1), false});
  }

  void settle(uint32_t slot) {
    pending_.push_back(slot);
    auto& frame = stack_.back();
    frame.depends |= slot != kNone;
    frame.next++;
  }

  uint32_t visit(array& root) {
    if (const auto* slot = known(root)) {
      return *slot;
    }
    open(root);
    for (;;) {
      auto& frame = stack_.back();
      if (frame.next < frame.inputs->size()) {
        auto& input = (*frame.inputs)[frame.next];
        if (const auto* slot = known(input)) {
          settle(*slot);
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
      settle(slot);
    }
  }

  // Puts the node on the tape if it depends on a placeholder; the slot of the output that the walk came by.
  uint32_t close(const Frame& frame) {
    auto count = static_cast<uint32_t>(pending_.size()) - frame.pending;
    auto first = frame.depends ? slots : kNone;
    if (frame.depends) {
      nodes.push_back({frame.name, static_cast<uint32_t>(operands.size()), count, first, frame.results});
      arrays.push_back(*frame.node);
      operands.insert(operands.end(), pending_.begin() + frame.pending, pending_.end());
      slots += frame.results;
    }
    pending_.resize(frame.pending);
    auto slot = [&](uint32_t position) { return frame.depends ? first + position : kNone; };
    for (uint32_t i = 0; i < frame.results; ++i) {
      map_.put(i == frame.position ? frame.node->id() : result_at(*frame.node, i).id(), slot(i));
    }
    return slot(frame.position);
  }

  SlotMap map_;
  std::vector<Frame> stack_;
  std::vector<uint32_t> pending_;
};

// Only the destructor of an array breaks the cycle of a node with several outputs, its assignment does not.
void assign(array& edge, const array& value) {
  array before = std::move(edge);
  edge = value;
}

struct TapeView {
  const Node* nodes;
  size_t node_count;
  const uint32_t* operands;
  size_t operand_count;
  const uint32_t* outputs;
  size_t output_count;
  uint32_t slots;
};

struct Edit {
  uint32_t node;
  uint32_t operand;
  Handle value;
};

}  // namespace
}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_scope_new(Scope** scope) {
  return guarded([&] { *scope = new Scope(); });
}

void tacit_scope_free(Scope* scope) {
  delete scope;
}

int64_t tacit_scope_live(const Scope* scope) {
  return scope->live->load();
}

int tacit_scope_placeholder(const Scope* scope, const int32_t* shape, size_t ndim, int dtype, Handle* placeholder) {
  return guarded([&] { *placeholder = own(make_placeholder(*scope, Shape(shape, shape + ndim), dtype_of(dtype))); });
}

int tacit_tape_new(
    const Handle* outputs, size_t output_count, const Handle* placeholders, size_t placeholder_count,
    const Handle* boundaries, size_t boundary_count, Tape** tape, TapeView* view) {
  return guarded([&] {
    auto fresh = std::make_unique<Tape>();
    fresh->walk(outputs, output_count, placeholders, placeholder_count, boundaries, boundary_count);
    *view = TapeView{fresh->nodes.data(),    fresh->nodes.size(),    fresh->operands.data(), fresh->operands.size(),
                     fresh->outputs.data(), fresh->outputs.size(), fresh->slots};
    *tape = fresh.release();
  });
}

void tacit_tape_free(Tape* tape) {
  delete tape;
}

int tacit_tape_operand(const Tape* tape, uint32_t node, uint32_t operand, Handle* value) {
  return guarded([&] { *value = own(tape->arrays.at(node).inputs().at(operand)); });
}

int tacit_tape_result(Tape* tape, uint32_t node, uint32_t result, Handle* value) {
  return guarded([&] { *value = own(result_at(tape->arrays.at(node), result)); });
}

// Assigns new values to input edges, in every sibling, since each output of a node holds its own list of inputs.
int tacit_tape_rewire(Tape* tape, const Edit* edits, size_t count) {
  return guarded([&] {
    for (size_t i = 0; i < count; ++i) {
      auto& node = tape->arrays.at(edits[i].node);
      const auto& value = get(edits[i].value);
      assign(node.inputs().at(edits[i].operand), value);
      for (auto& sibling : node.siblings()) {
        assign(sibling.inputs().at(edits[i].operand), value);
      }
    }
  });
}

// Makes recorded results copies of other arrays; an edit's operand is the result's position here. All results of a node
// are given, since they are siblings no more.
int tacit_tape_supersede(Tape* tape, const Edit* edits, size_t count) {
  return guarded([&] {
    for (size_t i = 0; i < count; ++i) {
      auto& result = result_at(tape->arrays.at(edits[i].node), edits[i].operand);
      become(result, mlx::core::copy(get(edits[i].value), result.primitive().stream()));
    }
    for (size_t i = 0; i < count; ++i) {
      auto& node = tape->arrays.at(edits[i].node);
      if (!node.siblings().empty()) {
        for (auto& result : node.outputs()) {
          result.set_siblings({}, 0);
        }
      }
    }
  });
}

// Leaves `id` as it is if no primitive makes the array.
int tacit_array_name(Handle handle, uint32_t* id) {
  return guarded([&] {
    const auto& value = get(handle);
    if (value.has_primitive()) {
      *id = name_id(value.primitive().name());
    }
  });
}

int tacit_name_intern(const char* name, uint32_t* id) {
  return guarded([&] { *id = names().intern(name); });
}

int tacit_name_text(uint32_t id, const char** text) {
  return guarded([&] { *text = names().text(id); });
}

const void* tacit_array_id(Handle handle) {
  return handle.ctx == nullptr ? nullptr : reinterpret_cast<const void*>(get(handle).id());
}
}
