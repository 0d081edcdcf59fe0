"""Writes affine.bin and microscaling.bin: what MLX stores for the numbers of inputs.py, on the CPU.

Made with mlx 0.32.2 (mlx[cpu], Linux x86-64) and numpy 2.4.6:  python mlx_golden.py
"""

from pathlib import Path

import mlx.core as mx
import numpy as np
from inputs import inputs

mx.set_default_device(mx.cpu)


def put(out, *arrays):
    for array in arrays:
        out.extend(np.array(array).tobytes())


def kinds(seed):
    """Rows of 128: as drawn, all negative, all positive and far from zero, constant, zero."""
    x = inputs(seed, 5 * 128).reshape(5, 128)
    x[1] = -np.abs(x[1]) - np.float32(0.5)
    x[2] = np.abs(x[2]) + np.float32(100)
    x[3] = np.float32(-0.75)
    x[4] = 0
    return mx.array(x)


out = bytearray()
for bits in [2, 3, 4, 5, 6, 8]:
    for group in [32, 64, 128]:
        put(out, *mx.quantize(kinds(bits * group), group_size=group, bits=bits))
Path(__file__).with_name("affine.bin").write_bytes(out)

out = bytearray()
for mode, bits, group in [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]:
    for scale in [1, 1e-3, 300]:
        x = mx.array(inputs(bits * group, 4 * 256).reshape(4, 256) * np.float32(scale))
        put(out, *mx.quantize(x, group_size=group, bits=bits, mode=mode))
        if mode == "nvfp4":
            most = mx.abs(x).max()
            codes, scales = mx.quantize(x, group_size=group, bits=bits, mode=mode, global_scale=most)
            values = mx.dequantize(
                codes, scales, group_size=group, bits=bits, mode=mode, global_scale=most, dtype=mx.float32
            )
            put(out, codes, scales, values)
Path(__file__).with_name("microscaling.bin").write_bytes(out)
