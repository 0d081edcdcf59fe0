#!/usr/bin/env bash
# Tries the readers of files with what libFuzzer makes of right files, with AddressSanitizer in Rust and in our C++; then runs the
# tests of the readers, kernels, bridge and plans with it, and those of kernels and bridge with ThreadSanitizer, which also watches the
# kernels' sources for GPUs on the CPU that plays one. MLX itself is as the package index ships it: of what it does only malloc,
# free, locks and copies of memory are checked.
#
#   TACIT_SANITIZE=20000 tests/scripts/sanitizers.sh            so many inputs for each reader, kept ones among them
#   TACIT_SANITIZE=20000 tests/scripts/sanitizers.sh gguf peft  these readers, and nothing else
#
# Inputs that reach new code are kept in `sanitizers/kept` of the target folder, and the next run begins with them; an input
# that fails is in `sanitizers/failed`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
inputs=${TACIT_SANITIZE:?"says how many inputs each reader is tried with"}
mkdir -p "${CARGO_TARGET_DIR:=target}/sanitizers"/{kept,failed}
folder=$(cd "$CARGO_TARGET_DIR/sanitizers" && pwd)
unset CARGO_TARGET_DIR
[[ -d $(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust ]] ||
    rustup toolchain install nightly --profile minimal -c rust-src
host=$(rustc +nightly -vV | sed -n 's/^host: //p')

# Runs cargo so that one sanitizer watches. With a target, so that build scripts and macros are built as ever.
sanitized() {
    local sanitizer=$1 flags=$2 command=$3
    shift 3
    RUSTFLAGS="-Zsanitizer=$sanitizer $flags" CXXFLAGS="-fsanitize=$sanitizer -fno-omit-frame-pointer" cargo +nightly "$command" \
        --locked --target "$host" --target-dir "$folder/$sanitizer" --config profile.dev.opt-level=1 "$@"
}

address() {
    # As `cargo fuzz` instruments code. The tests have it too, so that nothing is built twice.
    sanitized address "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares" "$@"
}

# What MLX keeps until the end is no leak.
export ASAN_OPTIONS=detect_leaks=0
# One choice of packages, and so of features, for all of it.
watched=(-p tacit-io -p tacit-bridge -p tacit-kernels -p tacit-fusion)
binary=$(address build "${watched[@]}" --test fuzz --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)

# Each case writes files, which a disk is slow to make.
TMPDIR=$(mktemp -d "$([[ -d /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/tacit-fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
# shellcheck disable=SC2207 # names of readers have no spaces
readers=("$@")
(($# > 0)) || readers=($("$binary"))
((${#readers[@]} > 0)) || { echo "error: $binary names no readers"; exit 1; }
found=0
for reader in "${readers[@]}"; do
    begin=$SECONDS status=0 log=$folder/$reader.log
    mkdir -p "$folder/kept/$reader"
    TACIT_FUZZ_READER=$reader "$binary" "$folder/kept/$reader" -runs="$inputs" -max_len=262144 -len_control=0 -timeout=10 \
        -rss_limit_mb=3072 -malloc_limit_mb=2048 -artifact_prefix="$folder/failed/$reader-" >"$log" 2>&1 || status=$?
    echo "-- $reader: $inputs inputs, $(grep -c '	NEW ' "$log") reach new code, rc $status, $((SECONDS - begin)) s"
    ((status == 0)) && continue
    found=1
    echo "error: TACIT_FUZZ_READER=$reader $binary INPUT fails; $log says:"
    grep -E -A 2 'panicked at|ERROR: |Test unit written' "$log" | head -n 12 || true
done

if (($# == 0)); then
    # The address of a local variable, by which the depth of graphs is limited, is not on the stack with AddressSanitizer.
    deep=(--skip a_chain_that_is_too_long --skip a_long_chain_of_gathers --skip groups_are_formed_in_time)
    address test "${watched[@]}" --lib --test it --no-fail-fast -- "${deep[@]}" || found=1
    export TSAN_OPTIONS=suppressions=$PWD/tests/scripts/thread.supp
    for package in tacit-kernels tacit-bridge; do
        # Programs that are started without a PATH find nothing that names functions for the suppressions.
        sanitized thread "" test -Zbuild-std -p "$package" --lib --test it --no-fail-fast \
            --config profile.dev.package.tacit-kernels.opt-level=1 \
            --config profile.dev.package.tacit-kernels.codegen-units=16 -- --skip no_compiler || found=1
    done
    # Only what a test compiles is watched there. Some tests of the player itself have races.
    TACIT_GPU_RACES=on cargo test --locked --target-dir "${folder%/*}" -p tacit-arrays --lib --no-fail-fast -- \
        kernel::gpu --skip kernel::gpu::tests::emulator || found=1
fi
exit "$found"
