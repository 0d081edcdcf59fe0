#!/usr/bin/env bash
# Writes every launch of the tests of GPU sources, with its machine code for Hopper, its inputs and what a CPU gives:
# tests/gpu/cases.sh FOLDER
#
# FOLDER gets cases.tar.xz. On a machine with such a GPU and Python with CuPy and PyTorch, unpacked, `python3 tests/gpu/cases.py FOLDER` runs
# and measures them. That needs neither MLX for CUDA nor a build. The compilers are those of tests/scripts/gpu_sources.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=$(mkdir -p "$1" && cd "$1" && pwd)
target=$(mkdir -p "${CARGO_TARGET_DIR:=target}" && cd "$CARGO_TARGET_DIR" && pwd)
source tests/scripts/gpu_sources/compilers.sh
cases=$(mktemp -d)
trap 'rm -rf "$cases"' EXIT
TACIT_GPU_CASES=$cases cargo test --quiet --locked -p tacit-arrays --lib kernel::gpu >/dev/null
"$compilers/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" 90a "$cases"/*.cu --into "$cases" | grep -E '^error|texts for'
rm "$cases"/*.cu
tar --create --file - --directory "$cases" . | xz -2 --threads=0 >"$folder/cases.tar.xz"
ls -l "$folder/cases.tar.xz"
