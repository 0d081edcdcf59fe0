#include "pages.h"

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tacit {

#ifdef __linux__

namespace {

// Linux 6.1 and newer.
constexpr int kCollapse = 25;
constexpr uintptr_t kLarge = uintptr_t{2} << 20;
// What the caches and their address tables hold anyway.
constexpr size_t kFew = size_t{16} << 20;

using Pages = std::pair<uintptr_t, uintptr_t>;

// The large pages that these arrays lie in.
std::vector<Pages> large_pages(const std::vector<array>& arrays) {
  std::vector<Pages> all;
  size_t bytes = 0;
  for (const auto& value : arrays) {
    if (size_t length = value.data_size() * value.itemsize(); length > 0) {
      auto begin = reinterpret_cast<uintptr_t>(value.data<char>());
      all.emplace_back(begin / kLarge * kLarge, (begin + length + kLarge - 1) / kLarge * kLarge);
      bytes += length;
    }
  }
  std::vector<Pages> joined;
  std::sort(all.begin(), all.end());
  for (const auto& range : all) {
    if (joined.empty() || joined.back().second < range.first) {
      joined.push_back(range);
    } else {
      joined.back().second = std::max(joined.back().second, range.second);
    }
  }
  if (bytes < kFew) {
    joined.clear();
  }
  return joined;
}

}  // namespace

void join_pages(const std::vector<array>& arrays) {
  // To ask CUDA's allocator where an array is would move it there.
  if (mlx::core::is_available(mlx::core::Device(mlx::core::Device::gpu))) {
    return;
  }
  auto ranges = large_pages(arrays);
  if (ranges.empty()) {
    return;
  }
  // It takes a second for a gigabyte. It is advice, which changes no byte: memory that others have by then, or nobody, may get it too, and
  // what the system refuses stays as it is, such as pages of files.
  auto advise = [ranges = std::move(ranges)] {
    for (auto [begin, end] : ranges) {
      for (; begin < end; begin += kLarge) {
        madvise(reinterpret_cast<void*>(begin), kLarge, kCollapse);
      }
    }
  };
  try {
    std::thread(std::move(advise)).detach();
  } catch (const std::system_error&) {
    // Without another thread the pages stay small.
  }
}

#else

void join_pages(const std::vector<array>&) {}

#endif

}  // namespace tacit
