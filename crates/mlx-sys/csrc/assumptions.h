// What is taken for granted of MLX's compiled kernels on Linux and that no header states.
//
// tests/scripts/downstream.sh fails when a new MLX does otherwise: its kernels then appear in TMPDIR, or the compiler
// does not take the precompiled header. The compiler's command is in build/kernels.rs.

#pragma once

// A function of libmlx, by which its calls are known.
#define MLX_SYS_FUNCTION_OF_MLX "_ZN3mlx4core14enable_compileEv"

// `std::filesystem::temp_directory_path`, which libmlx asks for the place of its kernels.
#define MLX_SYS_TEMP_DIRECTORY_PATH "_ZNSt10filesystem19temp_directory_pathB5cxx11Ev"

// The folder of all kernels below it, and that of this version's, where the compiler works.
#define MLX_SYS_KERNELS "mlx"
#define MLX_SYS_KERNELS_OF_VERSION MLX_SYS_KERNELS "/" MLX_SYS_VERSION "/cpu"
