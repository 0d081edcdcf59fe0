// Rust functions with transforms of their own.
#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "bridge.h"
#include "chunks.h"
#include "function.h"
#include "standing.h"
#include "waiting.h"

namespace tacit {

namespace {

using Shared = std::shared_ptr<RustFunction>;
// Takes primals, cotangents and outputs.
using Vjp = std::function<std::vector<array>(
    const std::vector<array>&, const std::vector<array>&, const std::vector<array>&)>;
// Takes primals, and the tangents of those that the numbers name.
using Jvp =
    std::function<std::vector<array>(const std::vector<array>&, const std::vector<array>&, const std::vector<int>&)>;

// MLX asks the vjp of a custom function for the gradients of all primals, and drops those that nobody wants; what these
// would cost is then asked of the policy in vain. Here are the primals that the vjp in progress is wanted for.
thread_local const std::vector<int>* wanted = nullptr;

std::vector<int> wanted_of(const std::vector<array>& primals) {
  std::vector<int> positions(primals.size());
  std::iota(positions.begin(), positions.end(), 0);
  if (wanted == nullptr) {
    return positions;
  }
  // MLX counts the results among the operands, after the primals.
  std::vector<int> argnums;
  std::copy_if(wanted->begin(), wanted->end(), std::back_inserter(argnums), [&](int argnum) {
    return static_cast<size_t>(argnum) < primals.size();
  });
  return argnums;
}

// The gradients of the primals that the vjp in progress is wanted for, which `gradients_for` gives, and zeros for the others.
template <class Gradients>
std::vector<array> wanted_gradients(const std::vector<array>& primals, Gradients gradients_for) {
  auto argnums = wanted_of(primals);
  std::vector<array> gradients = gradients_for(argnums);
  std::vector<array> padded;
  for (const auto& primal : primals) {
    padded.push_back(mlx::core::zeros_like(primal));
  }
  for (size_t i = 0; i < argnums.size(); ++i) {
    padded.at(argnums[i]) = std::move(gradients[i]);
  }
  return padded;
}

std::vector<array> wanted_gradients(
    const ArrayFunction& function, const std::vector<array>& primals, const std::vector<array>& cotangents) {
  return wanted_gradients(primals, [&](const std::vector<int>& argnums) {
    return gradients_of(function, primals, cotangents, argnums);
  });
}

// MLX's primitive of a custom function, which tells its vjp what it is wanted for.
class Telling : public Standing {
 public:
  Telling(std::shared_ptr<Primitive> inner, std::optional<CalledAgain> again)
      : Standing(std::move(inner)), again(std::move(again)) {}

