"""Reads pairs of GGUF files by llama.cpp: they are to give the same logits, and texts the same tokens.

    python written_gguf.py BOUND TEXTS.json A.gguf B.gguf [A.gguf B.gguf ..]
    python written_gguf.py --tokens TOKENS.json FILE.gguf LEAST

The second compares the likeliest tokens behind each of some with those in a file, {"tokens": [..], "argmax": [..]}: so many at least
are the same.
"""

import json
import sys

import gguf
import llama_cpp
import numpy as np

PROMPT = [1, 7, 3, 40, 22, 9, 9, 13, 30, 5, 17, 2, 44, 31, 8, 19, 27, 6, 11, 35, 4]


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


llama_cpp.llama_log_set(quiet, None)


def logits(file, prompt):
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp does not load {file}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, len(prompt))
    # No flash attention, whose sums are of halves, and keys and values in F32.
    params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(len(prompt), 0, 1)
    batch.n_tokens = len(prompt)
    for at, token in enumerate(prompt):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = token, at, 1, 0, True
    assert llama_cpp.llama_decode(context, batch) == 0, file
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = np.stack([np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (words,)).copy() for at in range(len(prompt))])
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return rows


def tokens(file, texts):
    fields = gguf.GGUFReader(file).fields
    if fields["tokenizer.ggml.model"].contents() == "none":
        return None
    model = llama_cpp.Llama(file, vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


def main(first, *rest):
    if first == "--tokens":
        known = json.load(open(rest[0]))
        found = logits(rest[1], known["tokens"]).argmax(-1).tolist()
        same = sum(a == b for a, b in zip(found, known["argmax"]))
        print(f"{rest[1]}: {same} of {len(found)} likeliest tokens are those of Tacit")
        assert same >= int(rest[2])
        return
    texts = json.load(open(rest[0]))["texts"]
    for a, b in zip(rest[1::2], rest[2::2]):
        ours, theirs = gguf.GGUFReader(b), gguf.GGUFReader(a)
        assert {tensor.name for tensor in ours.tensors} == {tensor.name for tensor in theirs.tensors}, b
        own, other = logits(b, PROMPT), logits(a, PROMPT)
        far = np.abs(own - other).max() / np.abs(other).max()
        same = (own.argmax(-1) == other.argmax(-1)).sum()
        words = tokens(b, texts)
        print(f"{b}: logits within {far:.1e}, {same} of {len(PROMPT)} likeliest tokens, texts {'-' if words is None else len(words)}")
        assert far <= float(first) and same == len(PROMPT), b
        assert words == tokens(a, texts), f"{b}: other tokens"


main(*sys.argv[1:])
