#!/usr/bin/env bash
# GGUF files that Tacit writes, read by gguf-py and run by llama.cpp: of golden files by way of a folder, of the folders of Hugging
# Face that they were made of, and, where TACIT_GEMMA names it, of Gemma 3 270M.
#
#   TACIT_LLAMA_CPP=venv/bin/python bash tests/scripts/written_gguf.sh
#
# The Python has llama-cpp-python 0.3.36 and gguf 0.19.0 (`pip install` compiles llama.cpp, for minutes). A minute once `tacit` is built.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${TACIT_LLAMA_CPP:-python3}
if ! "$python" -c 'import gguf, llama_cpp' 2>/dev/null; then
    echo "written_gguf: $python has no llama-cpp-python and gguf: name another one in TACIT_LLAMA_CPP"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
golden=tests/decoder/golden
check=tests/scripts/written_gguf.py
cargo build --quiet --locked --workspace --bins
tacit=${CARGO_TARGET_DIR:-target}/debug/tacit

# By way of a folder: NAME FILE.
again() {
    "$tacit" convert "$2" --as tacit -o "$scratch/$1" >/dev/null
    "$tacit" convert "$scratch/$1" --as gguf -o "$scratch/$1.gguf" >/dev/null
}
pairs=()
for name in llama mistral qwen2 qwen3 qwen3_moe qwen3_next gemma gemma2 gemma2_bf16 gemma3_text mixtral phi3 olmo2 granite smollm3; do
    again "$name" "$golden/gguf/$name.gguf"
    pairs+=("$golden/gguf/$name.gguf" "$scratch/$name.gguf")
    if [[ -d $golden/gguf/$name ]]; then
        "$tacit" convert "$golden/gguf/$name" --as gguf --format f32 -o "$scratch/$name-folder.gguf" >/dev/null
        pairs+=("$golden/gguf/$name.gguf" "$scratch/$name-folder.gguf")
    fi
done
for name in spm; do
    again "$name" "$golden/tokenizers/$name.gguf"
    pairs+=("$golden/tokenizers/$name.gguf" "$scratch/$name.gguf")
done
"$python" "$check" 1e-5 $golden/tokenizers/ids.json "${pairs[@]}"
if [[ -n ${TACIT_GEMMA:-} ]]; then
    again gemma-3-270m "$TACIT_GEMMA"
    "$python" "$check" 0 $golden/tokenizers/ids.json "$TACIT_GEMMA" "$scratch/gemma-3-270m.gguf"
fi
