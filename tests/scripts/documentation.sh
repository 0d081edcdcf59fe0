#!/usr/bin/env bash
# Proves that documentation is made as on docs.rs: with a linker, and without MLX, a C++ compiler or Python.
#
# The crate is the one that compiles C++, on the one that links it; what stands above knows of neither. CARGO_TARGET_DIR names
# another folder for what is built.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target}/documentation

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"
for program in cargo rustc rustdoc cc ld; do
    ln -s "$(command -v "$program")" "$scratch/bin/$program"
done

cd "$repository"
PATH=$scratch/bin CXX=/nonexistent TACIT_CACHE_DIR=$scratch/cache DOCS_RS=1 RUSTDOCFLAGS="--cfg docsrs -D warnings" \
    CARGO_PROFILE_DEV_DEBUG=none cargo doc --quiet --locked --no-deps -p tacit-bridge
[[ -f $CARGO_TARGET_DIR/doc/tacit_bridge/index.html ]] || { echo "FAILED: there is no documentation"; exit 1; }
[[ ! -e $scratch/cache ]] || { echo "FAILED: MLX was fetched"; exit 1; }
echo "ok: documentation"
