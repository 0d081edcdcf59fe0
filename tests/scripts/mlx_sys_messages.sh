#!/usr/bin/env bash
# Proves that a build of mlx-sys that cannot succeed ends with one clear message and the way out.
#
# The compiled build script runs by itself in each broken environment, with the variables that cargo would set.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"
if [[ $(uname -sm) != "Linux x86_64" ]]; then
    echo "skipped: the expected messages are those of Linux on x86-64"
    exit 0
fi

version=$(sed -n 's/.* MLX_VERSION: &str = "\(.*\)";/\1/p' crates/mlx-sys/build/locate.rs)

# Cargo names the executable of the build script; the library is already built when the tests run.
script=$(cargo check --quiet -p mlx-sys --message-format=json |
    sed -n '/"custom-build"/s|.*"filenames":\["\([^"]*/mlx-sys-[^"]*\)".*|\1|p' | head -n 1)
[[ -x $script ]] || { echo "the build script of mlx-sys was not found"; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/out" "$scratch/bin" "$scratch/bare" "$scratch/prefix" "$scratch/other/include/mlx" "$scratch/other/lib"
touch "$scratch/other/lib/libmlx.so"
printf '#define MLX_VERSION_%s\n' 'MAJOR 0' 'MINOR 31' 'PATCH 1' >"$scratch/other/include/mlx/version.h"
failures=0

# run NAME=VALUE...: runs the build script in a bare environment with these variables.
run() {
    # A variable given twice takes its last value.
    (cd crates/mlx-sys && env -i \
        PATH="$PATH" HOME="$HOME" CARGO="$(command -v cargo)" CARGO_MANIFEST_DIR="$PWD" OUT_DIR="$scratch/out" \
        ${CARGO_HOME:+CARGO_HOME="$CARGO_HOME"} ${RUSTUP_HOME:+RUSTUP_HOME="$RUSTUP_HOME"} \
        ${TACIT_CACHE_DIR:+TACIT_CACHE_DIR="$TACIT_CACHE_DIR"} ${XDG_CACHE_HOME:+XDG_CACHE_HOME="$XDG_CACHE_HOME"} \
        TARGET=x86_64-unknown-linux-gnu HOST=x86_64-unknown-linux-gnu OPT_LEVEL=0 PROFILE=debug DEBUG=false NUM_JOBS=1 \
        CARGO_CFG_TARGET_ARCH=x86_64 CARGO_CFG_TARGET_OS=linux CARGO_CFG_TARGET_ENV=gnu \
        CARGO_CFG_TARGET_VENDOR=unknown CARGO_CFG_TARGET_FEATURE=sse2 CARGO_CFG_TARGET_POINTER_WIDTH=64 "$@" "$script")
}

# expect CASE ERROR HELP NAME=VALUE...: the script must fail with a message whose two lines match.
expect() {
    local case=$1 error=$2 help=$3 status=0
    shift 3
    run "$@" >"$scratch/stdout" 2>"$scratch/stderr" || status=$?
    # The patterns are shell patterns on purpose.
    # shellcheck disable=SC2053
    if [[ $status == 1 && $(wc -l <"$scratch/stderr") == 2 && $(sed -n 1p "$scratch/stderr") == "error: "$error &&
        $(sed -n 2p "$scratch/stderr") == "help: "$help ]]; then
        echo "ok: $case"
    else
        echo "FAILED: $case (status $status)"
        sed 's/^/    /' "$scratch/stderr"
        failures=$((failures + 1))
    fi
}

expect "MLX_DIR does not exist" \
    "MLX_DIR names /nonexistent, which has no include/mlx/version.h" "set MLX_DIR to a prefix with*" \
    MLX_DIR=/nonexistent
expect "MLX_DIR is relative" \
    "MLX_DIR=some/prefix is a relative path" "set MLX_DIR to an absolute path*" \
    MLX_DIR=some/prefix
mkdir -p "$scratch/headers/include"
cp -r "$scratch/other/include/mlx" "$scratch/headers/include/mlx"
expect "MLX_DIR has no library" \
    "MLX_DIR names $scratch/headers, which has no lib/libmlx.so" "set MLX_DIR to a prefix with*" \
    MLX_DIR="$scratch/headers"
expect "MLX_DIR has an older version" \
    "MLX_DIR names MLX 0.31.1 at $scratch/other, but MLX $version or newer is needed" "*MLX_BYPASS_VERSION_CHECK=1*" \
    MLX_DIR="$scratch/other"
mkdir -p "$scratch/a:b"
cp -r "$scratch/other/." "$scratch/a:b"
expect "MLX_DIR has a colon in it" \
    "the path $scratch/a:b/include has a colon in it*" "move it, or name it by a link*" \
    MLX_DIR="$scratch/a:b" MLX_BYPASS_VERSION_CHECK=1
# A newer one is said to be untested, and goes on to the library, which is none here.
cp -r "$scratch/other" "$scratch/newer"
printf '#define MLX_VERSION_%s\n' 'MAJOR 7' 'MINOR 0' 'PATCH 1' >"$scratch/newer/include/mlx/version.h"
expect "MLX_DIR has a version that no test has seen" \
    "cannot prepare $scratch/newer/lib/libmlx.so for linking: *" "set MLX_DIR to a prefix*" \
    MLX_DIR="$scratch/newer"
grep -q "^cargo::warning=Tacit was never tested with MLX 7.0.1, only with $version" "$scratch/stdout" ||
    { echo "FAILED: nothing is said of a version that no test has seen"; failures=$((failures + 1)); }
expect "MLX_DIR has a library that is none" \
    "cannot prepare $scratch/other/lib/libmlx.so for linking: *" "set MLX_DIR to a prefix*" \
    MLX_DIR="$scratch/other" MLX_BYPASS_VERSION_CHECK=1
printf '#!/bin/sh\nexec "%s" -S "$@"\n' "$(command -v python3)" >"$scratch/bare/python3"
chmod +x "$scratch/bare/python3"
expect "python has no mlx" \
    "MLX_USE_PYTHON=1, but python3 has no mlx package*" "run \`python3 -m pip install mlx-cpu==$version\`*" \
    MLX_USE_PYTHON=1 PATH="$scratch/bare:$PATH"
grep -q '^cargo::rerun-if-env-changed=VIRTUAL_ENV$' "$scratch/stdout" ||
    { echo "FAILED: another python environment is not noticed"; failures=$((failures + 1)); }
expect "unknown backend" \
    "MLX_BACKEND=rocm is not available for the target x86_64-unknown-linux-gnu" "unset MLX_BACKEND*" \
    MLX_BACKEND=rocm
expect "unknown target" \
    "no ready-made MLX is known for the target riscv64gc-unknown-linux-gnu" "build MLX $version*MLX_DIR*" \
    TARGET=riscv64gc-unknown-linux-gnu CARGO_CFG_TARGET_ARCH=riscv64
expect "no place for the cache" \
    "there is no place for the cache*" "set TACIT_CACHE_DIR*" \
    HOME= TACIT_CACHE_DIR= XDG_CACHE_HOME=
expect "TACIT_CACHE_DIR is relative" \
    "TACIT_CACHE_DIR=some/cache is a relative path" "set TACIT_CACHE_DIR to an absolute path*" \
    TACIT_CACHE_DIR=some/cache
touch "$scratch/file"
expect "a cache that cannot be written" \
    "cannot create $scratch/file/cache/.unpacking-*: *" "make that path readable and writable, or set TACIT_CACHE_DIR*" \
    TACIT_CACHE_DIR="$scratch/file/cache"
hash=$(sed -n 's/.*mlx("mlx-cpu", "manylinux_2_35_x86_64", "\(.\{12\}\).*/\1/p' crates/mlx-sys/build/wheel.rs)
damaged=$scratch/damaged/mlx-cpu-$version-manylinux_2_35_x86_64-$hash
mkdir -p "$damaged/mlx/lib"
expect "a wheel in the cache that has lost a file" \
    "the wheel of MLX in $damaged has no include/mlx/version.h any more" "remove $damaged and build again*" \
    TACIT_CACHE_DIR="$scratch/damaged"
expect "no python3" \
    "python3 is not on PATH, and it is needed to download mlx-cpu $version*" "install Python*MLX_DIR*" \
    TACIT_CACHE_DIR="$scratch/empty" PATH="$scratch/bin"

# A python3 without pip, and one whose pip brings another file.
mkdir -p "$scratch/nopip"
printf '#!/bin/sh\necho "/usr/bin/python3: No module named pip" >&2\nexit 1\n' >"$scratch/nopip/python3"
chmod +x "$scratch/nopip/python3"
expect "no pip" \
    "python3 has no pip, and it is needed to download mlx-cpu $version*" "run \`python3 -m ensurepip\`*MLX_DIR*" \
    TACIT_CACHE_DIR="$scratch/empty" PATH="$scratch/nopip:$PATH"
expect "offline without a cache" \
    "pip cannot download mlx-cpu $version for manylinux_2_35_x86_64: *" "build once with a network*MLX_DIR*" \
    TACIT_CACHE_DIR="$scratch/empty" PIP_NO_INDEX=1
mkdir -p "$scratch/index"
python3 - "$scratch/index/mlx_cpu-$version-py3-none-manylinux_2_35_x86_64.whl" "$version" <<'PYTHON'
import sys, zipfile
version = sys.argv[2]
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    info = f"mlx_cpu-{version}.dist-info/"
    wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: mlx-cpu\nVersion: {version}\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_35_x86_64\n")
    wheel.writestr(info + "RECORD", "")
PYTHON
expect "another file under the pinned name" \
    "mlx-cpu $version for manylinux_2_35_x86_64 has sha256 *, but * is pinned" "check the package index*MLX_DIR*" \
    TACIT_CACHE_DIR="$scratch/empty" PIP_NO_INDEX=1 PIP_FIND_LINKS="$scratch/index"
[[ -z $(ls -A "$scratch/empty") ]] || { echo "FAILED: a failed download leaves something in the cache"; failures=$((failures + 1)); }

expect "no compiler" \
    "the C++ compiler \`/nonexistent\` does not work: *" "install one that knows C++20*CXX" \
    CXX=/nonexistent
expect "a compiler without C++20" \
    "the C++ compiler \`false\` does not work: *" "install one that knows C++20*CXX" \
    CXX=false
expect "no sources of mlx-c" \
    "the published mlx-sys 0.7.0*cannot be had: *" "build once with a network, or set MLX_C_DIR*" \
    CARGO_HOME="$scratch/cargo" CARGO_NET_OFFLINE=true
expect "MLX_C_DIR is not mlx-c" \
    "MLX_C_DIR=$scratch/prefix has no mlx/c/version.h" "set MLX_C_DIR*" \
    MLX_C_DIR="$scratch/prefix"
expect "MLX_C_DIR is relative" \
    "MLX_C_DIR=some/sources is a relative path" "set MLX_C_DIR to an absolute path*" \
    MLX_C_DIR=some/sources
mkdir -p "$scratch/headers/mlx/c"
touch "$scratch/headers/mlx/c/version.h"
echo 'int mlx_array_sum(long double* res);' >"$scratch/headers/mlx/c/array.h"
expect "MLX_C_DIR has a header of another kind" \
    "no Rust is known for \`int mlx_array_sum(long double\* res)\` in $scratch/headers/mlx/c/array.h" "unset MLX_C_DIR*" \
    MLX_C_DIR="$scratch/headers"

if ((failures > 0)); then
    echo "$failures cases failed"
    exit 1
fi
