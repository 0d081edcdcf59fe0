// What stands behind a door: a function of libmlx that this program defines as well, and that its own calls go to.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace tacit {

// The definition of libmlx, by its mangled name.
template <class Signature>
Signature* next(const char* name) {
  auto* found = reinterpret_cast<Signature*>(dlsym(RTLD_NEXT, name));
  if (found == nullptr) {
    throw std::runtime_error(std::string("libmlx has no ") + name);
  }
  return found;
}

}  // namespace tacit
