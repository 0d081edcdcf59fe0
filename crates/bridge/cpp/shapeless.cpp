#include "shapeless.h"

#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "graph.h"
#include "mlx/ops.h"
#include "params.h"

namespace tacit {

namespace {

namespace mx = mlx::core;

// A kernel of MLX's from source stores the shapes of one call and has no rule for others, so a function without shapes that
// holds one is refused by its name. If it gets a rule, what the book says of it is to be written anew.
static_assert(
    std::is_same_v<
        decltype(&mx::fast::CustomKernel::output_shapes), std::vector<Shape> (Primitive::*)(const std::vector<array>&)>,
    "CustomKernel has a rule for its shapes");

struct Affine {
  mx::Stream stream;
  float alpha;
  float beta;
  array a;
  array b;
  array c;
};

// As ops of MLX's, which it does record rightly.
array written_out(const Affine& affine, const array& a) {
  auto times = [&](const array& value, float factor) {
    return factor == 1 ? value : mx::multiply(array(factor, value.dtype()), value, affine.stream);
  };
  auto product = mx::matmul(a, affine.b, affine.stream);
  return mx::add(times(product, affine.alpha), times(affine.c, affine.beta), affine.stream);
}

// Whether `a` is `x` with all axes but the last merged, and `result` a product of it with these axes put back.
bool is_flat(const array& a, const array& x, const array& result) {
  return a.ndim() == 2 && x.ndim() > 2 && x.ndim() == result.ndim() && a.shape(-1) == x.shape(-1) &&
      std::equal(x.shape().begin(), x.shape().end() - 1, result.shape().begin());
}

}  // namespace

void free_addmm(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  std::unordered_map<uintptr_t, Affine> replaced;
  each_dependent(tracers, outputs, [&](array& node) {
    if (auto* addmm = made_by<mx::AddMM>(node)) {
      const auto& inputs = node.inputs();
      if (!made_by<mx::Broadcast>(inputs[2]) || inputs[2].inputs().size() > 1) {
        return;
      }
      auto [alpha, beta] = addmm->state();
      Affine affine{addmm->stream(), alpha, beta, inputs[0], inputs[1], inputs[2].inputs()[0]};
      become(node, written_out(affine, affine.a));
      replaced.emplace(node.id(), std::move(affine));
      return;
    }
    // An operand with more axes is made a matrix of written-down extents first, and the result has them put back.
    if (made_by<mx::Reshape>(node)) {
      auto found = replaced.find(node.inputs()[0].id());
      if (found == replaced.end() || !made_by<mx::Reshape>(found->second.a)) {
        return;
      }
      const auto& x = found->second.a.inputs()[0];
      if (is_flat(found->second.a, x, node) && node.shape(-1) == found->second.b.shape(-1)) {
        become(node, written_out(found->second, x));
      }
    }
  });
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// The number of elements of `a` along `axes`, `i32`, as a node that works it out for each shape; an empty handle where MLX
// does not trace for shapeless, of which it tells in no other way.
int tacit_extent(Handle a, Integers axes, Handle* extent) {
  return guarded([&] {
    auto made = mlx::core::number_of_elements(get(a), std::vector<int>(axes.begin(), axes.end()), false);
    *extent = made.has_primitive() ? own(std::move(made)) : Handle{nullptr};
  });
}
}
