// Compares the MLX that was loaded with the headers that this program was compiled with.
//
// MLX changes the layout of its classes in patch releases, so a program that meets another version would corrupt
// memory. This runs before `main` and before the first call into MLX.

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mlx/version.h"

namespace {

std::string compiled_version() {
  return std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
      std::to_string(MLX_VERSION_PATCH);
}

bool agrees(const std::string& compiled, const char* loaded) {
  // A development build appends ".devDATE+hash" to the number.
  return std::strncmp(compiled.c_str(), loaded, compiled.size()) == 0 &&
      !std::isdigit(static_cast<unsigned char>(loaded[compiled.size()]));
}

__attribute__((constructor)) void check_version() {
  const std::string compiled = compiled_version();
  const char* loaded = mlx::core::version();
  const char* bypass = std::getenv("MLX_BYPASS_VERSION_CHECK");
  if (agrees(compiled, loaded) || (bypass != nullptr && std::strcmp(bypass, "1") == 0)) {
    return;
  }
  std::fprintf(
      stderr,
      "error: this program was built for MLX %s, but the loaded libmlx is %s\n"
      "help: rebuild the program (`cargo clean -p mlx-sys`), or remove the other library from LD_LIBRARY_PATH and "
      "LD_PRELOAD; MLX_BYPASS_VERSION_CHECK=1 goes on at your own risk\n",
      compiled.c_str(),
      loaded);
  std::_Exit(1);
}

} // namespace

// What error.cpp refers to, so that the linker keeps this file.
extern "C" void mlx_sys_keep_version_check() {}
