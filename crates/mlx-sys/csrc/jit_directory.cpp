// Gives MLX's compiled CPU kernels a private home.
//
// MLX writes C++ sources under `std::filesystem::temp_directory_path()`, compiles them there and loads the result; what
// it finds there from earlier it loads unseen. In a world-writable folder anybody could have put it there, and two
// programs that compile the same kernel at once read each other's half-written files. So the program brings its own
// `temp_directory_path`, which libmlx takes through the dynamic linker. It answers calls that come from libmlx with a
// folder of this process alone, and hands every other call on. `TMPDIR` stays as it is.
//
// The folder is `<cache>/jit/tacit-<pid>-<random>`, with mode 0700. Finished kernels are shared by hard links: those of
// earlier processes are linked in at the start, new ones are linked out at exit. A home may serve several machines, and the
// loader refuses kernels of another processor or of a newer C library: each pair of these has a folder. Beside the
// kernels stands the header that each begins with, as the build has precompiled it.

#include <dlfcn.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "assumptions.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* kernels = MLX_SYS_KERNELS;

// How the name of a process's folder begins and ends; its number is between, and the last six characters are drawn.
constexpr std::string_view before_owner = "tacit-";
constexpr std::string_view behind_owner = "-XXXXXX";

fs::path system_temp_directory() {
  using Function = fs::path (*)();
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, MLX_SYS_TEMP_DIRECTORY_PATH));
  return next != nullptr ? next() : fs::path("/tmp");
}

bool comes_from_mlx(const void* address) {
  Dl_info caller{};
  Dl_info mlx{};
  void* known = dlsym(RTLD_DEFAULT, MLX_SYS_FUNCTION_OF_MLX);
  return known != nullptr && dladdr(address, &caller) != 0 && dladdr(known, &mlx) != 0 &&
      caller.dli_fbase == mlx.dli_fbase;
}

// Makes the folder if need be; whether it belongs to this user and no other one may write to it. The rights of a folder that
// is there stay: it may be root's own /tmp.
bool make_private(const fs::path& folder) {
  // The parent of a path that ends with a slash is the folder itself, which would be made with the rights of any other.
  const fs::path plain = folder.has_filename() ? folder : folder.parent_path();
  std::error_code ignored;
  fs::create_directories(plain.parent_path(), ignored);
  if (mkdir(plain.c_str(), S_IRWXU) == 0) {
    return true;
  }
  struct stat status {};
  return errno == EEXIST && lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
      status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

fs::path absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? fs::path(value) : fs::path();
}

// The folder that the processes of this user share, or nothing.
fs::path shared_folder() {
  fs::path folder = absolute_variable("TACIT_MLX_TMPDIR");
  if (folder.empty()) {
    if (fs::path own = absolute_variable("TACIT_CACHE_DIR"); !own.empty()) {
      folder = own / "jit";
    } else if (fs::path xdg = absolute_variable("XDG_CACHE_HOME"); !xdg.empty()) {
      folder = xdg / "tacit" / "jit";
    } else if (fs::path home = absolute_variable("HOME"); !home.empty()) {
      folder = home / ".cache" / "tacit" / "jit";
    } else {
      return {};
    }
  }
  return make_private(folder) ? folder : fs::path();
}

