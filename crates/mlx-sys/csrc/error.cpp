// The error entry of mlx-c, made safe.
//
// mlx-c reports every exception by `mlx_error(e.what())`, where the message stands in the place of a printf format. A
// path or tensor name with a percent sign then reads, or with %n writes, memory that it should not. Here the message is
// data and is never read as a format. mlx-c's own function, which knows the installed handler, is compiled under the
// name `mlx_sys_formatted_error`. It appends the place at which it caught the exception, of which only the name of the file
// goes on: the folder is one of the machine that compiled it.

#include <cstring>

extern "C" void mlx_sys_formatted_error(const char* file, const int line, const char* format, ...);

// Two files that act by being linked. A static library gives up only what is asked for, so they are asked for here.
extern "C" void mlx_sys_keep_version_check();
extern "C" void mlx_sys_keep_jit_directory();

extern "C" void _mlx_error(const char* file, const int line, const char* message, ...) {
  mlx_sys_keep_version_check();
#ifndef __APPLE__
  mlx_sys_keep_jit_directory();
#endif
  const char* folder_end = std::strrchr(file, '/');
  mlx_sys_formatted_error(folder_end == nullptr ? file : folder_end + 1, line, "%s", message);
}
