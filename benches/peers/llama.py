"""What llama.cpp generates in a second, on the sizes of `cargo bench --bench generate`.

Writes a GGUF file of Qwen3-0.6B's sizes with weights of no meaning and decodes token ids with it, without a tokenizer.
Q4_0 blocks come from the gguf package, which quantizes normally drawn weights; it has no quantizer for Q4_K, whose blocks
are random bits behind small scales instead. The layers have equal bytes, each its own, so that as much memory is read as
in a trained model. With `--file` it decodes a real model's file, as `TACIT_GEMMA=FILE` has the bench do.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import sys
import tempfile
import time

import gguf
import llama_cpp
import numpy as np

LAYERS, WIDTH, INNER, WORDS = 28, 1024, 3072, 151_936
HEADS, KV_HEADS, HEAD = 16, 8, 128
CONTEXT = 1024

MATRICES = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
VECTORS = {"attn_norm": WIDTH, "ffn_norm": WIDTH, "attn_q_norm": HEAD, "attn_k_norm": HEAD}

TYPES = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "bf16": gguf.GGMLQuantizationType.BF16,
}


def matrix(random, rows, columns, kind):
    """The bytes of a drawn matrix, some rows at a time."""
    parts = []
    for first in range(0, rows, 8192):
        count = min(8192, rows - first)
        if kind == gguf.GGMLQuantizationType.Q4_K:
            blocks = random.integers(0, 256, (count, columns // 256, 144), dtype=np.uint8)
            # The scale of scales and that of minima, so that values are spread like those of the other types.
            scales = np.array([4e-5, 3e-4], dtype=np.float16).view(np.uint8)
            blocks[:, :, :4] = scales
            parts.append(blocks.reshape(count, -1))
        else:
            values = random.standard_normal((count, columns), dtype=np.float32) * np.float32(0.02)
            parts.append(gguf.quants.quantize(values, kind))
    return np.concatenate(parts)


def write(path, kind):
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_context_length(40_960)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor("token_embd.weight", matrix(random, WORDS, WIDTH, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    matrices = {name: matrix(random, *shape, kind) for name, shape in MATRICES.items()}
    for layer in range(LAYERS):
        for name, values in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", values, raw_dtype=kind)
        for name, length in VECTORS.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(length, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Decoder:
    """A model in a context, fed with token ids."""

    def __init__(self, path, threads):
        parameters = llama_cpp.llama_model_default_params()
        # Weights that are read into memory may be laid out anew for this machine.
        parameters.use_mmap = False
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp reads no model from {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = CONTEXT
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def feed(self, tokens):
        """Feeds the tokens and gives the one that follows."""
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(ids, len(tokens)))
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self.words,))))

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def prompt(self, length):
        self.clear()
        start = time.perf_counter()
        self.feed(range(1, length + 1))
        return length / (time.perf_counter() - start)

    def decode(self, count):
        self.clear()
        token = self.feed(range(1, 9))
        start = time.perf_counter()
        for _ in range(count):
            token = self.feed([token])
        return count / (time.perf_counter() - start)


def record(kind, case, rates, threads, size):
    line = {
        "peer": f"llama-cpp-python {llama_cpp.__version__}",
        "format": kind,
        "case": case,
        "value": round(statistics.median(rates), 2),
        "best": round(max(rates), 2),
        "unit": "tokens/s",
        "threads": threads,
        "model_bytes": size,
    }
    print(json.dumps(line), flush=True)


def serve(decoders):
    """Answers lines such as `decode/q4_k 20` and `prompt512/q4_k 1` with the seconds of a token and of a prompt."""
    for line in sys.stdin:
        case, count = line.split()
        kind, _, name = case.partition("/")
        if name not in decoders:
            print("-", flush=True)
        elif kind == "decode":
            print(1 / decoders[name].decode(int(count)), flush=True)
        elif kind.startswith("prompt"):
            length = int(kind.removeprefix("prompt"))
            print(length / statistics.median(decoders[name].prompt(length) for _ in range(int(count))), flush=True)
        else:
            print("-", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", help=f"{', '.join(TYPES)}; q4_0 and q4_k where no file is named either")
    parser.add_argument("--file", type=pathlib.Path, help="a GGUF file, which is the format `file`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode", type=int, default=64, help="tokens of a round, one after the other")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a round, all at once")
    parser.add_argument("--beside", action="store_true", help="read cases from standard input, as `--beside` of the bench asks")
    parser.add_argument("--folder", type=pathlib.Path, help="where the model files are kept and looked for")
    given = parser.parse_args()
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or pathlib.Path(temporary)
        decoders = {}
        if given.file:
            decoders["file"] = Decoder(given.file, given.threads), given.file.stat().st_size
        for kind in given.formats or ([] if given.file else ["q4_0", "q4_k"]):
            path = folder / f"qwen3-0.6b-{kind}.gguf"
            if not path.exists():
                write(path, TYPES[kind])
            decoders[kind] = Decoder(path, given.threads), path.stat().st_size
        if given.beside:
            return serve({kind: decoder for kind, (decoder, _) in decoders.items()})
        rates = {(kind, case): [] for kind in decoders for case in ("decode", "prompt")}
        for round in range(given.rounds + 1):
            for kind, (decoder, _) in decoders.items():
                measured = decoder.decode(given.decode), decoder.prompt(given.prompt)
                # The first round warms up.
                if round > 0:
                    for case, rate in zip(("decode", "prompt"), measured):
                        rates[kind, case].append(rate)
        for (kind, case), measured in rates.items():
            record(kind, case, measured, given.threads, decoders[kind][1])


if __name__ == "__main__":
    main()
