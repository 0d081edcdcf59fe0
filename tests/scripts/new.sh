#!/usr/bin/env bash
# Proves that what `tacit new` makes builds, runs and passes its test, with Tacit from a clone; and that Cargo finds all of
# Tacit's crates in a git repository that nobody cloned, the two stand-ins among them.
#
# `new.sh git` builds and runs the second as well, which takes minutes: nothing of it is what is built of a clone.
# CARGO_TARGET_DIR names another folder for what is built; the program must be there, as the tests build it.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target}
tacit=$target/debug/tacit
# Where tests/scripts/downstream.sh builds the same crates.
export CARGO_TARGET_DIR=$target/outside/target
unset LD_LIBRARY_PATH

scratch=$(mktemp -d)
trap 'rm -rf "$scratch" ${fetched:+"${fetched[@]}"}' EXIT
fail() { echo "FAILED: $*"; exit 1; }
[[ -x $tacit ]] || fail "there is no $tacit; cargo build -p tacit-cli makes it"

# Makes a project, of the versions that the other scripts have built: Cargo would take the newest.
made() {
    "$tacit" new "$@" >"$scratch/output"
    cp "$repository/tests/downstream/Cargo.lock" "$1"
    cd "$1"
}

# Runs the project in this folder, and its test.
runs() {
    cargo run --quiet >"$scratch/output"
    grep -q '^weight  *f32\[512,256\]  *nf4:64:double ' "$scratch/output" || fail "no report: $(cat "$scratch/output")"
    grep -q '2 ops, 2 handled, 0 materialized (0 B)$' "$scratch/output" || fail "no trace: $(cat "$scratch/output")"
    cargo test --quiet >"$scratch/output"
    grep -q '^test result: ok. 1 passed' "$scratch/output" || fail "no test: $(cat "$scratch/output")"
}

made "$scratch/hello" --path "$repository"
cargo fmt --check
runs

# All that is here, committed or not, as a repository elsewhere.
remote=$target/outside/remote
rm -rf "$remote"
mkdir -p "$remote"
(cd "$repository" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [[ ! -f $file ]] || printf '%s\0' "$file"
done | tar --null --files-from=- -cf -) | tar -xf - -C "$remote"
git init --quiet "$remote"
git -C "$remote" add --all
git -C "$remote" -c user.name=tacit -c user.email=tacit@localhost commit --quiet --message "All that is here"

made "$scratch/fetched" --git "file://$remote"
cargo metadata --format-version=1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" >"$scratch/metadata" 2>"$scratch/output" ||
    fail "cargo does not find Tacit in a git repository: $(cat "$scratch/output")"
# Such as that of a patch that is used by nobody.
! grep -q '^warning' "$scratch/output" || fail "$(cat "$scratch/output")"
read -r -a fetched < <(python3 - "$scratch/metadata" "git+file://$remote#" <<'PYTHON'
import json, sys
from pathlib import Path

packages = {package["name"]: package for package in json.load(open(sys.argv[1], encoding="utf-8"))["packages"]}
own = [name for name in packages if name.startswith("tacit") or name in ("mlx-sys", "mach-sys")]
elsewhere = [name for name in own if not (packages[name]["source"] or "").startswith(sys.argv[2])]
assert not elsewhere, elsewhere
assert {"tacit-mlx", "tacit-io", "tacit-kernels", "mlx-sys", "mach-sys"} <= set(own), own
# What Cargo keeps of this repository: its objects, and what is checked out.
checkouts = Path(packages["tacit-mlx"]["manifest_path"]).parent.parent
print(checkouts, checkouts.parent.parent / "db" / checkouts.name)
PYTHON
)
[[ ${#fetched[@]} == 2 ]] || fail "not all crates are those of the repository"

[[ ${1:-} != git ]] || runs
echo "ok: new"
