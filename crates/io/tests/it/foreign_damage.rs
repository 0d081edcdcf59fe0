//! Checkpoints of other libraries that are damaged: each is an error that names the file, the tensor and the reason.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_io::{Tensors, bitsandbytes, hugging_face, mlx_adapter, mlx_lm, peft, write};
use tacit_nn::Parameters;

use crate::golden::golden;
use crate::scratch::Scratch;

/// What is done to a checkpoint: a name in words, and tensors that are gone or are others.
type Damage = (&'static str, Vec<(String, Option<Array>)>);

fn gone(name: &str) -> (String, Option<Array>) {
    (name.to_owned(), None)
}

fn is(name: &str, array: Array) -> (String, Option<Array>) {
    (name.to_owned(), Some(array))
}

fn zeros(dtype: Dtype, shape: &[i32]) -> Array {
    ops::zeros_dtype(shape, dtype).expect("zeros")
}

fn bytes(text: &str) -> Array {
    Array::from_slice(text.as_bytes(), &[text.len() as i32])
}

/// What a reader says of each damage to a file of a golden folder, one below the other.
fn table(golden: &str, file: &str, damages: Vec<Damage>, read: impl Fn(&Path) -> Result<Parameters>) -> String {
    let mut text = String::new();
    for (what, damage) in damages {
        let folder = copied(golden);
        // It would have to say the same tensors.
        let _ = fs::remove_file(folder.join("model.safetensors.index.json"));
        let path = folder.join(file);
        let tensors = Tensors::open(&path).expect("opens");
        let mut arrays: BTreeMap<String, Array> =
            tensors.names().map(|name| (name.to_owned(), tensors.get(name).expect("is there"))).collect();
        for (name, array) in damage {
            match array {
                Some(array) => drop(arrays.insert(name, array)),
                None => assert!(arrays.remove(&name).is_some(), "{name} is there"),
            }
        }
        write(&path, arrays.into_iter().collect(), tensors.metadata()).expect("writes");
        let error = read(&path).expect_err("refused");
        writeln!(text, "{what}:\n{}\n", folder.message(&error)).expect("writes");
    }
    text
}

/// A folder with a copy of each file of a golden one.
fn copied(name: &str) -> Scratch {
    let folder = Scratch::new();
    for entry in fs::read_dir(golden(name)).expect("reads") {
        let path = entry.expect("reads").path();
        fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("copies");
    }
    folder
}

/// The folder of a file.
fn of(file: &Path) -> &Path {
    file.parent().expect("a folder")
}

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
fn folders_of_mlx_lm() {
    let [k, o, q] =
        ["k", "o", "q"].map(|layer| move |end: &str| format!("model.layers.0.self_attn.{layer}_proj.{end}"));
    let scales = |shape| zeros(Dtype::Bfloat16, shape);
    let damages = vec![
        ("scales gone", vec![gone(&q("scales"))]),
        ("scales of a module with an entry gone", vec![gone("lm_head.scales")]),
        ("biases gone", vec![gone(&q("biases"))]),
        ("biases of a mode without", vec![is(&k("biases"), zeros(Dtype::Uint8, &[16, 1]))]),
        ("scales of more groups", vec![is(&q("scales"), scales(&[32, 5]))]),
        ("scales of more rows", vec![is(&q("scales"), scales(&[33, 1]))]),
        ("codes of more words", vec![is(&q("weight"), zeros(Dtype::Uint32, &[32, 8]))]),
        (
            "scales of a module that is not quantized",
            vec![is(&o("scales"), scales(&[32, 1])), is(&o("weight"), zeros(Dtype::Uint32, &[32, 4]))],
        ),
    ];
    let text = table("mlx_lm/mixed", "model.safetensors", damages, |file| mlx_lm::read(of(file)));
    expect_test::expect![[r#"
        scales gone:
        FOLDER/model.safetensors: model.layers.0.self_attn.q_proj.weight: it is codes, and there is no model.layers.0.self_attn.q_proj.scales
        help: fetch the configuration and the tensors again, together, or convert the model again

        scales of a module with an entry gone:
        FOLDER/model.safetensors: lm_head.scales: the configuration says that it is affine, and it is not there
        help: fetch the configuration and the tensors again, together, or convert the model again

        biases gone:
        FOLDER/model.safetensors: model.layers.0.self_attn.q_proj.weight: affine:4:32 has biases, and none are given
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        biases of a mode without:
        FOLDER/model.safetensors: model.layers.0.self_attn.k_proj.weight: mxfp4 has no biases
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        scales of more groups:
        FOLDER/model.safetensors: model.layers.0.self_attn.q_proj.scales: its groups have 25 bits, as no mode of MLX's has, and the default is affine:4:32
        help: give model.layers.0.self_attn.q_proj an entry of its own in the configuration

        scales of more rows:
        FOLDER/model.safetensors: model.layers.0.self_attn.q_proj.weight: scales is bf16[33,1], where affine:4:32 of bf16[32,32] has bf16[32,1]
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        codes of more words:
        FOLDER/model.safetensors: model.layers.0.self_attn.q_proj.scales: its groups have 256 bits, as affine:8:32 and affine:4:64 and affine:2:128 have, and the default is affine:4:32
        help: give model.layers.0.self_attn.q_proj an entry of its own in the configuration

        scales of a module that is not quantized:
        FOLDER/model.safetensors: model.layers.0.self_attn.o_proj.scales: the configuration says that it is not quantized
        help: fetch the configuration and the tensors again, together

    "#]].assert_eq(&text);
}

#[test]
fn configurations_of_mlx_lm() {
    let folder = copied("mlx_lm/uniform");
    let mut text = String::new();
    for config in [
        "{",
        "[]",
        "{}",
        r#"{"quantization": 4}"#,
        r#"{"quantization": {"group_size": 32, "group_size": 64}}"#,
        r#"{"quantization": {"group_size": 48, "bits": 4}}"#,
        r#"{"quantization": {"group_size": "32", "bits": 4}}"#,
        r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "nf4"}}"#,
        r#"{"quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}}"#,
        r#"{"quantization": {"group_size": 32, "bits": 4, "lm_head": {"bits": 7}}}"#,
        r#"{"quantization": {"group_size": 32, "bits": 4, "lm_head": {"group_size": 128, "bits": 8}}}"#,
        r#"{"quantization": {"group_size": 32, "bits": 4, "model.layers.7.mlp": {"bits": 8}}}"#,
        r#"{"quantization": {"group_size": 128, "bits": 4}}"#,
        r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#,
    ] {
        folder.file("config.json", config);
        let error = mlx_lm::read(&*folder).expect_err("refused");
        writeln!(text, "{config}\n{}\n", folder.message(&error)).expect("writes");
    }
    fs::remove_file(folder.join("config.json")).expect("is there");
    writeln!(text, "none\n{}", folder.message(&mlx_lm::read(&*folder).expect_err("refused"))).expect("writes");
    expect_test::expect![[r#"
        {
        FOLDER/config.json: it is no JSON: EOF while parsing an object at line 1 column 1
        help: fetch it again

        []
        FOLDER/config.json: it is no JSON object
        help: fetch it again

        {}
        FOLDER/config.json: quantization: it is not there, and lm_head is quantized
        help: fetch the configuration and the tensors again, together, or convert the model again

        {"quantization": 4}
        FOLDER/config.json: quantization: it is 4, and should be an object
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": 32, "group_size": 64}}
        FOLDER/config.json: it is no JSON: the key "group_size" is there twice at line 1 column 53
        help: fetch it again

        {"quantization": {"group_size": 48, "bits": 4}}
        FOLDER/config.json: quantization: MLX has no affine format of 4 bits in groups of 48
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": "32", "bits": 4}}
        FOLDER/config.json: quantization: its group_size is "32"
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": 32, "bits": 4, "mode": "nf4"}}
        FOLDER/config.json: quantization: MLX has no mode "nf4"
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}}
        FOLDER/config.json: quantization: mxfp4 has 4 bits in groups of 32, and this is 4 bits in groups of 64
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": 32, "bits": 4, "lm_head": {"bits": 7}}}
        FOLDER/config.json: quantization.lm_head: MLX has no affine format of 7 bits in groups of 64
        help: MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again

        {"quantization": {"group_size": 32, "bits": 4, "lm_head": {"group_size": 128, "bits": 8}}}
        FOLDER/model.safetensors: lm_head.weight: the last axis of bf16[16,16] is not whole groups of 128, as affine has them
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        {"quantization": {"group_size": 32, "bits": 4, "model.layers.7.mlp": {"bits": 8}}}
        FOLDER/model.safetensors: model.layers.7.mlp.scales: the configuration says that it is affine, and it is not there
        help: fetch the configuration and the tensors again, together, or convert the model again

        {"quantization": {"group_size": 128, "bits": 4}}
        FOLDER/model.safetensors: lm_head.scales: its groups have 128 bits, as affine:4:32 and affine:2:64 have, and the default is affine:4:128
        help: give lm_head an entry of its own in the configuration

        {"quantization_config": {"quant_method": "gptq", "bits": 4}}
        FOLDER/config.json: quantization_config: it is quantized by "gptq", which is no mode of MLX's
        help: read it by the reader of that format

        none
        cannot read FOLDER/config.json: No such file or directory (os error 2)
    "#]].assert_eq(&text);
}

#[test]
fn adapters_of_mlx_lm_and_peft() {
    let model = hugging_face::read(golden("mlx_lm/shards")).expect("reads");
    let q = |end: &str| format!("model.layers.0.self_attn.q_proj.{end}");
    let damages = vec![
        ("b gone", vec![gone(&q("lora_b"))]),
        ("m gone", vec![gone(&q("m"))]),
        ("another rank", vec![is(&q("lora_a"), zeros(Dtype::Float32, &[32, 3]))]),
        ("no such module", vec![is("model.layers.1.mlp.up_proj.lora_a", zeros(Dtype::Float32, &[32, 4]))]),
        ("no adapter", vec![is("model.norm.weight", zeros(Dtype::Float32, &[32]))]),
    ];
    let read = |file: &Path| mlx_adapter::read(of(file), &model);
    let mut text = table("mlx_lm/adapters/dora", "adapters.safetensors", damages, read);
    for config in [
        "{}",
        r#"{"lora_parameters": {"rank": 4, "alpha": 16}}"#,
        r#"{"lora_parameters": {"rank": 8, "scale": 20.0}, "fine_tune_type": "dora"}"#,
        r#"{"lora_parameters": {"rank": 4, "scale": 20.0}, "fine_tune_type": "ia3"}"#,
    ] {
        let folder = copied("mlx_lm/adapters/dora");
        folder.file("adapter_config.json", config);
        let error = mlx_adapter::read(&*folder, &model).expect_err("refused");
        writeln!(text, "{config}\n{}\n", folder.message(&error)).expect("writes");
    }
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    for config in [
        "{}",
        r#"{"peft_type": "IA3"}"#,
        r#"{"r": 4, "lora_alpha": "x"}"#,
        r#"{"r": 8, "lora_alpha": 6}"#,
        r#"{"r": 4, "lora_alpha": 6, "alpha_pattern": {"q_.*": 3}}"#,
        r#"{"r": 4, "lora_alpha": 6, "use_dora": true}"#,
    ] {
        let folder = copied("peft/lora");
        folder.file("adapter_config.json", config);
        let error = peft::read(&*folder, &model).expect_err("refused");
        writeln!(text, "{config}\n{}\n", folder.message(&error)).expect("writes");
    }
    expect_test::expect![[r#"
        b gone:
        FOLDER/adapters.safetensors: model.layers.0.self_attn.q_proj.lora_b: it is not there, and it is a part of the adapter of model.layers.0.self_attn.q_proj
        help: fetch the file again, or convert it from its source again

        m gone:
        FOLDER/adapters.safetensors: model.layers.0.self_attn.q_proj.m: it is not there, and it is a part of the adapter of model.layers.0.self_attn.q_proj
        help: fetch the file again, or convert it from its source again

        another rank:
        FOLDER/adapters.safetensors: model.layers.0.self_attn.q_proj.lora_a: it is f32[32,3], and lora_b is f32[4,32], over bf16[32,32]
        help: an adapter has [in, r] and [r, out] over [out, in]

        no such module:
        FOLDER/adapters.safetensors: model.layers.1.mlp.up_proj.lora_a: the model has no model.layers.1.mlp.up_proj.weight
        help: give the parameters of the model that the adapter was trained for, under their names in its checkpoint

        no adapter:
        FOLDER/adapters.safetensors: model.norm.weight: it is no part of an adapter of mlx-lm's
        help: the file is not of this format, or is damaged: fetch it again, or read it as what it is

        {}
        FOLDER/adapter_config.json: lora_parameters.scale: it is not there
        help: fetch the folder again, or set it as the adapter was trained

        {"lora_parameters": {"rank": 4, "alpha": 16}}
        FOLDER/adapter_config.json: lora_parameters.scale: it is not there; there is an alpha, which mlx-lm does not have
        help: fetch the folder again, or set it as the adapter was trained

        {"lora_parameters": {"rank": 8, "scale": 20.0}, "fine_tune_type": "dora"}
        FOLDER/adapter_config.json: lora_parameters.rank: it is not the 4 that model.embed_tokens.lora_a has
        help: fetch the folder again, or set it as the adapter was trained

        {"lora_parameters": {"rank": 4, "scale": 20.0}, "fine_tune_type": "ia3"}
        FOLDER/adapter_config.json: fine_tune_type: "ia3" is neither lora, dora nor full
        help: fetch the folder again, or set it as the adapter was trained

        {}
        FOLDER/adapter_config.json: r: it is not there
        help: merge the adapter into the model by PEFT, and read the model

        {"peft_type": "IA3"}
        FOLDER/adapter_config.json: peft_type: it is "IA3", and only "LORA" is read
        help: merge the adapter into the model by PEFT, and read the model

        {"r": 4, "lora_alpha": "x"}
        FOLDER/adapter_config.json: lora_alpha: it is "x"
        help: merge the adapter into the model by PEFT, and read the model

        {"r": 8, "lora_alpha": 6}
        FOLDER/adapter_model.safetensors: base_model.model.q_proj.lora_A.weight: it is f32[4,24], where the configuration has a rank of 8
        help: fetch the folder again

        {"r": 4, "lora_alpha": 6, "alpha_pattern": {"q_.*": 3}}
        FOLDER/adapter_config.json: alpha_pattern: "q_.*" is a regular expression, and only paths are read
        help: merge the adapter into the model by PEFT, and read the model

        {"r": 4, "lora_alpha": 6, "use_dora": true}
        FOLDER/adapter_model.safetensors: base_model.model.q_proj.lora_magnitude_vector: it is not there, and it is a part of the adapter of q_proj
        help: fetch the file again, or convert it from its source again

    "#]].assert_eq(&text);
}

/// What a reader makes of a golden folder with some bytes of a file changed: an error or parameters, and never a panic.
fn flipped(
    golden: &str,
    file: &str,
    flips: &[(proptest::sample::Index, u8)],
    read: impl Fn(&Path) -> Result<Parameters>,
) {
    let folder = copied(golden);
    let path = folder.join(file);
    let mut bytes = fs::read(&path).expect("reads");
    for (at, to) in flips {
        let at = at.index(bytes.len());
        bytes[at] = *to;
    }
    fs::write(&path, bytes).expect("writes");
    if let Ok(parameters) = read(&path) {
        for value in parameters.values() {
            // Codes and scales are any bits now; what they stand for need not be finite, and is computed.
            let _ = value.dense().and_then(|array| Ok(array.eval()?));
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..proptest::test_runner::Config::with_cases(16) })]

    #[test]
    fn no_change_of_bytes_makes_a_reader_panic(
        flips in proptest::collection::vec(proptest::prelude::any::<(proptest::sample::Index, u8)>(), 1..4),
    ) {
        let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
        flipped("bitsandbytes", "4bit.safetensors", &flips, |file| bitsandbytes::read(file));
        flipped("bitsandbytes", "int8.safetensors", &flips, |file| bitsandbytes::read(file));
        flipped("mlx_lm/mixed", "model.safetensors", &flips, |file| mlx_lm::read(of(file)));
        flipped("mlx_lm/mixed", "config.json", &flips, |file| mlx_lm::read(of(file)));
        flipped("peft/dora", "adapter_config.json", &flips, |file| peft::read(of(file), &model));
    }
}
