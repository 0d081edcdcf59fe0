#!/usr/bin/env bash
# Runs the tests on other versions of MLX than the pinned one: those of the border to MLX, of the core and of the array types.
#
#   TACIT_VERSIONS=all tests/scripts/versions.sh            each version of the table in crates/mlx-sys/build/versions.rs
#   TACIT_VERSIONS="0.32.4 0.32.9" tests/scripts/versions.sh    these; one that the table does not have fails the test that says so
#   TACIT_VERSIONS=all TACIT_VERSIONS_ARGS="--workspace" ..     other arguments for `cargo test`
#
# Each version builds in a folder of its own below the target folder, where its wheel is as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
versions=${TACIT_VERSIONS:?"says which versions: all, or their numbers"}
mkdir -p "${CARGO_TARGET_DIR:=target}/versions"
folder=$(cd "$CARGO_TARGET_DIR/versions" && pwd)
unset CARGO_TARGET_DIR MLX_BYPASS_VERSION_CHECK MLX_USE_PYTHON
if [[ $(uname -s) != Linux ]]; then
    echo "skipped: it takes the wheels for a CPU on Linux"
    exit 0
fi

pinned=$(sed -n 's/.* MLX_VERSION: &str = "\(.*\)";/\1/p' crates/mlx-sys/build/locate.rs)
if [[ $versions == all ]]; then
    versions=$(sed -n '/^pub(crate) const TESTED/p' crates/mlx-sys/build/versions.rs | grep -oE '[0-9]+, [0-9]+, [0-9]+' |
        sed 's/, /./g')
    [[ -n $versions ]] || { echo "error: no table of versions was found"; exit 1; }
fi
# shellcheck disable=SC2206 # arguments are words
arguments=(${TACIT_VERSIONS_ARGS:--p mlx-sys -p tacit-bridge -p tacit-core -p tacit-arrays --lib --test it --test headers})

found=0
for version in $versions; do
    if [[ $version == "$pinned" ]]; then
        echo "-- MLX $version: the pinned one, which every other test is run with"
        continue
    fi
    begin=$SECONDS status=0
    unpacked=$folder/mlx-cpu-$version
    if [[ ! -d $unpacked ]]; then
        rm -rf "$folder/download"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder/download" \
            "mlx-cpu==$version"
        python3 -m zipfile -e "$folder/download"/*.whl "$folder/download/unpacked"
        mv "$folder/download/unpacked" "$unpacked"
    fi
    MLX_DIR=$unpacked/mlx cargo test --locked --no-fail-fast --target-dir "$folder/$version" "${arguments[@]}" \
        2>&1 | tee "$folder/$version.log" || status=$?
    passed=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$folder/$version.log")
    failed=$(grep -c '^test .* FAILED$' "$folder/$version.log" || true)
    echo "-- MLX $version: $passed passed, $failed failed, rc $status, $((SECONDS - begin)) s"
    ((status == 0 && passed > 0)) || found=1
done
exit "$found"