bool is_loaded(const fs::path& kernel) {
  void* handle = dlopen(kernel.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr && dlclose(handle) == 0;
}

// Brings a kernel to the disk; whether it is there. One that a crash of the machine leaves empty would never be compiled anew.
bool is_on_disk(const fs::path& kernel) {
  const int file = open(kernel.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  const bool synced = fsync(file) == 0;
  close(file);
  return synced;
}

// Links kernels under `from` to the same place under `to`, where there is none yet: those that pass the test.
template <typename Test>
void share(const fs::path& from, const fs::path& to, Test test) {
  std::error_code ignored;
  for (auto file = fs::recursive_directory_iterator(from, ignored); file != fs::recursive_directory_iterator();
       file.increment(ignored)) {
    const fs::path target = to / file->path().lexically_relative(from);
    if (file->path().extension() == ".so" && file->is_regular_file(ignored) && !fs::exists(target, ignored) &&
        test(file->path())) {
      fs::create_directories(target.parent_path(), ignored);
      fs::create_hard_link(file->path(), target, ignored);
    }
  }
}

// The process whose folder this is by its name, or 0.
long owner_of(const std::string& name) {
  if (name.compare(0, before_owner.size(), before_owner) != 0) {
    return 0;
  }
  char* rest = nullptr;
  const long owner = std::strtol(name.c_str() + before_owner.size(), &rest, 10);
  return *rest == behind_owner.front() && std::string_view(rest).size() == behind_owner.size() ? owner : 0;
}

// Removes what processes left behind that did not come to their end, and nothing else: the folder may be one that its owner
// has other things in. In containers that share a home a process may be invisible but alive, hence the day of grace.
void sweep(const fs::path& shared) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(shared, ignored)) {
    const long owner = owner_of(entry.path().filename().string());
    const bool gone = owner > 0 && kill(static_cast<pid_t>(owner), 0) != 0 && errno == ESRCH;
    const bool is_folder = fs::is_directory(entry.symlink_status(ignored));
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(ignored);
    if (gone && is_folder && age > std::chrono::hours(24)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

// Puts the precompiled header where the compiler finds it: in the folder of the file that includes it.
void bring_preamble(const fs::path& own) {
  struct stat status {};
  // Whoever can write to it can write our kernels.
  if (stat(MLX_SYS_PREAMBLE, &status) != 0 || (status.st_uid != geteuid() && status.st_uid != 0) ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return;
  }
  std::error_code ignored;
  const fs::path link = own / MLX_SYS_KERNELS_OF_VERSION / MLX_SYS_PREAMBLE_HEADER ".gch";
  fs::create_directories(link.parent_path(), ignored);
  fs::create_symlink(MLX_SYS_PREAMBLE, link, ignored);
}

class PrivateFolder {
 public:
  PrivateFolder() : shared_(shared_folder()), owner_(getpid()) {
    // A folder that cannot be written to, as where a system is mounted to be read alone, or that the loader or the compiler
    // does not take, keeps no kernels either.
    if (shared_.empty() || make_own(shared_)) {
      shared_.clear();
      const fs::path parent = system_temp_directory();
      if (const std::error_code cause = make_own(parent)) {
        throw fs::filesystem_error("no private folder for MLX's compiled kernels", parent, cause);
      }
    }
    bring_preamble(own_);
    if (!shared_.empty()) {
      sweep(shared_);
      share(shared_kernels(), own_ / kernels, [](const fs::path&) { return true; });
    }
  }

  ~PrivateFolder() {
    if (getpid() != owner_) {
      return; // A forked child ends; the folder is its parent's.
    }
    if (!shared_.empty()) {
      // What has been loaded is whole; the compiler may still be at work on the rest.
      share(own_ / kernels, shared_kernels(), [](const fs::path& kernel) {
        return is_loaded(kernel) && is_on_disk(kernel);
      });
    }
    std::error_code ignored;
    fs::remove_all(own_, ignored);
  }

  const fs::path& path() const {
    return own_;
  }

 private:
  fs::path shared_kernels() const {
    return shared_ / MLX_SYS_ARCHITECTURE / gnu_get_libc_version() / kernels;
  }

  // Makes the folder of this process; why that failed, if it did.
  std::error_code make_own(const fs::path& parent) {
    struct statvfs mount {};
    if (statvfs(parent.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0) {
      return std::make_error_code(std::errc::permission_denied);
    }
    // MLX's command for the shell has the path between double quotes.
    if (parent.native().find_first_of("\"$`\\") != std::string::npos) {
      return std::make_error_code(std::errc::invalid_argument);
    }
    std::string name = (parent / before_owner).string() + std::to_string(owner_) + std::string(behind_owner);
    if (mkdtemp(name.data()) == nullptr) {
      return {errno, std::generic_category()};
    }
    own_ = name;
    return {};
  }

  fs::path shared_;
  fs::path own_;
  pid_t owner_;
};

bool kept() {
  const char* choice = std::getenv("TACIT_MLX_TMPDIR");
  return choice != nullptr && std::string(choice) == "keep";
}

} // namespace

[[gnu::noinline]] fs::path std::filesystem::temp_directory_path() {
  if (kept() || !comes_from_mlx(__builtin_return_address(0))) {
    return system_temp_directory();
  }
  static const PrivateFolder folder;
  return folder.path();
}

// What error.cpp refers to, so that the linker keeps this file.
extern "C" void mlx_sys_keep_jit_directory() {}
