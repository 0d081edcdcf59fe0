"""Writes the mlx-lm goldens by mlx-lm's own functions: quantized folders, float folders and adapters, and what it reads.

pip install "mlx[cpu]==0.32.2" mlx-lm==0.32.2
"""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm import utils
from mlx_lm.models.llama import Model, ModelArgs
from mlx_lm.tuner.utils import linear_to_lora_layers

HERE = Path(__file__).parent / "mlx_lm"
shutil.rmtree(HERE, ignore_errors=True)

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 16,
}


def tiny():
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(CONFIG))
    model.update(tree_map(lambda a: mx.random.normal(a.shape).astype(mx.bfloat16), model.parameters()))
    return model


def dense(model, dtype):
    """What every quantized layer stands for, computed in f32 and rounded once."""
    weights = {}
    for path, m in model.named_modules():
        if "scales" in m:
            wide = {k: m[k].astype(mx.float32) if m.mode == "affine" else m[k] for k in ["scales", "biases"] if k in m}
            weight = mx.dequantize(m.weight, **wide, group_size=m.group_size, bits=m.bits, mode=m.mode, dtype=mx.float32)
            weights[f"{path}.weight"] = weight.astype(dtype)
    return weights


def save(name, model, config, dtype=mx.bfloat16):
    folder = HERE / name
    utils.save_model(folder, model)
    utils.save_config(config, folder / "config.json")
    mx.save_safetensors(str(HERE / f"{name}_expected.safetensors"), dense(model, dtype))


# Every affine format that MLX has, and the other modes, each by an entry of its own.
class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        for bits in [2, 3, 4, 5, 6, 8]:
            for group in [32, 64, 128]:
                setattr(self, f"affine_{bits}_{group}", nn.Linear(128, 2, bias=False))
        for mode in ["mxfp4", "mxfp8", "nvfp4"]:
            setattr(self, mode, nn.Linear(128, 2, bias=False))
        self.left = nn.Linear(128, 2, bias=False)


def grid_formats(path, module):
    if path == "left":
        return False
    if path.startswith("affine"):
        _, bits, group = path.split("_")
        return {"group_size": int(group), "bits": int(bits), "mode": "affine"}
    group, bits = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}[path]
    return {"group_size": group, "bits": bits, "mode": path}


for dtype in [mx.float32, mx.float16]:
    mx.random.seed(1)
    grid = Grid()
    grid.update(tree_map(lambda a: mx.random.normal(a.shape).astype(dtype), grid.parameters()))
    name = str(dtype).split(".")[-1]
    grid, config = utils.quantize_model(grid, {"torch_dtype": name}, 64, 4, quant_predicate=grid_formats)
    save(f"grid_{name}", grid, config, dtype)

# A model by the default alone, whose config names no mode, as mlx-lm wrote it before there were others.
model, config = utils.quantize_model(tiny(), dict(CONFIG), 32, 4)
del config["quantization"]["mode"]
save("uniform", model, config)


# A model whose layers differ, with one that is left, and one whose format only the shapes tell.
def mixed_formats(path, module):
    if path.endswith("lm_head"):
        return {"group_size": 32, "bits": 8}
    if path.endswith("k_proj"):
        return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    return not path.endswith("o_proj")


model, config = utils.quantize_model(tiny(), dict(CONFIG), 32, 4, quant_predicate=mixed_formats)
config["quantization"]["model.layers.0.self_attn.o_proj"] = False
save("mixed", model, config)

# A model of text and images hides its configuration of the text.
model, config = utils.quantize_model(tiny(), dict(CONFIG), 16, None, mode="nvfp4")
text = {k: config.pop(k) for k in ["quantization", "quantization_config", "torch_dtype"]}
save("text_config", model, {"model_type": "vision", "text_config": text})

# A float model in two shards.
weights = dict(tree_flatten(tiny().parameters()))
make_shards = utils.make_shards
utils.make_shards = lambda weights: [dict(list(weights.items())[:5]), dict(list(weights.items())[5:])]
utils.save_model(HERE / "shards", tiny())
utils.save_config(dict(CONFIG), HERE / "shards" / "config.json")
utils.make_shards = make_shards

# Adapters over the uniform model and over the sharded one in f32.
LORA = {"rank": 4, "dropout": 0.0, "scale": 20.0, "keys": ["self_attn.q_proj", "self_attn.v_proj"]}
for name, base, kind in [
    ("lora", "float", "lora"), ("qlora", "uniform", "lora"), ("dora", "float", "dora"), ("qdora", "uniform", "dora"),
]:
    model = tiny()
    if base == "uniform":
        model, _ = utils.quantize_model(model, dict(CONFIG), 32, 4)
    # In f32, so that the weights are merged in it.
    floats = [mx.bfloat16, mx.float32]
    model.update(tree_map(lambda a: a.astype(mx.float32) if a.dtype in floats else a, model.parameters()))
    model.freeze()
    keys = LORA["keys"] if base == "uniform" else [*LORA["keys"], "model.embed_tokens"]
    parameters = {**LORA, "keys": keys}
    linear_to_lora_layers(model, 1, parameters, use_dora=kind == "dora")
    model.update(tree_map(lambda a: mx.random.normal(a.shape) / 16, model.trainable_parameters()))
    folder = HERE / "adapters" / name
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters())))
    arguments = {
        "model": base, "train": True, "fine_tune_type": kind, "optimizer": "adam", "num_layers": 1,
        "learning_rate": 1e-05, "lora_parameters": parameters, "lr_schedule": None, "seed": 0, "mask_prompt": False,
    }
    utils.save_config(arguments, folder / "adapter_config.json")
    fused = {f"{p}.weight": m.fuse(dequantize=True).weight for p, m in model.named_modules() if hasattr(m, "lora_a")}
    mx.save_safetensors(str(folder.parent / f"{name}_expected.safetensors"), fused)

# All weights trained.
model = tiny()
model.freeze()
model.layers[-1].self_attn.unfreeze()
folder = HERE / "adapters" / "full"
folder.mkdir(parents=True)
mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters())))
utils.save_config({"fine_tune_type": "full", "num_layers": 1, "lora_parameters": None}, folder / "adapter_config.json")
