#!/usr/bin/env bash
# Proves that a crate outside the workspace, which only patches the two stand-ins in, builds, runs and tests, with no
# LD_LIBRARY_PATH and started by hand as well; that MLX's kernels go to a private folder; and that a program refuses
# another version of MLX.
#
# CARGO_TARGET_DIR names another folder for what is built.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target/downstream}
unset LD_LIBRARY_PATH
cd "$repository/tests/downstream"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

expected="gram matrix [5.0, 11.0, 11.0, 25.0], fused [-2.0, 0.0, 6.0]"
[[ $(cargo run --quiet --locked) == "$expected" ]] || fail "cargo run"
cargo test --quiet --locked

binary=$CARGO_TARGET_DIR/debug/downstream
output=$(cd / && env -i PATH="$PATH" HOME="$HOME" "$binary") || fail "the program does not start by itself"
[[ $output == "$expected" ]] || fail "the program by itself prints $output"

[[ $(uname) == Linux ]] || exit 0

# The kernel of `compile` must not touch the temporary folder, and must be there for the next process.
mkdir "$scratch/tmp"
for _ in first second; do
    TMPDIR="$scratch/tmp" TACIT_MLX_TMPDIR="$scratch/jit" "$binary" >"$scratch/output" || fail "a private kernel folder"
    [[ -z $(ls -A "$scratch/tmp") ]] || fail "MLX wrote into TMPDIR"
    [[ $(stat -c %a "$scratch/jit") == 700 ]] || fail "the kernel folder is open to others"
    [[ $(ls -A "$scratch/jit") == "$(uname -m)" ]] || fail "a process left its folder behind"
    [[ $(find "$scratch/jit" -name '*.so' | wc -l) == 1 ]] || fail "the kernel was not kept"
    [[ -d $scratch/jit/$(uname -m)/$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)/mlx ]] || fail "the kernel is not kept by C library"
done
TMPDIR="$scratch/tmp" TACIT_MLX_TMPDIR=keep "$binary" >"$scratch/output"
[[ -d $scratch/tmp/mlx ]] || fail "TACIT_MLX_TMPDIR=keep has no effect"

# The compiler takes the header that the build has precompiled.
mkdir "$scratch/bin"
printf '#!/bin/sh\nexec "%s" -H "$@" 2>>"%s"\n' "$(command -v g++)" "$scratch/headers" >"$scratch/bin/g++"
chmod +x "$scratch/bin/g++"
PATH="$scratch/bin:$PATH" TACIT_MLX_TMPDIR="$scratch/fresh" "$binary" >"$scratch/output" || fail "a traced compiler"
grep -q '^! .*/compiled_preamble.h.gch$' "$scratch/headers" || fail "the precompiled header is not taken"

# Many processes at once, none of which has the kernel yet.
for index in 1 2 3 4; do
    TACIT_MLX_TMPDIR="$scratch/race" "$binary" >"$scratch/race-$index" &
done
wait
for index in 1 2 3 4; do
    [[ $(cat "$scratch/race-$index") == "$expected" ]] || fail "processes that compile the same kernel at once"
done

# A library that says it is another version.
cat >"$scratch/other.cpp" <<'CPP'
namespace mlx::core { const char* version() { return "0.31.1"; } }
CPP
"${CXX:-c++}" -shared -fPIC -o "$scratch/other.so" "$scratch/other.cpp"
status=0
LD_PRELOAD="$scratch/other.so" "$binary" >"$scratch/output" 2>"$scratch/message" || status=$?
[[ $status == 1 ]] || fail "another version of MLX ends with status $status"
version=$(sed -n 's/.* MLX_VERSION: &str = "\(.*\)";/\1/p' "$repository/crates/mlx-sys/build/locate.rs")
grep -q "^error: this program was built for MLX $version, but the loaded libmlx is 0.31.1$" "$scratch/message" ||
    fail "another version of MLX: $(cat "$scratch/message")"
LD_PRELOAD="$scratch/other.so" MLX_BYPASS_VERSION_CHECK=1 "$binary" >"$scratch/output" || fail "the bypass of the version check"
echo "ok: downstream"
