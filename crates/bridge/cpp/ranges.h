// The ranges of a slice as they are: where one element is left along an axis, MLX stores a step of 1 whatever the ends are, and
// its transforms take the ends at their word.
#pragma once

#include <algorithm>

#include "bridge.h"

namespace tacit {

struct Ranges {
  Shape from;
  Shape to;
  Shape by;

  // Those that leave `result` of `whole`.
  static Ranges of(const Shape& start, const Shape& strides, const Shape& whole, const Shape& result) {
    Ranges ranges;
    for (size_t i = 0; i < result.size(); ++i) {
      auto several = result[i] > 1;
      auto last = start[i] + (several ? (result[i] - 1) * strides[i] : 0);
      auto back = several && strides[i] < 0;
      ranges.from.push_back(result[i] == 0 ? 0 : start[i]);
      ranges.by.push_back(several ? strides[i] : 1);
      // The place before the first one, counted from behind.
      ranges.to.push_back(result[i] == 0 ? 0 : !back ? last + 1 : last > 0 ? last - 1 : -whole[i] - 1);
    }
    return ranges;
  }

  // Whether MLX would leave as much by what it stores.
  static bool are_said(
      const Shape& start, const Shape& end, const Shape& strides, const Shape& whole, const Shape& result) {
    for (size_t i = 0; i < result.size(); ++i) {
      auto stop = end[i] < 0 ? end[i] + whole[i] : end[i];
      auto count = strides[i] < 0
          ? (start[i] - std::min(std::max(stop, -1), start[i]) - strides[i] - 1) / -strides[i]
          : (std::max(std::clamp(stop, 0, whole[i]), start[i]) - start[i] + strides[i] - 1) / strides[i];
      if (count != result[i]) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace tacit
