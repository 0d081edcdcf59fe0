#!/usr/bin/env bash
# Compiles the kernels' sources for GPUs without one: for CUDA with PyPI's NVRTC and ptxas, which say what registers each takes;
# for Metal clang parses them, where it is installed.
#
# What that does not show: whether a result is right, which the tests of tacit-arrays show on a CPU that plays a GPU; whether
# instructions for four warps are ordered as they must be, and how fast anything is, which only a GPU shows; and of Metal, whether
# its own compiler takes the text: clang knows neither its rules for address spaces of methods and templates nor what its library
# really declares. No compiler for Metal can be had here.
#
# A minute and 130 MB from PyPI, which stay in target/cuda. TACIT_SWEEP=full compiles every text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[[ $(uname -sm) == "Linux x86_64" ]] || { echo "skipped: CUDA's compilers are taken for Linux on x86-64"; exit 0; }
target=$(mkdir -p "${CARGO_TARGET_DIR:=target}" && cd "$CARGO_TARGET_DIR" && pwd)
cuda=$target/cuda
if [[ ! -e $cuda/complete ]]; then
    rm -rf "$cuda"
    packages=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88)
    if ! { python3 -m venv "$cuda" && "$cuda/bin/pip" install --quiet --disable-pip-version-check --no-deps "${packages[@]}"; }; then
        rm -rf "$cuda"
        echo "CUDA's compilers cannot be had from pip"
        exit 77
    fi
    touch "$cuda/complete"
fi
nvidia=$("$cuda/bin/python" -c 'import nvidia; print(next(iter(nvidia.__path__)))')/cu13
chmod +x "$nvidia/bin/ptxas"

texts=$(mktemp -d)
trap 'rm -rf "$texts"' EXIT
TACIT_GPU_SOURCES=$texts cargo test --quiet --locked -p tacit-arrays --lib their_sources >/dev/null

# Of each of the kernels that time is spent in one for each format, and a part of the others.
chosen=()
others=0
for text in "$texts"/*.cu; do
    case $text in
    *_t1_s4_* | *_h1_* | *_tile1_*) [[ ${TACIT_SWEEP:-} == full || $text == *bf16* ]] && chosen+=("$text") ;;
    *) ((others++ % 4 != 0)) && [[ ${TACIT_SWEEP:-} != full ]] || chosen+=("$text") ;;
    esac
done
found=0
"$cuda/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" 90a "${chosen[@]}" || found=1
# The instructions of older GPUs are others in the products of many rows alone.
older=()
for text in "${chosen[@]}"; do
    [[ $text != *_h1_* && $text != *_tile* ]] || ((${#older[@]} >= 3)) || older+=("$text")
done
for architecture in 80 75; do
    "$cuda/bin/python" tests/scripts/gpu_sources/compile.py "$nvidia" "$architecture" "${older[@]}" || found=1
done

# What Metal has not.
if grep -nE '\bdouble\b|\bstd::|\bthrow\b|\btry\b|\bnew\b|\bvirtual\b|\bgoto\b|__shared__|__device__|\basm\b|long long' "$texts"/*.metal |
    grep -vE ':[0-9]+: *//' | head -n 5 | grep .; then
    echo "error: a source for Metal has what that language has not"
    found=1
fi
if command -v ${TACIT_CLANG:-clang++} >/dev/null; then
    parsed=0
    for text in "$texts"/*.metal; do
        ((parsed++ % ${TACIT_METAL_EACH:-8} == 0)) || continue
        # The language is C++14 with extensions.
        ${TACIT_CLANG:-clang++} -x c++ -std=c++14 -c -o "$texts/parsed.o" -Werror -Wno-unknown-attributes -Wno-unknown-pragmas \
            -Wno-unused-command-line-argument -Wno-undefined-inline -Wno-undefined-internal -Wno-c++17-extensions -Wno-ignored-attributes \
            -include tests/scripts/gpu_sources/metal_stdlib.h "$text" || { echo "error: clang takes no $(basename "$text")"; found=1; break; }
    done
    ((found)) || echo "clang parses the sources for Metal"
else
    echo "-- the sources for Metal are not parsed: clang is not installed"
fi
exit "$found"
