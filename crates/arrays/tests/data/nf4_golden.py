"""Makes nf4_golden.safetensors: NF4 codes and scales as bitsandbytes computes them on a CPU.

    pip install bitsandbytes==0.50.2 torch safetensors
    python nf4_golden.py

The file holds `NAME.x` (f32), and for each block size `NAME.BLOCK.packed` (u8) and `NAME.BLOCK.absmax` (f32), for some
of them `NAME.BLOCK.dequantized` (f32).
"""

import pathlib

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

generator = torch.Generator().manual_seed(0)
cases = [("whole", (1, 4096), block) for block in (32, 64, 128, 256, 512, 1024, 2048, 4096)]
cases += [("even_tail", (10, 10), 64), ("odd_tail", (7, 37), 64), ("straddling", (5, 48), 32), ("short", (3,), 4096)]
x = {}
tensors = {}
for name, shape, block in cases:
    if name not in x:
        x[name] = torch.randn(shape, generator=generator)
        tensors[f"{name}.x"] = x[name]
    packed, state = quantize_4bit(x[name], blocksize=block, quant_type="nf4")
    tensors[f"{name}.{block}.packed"] = packed.reshape(-1).contiguous()
    tensors[f"{name}.{block}.absmax"] = state.absmax.contiguous()
    if block == 64:
        tensors[f"{name}.{block}.dequantized"] = dequantize_4bit(packed, state).contiguous()
save_file(tensors, pathlib.Path(__file__).with_suffix(".safetensors"))
