// Plans in a graph that is built again and again.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bridge.h"
#include "poisoned.h"

namespace tacit {

// What a kernel sees of an array: dense row-major bytes.
struct Buffer {
  void* data;
  size_t bytes;
  AvalView aval;

  static Buffer of(const array& value) {
    auto* data = const_cast<char*>(value.data<char>());
    return {data, value.nbytes(), AvalView::of(value.shape(), value.dtype())};
  }
};

// An input of a kernel that is no input of its node, because it is there already.
struct Resident {
  // Its number among all inputs of the kernel.
  size_t place;
  array value;
  // It stays there while somebody holds the array: a step of a decoder need not look at hundreds of them, which lie all over memory.
  Buffer buffer;

  Resident(size_t place, array held) : place(place), value(std::move(held)), buffer(Buffer::of(value)) {}
};

// In the order of their places; none where it is null.
using Residents = std::shared_ptr<const std::vector<Resident>>;

// Takes those of `inputs` out that a plan can read where they lie, and gives the plan that knows them. MLX takes about a
// microsecond for each input of a node, and a step of a decoder has hundreds of weights. What is no plan, and a plan while
// an array may be poisoned, keeps its inputs: only an eval tells of that. So does a plan that is made within a transform, which
// looks among its nodes for what a function holds.
std::shared_ptr<Primitive> with_residents(const std::shared_ptr<Primitive>& primitive, std::vector<array>& inputs);

// Whether input `place` of a primitive may be a resident: of a plan those that are not donated.
bool may_be_resident(const Primitive& primitive, size_t place, const array& value);

// The plan that knows these residents, a list for each part of the state that stays as it is. Nothing may be poisoned.
std::shared_ptr<Primitive> with_known(Primitive& plan, std::vector<Residents> residents);

// The nodes of the plans that give all of `outputs` that are not there yet, where these can run as they are, on this thread
// and now: all that they read is there. Nothing where MLX has more to do.
std::optional<std::vector<array>> plans_of(const std::vector<array>& outputs);

// The results of plans among what `outputs` reach before `inputs`, those that nobody has taken.
std::vector<array> results_before(const std::vector<array>& inputs, const std::vector<array>& outputs);

// Takes those of `results` whose plan has run, and leaves the others there: a graph that MLX copies would take them in each call.
void take_ready(std::vector<array>& results);

// Notes that an array is there, so that MLX need not evaluate it any more.
void make_available(array& value);

// Runs a plan on this thread, and gives its failure, if it fails.
Failure run_here(array& plan);

// Whether this gives one of the results of a plan, and reads of its operand what only the node of that plan has.
bool gives_result(const Primitive& primitive);

// Takes the results that are among `outputs` from plans that have run.
void take_here(std::vector<array>& outputs);

// What MLX is to begin for `outputs`: a plan that waits for its turn instead of its results. MLX holds the memory of what it is asked
// for until that is there, and a plan that is begun behind could not write into it.
std::vector<array> to_begin(const std::vector<array>& outputs);

// Takes the results that are among `outputs` from plans that MLX has begun for them: they are there when their plan has run.
void take_begun(std::vector<array>& outputs);

}  // namespace tacit
