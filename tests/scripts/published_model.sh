#!/usr/bin/env bash
# Proves that models which others published for mlx-rs run with implicit weights, under Policy::Deny:
#
# - the qwen3 of mlx-lm 0.0.1, with its own cache, generates what it generates from the dense weights;
# - so do the decoders for Llama, Mistral and Qwen2 of mlx-models 0.1.3, with their own cache and with one of 8 bits;
# - its qwen3_next, whose weights are codes of MLX's own, is adapted and trained, and its own caches hold keys and values of 8 bits.
#
# The sources are fetched and changed only where mlx-rs 0.33 takes other arguments than the 0.25 that they were written for,
# and where they read a tokenizer, which no generation needs and which would build a hundred crates more.
#
# CARGO_TARGET_DIR names another folder for what is built.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target/downstream}
crates=(mlx-lm=0.0.1 mlx-models=0.1.3)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

# Cargo downloads a dependency without building it, and says where it lies. mlx-models is of a later mlx-rs than mlx-lm: each is asked
# for alone.
mkdir -p "$scratch/fetch/src" "$scratch/new"
touch "$scratch/fetch/src/lib.rs"
for crate in "${crates[@]}"; do
    name=${crate%=*} version=${crate#*=}
    printf '[package]\nname = "fetch"\n[dependencies]\n%s = "=%s"\n[workspace]\n' "$name" "$version" >"$scratch/fetch/Cargo.toml"
    rm -f "$scratch/fetch/Cargo.lock"
    source=$(cargo metadata --quiet --format-version=1 --manifest-path "$scratch/fetch/Cargo.toml" | python3 -c '
import json, os, sys

(package,) = [package for package in json.load(sys.stdin)["packages"] if package["name"] == sys.argv[1]]
print(os.path.dirname(package["manifest_path"]))' "$name")
    mkdir -p "$scratch/new/${name/-/_}"
    cp -r "$source/src" "$scratch/new/${name/-/_}/src"
done
# What a registry keeps may be read-only.
chmod -R u+w "$scratch/new"

# Each line that is changed must be there, as often as said.
change() {
    local count=$1 file=$scratch/new/$2 after
    sed -i.before -E "$3" "$file"
    after=$(diff "$file.before" "$file" | grep -c '^[<>]' || true)
    rm "$file.before"
    [[ $after == "$count" ]] || fail "$after lines of $2 are changed by $3, not $count"
}
change 4 mlx_lm/src/utils/mod.rs 's/^( +)(q_(keys|values)\.biases,)$/\1\&\2/'
change 2 mlx_lm/src/utils/mod.rs 's/^ +mask\.map\(ScaledDotProductAttentionMask::Array\),$/& None,/'
change 1 mlx_lm/src/utils/mod.rs '/^pub mod tokenizer;$/d'
change 1 mlx_lm/src/models/qwen3.rs '/^use tokenizers::Tokenizer;$/d'
change 4 mlx_lm/src/models/qwen3.rs '/^pub fn load_qwen3_tokenizer\(/,/^}$/d'
change 2 mlx_models/src/utils.rs 's/^ +mask\.map\(ScaledDotProductAttentionMask::Array\),$/& None,/'
change 4 mlx_models/src/qwen3_next.rs 's/rms_norm\((&conv_[qk]), (&Array::ones::<f32>\(&\[self\.head_k_dim\]\)\?),/rms_norm(\1, Some(\2),/'
change 5 mlx_models/src/lib.rs '/^pub fn load_tokenizer\(/,/^}$/d'

cp "$repository"/tests/published/{Cargo.lock,shared.rs} "$scratch/new/"
sed "s|\"\.\./\.\./*|\"$repository/|" "$repository/tests/published/Cargo.toml" >"$scratch/new/Cargo.toml"
for member in mlx_lm mlx_models; do
    cp -r "$repository/tests/published/$member/"{Cargo.toml,tests} "$scratch/new/$member/"
done

# Only what differs is written, so that Cargo builds nothing that it has.
package=$CARGO_TARGET_DIR/published
mkdir -p "$package"
(cd "$scratch/new" && find . -type f) | while read -r file; do
    cmp -s "$scratch/new/$file" "$package/$file" && continue
    mkdir -p "$(dirname "$package/$file")"
    cp "$scratch/new/$file" "$package/$file"
done

cargo test --quiet --locked --workspace --manifest-path "$package/Cargo.toml" -- --nocapture
echo "ok: published_model"
