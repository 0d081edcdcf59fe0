#include <algorithm>
#include <cmath>
#include <numeric>

#include "bridge.h"

using namespace tacit;

extern "C" {

// The order in which MLX's `argpartition` leaves the places of `count` numbers: the standard library's, of places that are
// told apart by their numbers, NaN last, and then by themselves.
int tacit_arg_partition(const float* values, size_t count, size_t kth, uint32_t* places) {
  return guarded([&] {
    std::iota(places, places + count, 0u);
    std::nth_element(places, places + kth, places + count, [&](uint32_t a, uint32_t b) {
      auto x = values[a];
      auto y = values[b];
      if (std::isnan(x) || std::isnan(y)) {
        return !std::isnan(x);
      }
      return x < y || (x == y && a < b);
    });
  });
}
}
