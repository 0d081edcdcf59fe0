#!/usr/bin/env bash
# Compiles the kernels' sources for GPUs without one: for CUDA with PyPI's NVRTC and ptxas, which say what registers each takes;
# for Metal the clang in PyPI's ziglang parses every one.
#
# What that does not show: whether a result is right, which the tests of tacit-arrays show on a CPU that plays a GPU; whether
# instructions for four warps are ordered as they must be, and how fast anything is, which only a GPU shows; and of Metal, whether
# its own compiler takes the text: clang knows neither its rules for address spaces of methods and templates nor what its library
# really declares. No compiler for Metal can be had here.
#
# A minute and 220 MB from PyPI, which stay in target/compilers. TACIT_SWEEP=full compiles every text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[[ $(uname -sm) == "Linux x86_64" ]] || { echo "skipped: the compilers are taken for Linux on x86-64"; exit 0; }
target=$(mkdir -p "${CARGO_TARGET_DIR:=target}" && cd "$CARGO_TARGET_DIR" && pwd)
source tests/scripts/gpu_sources/compilers.sh

texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT
TACIT_GPU_TEXTS=$texts cargo test --quiet --locked -p tacit-arrays --lib their_sources >/dev/null

# Of each of the kernels that time is spent in one for each format, and a part of the others.
chosen=()
others=0
for text in "$texts"/*.cu; do
    case $text in
    *_t1_s4_* | *_h1_* | *_tile1_* | *_wide*) [[ ${TACIT_SWEEP:-} == full || $text == *bf16* ]] && chosen+=("$text") ;;
    *) ((others++ % 4 != 0)) && [[ ${TACIT_SWEEP:-} != full ]] || chosen+=("$text") ;;
    esac
done
found=0
"$compilers/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" 90a "${chosen[@]}" || found=1
# The instructions of older GPUs are others in the products of many rows alone.
older=()
wide=()
for text in "${chosen[@]}"; do
    case $text in
    *_wide64_64_* | *_wide64_128_*) ((${#wide[@]} >= 3)) || wide+=("$text") ;;
    *_h1_* | *_tile*) ((${#older[@]} >= 3)) || older+=("$text") ;;
    esac
done
"$compilers/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" 80 "${older[@]}" "${wide[@]}" || found=1
# Older ones have no room for wide tiles.
"$compilers/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" 75 "${older[@]}" || found=1

# What Metal has not.
if grep -nE '\bdouble\b|\bstd::|\bthrow\b|\btry\b|\bnew\b|\bvirtual\b|\bgoto\b|__shared__|__device__|\basm\b|long long|\b[0-9]\w*(ll|LL)' "$texts"/*.metal |
    grep -vE ':[0-9]+: *//' | head -n 5 | grep .; then
    echo "error: a source for Metal has what that language has not"
    found=1
fi
# The language is C++14 with extensions.
ls "$texts"/*.metal | xargs -n 64 "$compilers/bin/python" -m ziglang clang -target x86_64-linux-gnu -x c++ -std=c++14 -fsyntax-only -Werror \
    -Wno-unknown-attributes -Wno-unknown-pragmas -Wno-unused-command-line-argument -Wno-undefined-inline -Wno-undefined-internal \
    -Wno-c++17-extensions -Wno-ignored-attributes -ferror-limit=1 \
    -include tests/scripts/gpu_sources/metal_stdlib.h 2>&1 | head -n 30 ||
    { echo "error: clang does not parse every source for Metal"; found=1; }
exit "$found"
