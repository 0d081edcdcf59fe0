"""Writes tiny random decoders of each architecture that GGUF has, as a folder of Hugging Face and as a GGUF file.

The folder `gguf/NAME` has floats that bf16 holds, and `gguf/NAME.gguf` has the same ones in F32, named and changed as
llama.cpp's convert_hf_to_gguf.py does it. `gguf/logits.safetensors` has what llama.cpp makes of each file: the logits of
the last positions of the prompt. `gguf/gemma2_bf16.gguf` has matrices in BF16, as most files of floats have, and
`gguf/mistral-*.gguf` are one model in several files.

pip install gguf==0.19.0 safetensors==0.8.0 numpy cyllama==0.2.18
"""

import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
from cyllama.llama import llama_cpp as llama
from gguf import GGUFWriter
from safetensors.numpy import save_file

HERE = Path(__file__).parent / "gguf"
KNOWN = 4

COMMON = {
    "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "rms_norm_eps": 1e-06, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "vocab_size": 48, "eos_token_id": 47,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}

# The name of the folder, llama.cpp's architecture, and what is not common.
MODELS = [
    ("llama", "llama", {
        "tie_word_embeddings": False, "num_key_value_heads": 1,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }),
    ("mistral", "llama", {"sliding_window": None}),
    ("qwen2", "qwen2", {"head_dim": 4, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("qwen3", "qwen3", {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        "tie_word_embeddings": False,
    }),
    ("qwen3_moe", "qwen3moe", EXPERTS),
    ("qwen3_next", "qwen3next", {
        **EXPERTS, "num_hidden_layers": 3, "full_attention_interval": 2, "partial_rotary_factor": 0.5,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 12,
    }),
    ("gemma", "gemma", {"rope_theta": 10000.0}),
    ("gemma2", "gemma2", {
        "query_pre_attn_scalar": 8, "sliding_window": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 20.0,
    }),
    ("gemma3_text", "gemma3", {
        "num_hidden_layers": 7, "query_pre_attn_scalar": 8, "sliding_window": 8, "sliding_window_pattern": 6,
        "rope_theta": 100000.0, "rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }),
    ("mixtral", "llama", {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}),
    ("phi3", "phi3", {
        "head_dim": 4, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 512, "sliding_window": None,
        "tie_word_embeddings": False,
    }),
    ("olmo2", "olmo2", {"head_dim": 4, "tie_word_embeddings": False}),
    ("granite", "granite", {
        "head_dim": 4, "embedding_multiplier": 0.5, "attention_multiplier": 0.25, "residual_multiplier": 0.75,
        "logits_scaling": 2.0,
    }),
    ("smollm3", "smollm3", {"num_hidden_layers": 5}),
]

# Those whose queries and keys llama.cpp mixes.
MIXED = ("llama", "granite", "smollm3")


def shapes(model_type, c):
    """Hugging Face's names and the shapes of a model's tensors."""
    hidden, heads, kv, width = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    made = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not c["tie_word_embeddings"]:
        made["lm_head.weight"] = (c["vocab_size"], hidden)

    def feed_forward(path, inner):
        made.update({f"{path}.gate_proj.weight": (inner, hidden), f"{path}.up_proj.weight": (inner, hidden),
                     f"{path}.down_proj.weight": (hidden, inner)})

    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if model_type in ("gemma2", "gemma3_text"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if model_type == "olmo2":
            norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
        made.update({f"{at}.{norm}.weight": (hidden,) for norm in norms})
        if model_type == "phi3":
            inner = c["intermediate_size"]
            made.update({f"{at}.mlp.gate_up_proj.weight": (2 * inner, hidden), f"{at}.mlp.down_proj.weight": (hidden, inner),
                         f"{at}.self_attn.qkv_proj.weight": ((heads + 2 * kv) * width, hidden),
                         f"{at}.self_attn.o_proj.weight": (hidden, heads * width)})
            continue
        if model_type == "mixtral":
            block, inner = f"{at}.block_sparse_moe", c["intermediate_size"]
            made[f"{block}.gate.weight"] = (c["num_local_experts"], hidden)
            for expert in range(c["num_local_experts"]):
                made.update({f"{block}.experts.{expert}.w1.weight": (inner, hidden),
                             f"{block}.experts.{expert}.w2.weight": (hidden, inner),
                             f"{block}.experts.{expert}.w3.weight": (inner, hidden)})
        elif "num_experts" in c:
            made[f"{at}.mlp.gate.weight"] = (c["num_experts"], hidden)
            for expert in range(c["num_experts"]):
                feed_forward(f"{at}.mlp.experts.{expert}", c["moe_intermediate_size"])
        else:
            feed_forward(f"{at}.mlp", c["intermediate_size"])
        if model_type == "qwen3_next":
            feed_forward(f"{at}.mlp.shared_expert", c["shared_expert_intermediate_size"])
            made[f"{at}.mlp.shared_expert_gate.weight"] = (1, hidden)
            if (layer + 1) % c["full_attention_interval"]:
                keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
                value_heads = c["linear_num_value_heads"]
                values = value_heads * c["linear_value_head_dim"]
                net = f"{at}.linear_attn"
                made.update({
                    f"{net}.in_proj_qkvz.weight": (2 * keys + 2 * values, hidden),
                    f"{net}.in_proj_ba.weight": (2 * value_heads, hidden), f"{net}.out_proj.weight": (hidden, values),
                    f"{net}.conv1d.weight": (2 * keys + values, 1, c["linear_conv_kernel_dim"]),
                    f"{net}.A_log": (value_heads,), f"{net}.dt_bias": (value_heads,),
                    f"{net}.norm.weight": (c["linear_value_head_dim"],),
                })
                continue
        gate = 2 if model_type == "qwen3_next" else 1
        sizes = {"q": heads * width * gate, "k": kv * width, "v": kv * width}
        for name, size in sizes.items():
            made[f"{at}.self_attn.{name}_proj.weight"] = (size, hidden)
            if model_type == "qwen2":
                made[f"{at}.self_attn.{name}_proj.bias"] = (size,)
        made[f"{at}.self_attn.o_proj.weight"] = (hidden, heads * width)
        if model_type.startswith("qwen3") or model_type == "gemma3_text":
            made.update({f"{at}.self_attn.{name}_norm.weight": (width,) for name in "qk"})
        if model_type == "olmo2":
            made.update({f"{at}.self_attn.{name}_norm.weight": (sizes[name],) for name in "qk"})
    return made


def half(a):
    """The nearest numbers that bf16 holds, and their upper halves."""
    bits = a.astype(np.float32).view(np.uint32)
    halves = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return (halves.astype(np.uint32) << 16).view(np.float32), halves


def less_one(model_type, path):
    """Whether a gain is counted from 1."""
    own = model_type.startswith("gemma") or (model_type == "qwen3_next" and ".linear_attn." not in path)
    return own and path.endswith("norm.weight")


def drawn(generator, model_type, path, shape):
    if path.endswith("norm.weight"):
        # What bf16 holds of these it holds of them less 1, too.
        gain = half(np.clip(1 + 0.2 * generator.normal(size=shape), 0.5, 1.9))[0]
        return gain - less_one(model_type, path)
    if path.endswith((".A_log", ".dt_bias", ".bias")):
        return half(0.5 * generator.normal(size=shape))[0]
    return half(generator.normal(size=shape) * (1.5 / shape[-1] ** 0.5))[0]


def write_folder(folder, config, weights):
    """As safetensors has bf16, which numpy has not."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, a in weights.items():
        raw = half(a)[1].tobytes()
        header[name] = {"dtype": "BF16", "shape": a.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}, indent=4) + "\n")


def permute(a, heads):
    return a.reshape(heads, 2, a.shape[0] // heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


def changed(arch, c, weights):
    """The tensors by Hugging Face's names, changed and put together as in `conversion` of llama.cpp."""
    made, experts = {}, {}
    for path, a in weights.items():
        if arch in MIXED and ".q_proj." in path:
            a = permute(a, c["num_attention_heads"])
        if arch in MIXED and ".k_proj." in path:
            a = permute(a, c["num_key_value_heads"])
        if less_one(c["model_type"], path):
            a = a + np.float32(1)
        if ".block_sparse_moe.experts." in path:
            _, _, layer, *_, product, _ = path.split(".")
            experts.setdefault(f"layers.{layer}.feed_forward.experts.{product}.weight", []).append(a)
            continue
        if ".mlp.experts." in path:
            before, _, after = path.partition(".experts.")
            experts.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(a)
            continue
        if path.endswith(".A_log"):
            a = -np.exp(a)
        if path.endswith(".dt_bias"):
            path = path.replace(".dt_bias", ".dt_proj.bias")
        if path.endswith((".conv1d.weight", ".shared_expert_gate.weight")):
            a = a.squeeze()
        if path.endswith(".in_proj_qkvz.weight"):
            groups, hidden = c["linear_num_key_heads"], c["hidden_size"]
            key, value = c["linear_key_head_dim"], c["linear_num_value_heads"] // groups * c["linear_value_head_dim"]
            parts = np.split(a.T.reshape(hidden, groups, -1), [key, 2 * key, 2 * key + value], axis=-1)
            q, k, v, z = (part.reshape(hidden, -1) for part in parts)
            layer = path.split(".")[2]
            made[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([q, k, v], axis=-1).T
            made[f"blk.{layer}.attn_gate.weight"] = z.T
            continue
        made[path] = a
    return {**made, **{path: np.stack(parts) for path, parts in experts.items()}}


def rope_factors(c):
    scaling = c["rope_scaling"]
    original, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for at in range(0, c["head_dim"], 2):
        wavelength = 2 * np.pi * c["rope_theta"] ** (at / c["head_dim"])
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def write_gguf(file, arch, c, weights, halves=False, split=0):
    """Matrices in BF16, if these are asked for, and so many tensors a file, if it is to be split."""
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), c["num_hidden_layers"])
    w = GGUFWriter(file, arch, split_max_tensors=split)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")
    w.add_eos_token_id(c["eos_token_id"])
    if arch not in ("gemma", "gemma2"):
        w.add_rope_freq_base(c["rope_theta"])
    if arch in (*MIXED, "qwen3next", "phi3"):
        w.add_rope_dimension_count(int(c["head_dim"] * c.get("partial_rotary_factor", 1)))
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "num_local_experts" in c:
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    if arch == "phi3":
        w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
        w.add_sliding_window(c["sliding_window"] or 0)
    if arch == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if arch == "qwen3next":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c["full_attention_interval"])
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if arch != "phi3" and c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if "rope_local_base_freq" in c:
        w.add_rope_freq_base_swa(c["rope_local_base_freq"])
    if kind == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    for path, a in changed(arch, c, weights).items():
        name = path if path.startswith("blk.") else names.get_name(path, try_suffixes=(".weight", ".bias"))
        if halves and a.ndim > 1:
            w.add_tensor(name, half(a)[1].view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(name, np.ascontiguousarray(a, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Model(llama.LlamaModel):
    # What this cyllama asks for and has not.
    n_vocab = COMMON["vocab_size"]


def logits(file, prompt):
    """What llama.cpp gives for the last positions, with caches in f32."""
    llama.disable_logging()
    model = Model(str(file), llama.LlamaModelParams())
    params = llama.LlamaContextParams()
    params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
    # No flash attention, whose sums are of halves, and keys and values in F32.
    params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0
    context = llama.LlamaContext(model, params)
    batch = llama.LlamaBatch(n_tokens=len(prompt), embd=0, n_seq_max=1)
    for at, token in enumerate(prompt):
        batch.add(token, at, [0], True)
    context.decode(batch)
    rows = [np.array(context.get_logits_ith(at), np.float32) for at in range(len(prompt) - KNOWN, len(prompt))]
    context.close()
    return np.stack(rows)


shutil.rmtree(HERE, ignore_errors=True)
generator = np.random.default_rng(0)
prompt = generator.integers(0, COMMON["vocab_size"] - 1, 21)
expected = {"prompt": prompt.astype(np.uint32)}
for name, arch, options in MODELS:
    config = {**COMMON, **options, "model_type": name}
    weights = {path: drawn(generator, name, path, shape) for path, shape in sorted(shapes(name, config).items())}
    write_folder(HERE / name, config, weights)
    write_gguf(HERE / f"{name}.gguf", arch, config, weights)
    if name == "gemma2":
        write_gguf(HERE / f"{name}_bf16.gguf", arch, config, weights, halves=True)
    if name == "mistral":
        write_gguf(HERE / f"{name}.gguf", arch, config, weights, split=9)
    expected[name] = logits(HERE / f"{name}.gguf", prompt.tolist())
    print(name, expected[name].std(), expected[name].argmax(-1))
save_file(expected, HERE / "logits.safetensors")
