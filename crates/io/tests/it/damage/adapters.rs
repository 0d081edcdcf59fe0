//! Adapters of mlx-lm and PEFT.

use std::fmt::Write;
use std::path::Path;

use mlx_rs::Dtype;
use tacit_io::{hugging_face, mlx_adapter, peft};

use super::{copied, gone, is, of, table, zeros};
use crate::golden::golden;

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
        FOLDER/adapters.safetensors: model.norm.weight: it does not belong to an adapter of mlx-lm's
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

#[test]
fn tensors_of_peft_that_belong_to_nothing() {
    let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
    let floats = |name: &str, shape: &[i32]| is(name, zeros(Dtype::Float32, shape));
    let damages = vec![
        ("a module of another shape", vec![floats("base_model.model.v_proj.modules_to_save.weight", &[4, 4])]),
        ("a bias of no module", vec![floats("base_model.model.other.base_layer.bias", &[4])]),
        ("b without a", vec![floats("base_model.model.k_proj.lora_B.weight", &[8, 2])]),
        ("by two names", vec![floats("q_proj.lora_A.weight", &[4, 24])]),
        (
            "a matrix and an embedding",
            vec![
                floats("base_model.model.q_proj.lora_embedding_A", &[4, 32]),
                floats("base_model.model.q_proj.lora_embedding_B", &[24, 4]),
            ],
        ),
    ];
    let read = |file: &Path| peft::read(of(file), &model);
    expect_test::expect![[r#"
        a module of another shape:
        FOLDER/adapter_model.safetensors: base_model.model.v_proj.modules_to_save.weight: it is f32[4,4], and the model has f32[8,24]
        help: give the parameters of the model that the adapter was trained for

        a bias of no module:
        FOLDER/adapter_model.safetensors: base_model.model.other.base_layer.bias: the model has no other.bias
        help: give the parameters of the model that the adapter was trained for

        b without a:
        FOLDER/adapter_model.safetensors: base_model.model.k_proj.lora_B.weight: it belongs to no adapter in the file
        help: fetch the folder again

        by two names:
        FOLDER/adapter_model.safetensors: base_model.model.q_proj.lora_A.weight: it is there without base_model.model. as well
        help: leave one of the two out of the file, or fetch the folder again

        a matrix and an embedding:
        FOLDER/adapter_model.safetensors: base_model.model.q_proj.lora_embedding_A: it is the adapter of an embedding, and q_proj has that of a matrix as well
        help: fetch the folder again

    "#]].assert_eq(&table("peft/lora", "adapter_model.safetensors", damages, read));
}
