"""Makes the files in gptq/ and awq/ by the definitions of the formats, with numpy.

    pip install numpy safetensors
    python make_gptq_awq.py

The packages that write them, AutoGPTQ or GPTQModel and AutoAWQ, need a GPU. Codes, scales and zeros here are random; the
packing is that of `QuantLinear.pack` of AutoGPTQ and of `WQLinear_GEMM` of AutoAWQ, and the expected weights are those of
their `dequantize`: `scale * (code - zero)` in half precision, rounded once.
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent
generator = np.random.default_rng(0)


def stream(codes, bits, axis):
    """Codes along an axis as one stream of bits in 32-bit words, the lowest first."""
    codes = np.moveaxis(codes, axis, -1)
    ones = codes[..., None] >> np.arange(bits) & 1
    ones = ones.reshape(*codes.shape[:-1], -1, 32).astype(np.uint64)
    words = (ones << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def dense(codes, scales, zeros, group):
    # Both fit f32, whose product is exact.
    each = lambda numbers: np.repeat(numbers.astype(np.float32), group, 0)
    return np.ascontiguousarray((each(scales) * (codes - each(zeros))).astype(np.float16).T)


def made(inputs, outputs, bits, group):
    codes = generator.integers(0, 1 << bits, (inputs, outputs))
    scales = (generator.random((inputs // group, outputs)) * 0.01 + 0.001).astype(np.float16)
    return codes, scales, generator.integers(1, 1 << bits, (inputs // group, outputs))


def gptq(folder, bits, group, inputs=64, form="gptq", symmetric=False, reordered=False):
    codes, scales, zeros = made(inputs, 32, bits, group)
    if symmetric:
        zeros[:] = 1 << bits - 1
    stored = zeros - (form == "gptq")
    rows = np.arange(inputs, dtype=np.int32) // group
    tensors = {
        "layers.0.proj.qweight": stream(codes, bits, 0),
        "layers.0.proj.qzeros": stream(stored, bits, 1),
        "layers.0.proj.scales": scales,
        "layers.0.proj.g_idx": generator.permutation(rows) if reordered else rows,
        "layers.0.proj.bias": generator.normal(size=32).astype(np.float16),
        "norm.weight": generator.normal(size=inputs).astype(np.float16),
    }
    folder = here / "gptq" / folder
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"quant_method": "gptq", "bits": bits, "group_size": -1 if group == inputs else group, "desc_act": reordered,
              "sym": symmetric, "checkpoint_format": form}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=2) + "\n")
    save_file({"layers.0.proj.weight": dense(codes, scales, zeros, group)}, folder / "expected.safetensors")


def awq(folder, group):
    codes, scales, zeros = made(64, 32, 4, group)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    packed = lambda codes: stream(codes.reshape(len(codes), -1, 8)[:, :, order].reshape(codes.shape), 4, 1)
    tensors = {
        "layers.0.proj.qweight": packed(codes),
        "layers.0.proj.qzeros": packed(zeros),
        "layers.0.proj.scales": scales,
        "norm.weight": generator.normal(size=64).astype(np.float16),
    }
    folder = here / "awq" / folder
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=2) + "\n")
    save_file({"layers.0.proj.weight": dense(codes, scales, zeros, group)}, folder / "expected.safetensors")


gptq("bits4", 4, 32)
gptq("bits4_symmetric", 4, 64, symmetric=True)
gptq("bits3", 3, 32)
gptq("bits2", 2, 32, form="gptq_v2")
gptq("bits8", 8, 32)
gptq("whole_columns", 4, 128, inputs=128)
gptq("reordered", 4, 32, reordered=True)
awq("group32", 32)
awq("group64", 64)
