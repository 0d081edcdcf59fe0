#!/usr/bin/env bash
# Proves that a model which others published for mlx-rs runs with implicit weights: the qwen3 of mlx-lm 0.0.1, with its
# own cache, generates under Policy::Deny what it generates from the dense weights.
#
# The source is fetched and changed only where mlx-rs 0.33 takes other arguments than the 0.25 that it was written for,
# and where it reads a tokenizer, which no generation needs and which would build a hundred crates more.
#
# CARGO_TARGET_DIR names another folder for what is built.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target/downstream}
crate=mlx-lm version=0.0.1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# Cargo downloads a dependency without building it, and says where it lies.
mkdir -p "$scratch/fetch/src" "$scratch/new"
touch "$scratch/fetch/src/lib.rs"
printf '[package]\nname = "fetch"\n[dependencies]\n%s = "=%s"\n[workspace]\n' "$crate" "$version" >"$scratch/fetch/Cargo.toml"
source=$(cargo metadata --quiet --format-version=1 --manifest-path "$scratch/fetch/Cargo.toml" | python3 -c '
import json, os, sys

(package,) = [package for package in json.load(sys.stdin)["packages"] if package["name"] == sys.argv[1]]
print(os.path.dirname(package["manifest_path"]))' "$crate")
cp -r "$source/src" "$scratch/new/src"
# What a registry keeps may be read-only.
chmod -R u+w "$scratch/new"

# Each line that is changed must be there, as often as said.
change() {
    local count=$1 file=$scratch/new/src/$2 after
    sed -i.before -E "$3" "$file"
    after=$(diff "$file.before" "$file" | grep -c '^[<>]' || true)
    rm "$file.before"
    [[ $after == "$count" ]] || fail "$after lines of $2 are changed by $3, not $count"
}
change 4 utils/mod.rs 's/^( +)(q_(keys|values)\.biases,)$/\1\&\2/'
change 2 utils/mod.rs 's/^ +mask\.map\(ScaledDotProductAttentionMask::Array\),$/& None,/'
change 1 utils/mod.rs '/^pub mod tokenizer;$/d'
change 1 models/qwen3.rs '/^use tokenizers::Tokenizer;$/d'
change 4 models/qwen3.rs '/^pub fn load_qwen3_tokenizer\(/,/^}$/d'

mkdir "$scratch/new/tests"
cp "$repository"/tests/published/generation.rs "$scratch/new/tests/"
sed "s|\"\.\./\.\./*|\"$repository/|" "$repository/tests/published/Cargo.toml" >"$scratch/new/Cargo.toml"
cp "$repository/tests/published/Cargo.lock" "$scratch/new/"

# Only what differs is written, so that Cargo builds nothing that it has.
package=$CARGO_TARGET_DIR/published
mkdir -p "$package"
(cd "$scratch/new" && find . -type f) | while read -r file; do
    cmp -s "$scratch/new/$file" "$package/$file" && continue
    mkdir -p "$(dirname "$package/$file")"
    cp "$scratch/new/$file" "$package/$file"
done

cargo test --quiet --locked --manifest-path "$package/Cargo.toml" -- --nocapture
echo "ok: published_model"
