// A function of rows as one that is called with some of the rows at a time.
#include "chunks.h"

#include <algorithm>
#include <optional>

#include "waiting.h"

namespace tacit {

namespace {

array rows_of(const array& whole, int begin, int end) {
  return begin == 0 && end == whole.shape(0) ? whole : part_of(whole, 0, begin, end);
}

// The arguments of one call, for which nothing is computed before `before` is.
std::vector<array> chunk_of(
    const std::vector<array>& args, size_t sliced, int begin, int end, const std::vector<array>& before) {
  std::vector<array> rows;
  for (size_t i = 0; i < sliced; ++i) {
    rows.push_back(rows_of(args[i], begin, end));
  }
  auto chunk = after_apart(rows, before, Wait::queue);
  chunk.insert(chunk.end(), args.begin() + sliced, args.end());
  return chunk;
}

// Calls `call` with the begin and the end of each chunk; once where there is no row.
template <class Call>
void each_chunk(const std::vector<array>& args, Chunks chunks, Call call) {
  auto total = args.at(0).shape(0);
  int begin = 0;
  do {
    auto end = begin + std::min(chunks.rows, total - begin);
    call(begin, end);
    begin = end;
  } while (begin < total);
}

array joined_rows(std::vector<array> parts) {
  return parts.size() == 1 ? parts[0] : mlx::core::concatenate(std::move(parts), 0);
}

}  // namespace

ArrayFunction in_chunks(ArrayFunction function, Chunks chunks) {
  return [function = std::move(function), chunks](const std::vector<array>& args) {
    std::vector<std::vector<array>> parts;
    std::vector<array> before;
    each_chunk(args, chunks, [&](int begin, int end) {
      before = function(chunk_of(args, chunks.sliced, begin, end, before));
      parts.resize(before.size());
      for (size_t i = 0; i < before.size(); ++i) {
        parts[i].push_back(before[i]);
      }
    });
    std::vector<array> results;
    for (auto& result : parts) {
      results.push_back(joined_rows(std::move(result)));
    }
    return results;
  };
}

std::vector<array> gradients_in_chunks(
    const ArrayFunction& function, Chunks chunks, const std::vector<array>& primals,
    const std::vector<array>& cotangents, const std::vector<array>& outputs, const std::vector<int>& argnums) {
  std::vector<std::vector<array>> parts(argnums.size());
  std::vector<std::optional<array>> sums(argnums.size());
  // The second pass must not begin before the first is over, or before what it is given is there.
  auto before = outputs;
  before.insert(before.end(), cotangents.begin(), cotangents.end());
  each_chunk(primals, chunks, [&](int begin, int end) {
    std::vector<array> rows;
    for (const auto& cotangent : cotangents) {
      rows.push_back(rows_of(cotangent, begin, end));
    }
    auto gradients =
        gradients_of(function, chunk_of(primals, chunks.sliced, begin, end, before), rows, argnums);
    before.clear();
    for (size_t i = 0; i < argnums.size(); ++i) {
      if (static_cast<size_t>(argnums[i]) < chunks.sliced) {
        parts[i].push_back(gradients[i]);
        before.push_back(gradients[i]);
      } else if (is_inexact(gradients[i])) {
        auto addend = widened(gradients[i]);
        sums[i] = sums[i] ? mlx::core::add(*sums[i], addend) : addend;
        before.push_back(*sums[i]);
      }
    }
  });
  std::vector<array> results;
  for (size_t i = 0; i < argnums.size(); ++i) {
    const auto& primal = primals[argnums[i]];
    if (!parts[i].empty()) {
      results.push_back(joined_rows(std::move(parts[i])));
    } else {
      results.push_back(sums[i] ? mlx::core::astype(*sums[i], primal.dtype()) : mlx::core::zeros_like(primal));
    }
  }
  return results;
}

}  // namespace tacit
