"""Weights that mlx-lm's methods of calibration give a decoder: the peers of `tacit quantize --calibrate`.

    python calibrated.py MODEL TEXT METHOD BITS OUT [WINDOWS [RATE [EPOCHS]]]

MODEL is a folder of floats as Hugging Face has them, METHOD one of round, awq, gptq and dwq, and WINDOWS how many windows of 512
tokens of TEXT are read, 32 if it is not said: the first ones, as ours are. dwq reads them EPOCHS times with a step of Adam each, of
the length RATE, and begins with rounded codes. The projections of the blocks take affine codes of BITS in
groups of 64. What is written is MODEL with the floats that these stand for, so that one judge, `tacit perplexity`, reads all;
embedding and head are left alone. MLX multiplies codes slowly on a CPU: here they are multiplied as the floats that they stand
for. mlx-lm's GPTQ knows 2, 4 and 8 bits, and its AWQ the models of a list.

Pinned: mlx-lm==0.32.2 mlx[cpu]==0.32.4. The wheel's own BLAS is slow: with Debian's libopenblas0-pthread,
LD_PRELOAD=libopenblas.so.0 OPENBLAS_CORETYPE=SkylakeX makes it ten times faster.
"""

import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
import mlx.optimizers as optimizers
from mlx_lm.quant import awq, dwq, gptq
from mlx_lm.utils import load

GROUP = 64
WINDOW = 512

source, text, method, bits, out = sys.argv[1:6]
bits, windows = int(bits), int(sys.argv[6]) if len(sys.argv) > 6 else 32


def product(self, x):
    w = mx.dequantize(self["weight"], self["scales"], self["biases"], self.group_size, self.bits)
    y = x @ w.T
    return y + self["bias"] if "bias" in self else y


nn.QuantizedLinear.__call__ = product
model, tokenizer, config = load(source, return_config=True)
tokens = tokenizer.encode(open(text).read(), return_tensors="mlx")
tokens = tokens[0] if tokens.ndim == 2 else tokens
embedding = model.model.embed_tokens
rows = tokens[: tokens.size // WINDOW * WINDOW].reshape(-1, WINDOW)[:windows]

if method == "gptq":
    model, _ = gptq.gptq_quantize(model, rows, bits, GROUP, 8, GROUP)
elif method == "awq":
    awq.awq_quantize(model, rows, awq.AWQ_MODEL_CONFIGS[config["model_type"]], GROUP, bits)
    model.model.embed_tokens = embedding
elif method == "dwq":
    rate = float(sys.argv[7]) if len(sys.argv) > 7 else 1e-6
    epochs = int(sys.argv[8]) if len(sys.argv) > 8 else 1
    data = [(row, 0) for row in rows.tolist()]
    with tempfile.TemporaryDirectory() as targets:
        targets = Path(targets)
        dwq.compute_dwq_targets(model, targets, data, data[:1], 1, WINDOW, 0)

        def target(batch, index, split):
            read = mx.load(str(targets / split / f"{index:010d}.safetensors"))
            return read["logits"], read["indices"]

        nn.quantize(model, GROUP, bits, class_predicate=lambda path, m: isinstance(m, nn.Linear))
        model.freeze()
        adam = optimizers.Adam(rate, bias_correction=True)
        for _ in range(epochs):
            dwq.dwq_quantize(model, target, adam, data, data[:1], 1, WINDOW, 0, dtype=mx.float32)
elif method == "round":
    nn.quantize(model, GROUP, bits, class_predicate=lambda path, m: isinstance(m, nn.Linear))
else:
    sys.exit(f"no method is named {method}")

Path(out).mkdir(exist_ok=True)
made = {}
for path, layer in tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module):
    if isinstance(layer, nn.QuantizedEmbedding):
        layer = embedding
    if isinstance(layer, nn.QuantizedLinear):
        made[f"{path}.weight"] = mx.dequantize(layer.weight, layer.scales, layer.biases, layer.group_size, layer.bits)
    else:
        for name, value in tree_flatten(layer.parameters()):
            made[f"{path}.{name}"] = value
mx.save_safetensors(f"{out}/model.safetensors", made)
for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]:
    target = Path(out) / name
    target.unlink(missing_ok=True)
    target.symlink_to(Path(source).resolve() / name)
print(method, bits, "written", len(made))
