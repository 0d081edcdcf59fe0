"""Makes bitsandbytes_golden.safetensors and bitsandbytes_nested_golden.safetensors: what bitsandbytes computes on a CPU.

    pip install bitsandbytes==0.50.2 torch safetensors
    python bitsandbytes_golden.py

The first file: `NAME.x` (f32), and for each FORMAT `nf4.BLOCK` and `fp4.BLOCK` the tensors `NAME.FORMAT.packed` (u8),
`.absmax` (f32) and `.dequantized` (f32). `dynamic.x` with `.codes`, `.absmax` and `.dequantized` is the blockwise 8-bit
format, and `int8.x` with `.codes` and `.absmax` the row-wise one of LLM.int8().

The second: one f16 array `x` in blocks of 32 with compressed statistics, for FORMAT `nf4` and `fp4`: `FORMAT.packed`,
`.absmax` (u8), `.nested_absmax`, `.nested_quant_map`, `.offset`, and the first and last elements dequantized to f16,
`.head` and `.tail`.
"""

import pathlib

import torch
from bitsandbytes.functional import (
    dequantize_4bit,
    dequantize_blockwise,
    int8_vectorwise_quant,
    quantize_4bit,
    quantize_blockwise,
)
from safetensors.torch import save_file

here = pathlib.Path(__file__)
generator = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=generator)


tensors = {}
for name, shape, blocks in [
    ("whole", (4, 128), (32, 64, 256)),
    ("even_tail", (10, 10), (64,)),
    ("odd_tail", (7, 37), (64,)),
    ("straddling", (5, 48), (32,)),
    ("short", (3,), (4096,)),
]:
    x = tensors[f"{name}.x"] = normal(*shape)
    for kind in ("nf4", "fp4"):
        for block in blocks:
            # Flat: decoding a matrix, bitsandbytes 0.50.2 takes a wrong scale where blocks do not end with the rows.
            packed, state = quantize_4bit(x.flatten(), blocksize=block, quant_type=kind)
            case = f"{name}.{kind}.{block}"
            tensors[f"{case}.packed"] = packed.reshape(-1)
            tensors[f"{case}.absmax"] = state.absmax
            tensors[f"{case}.dequantized"] = dequantize_4bit(packed, state).reshape(shape)

x = tensors["dynamic.x"] = normal(600)
codes, state = quantize_blockwise(x, blocksize=256)
tensors |= {"dynamic.codes": codes, "dynamic.absmax": state.absmax, "dynamic.dequantized": dequantize_blockwise(codes, state)}

x = tensors["int8.x"] = normal(6, 48)
# The CPU rule of LLM.int8() is defined on half floats.
codes, absmax, _ = int8_vectorwise_quant(x.half())
tensors |= {"int8.codes": codes, "int8.absmax": absmax}
save_file({key: value.contiguous() for key, value in tensors.items()}, here.with_suffix(".safetensors"))

x = normal(259 * 32 + 11).half()
tensors = {"x": x}
for kind in ("nf4", "fp4"):
    packed, state = quantize_4bit(x, blocksize=32, quant_type=kind, compress_statistics=True)
    dequantized = dequantize_4bit(packed, state)
    tensors |= {
        f"{kind}.packed": packed.reshape(-1),
        f"{kind}.absmax": state.absmax,
        f"{kind}.nested_absmax": state.state2.absmax,
        f"{kind}.nested_quant_map": state.state2.code,
        f"{kind}.offset": state.offset.reshape(()),
        f"{kind}.head": dequantized.flatten()[:64],
        f"{kind}.tail": dequantized.flatten()[-75:],
    }
save_file({key: value.contiguous() for key, value in tensors.items()}, here.with_name("bitsandbytes_nested_golden.safetensors"))
