"""Writes the bitsandbytes goldens: state dicts of its own modules, and what bitsandbytes reads from them.

pip install torch==2.5.1 bitsandbytes==0.50.2 safetensors==0.8.0 numpy==2.4.6
"""

from pathlib import Path

import bitsandbytes as bnb
import torch
from bitsandbytes import functional as F
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file

HERE = Path(__file__).parent / "bitsandbytes"
HERE.mkdir(exist_ok=True)
torch.manual_seed(0)


def linear4bit(out, inputs, quant_type, block, double, dtype, bias=False, storage=torch.uint8):
    weight = torch.randn(out, inputs).to(dtype)
    module = bnb.nn.Linear4bit(
        inputs, out, bias=bias, compute_dtype=dtype, compress_statistics=double, quant_type=quant_type,
        quant_storage=storage,
    )
    module.weight = bnb.nn.Params4bit(
        weight, requires_grad=False, quant_type=quant_type, blocksize=block, compress_statistics=double,
        quant_storage=storage, module=module,
    )
    if bias:
        module.bias = torch.nn.Parameter(torch.randn(out).to(dtype))
    return module.to("cpu")


def put(state, expected, path, module):
    for name, tensor in module.state_dict().items():
        state[f"{path}.{name}"] = tensor.contiguous()
    weight = module.weight
    if isinstance(module, bnb.nn.Linear8bitLt):
        dense = F.int8_vectorwise_dequant(weight.data, weight.SCB)
    else:
        # By its default backend: the CPU kernel of 0.50.2 takes other scales where a block goes beyond a row.
        state = weight.quant_state
        absmax = state.absmax
        if state.nested:
            absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
        codes = weight.data.view(torch.uint8).reshape(-1)
        dense = _dequantize_4bit_compute(codes, absmax, state.code, state.blocksize, state.shape, state.dtype)
    expected[f"{path}.weight"] = dense.contiguous()


def save(name, layers):
    state, expected = {}, {}
    for path, module in layers.items():
        put(state, expected, path, module)
    state["norm.weight"] = torch.ones(8, dtype=torch.bfloat16)
    save_file(state, HERE / f"{name}.safetensors", metadata={"format": "pt"})
    save_file(expected, HERE / f"{name}_expected.safetensors")


save(
    "4bit",
    {
        "model.layers.0.self_attn.q_proj": linear4bit(24, 64, "nf4", 64, False, torch.bfloat16, bias=True),
        "model.layers.0.self_attn.k_proj": linear4bit(80, 112, "nf4", 32, True, torch.float16),
        "model.layers.0.self_attn.v_proj": linear4bit(5, 13, "fp4", 64, False, torch.float32),
        "model.layers.0.self_attn.o_proj": linear4bit(16, 72, "fp4", 128, True, torch.bfloat16),
    },
)
save("storage", {"up_proj": linear4bit(8, 64, "nf4", 64, False, torch.bfloat16, storage=torch.bfloat16)})

int8 = bnb.nn.Linear8bitLt(48, 16, bias=True, has_fp16_weights=False, threshold=6.0)
int8.weight = bnb.nn.Int8Params(torch.randn(16, 48).to(torch.float16), requires_grad=False, has_fp16_weights=False)
int8.bias = torch.nn.Parameter(torch.randn(16).to(torch.float16))
save("int8", {"model.layers.0.mlp.down_proj": int8.to("cpu")})
