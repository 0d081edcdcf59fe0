"""Makes mlx_golden.safetensors: what MLX's own `quantize` and `dequantize` give on a CPU.

    pip install 'mlx[cpu]==0.32.2'
    python mlx_golden.py

`x` is f32[4,128]: a normal row, a negative one, one half positive and half zero, and one half constant and half with an
outlier. For each format `FORMAT.packed`, `FORMAT.scales` and, for affine ones, `FORMAT.biases`; for some
`FORMAT.dequantized`, of the dtype of `x`. FORMAT is `affine.BITS.GROUP`, with `.f16` or `.bf16` where `x` was converted first, or `mxfp4`, `mxfp8` or `nvfp4`.
"""

import pathlib

import mlx.core as mx

mx.set_default_device(mx.cpu)
mx.random.seed(0)
x = mx.random.normal((4, 128))
halves = [mx.abs(x[2, :64]) + 0.25, mx.zeros(64), mx.full(64, -0.37), x[3, :64]]
x = mx.stack([x[0], -mx.abs(x[1]) - 0.25, mx.concatenate(halves[:2]), mx.concatenate(halves[2:])])
x[3, 80] = 1e4
tensors = {"x": x}


def add(name, x, dequantized, **format):
    parts = mx.quantize(x, **format)
    for part, array in zip(("packed", "scales", "biases"), parts):
        tensors[f"{name}.{part}"] = array
    if dequantized:
        tensors[f"{name}.dequantized"] = mx.dequantize(*parts, **format, dtype=x.dtype)


for bits in (2, 3, 4, 5, 6, 8):
    for group in (32, 64, 128):
        add(f"affine.{bits}.{group}", x, group == 64, bits=bits, group_size=group)
add("affine.4.64.f16", x.astype(mx.float16), True, bits=4, group_size=64)
add("affine.4.64.bf16", x.astype(mx.bfloat16), True, bits=4, group_size=64)
for mode in ("mxfp4", "mxfp8", "nvfp4"):
    add(mode, x, True, mode=mode)
mx.save_safetensors(str(pathlib.Path(__file__).with_suffix(".safetensors")), tensors)
