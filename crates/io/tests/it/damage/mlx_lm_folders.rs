//! Folders of mlx-lm.

use std::fmt::Write;
use std::fs;

use mlx_rs::Dtype;
use tacit_io::mlx_lm;

use super::{copied, gone, is, of, table, zeros};

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
fn rows_that_are_no_whole_codes() {
    let folder = copied("mlx_lm/uniform");
    let config = r#"{"quantization": {"group_size": 32, "bits": 4, "lm_head": {"group_size": 32, "bits": 3}}}"#;
    folder.file("config.json", config);
    let error = mlx_lm::read(&*folder).expect_err("refused");
    expect_test::expect![[r#"
        FOLDER/model.safetensors: lm_head.weight: its rows of 4 words are no whole number of codes of 3 bits
        help: fetch the configuration and the tensors again, together, or convert the model again"#]]
    .assert_eq(&folder.message(&error));
}
