// `mlx_detail_compile` for a thread that has a default stream.
//
// From 0.32.3 on MLX finds a compiled function by the default stream that the thread has already. A thread that has none gets
// one while the function is traced, so that its second call does not find the trace and makes another. mlx-c's own function
// is compiled under the name `mlx_sys_detail_compile`.

#include <exception>

#include "mlx/c/compile.h"
#include "mlx/c/error.h"
#include "mlx/device.h"
#include "mlx/stream.h"

#undef mlx_detail_compile

extern "C" int mlx_detail_compile(
    mlx_closure* res,
    const mlx_closure fun,
    uintptr_t fun_id,
    bool shapeless,
    const uint64_t* constants,
    size_t constants_num) {
  try {
    mlx::core::default_stream(mlx::core::default_device());
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return mlx_sys_detail_compile(res, fun, fun_id, shapeless, constants, constants_num);
}
