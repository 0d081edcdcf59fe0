"""Makes the files in torchao/: what torchao 0.18 stores of an `Int4Tensor` and an `NF4Tensor`, and what these stand for.

    pip install torch==2.15.0 torchao==0.18.0 safetensors
    python make_torchao.py

int4.safetensors is written by torchao's `flatten_tensor_state_dict`. The codes are made by the rule of mslk's
`int4_row_quantize_zp` and `pack_int4`, which needs a GPU: the low half of a byte is the first of two codes, -8 to 7, which
stand for `code * scale + zero_point`. nf4.safetensors holds `NF4Tensor`s, which torchao quantizes and dequantizes itself;
its `flatten_tensor_state_dict` takes none, so that the tensors are named here as it would.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization.quantize_.workflows.int4.int4_tensor import Int4Tensor
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

here = pathlib.Path(__file__).parent / "torchao"
torch.manual_seed(0)
expected = {}


def int4(w, group):
    grouped = w.reshape(-1, group).float()
    low, high = grouped.amin(1, keepdim=True), grouped.amax(1, keepdim=True)
    scale = (high - low).clamp(min=1e-6) / 15
    codes = ((grouped - low) / scale).round().clamp(0, 15) - 8
    codes = codes.to(torch.int8).reshape(w.shape)
    packed = torch.bitwise_or(torch.bitwise_and(codes[:, ::2], 15), torch.bitwise_left_shift(codes[:, 1::2], 4))
    by_rows = lambda numbers: numbers.view(w.shape[0], -1).t().contiguous().to(w.dtype)
    scale, zero = by_rows(scale), by_rows(low + 8 * scale)
    tensor = Int4Tensor(packed.contiguous(), scale, zero, [1, group], w.shape)
    each = lambda numbers: numbers.t().repeat_interleave(group, 1).float()
    # The sum is rounded once, to the dtype of the scales.
    return tensor, (codes.float() * each(scale) + each(zero)).to(w.dtype)


state = {}
for name, shape, group, dtype in [
    ("layers.0.proj.weight", (3, 64), 32, torch.bfloat16),
    ("layers.1.proj.weight", (2, 128), 64, torch.float16),
    ("layers.2.proj.weight", (2, 256), 256, torch.bfloat16),
]:
    state[name], expected["int4." + name] = int4(torch.randn(shape, dtype=dtype), group)
state["layers.0.proj.bias"] = torch.randn(3, dtype=torch.bfloat16)
expected["int4.layers.0.proj.bias"] = state["layers.0.proj.bias"]
tensors, metadata = flatten_tensor_state_dict(state)
save_file(tensors, here / "int4.safetensors", metadata=metadata)

tensors, metadata = {}, {}
for name, dtype in [("a.weight", torch.float32), ("b.weight", torch.bfloat16), ("c.weight", torch.float16)]:
    tensor = to_nf4(torch.randn((8, 64), dtype=dtype), 32, 8)
    module, parameter = name.rsplit(".", 1)
    names, context = tensor.__tensor_flatten__()
    for part in names:
        tensors[f"{module}._{parameter}_{part}"] = getattr(tensor, part).contiguous()
    data = {key: context[key] for key in ("block_size", "n_blocks", "scaler_block_size")}
    data["shape"] = list(tensor.shape)
    metadata[name] = json.dumps({"_type": "NF4Tensor", "_data": data, "_tensor_data_names": names})
    expected["nf4." + name] = tensor.get_original_weight()
metadata["tensor_names"] = json.dumps(sorted(metadata))
save_file(tensors, here / "nf4.safetensors", metadata=metadata)
save_file({name: tensor.contiguous() for name, tensor in expected.items()}, here / "expected.safetensors")
