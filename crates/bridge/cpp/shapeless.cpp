#include "shapeless.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <type_traits>

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

// What `node` sums, if it is an `addmm` whose addend is broadcast.
std::optional<Affine> affine_of(const array& node) {
  auto* addmm = made_by<mx::AddMM>(node);
  if (addmm == nullptr) {
    return std::nullopt;
  }
  const auto& inputs = node.inputs();
  if (!made_by<mx::Broadcast>(inputs[2]) || inputs[2].inputs().size() > 1) {
    return std::nullopt;
  }
  auto [alpha, beta] = addmm->state();
  return Affine{addmm->stream(), alpha, beta, inputs[0], inputs[1], inputs[2].inputs()[0]};
}

// As ops of MLX's, which it does record rightly.
array written_out(const Affine& affine, const array& a) {
  // The op sums in f32: the product may be beyond the range of f16 before alpha or the addend brings it back.
  auto widely = [&](const array& value) {
    return value.dtype() == mx::float16 ? mx::astype(value, mx::float32, affine.stream) : value;
  };
  auto times = [&](const array& value, float factor) {
    return factor == 1 ? value : mx::multiply(array(factor), value, affine.stream);
  };
  auto sum = times(mx::matmul(widely(a), widely(affine.b), affine.stream), affine.alpha);
  // Times zero the op does not read the addend.
  if (affine.beta != 0) {
    sum = mx::add(sum, times(widely(affine.c), affine.beta), affine.stream);
  }
  return mx::astype(sum, a.dtype(), affine.stream);
}

// Whether `a` is `x` with all axes but the last merged, and `result` a product of it with these axes put back.
bool is_flat(const array& a, const array& x, const array& result) {
  return a.ndim() == 2 && x.ndim() > 2 && x.ndim() == result.ndim() && a.shape(-1) == x.shape(-1) &&
      std::equal(x.shape().begin(), x.shape().end() - 1, result.shape().begin());
}

}  // namespace

void free_flat_addmm(array node) {
  if (!made_by<mx::Reshape>(node)) {
    return;
  }
  auto affine = affine_of(node.inputs()[0]);
  if (!affine || !made_by<mx::Reshape>(affine->a)) {
    return;
  }
  const auto& x = affine->a.inputs()[0];
  if (is_flat(affine->a, x, node) && node.shape(-1) == affine->b.shape(-1)) {
    become(node, written_out(*affine, x));
  }
}

void free_addmm(const std::vector<array>& tracers, const std::vector<array>& outputs) {
  std::vector<array> nodes;
  each_dependent(tracers, outputs, [&](const array& node) { nodes.push_back(node); });
  // These go first: they need each `addmm` as MLX made it.
  std::for_each(nodes.begin(), nodes.end(), free_flat_addmm);
  for (auto& node : nodes) {
    if (auto affine = affine_of(node)) {
      become(node, written_out(*affine, affine->a));
    }
  }
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// The number of elements of `a` along `axes`, `i32`, as a node that works it out for each shape; an empty handle where MLX
// does not trace for shapeless, of which it tells in no other way.
int tacit_extent(Handle a, Integers axes, Handle* extent) {
  return guarded([&] {
    auto count = mlx::core::number_of_elements(get(a), axes.copy(), false);
    *extent = count.has_primitive() ? own(std::move(count)) : Handle{nullptr};
  });
}

// Whether each node that makes `result` of `from` has a rule for the shapes of its results; true where none is asked for one.
int tacit_has_shape_rules(Handle result, Handle from, bool* has) {
  return guarded([&] {
    *has = true;
    if (!Shapeless::is_traced()) {
      return;
    }
    each_dependent({get(from)}, {get(result)}, [&](const array& node) {
      try {
        node.primitive().output_shapes(node.inputs());
      } catch (const std::exception&) {
        *has = false;
      }
    });
  });
}
}
