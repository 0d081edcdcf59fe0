// MLX would compile a text too, behind headers of its own that take more than a second and make ten times the code.
#include "nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <variant>
#include <vector>

namespace tacit {

namespace {

// Its functions, as NVIDIA documents them. They are not linked: a library without CUDA has none.
struct Nvrtc {
  using Program = struct Opaque*;
  int (*create)(Program*, const char* text, const char* name, int headers, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int count, const char* const* options);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*code_size)(Program, size_t*);
  int (*code)(Program, char*);

  Nvrtc() {
    find(create, "nvrtcCreateProgram");
    find(destroy, "nvrtcDestroyProgram");
    find(compile, "nvrtcCompileProgram");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(code_size, "nvrtcGetCUBINSize");
    find(code, "nvrtcGetCUBIN");
  }

 private:
  template <class F>
  static void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    if (function == nullptr) {
      throw std::runtime_error(std::string("NVIDIA's run-time compiler has no ") + name);
    }
  }
};

size_t number(const mlx::core::Device& device, const char* key) {
  const auto& info = mlx::core::device_info(device);
  auto found = info.find(key);
  const auto* value = found == info.end() ? nullptr : std::get_if<size_t>(&found->second);
  if (value == nullptr) {
    throw std::runtime_error(std::string("MLX does not tell the ") + key + " of the GPU");
  }
  return *value;
}

std::string architecture(const mlx::core::Device& device) {
  auto capability = cuda_capability(device);
  // From Hopper on, the instructions of this very generation.
  return "--gpu-architecture=sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
}

// Where CUDA's headers may be, for texts that include some; ours include none.
std::vector<std::string> folders() {
  std::vector<std::string> found;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable); home != nullptr) {
      found.push_back(std::string(home) + "/include");
    }
  }
  found.push_back("/usr/local/cuda/include");
  std::vector<std::string> options;
  std::error_code ignored;
  for (const auto& folder : found) {
    if (std::filesystem::is_directory(folder, ignored)) {
      options.push_back("--include-path=" + folder);
    }
  }
  return options;
}

std::string compile(const mlx::core::Device& device, const std::string& name, const std::string& text) {
  static const Nvrtc nvrtc;
  Nvrtc::Program program = nullptr;
  auto checked = [&](int status, const char* what) {
    if (status != 0) {
      throw std::runtime_error(
          std::string("NVIDIA's run-time compiler: ") + what + " failed (" + std::to_string(status) + ")");
    }
  };
  checked(nvrtc.create(&program, text.c_str(), (name + ".cu").c_str(), 0, nullptr, nullptr), "making a program");
  struct Owner {
    Nvrtc::Program& program;
    ~Owner() {
      nvrtc.destroy(&program);
    }
  } owner{program};
  auto options = folders();
  options.push_back(architecture(device));
  options.push_back("--std=c++17");
  std::vector<const char*> pointers;
  for (const auto& option : options) {
    pointers.push_back(option.c_str());
  }
  if (nvrtc.compile(program, static_cast<int>(pointers.size()), pointers.data()) != 0) {
    size_t size = 0;
    checked(nvrtc.log_size(program, &size), "reading its log");
    std::string log(size, '\0');
    checked(nvrtc.log(program, log.data()), "reading its log");
    throw std::invalid_argument(
        "the GPU source " + name + " does not compile: " + log.c_str() +
        "\nhelp: correct it, or run without sources by TACIT_GPU_SOURCES=off");
  }
  size_t size = 0;
  checked(nvrtc.code_size(program, &size), "reading the code");
  std::string code(size, '\0');
  checked(nvrtc.code(program, code.data()), "reading the code");
  return code;
}

}  // namespace

size_t cuda_capability(const mlx::core::Device& device) {
  return 10 * number(device, "compute_capability_major") + number(device, "compute_capability_minor");
}

bool has_cuda_compiler() {
  return dlsym(RTLD_DEFAULT, "nvrtcCompileProgram") != nullptr;
}

const std::string& compiled_for(
    const mlx::core::Device& device, const std::string& name, const std::function<std::string()>& text) {
  static std::mutex guard;
  static std::map<std::pair<int, std::string>, std::string> kept;
  std::pair<int, std::string> key{device.index, name};
  {
    std::lock_guard lock(guard);
    if (auto found = kept.find(key); found != kept.end()) {
      return found->second;
    }
  }
  // Outside the lock, since it takes its time; who comes second finds the same code.
  auto code = compile(device, name, text());
  std::lock_guard lock(guard);
  return kept.emplace(std::move(key), std::move(code)).first->second;
}

}  // namespace tacit
