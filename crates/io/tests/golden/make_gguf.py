"""Makes the files in gguf/: files of gguf-py, and what it reads in them.

    pip install gguf==0.19.0 safetensors numpy
    python make_gguf.py

types.gguf has a tensor `TYPE` of random blocks for each quantized type that is read, `TYPE.quantized` where gguf-py
quantizes too, dense tensors, and a metadata value of each type. expected.safetensors has what `dequantize` makes of each.
llama.gguf is a model of one layer, named and permuted as llama.cpp's convert_hf_to_gguf.py does it; what it was
made of is in expected.safetensors, under the names of Hugging Face.
"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent / "gguf"
generator = np.random.default_rng(0)
expected = {}

writer = gguf.GGUFWriter(here / "types.gguf", "golden")
writer.add_uint8("test.u8", 200)
writer.add_int8("test.i8", -100)
writer.add_uint16("test.u16", 60000)
writer.add_int16("test.i16", -30000)
writer.add_uint32("test.u32", 4000000000)
writer.add_int32("test.i32", -2000000000)
writer.add_float32("test.f32", 0.5)
writer.add_bool("test.bool", True)
writer.add_string("test.string", "täcit")
writer.add_uint64("test.u64", 1 << 63)
writer.add_int64("test.i64", -(1 << 62))
writer.add_float64("test.f64", 0.1)
writer.add_array("test.list", [1, 2, 3])
writer.add_array("test.strings", ["a", "", "bc"])

# Where each type has half-precision numbers, and the largest scale whose bias fits none.
HALVES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [], Type.TQ1_0: [52], Type.TQ2_0: [64],
}


def random(kind, scales):
    """Random blocks of a type: of their half-precision numbers each block takes the next scale."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = (3, 64) if elements == 32 else (2, 256)
    blocks = generator.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for at, block in enumerate(blocks):
        for place in HALVES[kind]:
            block[place : place + 2] = np.float16(scales[at % len(scales)] * generator.normal()).reshape(1).view(np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = [0, 1, 100, 127, 130, 200]
    return blocks.reshape(rows, -1)


def add(name, raw, kind):
    writer.add_tensor(name, raw, raw_dtype=kind)
    expected[name] = gguf.dequantize(raw, kind)


for kind in HALVES:
    add(kind.name, random(kind, [0.01, 1.0, 1e-6]), kind)
    if kind != Type.MXFP4:
        add(f"{kind.name}.large", random(kind, [600.0, 9000.0]), kind)
    try:
        quantized = gguf.quantize(generator.normal(size=(1, gguf.GGML_QUANT_SIZES[kind][0])).astype(np.float32), kind)
    except NotImplementedError:
        continue
    add(f"{kind.name}.quantized", quantized, kind)

for name, array in {
    "dense.f32": generator.normal(size=(2, 3)).astype(np.float32),
    "dense.f16": generator.normal(size=(4,)).astype(np.float16),
    "dense.i32": np.arange(6, dtype=np.int32).reshape(1, 2, 3),
}.items():
    writer.add_tensor(name, array)
    expected[name] = array
halves = gguf.quantize(generator.normal(size=(2, 4)).astype(np.float32), Type.BF16)
add("dense.bf16", halves, Type.BF16)
# A type that is not read.
writer.add_tensor("unread", generator.integers(0, 256, (1, 66), dtype=np.uint8), raw_dtype=Type.IQ2_XXS)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()


def permute(weights, heads):
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


writer = gguf.GGUFWriter(here / "llama.gguf", "llama")
writer.add_head_count(4)
writer.add_head_count_kv(2)
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
shapes = {
    "model.embed_tokens": (5, 32),
    "model.layers.0.input_layernorm": (32,),
    "model.layers.0.self_attn.q_proj": (16, 32),
    "model.layers.0.self_attn.k_proj": (8, 32),
    "model.layers.0.self_attn.v_proj": (8, 32),
    "model.layers.0.self_attn.o_proj": (32, 32),
    "model.layers.0.post_attention_layernorm": (32,),
    "model.layers.0.mlp.gate_proj": (32, 32),
    "model.layers.0.mlp.up_proj": (32, 32),
    "model.layers.0.mlp.down_proj": (32, 32),
    "model.norm": (32,),
    "lm_head": (5, 32),
}
for module, shape in shapes.items():
    weights = generator.normal(size=shape).astype(np.float32)
    theirs = names.get_name(module + ".weight", try_suffixes=(".weight",))
    if len(shape) == 1:
        writer.add_tensor(theirs, weights)
        expected[f"llama.{module}.weight"] = weights
        continue
    heads = {"q_proj": 4, "k_proj": 2}.get(module.rsplit(".", 1)[-1])
    raw = gguf.quantize(permute(weights, heads) if heads else weights, Type.Q4_0)
    writer.add_tensor(theirs, raw, raw_dtype=Type.Q4_0)
    expected[f"llama.{module}.weight"] = gguf.dequantize(gguf.quantize(weights, Type.Q4_0), Type.Q4_0)
writer.add_tensor("rope_freqs.weight", np.ones(2, dtype=np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file({name: np.ascontiguousarray(array) for name, array in expected.items()}, here / "expected.safetensors")