  std::optional<CalledAgain> again;

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents, const std::vector<int>& argnums,
      const std::vector<array>& outputs) override {
    struct Scope {
      const std::vector<int>* before;
      ~Scope() {
        wanted = before;
      }
    };
    Scope scope{std::exchange(wanted, &argnums)};
    return Standing::vjp(primals, cotangents, argnums, outputs);
  }
};

Vjp vjp_of(Shared rust) {
  return [rust = std::move(rust)](
             const std::vector<array>& primals, const std::vector<array>& cotangents,
             const std::vector<array>& outputs) {
    Collector gradients;
    auto status = rust->table.vjp(
        rust->function, borrow(primals), borrow(cotangents), borrow(outputs), gradients.sink());
    check(status);
    return status == 0 ? std::move(gradients.arrays) : wanted_gradients(forward_of(rust), primals, cotangents);
  };
}

Jvp jvp_of(Shared rust) {
  return [rust = std::move(rust)](
             const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) {
    Collector results;
    auto status = rust->table.jvp(rust->function, borrow(primals), borrow(tangents), argnums, results.sink());
    check(status);
    return status == 0 ? std::move(results.arrays) : tangents_of(forward_of(rust), primals, tangents, argnums);
  };
}

// The function mapped over `axes`; the results have the mapped axis first.
ArrayFunction mapped_forward_of(Shared rust, const std::vector<int>& axes) {
  return [rust = std::move(rust), axes](const std::vector<array>& inputs) {
    Collector results;
    std::vector<int> result_axes;
    auto status = rust->table.vmap(rust->function, borrow(inputs), axes, results.sink(), axis_sink(result_axes));
    check(status);
    if (status != 0) {
      return vmap_to_front(forward_of(rust), inputs, axes);
    }
    for (size_t i = 0; i < result_axes.size(); ++i) {
      results.arrays[i] = mlx::core::moveaxis(results.arrays[i], result_axes[i], 0);
    }
    return std::move(results.arrays);
  };
}

// A function, its rules, and what it is over `axes` of its arguments: there the results have the mapped axis first.
struct Custom {
  ArrayFunction forward;
  Vjp vjp;
  Jvp jvp;
  std::function<Custom(const std::vector<int>& axes)> mapped;
  // Whether a gradient calls `forward` again, and `vjp` is no more than that.
  bool is_called_again = false;
};

std::vector<array> call(const Custom& custom, const std::vector<array>& args) {
  auto vmap = [mapped = custom.mapped](const std::vector<array>& inputs, const std::vector<int>& axes) {
    auto results = call(mapped(axes), inputs);
    std::vector<int> front(results.size(), 0);
    return std::pair{std::move(results), std::move(front)};
  };
  auto results = mlx::core::custom_function(custom.forward, custom.vjp, custom.jvp, vmap)(args);
  std::optional<CalledAgain> again;
  if (custom.is_called_again) {
    again = CalledAgain{custom.forward, args.size()};
  }
  auto telling = std::make_shared<Telling>(results.at(0).primitive_ptr(), std::move(again));
  for (auto& result : results) {
    result.primitive_ptr() = telling;
  }
  return results;
}

std::vector<array> joined(std::initializer_list<std::vector<array>> lists) {
  std::vector<array> arrays;
  for (const auto& list : lists) {
    arrays.insert(arrays.end(), list.begin(), list.end());
  }
  return arrays;
}

std::vector<array> part(const std::vector<array>& arrays, size_t begin, size_t count) {
  return {arrays.begin() + begin, arrays.begin() + begin + count};
}

// The gradients of a mapped function: those of all examples, summed for an argument that they share.
Vjp mapped_vjp(Vjp vjp, const std::vector<int>& axes) {
  return [vjp = std::move(vjp), axes](
             const std::vector<array>& primals, const std::vector<array>& cotangents,
             const std::vector<array>& outputs) {
    auto example = [&](const std::vector<array>& args) {
      return vjp(
          part(args, 0, primals.size()), part(args, primals.size(), cotangents.size()),
          part(args, primals.size() + cotangents.size(), outputs.size()));
    };
    auto all_axes = axes;
    all_axes.resize(primals.size() + cotangents.size() + outputs.size(), 0);
    auto gradients = vmap_to_front(example, joined({primals, cotangents, outputs}), all_axes);
    for (size_t i = 0; i < primals.size(); ++i) {
      if (axes[i] >= 0) {
        gradients[i] = mlx::core::moveaxis(gradients[i], 0, axes[i]);
      } else if (is_inexact(primals[i])) {
        gradients[i] = mlx::core::astype(mlx::core::sum(widened(gradients[i]), 0), gradients[i].dtype());
      } else {
        gradients[i] = mlx::core::zeros_like(primals[i]);
      }
    }
    return gradients;
  };
}

Jvp mapped_jvp(Jvp jvp, const std::vector<int>& axes) {
  return [jvp = std::move(jvp), axes](
             const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>& argnums) {
    auto example = [&](const std::vector<array>& args) {
      return jvp(part(args, 0, primals.size()), part(args, primals.size(), tangents.size()), argnums);
    };
    auto all_axes = axes;
    for (auto argnum : argnums) {
      all_axes.push_back(axes.at(argnum));
    }
    return vmap_to_front(example, joined({primals, tangents}), all_axes);
  };
}

ArrayFunction mapped_function(ArrayFunction function, const std::vector<int>& axes) {
  return [function = std::move(function), axes](const std::vector<array>& inputs) {
    return vmap_to_front(function, inputs, axes);
  };
}

// A function that keeps its rules under any number of vmaps.
Custom with_rules(
    ArrayFunction forward, Vjp vjp, Jvp jvp, std::function<ArrayFunction(const std::vector<int>&)> mapped_forward) {
  auto mapped = [vjp, jvp, mapped_forward = std::move(mapped_forward)](const std::vector<int>& axes) {
    auto batched = mapped_forward(axes);
    return with_rules(batched, mapped_vjp(vjp, axes), mapped_jvp(jvp, axes), [batched](const std::vector<int>& outer) {
      return mapped_function(batched, outer);
    });
  };
  return Custom{std::move(forward), std::move(vjp), std::move(jvp), std::move(mapped)};
}

// Like mlx::core::checkpoint, which also asks for gradients of operands that have none, and maps no quantized product.
Custom checkpointed(ArrayFunction forward) {
  auto vjp = [forward](
                 const std::vector<array>& primals, const std::vector<array>& cotangents,
                 const std::vector<array>& outputs) {
    // The second pass must not begin before the first is over, or it saves no memory.
    return wanted_gradients(forward, after_apart(primals, outputs), cotangents);
  };
  auto jvp = [forward](
                 const std::vector<array>& primals, const std::vector<array>& tangents,
                 const std::vector<int>& argnums) { return tangents_of(forward, primals, tangents, argnums); };
  auto mapped = [forward](const std::vector<int>& axes) { return checkpointed(mapped_function(forward, axes)); };
  return Custom{std::move(forward), std::move(vjp), std::move(jvp), std::move(mapped), true};
}

// A function of rows that is called with some of them at a time, in the second pass as well.
Custom chunked(ArrayFunction function, Chunks chunks) {
  auto forward = in_chunks(function, chunks);
  auto vjp = [function = std::move(function), chunks](
                 const std::vector<array>& primals, const std::vector<array>& cotangents,
                 const std::vector<array>& outputs) {
    return wanted_gradients(primals, [&](const std::vector<int>& argnums) {
      return gradients_in_chunks(function, chunks, primals, cotangents, outputs, argnums);
    });
  };
  auto jvp = [forward](
                 const std::vector<array>& primals, const std::vector<array>& tangents,
                 const std::vector<int>& argnums) { return tangents_of(forward, primals, tangents, argnums); };
  auto mapped = [forward](const std::vector<int>& axes) { return mapped_function(forward, axes); };
  return with_rules(forward, std::move(vjp), std::move(jvp), std::move(mapped));
}

}  // namespace

