"""Writes tiny random checkpoints of each architecture by mlx-lm, and what mlx-lm's own models make of them.

For each there are a folder of floats, one that is quantized with overrides, and beside each folder a file: a prompt with the
logits of its last positions, the 200 or 61 tokens that greedy decoding gives, and the logits after some of them. All is computed in
float32, though the floats are stored as bfloat16. Their experts have the names that Hugging Face gives them, and Qwen3-Next is
stored as Hugging Face has all of it. Of that there is also a prompt cache, behind the prompt.

pip install "mlx[cpu]==0.32.2" mlx-lm==0.32.2
python make.py            # all of them, or those whose names are given
"""

import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm import utils
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers

# This mlx-lm hands over a scale for which this MLX has no argument; it is None.
gather_qmm = mx.gather_qmm
mx.gather_qmm = lambda *args, global_scale=None, **options: gather_qmm(*args, **options)

HERE = Path(__file__).parent
STEPS = 200
KEPT = [0, 60, 199]
# Of those that have neither windows nor states.
FEW_STEPS = 61
FEW = ("mixtral", "phi3", "olmo2", "granite", "smollm3")
# The likeliest token leads the next one by so much at every step, so that rounding does not decide.
MARGIN = 5e-3

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128,
    "eos_token_id": 127,
}

MODELS = {
    "llama": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "head_dim": 16},
    "qwen2": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "qwen3": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "qwen3_moe": {
        "rope_theta": 1000000.0,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    },
    "qwen3_next": {
        "num_hidden_layers": 3,
        "full_attention_interval": 2,
        "partial_rotary_factor": 0.5,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    # mlx-lm gives its layers no window, so that this one is longer than the text.
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 4096, "attn_logit_softcapping": 2.0,
               "final_logit_softcapping": 20.0},
    "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window": 16, "sliding_window_pattern": 2,
                    "rope_local_base_freq": 1000.0},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1000000.0, "tie_word_embeddings": False},
    # mlx-lm has no window for it.
    "phi3": {"partial_rotary_factor": 0.5, "sliding_window": None, "tie_word_embeddings": False},
    "olmo2": {"tie_word_embeddings": False},
    "granite": {
        "attention_bias": False, "mlp_bias": False, "embedding_multiplier": 0.5, "attention_multiplier": 0.25,
        "residual_multiplier": 0.75, "logits_scaling": 2.0,
    },
    "smollm3": {"num_hidden_layers": 3, "no_rope_layer_interval": 2},
}

# What Hugging Face calls the products of an expert of Mixtral.
MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def made(config, seed):
    """The model with weights that bf16 holds too: the folder of floats has them in half the bytes."""
    model_class, args_class = utils._get_classes(config)
    model = model_class(args_class.from_dict(config))
    if hasattr(model, "sanitize"):
        # Gemma 3 finds out here that it has no head.
        model.sanitize({})
    mx.random.seed(seed)

    def drawn(path, a):
        # So that what the layers add decides, and not the token itself.
        gemma = config["model_type"].startswith("gemma")
        spread = 0.2 if a.ndim == 1 else (0.3 if gemma else 1.0) if "embed" in path else 2.5 * a.shape[-1] ** -0.5
        gain = 3.0 if gemma and "post_" in path else 2.0 if gemma and path == "model.norm.weight" else 1.0
        # A state that forgets at once would be no test of it.
        center = (gain - gemma) if path.endswith("norm.weight") else -2.0 if path.endswith("A_log") else 0.0
        values = center + spread * mx.random.normal(a.shape)
        if config["model_type"] == "qwen3_next" and path.endswith("norm.weight"):
            # What bf16 holds of these it holds of them less 1, too.
            values = mx.clip(values, 0.5, 1.9)
        return values.astype(mx.bfloat16).astype(mx.float32)

    parameters = sorted(tree_flatten(model.parameters()))
    model.load_weights([(path, drawn(path, a)) for path, a in parameters])
    mx.eval(model.parameters())
    return model


def decoded(model, prompt, steps):
    """None where two tokens are about equally likely at a step."""
    cache = make_prompt_cache(model)
    logits = model(mx.array([prompt]), cache=cache)[0]
    prompt_logits, tokens, kept = logits[-4:], [], []
    for step in range(steps):
        last = logits[-1]
        second, first = mx.sort(last)[-2:].tolist()
        if first - second < MARGIN:
            return None
        tokens.append(mx.argmax(last).item())
        logits = model(mx.array([[tokens[-1]]]), cache=cache)[0]
        if step in KEPT:
            kept.append(logits[-1])
    if len(set(tokens)) < 12:
        return None
    return {
        "prompt": mx.array(prompt, mx.uint32),
        "prompt_logits": prompt_logits,
        "tokens": mx.array(tokens, mx.uint32),
        "steps": mx.array([step for step in KEPT if step < steps], mx.uint32),
        "logits": mx.stack(kept),
    }


