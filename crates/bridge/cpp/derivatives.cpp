// Derivatives of a function that also has operands without one.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "bridge.h"
#include "graph.h"
#include "params.h"

namespace tacit {

namespace {

// Of `argnums`, those of arrays that can have a gradient: codes and indices have none, and some ops refuse to be asked
// for one.
std::vector<int> only_inexact(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<int> chosen;
  for (auto argnum : argnums) {
    if (mlx::core::issubdtype(primals.at(argnum).dtype(), mlx::core::inexact)) {
      chosen.push_back(argnum);
    }
  }
  return chosen;
}

// The primals that `argnums` names.
std::vector<array> select(const std::vector<array>& primals, const std::vector<int>& argnums) {
  std::vector<array> chosen;
  for (auto argnum : argnums) {
    chosen.push_back(primals.at(argnum));
  }
  return chosen;
}

// What is made of a function's results before MLX differentiates it.
using Rewrite = void (*)(const std::vector<array>& outputs, const std::vector<array>& inputs);

// `function` as a function of the chosen primals alone.
ArrayFunction over(
    ArrayFunction function, const std::vector<array>& primals, const std::vector<int>& argnums, Rewrite rewrite) {
  return [function = std::move(function), primals, argnums, rewrite](const std::vector<array>& chosen) {
    auto all = primals;
    for (size_t i = 0; i < argnums.size(); ++i) {
      all.at(argnums[i]) = chosen[i];
    }
    auto results = function(all);
    rewrite(results, chosen);
    return results;
  };
}

// A pad by a value that has a derivative is a choice between its array and the value: MLX's derivatives of a pad are those of its
// array alone, and go behind their lists where the value has one.
array chosen_in(const array& padded) {
  auto& pad = static_cast<mlx::core::Pad&>(padded.primitive());
  auto stream = pad.stream();
  auto [axes, low, high] = pad.state();
  const auto& x = padded.inputs()[0];
  auto within = [&, axes, low, high](const array& value, const array& around) {
    return mlx::core::pad(value, axes, low, high, around, "constant", stream);
  };
  auto inside = within(mlx::core::full(x.shape(), true, mlx::core::bool_, stream), array(false));
  auto zero = mlx::core::zeros({}, x.dtype(), stream);
  return mlx::core::where(inside, within(x, zero), padded.inputs()[1], stream);
}

bool is_pad_of_some_axes(const array& node) {
  auto* pad = made_by<mlx::core::Pad>(node);
  if (pad == nullptr) {
    return false;
  }
  auto axes = std::get<0>(pad->state());
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != static_cast<int>(i)) {
      return true;
    }
  }
  return false;
}

// The same pad with a width for every axis, which is how MLX's vjp reads the widths of any.
array of_all_axes(const array& padded) {
  auto& pad = static_cast<mlx::core::Pad&>(padded.primitive());
  auto [axes, low, high] = pad.state();
  std::vector<int> all(padded.ndim());
  std::iota(all.begin(), all.end(), 0);
  Shape before(all.size(), 0), behind(all.size(), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    auto axis = axes[i] < 0 ? axes[i] + static_cast<int>(padded.ndim()) : axes[i];
    before[axis] += low[i];
    behind[axis] += high[i];
  }
  return mlx::core::pad(
      padded.inputs()[0], all, before, behind, padded.inputs()[1], "constant", pad.stream());
}

// A choice of the elements that the mask puts where they go: MLX counts those of all examples in one row, as if each used up its
// own.
array chosen_by_mask(const array& scattered) {
  const auto& into = scattered.inputs()[0];
  const auto& source = scattered.inputs()[2];
  auto stream = scattered.primitive().stream();
  auto rows = [&](const array& value) { return mlx::core::flatten(value, 1, -1, stream); };
  auto mask = rows(mlx::core::broadcast_to(scattered.inputs()[1], into.shape(), stream));
  if (source.size() == 0 || into.size() == 0) {
    return mlx::core::copy(into, stream);
  }
  auto elements = rows(source);
  auto last = array(static_cast<int>(elements.shape(1)) - 1);
  auto counted = mlx::core::cumsum(mlx::core::astype(mask, mlx::core::int32, stream), 1, false, false, stream);
  auto taken = mlx::core::take_along_axis(elements, mlx::core::minimum(counted, last, stream), 1, stream);
  return mlx::core::reshape(mlx::core::where(mask, taken, rows(into), stream), into.shape(), stream);
}

