// Names of primitives as small numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace tacit {

namespace {

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

}  // namespace
}  // namespace tacit
