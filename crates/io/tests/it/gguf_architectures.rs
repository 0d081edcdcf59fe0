//! Models that share the name of an architecture, and what llama.cpp knows of one by its name alone.

use expect_test::expect;
use mlx_rs::ops;
use tacit_io::json::Json;
use tacit_io::{Gguf, ModelFolder, read};

use crate::gguf_malformed::{Maker, text};
use crate::gguf_written_malformed::{embedding, folder, llama, refused, written};
use crate::scratch::Scratch;

/// A file of llama.cpp with an embedding.
fn file(architecture: &str) -> Maker {
    Maker::default()
        .value("general.architecture", 8, &text(architecture))
        .tensor("token_embd.weight", &[32, 1], 0, 0)
        .elements(136)
}

#[test]
fn models_of_one_name_are_told_apart() {
    let folder = Scratch::new();
    let read = |made: &Maker| {
        let read = Gguf::open(folder.file("made.gguf", made.bytes())).and_then(|file| file.configuration());
        read.map_err(|error| folder.message(&error))
    };
    let of_count = |architecture: &str, key: &str, count: u32| {
        read(&file(architecture).value(&format!("{architecture}.{key}"), 4, &count.to_le_bytes()))
    };
    let positions = |flag: u8| read(&file("granite").value("granite.rope.scaling.finetuned", 7, &[flag]));
    let said = |json: &Json, key: &str| json.get(key).cloned();

    let mixtral = of_count("llama", "expert_count", 4).expect("reads");
    assert_eq!(said(&mixtral, "model_type"), Some(Json::Text("mixtral".to_owned())));
    assert_eq!(said(&mixtral, "num_local_experts"), Some(Json::Integer(4)));
    let plain = of_count("llama", "expert_count", 0).expect("reads");
    assert_eq!(said(&plain, "model_type"), Some(Json::Text("llama".to_owned())));
    // A window of 0 means that there is no window.
    for (window, expected) in [(0, None), (2047, Some(Json::Integer(2047)))] {
        let phi = of_count("phi3", "attention.sliding_window", window).expect("reads");
        assert_eq!(said(&phi, "sliding_window"), expected);
    }
    of_count("olmo2", "attention.sliding_window", 0).expect("reads");
    positions(1).expect("reads");
    // Some of Granite 4 have the keys of nets, and none of their tensors.
    of_count("granite", "ssm.inner_size", 1536).expect("reads");

    let others = [
        of_count("olmo2", "attention.sliding_window", 4096),
        positions(0),
        read(&file("phi3").tensor("rope_factors_long.weight", &[2], 0, 128)),
    ];
    let said = others.map(|other| other.expect_err("is refused") + "\n").concat();
    expect![[r#"
        FOLDER/made.gguf: olmo2.attention.sliding_window: it is 4096, and the models of this architecture that are read have 0
        help: take another model
        FOLDER/made.gguf: granite.rope.scaling.finetuned: it is false, and the models of this architecture that are read have true
        help: take another model
        FOLDER/made.gguf: rope_factors_long.weight: long texts have other frequencies than short ones
        help: take a model whose frequencies do not change with the length
    "#]]
    .assert_eq(&said);
}

/// As one whose architecture is not known at all.
#[test]
fn a_model_that_has_the_name_of_another_is_converted_by_its_own_names() {
    let folder = Scratch::new();
    let of = |name: &str| file(name).value(&format!("{name}.attention.head_count"), 4, &4_u32.to_le_bytes());
    let files = [
        of("olmo2").value("olmo2.attention.sliding_window", 4, &4096_u32.to_le_bytes()),
        of("granite").value("granite.rope.scaling.finetuned", 7, &[0]),
        of("phi3").tensor("rope_factors_long.weight", &[2], 0, 128),
    ];
    for made in files {
        let from = folder.file("made.gguf", made.bytes());
        assert!(!Gguf::open(&from).expect("opens").is_known());
        let parameters = read(&from).expect("reads");
        assert!(parameters.contains_key("token_embd.weight"));
        let model = ModelFolder::open(&from).expect("what stands beside the tensors");
        model.write_gguf(folder.join("again.gguf"), &parameters, None).expect("writes");
    }
}

#[test]
fn what_llama_cpp_knows_by_the_name_is_checked() {
    let divided = r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}"#;
    let of = |model: &str, keys: &str| llama(keys).replacen("llama", model, 1);
    let cases = [
        of("llama", r#""rope_traditional": true"#),
        of("smollm3", r#""no_rope_layers": [1, 0]"#),
        of("smollm3", r#""no_rope_layer_interval": 2"#),
        of("mixtral", r#""sliding_window": 64, "max_position_embeddings": 512"#),
        of("granite", r#""partial_rotary_factor": 0.5"#),
        of("qwen2", r#""partial_rotary_factor": 0.5"#),
        of("qwen3", r#""partial_rotary_factor": 0.5"#),
        of("qwen3_moe", r#""partial_rotary_factor": 0.5"#),
        of("olmo2", r#""partial_rotary_factor": 0.5"#),
        of("gemma", r#""tie_word_embeddings": false"#),
        of("gemma2", r#""tie_word_embeddings": false"#),
        of("qwen2", r#""head_dim": 16"#),
        of("phi3", r#""head_dim": 16"#),
        of("olmo2", r#""head_dim": 4"#),
        of("mistral", r#""sliding_window": 4096"#),
        of("gemma", r#""hidden_activation": "gelu""#),
        of("olmo2", divided),
        of("smollm3", divided),
        of(
            "phi3",
            r#""rope_scaling": {"rope_type": "longrope", "long_factor": [1.0, 1.0, 1.0, 2.0], "short_factor": [1.0, 1.0, 1.0, 2.0]}"#,
        ),
    ];
    expect![[r#"
        FOLDER/config.json: rope_traditional: it is true, and with llama.cpp false
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: no_rope_layers: not each fourth alone is without positions
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: no_rope_layer_interval: it is 2, and with llama.cpp 4
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_window: it is 64, and llama.cpp has no windows in the architecture llama
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture granite
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture qwen2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture qwen3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture qwen3moe
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: partial_rotary_factor: it is 0.5, and llama.cpp rotates all of a head in the architecture olmo2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: tie_word_embeddings: it is false, and with llama.cpp true
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: tie_word_embeddings: it is false, and with llama.cpp true
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: head_dim: it is 16, and 4 heads are 32 wide in llama.cpp's architecture qwen2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: head_dim: it is 16, and 4 heads are 32 wide in llama.cpp's architecture phi3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: head_dim: it is 4, and 4 heads are 32 wide in llama.cpp's architecture olmo2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: sliding_window: it is 4096, and llama.cpp has no windows in the architecture llama
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: hidden_activation: it is gelu, and with llama.cpp gelu_pytorch_tanh
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.rope_type: it is llama3, and llama.cpp divides no frequencies in the architecture olmo2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.rope_type: it is llama3, and llama.cpp divides no frequencies in the architecture smollm3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/config.json: rope_scaling.rope_type: it is longrope, and llama.cpp divides no frequencies in the architecture phi3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
}

/// What other architectures, or other values of a key, have is written.
#[test]
fn what_llama_cpp_runs_is_not_refused_beside_it() {
    let of = |model: &str, keys: &str| llama(keys).replacen("llama", model, 1);
    let cases = [
        of("phi3", r#""partial_rotary_factor": 0.5"#),
        of("gemma3_text", r#""tie_word_embeddings": false"#),
        of("qwen3", r#""head_dim": 16"#),
        of("gemma", r#""hidden_act": "gelu", "hidden_activation": null"#),
        of("mistral", r#""sliding_window": null"#),
        of("mistral", r#""max_position_embeddings": 4096"#),
    ];
    for config in cases {
        written(&folder(&config), &embedding(), None).expect(&config);
    }
}

/// It has a window in transformers.
#[test]
fn a_mistral_that_does_not_say_its_window_is_refused() {
    let cases = ["8192", "null"]
        .map(|length| llama(&format!(r#""max_position_embeddings": {length}"#)).replacen("llama", "mistral", 1));
    expect![[r#"
        FOLDER/config.json: sliding_window: it is not there, which means 4096, and llama.cpp has no windows in the architecture llama
        help: write `"sliding_window": null` into config.json if the model has none
        FOLDER/config.json: sliding_window: it is not there, which means 4096, and llama.cpp has no windows in the architecture llama
        help: write `"sliding_window": null` into config.json if the model has none
    "#]]
    .assert_eq(&refused(cases.iter().map(|config| (&**config, embedding()))));
}

/// llama.cpp loads no file with a tensor that it does not ask for.
#[test]
fn biases_that_llama_cpp_does_not_add_are_refused() {
    let with = |module: &str| {
        let mut all = embedding();
        all.insert(format!("model.layers.0.{module}.bias"), ops::zeros::<f32>(&[32]).expect("zeros").into());
        all
    };
    let of = |model: &str| llama(r#""attention_bias": true"#).replacen("llama", model, 1);
    let cases = [
        ("qwen3", "self_attn.o_proj"),
        ("olmo2", "self_attn.q_proj"),
        ("gemma", "self_attn.k_proj"),
        ("smollm3", "self_attn.v_proj"),
        ("qwen2", "self_attn.o_proj"),
    ];
    let cases = cases.map(|(model, module)| (of(model), with(module)));
    expect![[r#"
        FOLDER/made.gguf: model.layers.0.self_attn.o_proj.bias: llama.cpp adds no such bias in the architecture qwen3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/made.gguf: model.layers.0.self_attn.q_proj.bias: llama.cpp adds no such bias in the architecture olmo2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/made.gguf: model.layers.0.self_attn.k_proj.bias: llama.cpp adds no such bias in the architecture gemma
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/made.gguf: model.layers.0.self_attn.v_proj.bias: llama.cpp adds no such bias in the architecture smollm3
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
        FOLDER/made.gguf: model.layers.0.self_attn.o_proj.bias: llama.cpp adds no such bias in the architecture qwen2
        help: llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`
    "#]]
    .assert_eq(&refused(cases.iter().map(|(config, given)| (&**config, given.clone()))));
    for (model, module) in [("llama", "mlp.up_proj"), ("granite", "self_attn.o_proj"), ("qwen2", "self_attn.v_proj")] {
        written(&folder(&of(model)), &with(module), None).expect(model);
    }
}

/// In the architecture `olmo2` llama.cpp takes no embedding in the place of a head.
#[test]
fn a_head_that_is_the_embedding_is_written_where_llama_cpp_asks_for_one() {
    for (model, expected) in [("olmo2", true), ("smollm3", false)] {
        let folder = folder(&llama(r#""tie_word_embeddings": true"#).replacen("llama", model, 1));
        let made = written(&folder, &embedding(), None).expect("writes");
        assert_eq!(made.names().any(|name| name == "output.weight"), expected, "{model}");
    }
}

/// Either name says how many experts a Mixtral has, as either does where the folder is read.
#[test]
fn experts_of_a_mixtral_are_counted_by_either_name() {
    for key in ["num_local_experts", "num_experts"] {
        let folder =
            folder(&llama(&format!(r#""{key}": 4, "num_experts_per_tok": 2"#)).replacen("llama", "mixtral", 1));
        let made = written(&folder, &embedding(), None).and_then(|file| file.configuration()).expect("writes");
        assert_eq!(made.get("model_type"), Some(&Json::Text("mixtral".to_owned())), "{key}");
        assert_eq!(made.get("num_local_experts"), Some(&Json::Integer(4)), "{key}");
    }
}

/// llama.cpp takes a Gemma 3 for one without windows then, such as Rnj-1.
#[test]
fn a_gemma_3_whose_file_says_no_window_has_none() {
    let folder = Scratch::new();
    let pattern = |made: &Maker| {
        let read = Gguf::open(folder.file("made.gguf", made.bytes())).and_then(|file| file.configuration());
        read.expect("reads").get("sliding_window_pattern").cloned()
    };
    assert_eq!(pattern(&file("gemma3")), Some(Json::Integer(1)));
    let window = file("gemma3").value("gemma3.attention.sliding_window", 4, &512_u32.to_le_bytes());
    assert_eq!(pattern(&window), None);
    // That of a Gemma 2 is of 4096 tokens where the file says none.
    assert_eq!(pattern(&file("gemma2")), None);
}

/// mlx-lm reads no other one.
#[test]
fn a_granite_says_whether_it_has_biases() {
    let folder = Scratch::new();
    let biases = |made: &Maker| {
        let read = Gguf::open(folder.file("made.gguf", made.bytes())).and_then(|file| file.configuration());
        let json = read.expect("reads");
        ["attention_bias", "mlp_bias"].map(|key| json.get(key).and_then(Json::flag))
    };
    assert_eq!(biases(&file("granite")), [Some(false); 2]);
    let with_one = file("granite").tensor("blk.0.ffn_up.bias", &[2], 0, 128);
    assert_eq!(biases(&with_one), [Some(false), Some(true)]);
    assert_eq!(biases(&file("llama")), [None; 2]);
}
