"""Writes bitsandbytes.bin: what bitsandbytes stores for the numbers of inputs.py, on the CPU.

Made with bitsandbytes 0.50.2, torch 2.15.0 and numpy 2.4.6:  python bitsandbytes_golden.py
"""

from pathlib import Path

import torch
from bitsandbytes import functional as bnb
from inputs import inputs

out = bytearray()


def put(tensor):
    out.extend(tensor.detach().contiguous().cpu().numpy().tobytes())


put(bnb.create_dynamic_map())
for quant_type in ["nf4", "fp4"]:
    put(bnb.get_4bit_type(quant_type, device="cpu"))
    for block in [32, 64, 128, 256, 512, 1024, 2048, 4096]:
        x = torch.from_numpy(inputs(block, 2 * block + 31))
        packed, state = bnb.quantize_4bit(x, blocksize=block, quant_type=quant_type)
        put(packed)
        put(state.absmax)

for count in [64 * 500, 64 * 256 + 17]:
    x = torch.from_numpy(inputs(count, count))
    _, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    put(state.absmax)
    put(state.state2.absmax)
    put(state.offset)

Path(__file__).with_name("bitsandbytes.bin").write_bytes(out)