def of_hugging_face(weights, model_type):
    """The same tensors as Hugging Face names and stores them."""
    parts = {}
    for path, a in weights:
        before, _, after = path.partition(".switch_mlp.")
        if model_type == "mixtral" and after:
            product, _, rest = after.partition(".")
            after = f"{MIXTRAL[product]}.{rest}"
        if after:
            parts.update({f"{before}.experts.{e}.{after}": a[e] for e in range(len(a))})
        elif path.endswith("conv1d.weight"):
            parts[path] = a.swapaxes(1, 2)
        elif model_type == "qwen3_next" and path.endswith("norm.weight") and ".linear_attn." not in path:
            parts[path] = a - 1
        else:
            parts[path] = a
    if model_type == "qwen3_next":
        # A part that proposes several tokens, which is not run.
        parts["mtp.norm.weight"] = mx.zeros((32,), mx.bfloat16)
    return parts


def mixed(path, module):
    if not hasattr(module, "to_quantized"):
        return False
    if path.endswith(("v_proj", ".gate")):
        return {"group_size": 32, "bits": 8}
    return not path.endswith("layers.1.self_attn.o_proj")


def with_lora(model):
    """The keys of an adapter, and the model with it."""
    lora = {"rank": 4, "dropout": 0.0, "scale": 4.0, "keys": ["self_attn.q_proj", "mlp.down_proj"]}
    model.freeze()
    linear_to_lora_layers(model, 2, lora)
    mx.random.seed(1)
    model.update(tree_map(lambda a: mx.random.normal(a.shape) / 8, model.trainable_parameters()))
    return lora


def expected(name, values):
    mx.save_safetensors(str(HERE / f"{name}.safetensors"), values)


def quantized(config, seed):
    return utils.quantize_model(made(config, seed), dict(config), 32, 4, quant_predicate=mixed)


def write(name, options):
    config = {**COMMON, "model_type": name, **options}
    mx.random.seed(0)
    prompt = mx.random.randint(0, 127, (21,)).tolist()
    steps = FEW_STEPS if name in FEW else STEPS
    for seed in range(100):
        of_floats = decoded(made(config, seed), prompt, steps)
        if of_floats is None:
            continue
        model, quantized_config = quantized(config, seed)
        of_codes = decoded(model, prompt, steps)
        if of_codes is not None:
            break
    else:
        raise RuntimeError(f"no seed for {name}")
    print(name, "seed", seed, "distinct", len(set(of_floats["tokens"].tolist())), len(set(of_codes["tokens"].tolist())))

    floats = made(config, seed)
    floats.set_dtype(mx.bfloat16)
    folder = HERE / "float" / name
    utils.save_model(folder, floats)
    utils.save_config({**config, "torch_dtype": "bfloat16"}, folder / "config.json")
    expected(f"float/{name}", of_floats)
    if name in ("mixtral", "qwen3_moe", "qwen3_next"):
        (folder / "model.safetensors.index.json").unlink()
        weights = of_hugging_face(tree_flatten(floats.parameters()), name)
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})

    folder = HERE / "affine" / name
    utils.save_model(folder, model)
    quantized_config["quantization"]["model.layers.1.self_attn.o_proj"] = False
    utils.save_config(quantized_config, folder / "config.json")
    expected(f"affine/{name}", of_codes)

    if name == "qwen3_next":
        cache = make_prompt_cache(model)
        model(mx.array([prompt]), cache=cache)
        save_prompt_cache(str(HERE / "affine" / f"{name}_prompt_cache.safetensors"), cache)

    if name == "qwen2":
        # Over codes, of which mlx-lm multiplies the low-rank term apart.
        lora = with_lora(model)
        folder = HERE / "lora"
        folder.mkdir()
        mx.save_safetensors(str(folder / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters())))
        arguments = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": lora}
        (folder / "adapter_config.json").write_text(json.dumps(arguments, indent=4))
        expected("lora", {"prompt_logits": model(mx.array([prompt]))[0, -4:]})


names = sys.argv[1:]
for folder in [] if names else ["float", "affine", "lora"]:
    shutil.rmtree(HERE / folder, ignore_errors=True)
for name in names or MODELS:
    write(name, MODELS[name])
