// What stands behind a door: a function of libmlx that this program defines as well, and that its own calls go to. On Linux those
// of libmlx to itself go there too. On a Mac they stay within libmlx, so that there a door is needed for each function that mlx-c,
// which is part of this program, calls by name.
#pragma once

// A static MLX has the one definition of each.
#if defined(__linux__) || (defined(__APPLE__) && !defined(MLX_STATIC))
#define TACIT_DOORS 1
#endif

// The mangled name by the standard library: those of Linux and of a Mac have namespaces of their own.
#ifdef __APPLE__
#define TACIT_MANGLED(linux, mac) mac
#else
#define TACIT_MANGLED(linux, mac) linux
#endif

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
