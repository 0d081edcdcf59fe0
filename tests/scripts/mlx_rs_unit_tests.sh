#!/usr/bin/env bash
# Proves that the stand-ins behave as the published mlx-sys and mach-sys do: mlx-rs's own unit tests pass on them.
#
# CARGO_TARGET_DIR names another folder for the copy of the crate and what is built from it.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=0.33.0
expected=624
work=${CARGO_TARGET_DIR:-$repository/target/mlx-rs-unit-tests}
mkdir -p "$work"
work=$(cd "$work" && pwd)
export CARGO_TARGET_DIR=$work/target
unset LD_LIBRARY_PATH

# Cargo says where the published sources are; the copy is refreshed only if there is none, to keep what was built.
manifest=$(cd "$repository" && cargo metadata --format-version=1 --quiet |
    python3 -c 'import json, sys
packages = json.load(sys.stdin)["packages"]
print(*(p["manifest_path"] for p in packages if (p["name"], p["version"]) == ("mlx-rs", sys.argv[1])))' "$version")
crate=$work/mlx-rs-$version
if [[ ! -d $crate ]]; then
    cp -R "$(dirname "$manifest")" "$crate.new"
    cat >>"$crate.new/Cargo.toml" <<TOML

[patch.crates-io]
mlx-sys = { path = "$repository/crates/mlx-sys" }
mach-sys = { path = "$repository/crates/mach-sys" }

[workspace]
TOML
    rm -f "$crate.new/Cargo.lock"
    mv "$crate.new" "$crate"
fi

cd "$crate"
cargo test --no-default-features --lib -- --test-threads=1 | tee "$work/output"
grep -q "^test result: ok. $expected passed; 0 failed;" "$work/output" || {
    echo "FAILED: not $expected passed and 0 failed"
    exit 1
}
