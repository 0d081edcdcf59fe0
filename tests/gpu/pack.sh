#!/usr/bin/env bash
# Builds what a GPU machine without a network runs, and packs it: tests/gpu/pack.sh FOLDER [PART_MIB]
#
# FOLDER gets `part.00`, `part.01`, .. of at most PART_MIB (60) each, for machines that take no larger file. There,
# `bash tests/gpu/run.sh FOLDER RESULTS` in a checkout of the same commit joins them and runs. Needs what a build of Tacit needs;
# the machine there needs a GPU, its driver, and Python with CUDA 13's packages (those that the wheel mlx-cuda-13 asks for).
#
# TACIT_GPU_SMALL=1 packs the program `tacit` alone, built for the CPU, by which CI tries the packing and the unpacking.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=$(mkdir -p "$1" && cd "$1" && pwd)
part=${2:-60}
# Of the kernels alone, which are built and computed for the CPU.
cases=()
if [[ -z ${TACIT_GPU_SMALL:-} ]]; then
    bash tests/gpu/cases.sh "$folder"
    cases=("$folder/cases.tar.xz")
fi
export CARGO_TERM_COLOR=never
if [[ -z ${TACIT_GPU_SMALL:-} ]]; then
    export MLX_BACKEND=cuda13 CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/gpu
fi

built=$folder/built.jsonl
: >"$built"
build() {
    cargo "$@" --locked --message-format=json-render-diagnostics >>"$built"
}
build build -p tacit-cli
if [[ -z ${TACIT_GPU_SMALL:-} ]]; then
    build test --no-run -p tacit-bridge -p tacit-core -p tacit-arrays -p tacit-nn -p tacit-executable
    build build -p tacit-mlx --example qat_digits --example lora --example decode_loop --example own_kernel
    # Optimized, everything would be built once more. `gpu` times evals alone, in which no Rust runs; steps of `qat` are compared
    # with each other, and Rust's part of each is a call of a compiled function.
    build bench --no-run --profile dev --bench gpu --bench qat
fi

rm -f "$folder"/part.*
python3 tests/gpu/pack.py "$built" "$folder/all.tar.xz" "${cases[@]}"
split --bytes="${part}M" --numeric-suffixes "$folder/all.tar.xz" "$folder/part."
rm -f "$folder/all.tar.xz" "$built" "$folder/cases.tar.xz"
ls -l "$folder"