const CalledAgain* called_again(const Primitive& primitive) {
  const auto* telling = dynamic_cast<const Telling*>(&primitive);
  return telling != nullptr && telling->again ? &*telling->again : nullptr;
}

}  // namespace tacit

using namespace tacit;

extern "C" {

// Whether the gradient of a custom function's vjp in progress is wanted for this argument.
bool tacit_is_wanted(size_t argnum) {
  return wanted == nullptr || std::find(wanted->begin(), wanted->end(), static_cast<int>(argnum)) != wanted->end();
}

// Takes `function` over in every case.
int tacit_custom_function(FunctionTable table, void* function, Arrays args, Sink results) {
  return guarded([&] {
    auto rust = std::make_shared<RustFunction>(table, function);
    auto mapped_forward = [rust](const std::vector<int>& axes) { return mapped_forward_of(rust, axes); };
    auto custom = with_rules(forward_of(rust), vjp_of(rust), jvp_of(rust), mapped_forward);
    pour(call(custom, gather(args)), results);
  });
}

// Takes `function` over in every case.
int tacit_checkpoint(FunctionTable table, void* function, Arrays args, Sink results) {
  return guarded([&] {
    auto forward = forward_of(std::make_shared<RustFunction>(table, function));
    pour(call(checkpointed(std::move(forward)), gather(args)), results);
  });
}

// Takes `function` over in every case. The first `sliced` arguments have the rows.
int tacit_chunked(FunctionTable table, void* function, Arrays args, size_t sliced, int32_t rows, Sink results) {
  return guarded([&] {
    auto forward = forward_of(std::make_shared<RustFunction>(table, function));
    pour(call(chunked(std::move(forward), Chunks{sliced, rows}), gather(args)), results);
  });
}
}