// A product with factors is one of an operand that has them: MLX's jvp leaves them out.
array with_factors(const array& node) {
  auto& addmm = static_cast<mlx::core::AddMM&>(node.primitive());
  auto [alpha, beta] = addmm.state();
  auto stream = addmm.stream();
  auto times = [&](const array& value, float factor) {
    return factor == 1 ? value : mlx::core::multiply(array(factor, value.dtype()), value, stream);
  };
  const auto& inputs = node.inputs();
  return mlx::core::addmm(times(inputs[2], beta), times(inputs[0], alpha), inputs[1], 1, 1, stream);
}

bool has_factors(const array& node) {
  auto* addmm = made_by<mlx::core::AddMM>(node);
  return addmm != nullptr && addmm->state() != std::pair(1.0f, 1.0f);
}

}  // namespace

void make_differentiable(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  std::unordered_set<uintptr_t> reached;
  for (const auto& input : inputs) {
    reached.insert(input.id());
  }
  std::vector<std::pair<array, array (*)(const array&)>> rewritten;
  each_dependent(inputs, outputs, [&](const array& node) {
    reached.insert(node.id());
    if (made_by<mlx::core::Pad>(node) && reached.contains(node.inputs()[1].id())) {
      rewritten.emplace_back(node, chosen_in);
    } else if (is_pad_of_some_axes(node)) {
      rewritten.emplace_back(node, of_all_axes);
    } else if (made_by<mlx::core::MaskedScatter>(node)) {
      rewritten.emplace_back(node, chosen_by_mask);
    }
  });
  for (auto& [node, rewrite] : rewritten) {
    become(node, rewrite(node));
  }
}

void make_forward_differentiable(const std::vector<array>& outputs, const std::vector<array>& inputs) {
  make_differentiable(outputs, inputs);
  std::vector<array> products;
  each_dependent(inputs, outputs, [&](const array& node) {
    if (has_factors(node)) {
      products.push_back(node);
    }
  });
  for (auto& product : products) {
    become(product, with_factors(product));
  }
}

std::vector<array> distinct(std::vector<array> results) {
  std::unordered_set<uintptr_t> seen;
  for (auto& result : results) {
    if (!seen.insert(result.id()).second || made_by<mlx::core::StopGradient>(result)) {
      auto stream = result.has_primitive() ? result.primitive().stream()
                                           : mlx::core::default_stream(mlx::core::default_device());
      result = mlx::core::copy(result, stream);
    }
  }
  return results;
}

ArrayFunction distinct_results(ArrayFunction function) {
  return [function = std::move(function)](const std::vector<array>& args) { return distinct(function(args)); };
}

std::vector<array> gradients_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> gradients;
  if (!inexact.empty()) {
    auto chosen = distinct_results(over(function, primals, inexact, make_differentiable));
    gradients = mlx::core::vjp(chosen, select(primals, inexact), cotangents).second;
  }
  std::vector<array> all;
  size_t taken = 0;
  for (auto argnum : argnums) {
    auto has_one = taken < inexact.size() && inexact[taken] == argnum;
    all.push_back(has_one ? gradients[taken++] : mlx::core::zeros_like(primals[argnum]));
  }
  return all;
}

std::vector<array> tangents_of(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& tangents,
    const std::vector<int>& argnums) {
  auto inexact = only_inexact(primals, argnums);
  std::vector<array> chosen;
  for (size_t i = 0; i < argnums.size(); ++i) {
    if (std::find(inexact.begin(), inexact.end(), argnums[i]) != inexact.end()) {
      chosen.push_back(tangents.at(i));
    }
  }
  return mlx::core::jvp(over(function, primals, inexact, make_forward_differentiable), select(primals, inexact), chosen).second;
}

}  // namespace tacit

using namespace tacit;

extern "C" {

int tacit_make_differentiable(
    const Handle* outputs, size_t output_count, const Handle* inputs, size_t input_count, bool forward) {
  return guarded([&] {
    auto rewrite = forward ? make_forward_differentiable : make_differentiable;
    rewrite(gather(outputs, output_count), gather(inputs, input_count));
  });
}

int tacit_distinct(const Handle* results, size_t count, Sink found) {
  return guarded([&] { pour(distinct(gather(results, count)), found); });
}
}
