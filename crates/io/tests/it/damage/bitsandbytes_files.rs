//! Checkpoints of bitsandbytes.

use mlx_rs::{Array, Dtype};
use tacit_io::bitsandbytes;

use super::{bytes, gone, is, table, zeros};

#[test]
fn four_bit_parameters_of_bitsandbytes() {
    let [k, q] = ["k", "q"].map(|layer| move |end: &str| format!("model.layers.0.self_attn.{layer}_proj.weight{end}"));
    let state = q(".quant_state.bitsandbytes__nf4");
    let says = |text: &str| vec![is(&state, bytes(text))];
    let damages = vec![
        ("absmax gone", vec![gone(&q(".absmax"))]),
        ("codes gone", vec![gone(&q(""))]),
        ("quant map gone", vec![gone(&q(".quant_map"))]),
        ("nested absmax gone", vec![gone(&k(".nested_absmax"))]),
        ("state gone", vec![gone(&k(".quant_state.bitsandbytes__nf4"))]),
        ("two states", vec![is(&q(".quant_state.bitsandbytes__fp4"), bytes("{}"))]),
        ("an unknown type", vec![gone(&state), is(&q(".quant_state.bitsandbytes__nf5"), bytes("{}"))]),
        ("codes short", vec![is(&q(""), zeros(Dtype::Uint8, &[767, 1]))]),
        ("absmax short", vec![is(&q(".absmax"), zeros(Dtype::Float32, &[23]))]),
        ("absmax of another dtype", vec![is(&q(".absmax"), zeros(Dtype::Int32, &[24]))]),
        ("another quant map", vec![is(&q(".quant_map"), zeros(Dtype::Float32, &[16]))]),
        ("another nested map", vec![is(&k(".nested_quant_map"), zeros(Dtype::Float32, &[255]))]),
        ("no JSON", says(r#"{"quant_type": "nf4""#)),
        ("no UTF-8", vec![is(&state, Array::from_slice(&[255_u8], &[1]))]),
        ("another type", says(r#"{"quant_type": "fp4", "blocksize": 64, "dtype": "bfloat16", "shape": [24, 64]}"#)),
        ("no block", says(r#"{"quant_type": "nf4", "blocksize": 65, "dtype": "bfloat16", "shape": [24, 64]}"#)),
        ("no dtype", says(r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "float4", "shape": [24, 64]}"#)),
        ("no extent", says(r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [-24, 64]}"#)),
        (
            "too large",
            says(r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [2147483647, 2147483647]}"#),
        ),
    ];
    let text = table("bitsandbytes", "4bit.safetensors", damages, |file| bitsandbytes::read(file));
    expect_test::expect![[r#"
        absmax gone:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.absmax: it is not there, and it is a part of the nf4:64 parameter model.layers.0.self_attn.q_proj.weight
        help: fetch the file again, or convert it from its source again

        codes gone:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: it is not there, and it is a part of the nf4:64 parameter model.layers.0.self_attn.q_proj.weight
        help: fetch the file again, or convert it from its source again

        quant map gone:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_map: it is not there, and it is a part of the nf4:64 parameter model.layers.0.self_attn.q_proj.weight
        help: fetch the file again, or convert it from its source again

        nested absmax gone:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.k_proj.weight.nested_absmax: it is not there, and it is a part of the nf4:32:double parameter model.layers.0.self_attn.k_proj.weight
        help: fetch the file again, or convert it from its source again

        state gone:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.k_proj.weight.absmax: it is a part of model.layers.0.self_attn.k_proj.weight, which has no quant_state.bitsandbytes__nf4 and no quant_state.bitsandbytes__fp4
        help: fetch the file again, or save it again by bitsandbytes

        two states:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: it has more than one state: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__fp4, model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4
        help: fetch the file again, or save it again by bitsandbytes

        an unknown type:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf5: its 4-bit type is not known
        help: quantize to nf4 or fp4

        codes short:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: it is u8[767,1], which has 767 bytes of codes, and its state asks for 768
        help: fetch the file again, or save it again by bitsandbytes

        absmax short:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: scales is f32[23], where nf4:64 of bf16[24,64] has f32[24]
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        absmax of another dtype:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.absmax: it is i32[24], and f32[24] in the nf4:64 parameter model.layers.0.self_attn.q_proj.weight
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        another quant map:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_map: it says that code 0 is 0, and it is read as -1
        help: read it by bitsandbytes, and save it dense

        another nested map:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.k_proj.weight.nested_quant_map: it has 255 values, and 256 are known
        help: read it by bitsandbytes, and save it dense

        no JSON:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: EOF while parsing an object at line 1 column 20
        help: fetch the file again, or save it again by bitsandbytes

        no UTF-8:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: invalid utf-8 sequence of 1 bytes from index 0
        help: fetch the file again, or save it again by bitsandbytes

        another type:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: quant_type is "fp4"
        help: fetch the file again, or save it again by bitsandbytes

        no block:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: the nf4 block size 65 is not a power of two from 32 to 4096
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        no dtype:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: dtype is "float4"
        help: fetch the file again, or save it again by bitsandbytes

        no extent:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: shape is [-24, 64]
        help: fetch the file again, or save it again by bitsandbytes

        too large:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight: it is u8[768,1], which has 768 bytes of codes, and its state asks for 2305843007066210305
        help: fetch the file again, or save it again by bitsandbytes

    "#]].assert_eq(&text);
}

#[test]
fn eight_bit_parameters_of_bitsandbytes() {
    let down = |end: &str| format!("model.layers.0.mlp.down_proj.{end}");
    let damages = vec![
        ("codes gone", vec![gone(&down("weight"))]),
        ("scales short", vec![is(&down("SCB"), zeros(Dtype::Float32, &[15]))]),
        ("codes of another dtype", vec![is(&down("weight"), zeros(Dtype::Uint8, &[16, 48]))]),
        ("codes by columns", vec![is(&down("weight_format"), Array::from_slice(&[1_u8], &[]))]),
    ];
    let text = table("bitsandbytes", "int8.safetensors", damages, |file| bitsandbytes::read(file));
    expect_test::expect![[r#"
        codes gone:
        FOLDER/int8.safetensors: model.layers.0.mlp.down_proj.weight: it is not there, and it is a part of the 8-bit parameter model.layers.0.mlp.down_proj.weight
        help: fetch the file again, or convert it from its source again

        scales short:
        FOLDER/int8.safetensors: model.layers.0.mlp.down_proj.weight: scales is f32[15], where int8:48 of f16[16,48] has f32[16]
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        codes of another dtype:
        FOLDER/int8.safetensors: model.layers.0.mlp.down_proj.weight: it is u8[16,48], and i8[16,48] in the 8-bit parameter model.layers.0.mlp.down_proj.weight
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        codes by columns:
        FOLDER/int8.safetensors: model.layers.0.mlp.down_proj.weight_format: the codes are not row by row (format 0)
        help: save it again by bitsandbytes 0.45 or later

    "#]].assert_eq(&text);
}

#[test]
fn states_of_bitsandbytes_that_are_none() {
    let state = "model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4";
    let says = |text: &str| vec![is(state, bytes(text))];
    let damages = vec![
        ("of no parameter", vec![is("quant_state.bitsandbytes__nf4", bytes("{}"))]),
        ("of floats", vec![is(state, zeros(Dtype::Float32, &[78]))]),
        ("an unknown key", says(r#"{"quant_type": "nf4", "block": 64}"#)),
        ("no shape", says(r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16"}"#)),
        (
            "an offset of another dtype",
            says(
                r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [24, 64], "nested_offset": 1, "nested_dtype": "float16"}"#,
            ),
        ),
    ];
    let text = table("bitsandbytes", "4bit.safetensors", damages, |file| bitsandbytes::read(file));
    expect_test::expect![[r#"
        of no parameter:
        FOLDER/4bit.safetensors: quant_state.bitsandbytes__nf4: it is the state of no parameter
        help: fetch the file again, or save it again by bitsandbytes

        of floats:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: it is f32[78], and u8[78] in a 4-bit parameter
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        an unknown key:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: "block" is not known
        help: fetch the file again, or save it again by bitsandbytes

        no shape:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: it has no "shape"
        help: fetch the file again, or save it again by bitsandbytes

        an offset of another dtype:
        FOLDER/4bit.safetensors: model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4: the state cannot be read: nested_dtype is "float16"
        help: fetch the file again, or save it again by bitsandbytes

    "#]].assert_eq(&text);
}
