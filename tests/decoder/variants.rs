//! What sets architectures apart: layers without positions, windows, products that are fused, blocks of experts, multipliers.

use expect_test::expect;
use mlx_rs::Array;
use tacit::model::{Missing, Window};
use tacit::prelude::*;
use tacit_models::{Config, Decoder, Formats, LayerConfig, Mixer, Positions, caches, load, quantize};

use crate::golden::{Golden, difference, folder, loaded, reserve};
use crate::refused::{self, changed, parsed};

#[test]
fn layers_see_and_turn_what_the_file_says() -> Result<()> {
    let of = |name: &str, changes: &str| {
        let config = changed(name, &parsed(changes))?;
        let kind = |layer: &LayerConfig| match layer.mixer {
            Mixer::Attention { kind } => Some((config.kinds[kind].window, config.kinds[kind].rope.is_some())),
            Mixer::DeltaNet(_) => None,
        };
        Ok::<_, Error>(config.layers.iter().filter_map(kind).collect::<Vec<_>>())
    };
    let all = |rotated: bool| (Window::Everything, rotated);
    let near = |rotated: bool| (Window::Sliding { size: 8, sinks: 0 }, rotated);
    assert_eq!(of("smollm3", "{}")?, [all(true), all(false), all(true)]);
    assert_eq!(of("smollm3", r#"{"no_rope_layers": [0, 1, 1]}"#)?, [all(false), all(true), all(true)]);
    let asked = r#"{"use_sliding_window": true, "sliding_window": 8}"#;
    assert_eq!(of("smollm3", asked)?, [all(true), near(false), all(true)]);
    assert_eq!(of("smollm3", r#"{"sliding_window": 8}"#)?, of("smollm3", "{}")?);
    // Not from `max_window_layers` on, as in a Qwen3 without experts.
    assert_eq!(of("qwen3_moe", asked)?, [near(true), near(true)]);
    assert_eq!(of("qwen3_moe", r#"{"sliding_window": 8}"#)?, [all(true), all(true)]);
    for name in ["mixtral", "phi3"] {
        assert_eq!(of(name, r#"{"sliding_window": 8}"#)?, [near(true), near(true)]);
        assert_eq!(of(name, r#"{"sliding_window": null}"#)?, [all(true), all(true)]);
    }
    Ok(())
}

#[test]
fn what_an_architecture_needs_is_asked_for_by_name() {
    let factors = r#""short_factor": [1.0, 1.0], "long_factor": [1.0, 2.0]"#;
    let cases = [
        ("granite", r#"{"logits_scaling": null}"#.to_owned()),
        ("granite", r#"{"attention_multiplier": 0}"#.to_owned()),
        ("granite", r#"{"residual_multiplier": "x"}"#.to_owned()),
        ("smollm3", r#"{"no_rope_layers": [1]}"#.to_owned()),
        ("smollm3", r#"{"no_rope_layer_interval": 0}"#.to_owned()),
        ("phi3", format!(r#"{{"rope_scaling": {{"type": "su", {factors}}}}}"#)),
        ("phi3", r#"{"num_attention_heads": 16777216, "num_key_value_heads": 1, "head_dim": 64}"#.to_owned()),
        ("mixtral", r#"{"num_local_experts": null}"#.to_owned()),
        ("mixtral", r#"{"num_experts_per_tok": 9}"#.to_owned()),
    ];
    let refused = |(name, changes): &(&str, String)| {
        let error = changed(name, &parsed(changes)).expect_err(name);
        format!("{name}: {error}\n")
    };
    expect![[r#"
        granite: config.json: logits_scaling: it is not there
        help: fetch the configuration again
        granite: config.json: attention_multiplier: it is 0, and should be a number above 0 in the range of f32
        help: fetch the configuration again
        granite: config.json: residual_multiplier: it is "x", and should be a number above 0 in the range of f32
        help: fetch the configuration again
        smollm3: config.json: no_rope_layers: it names 1 layers, and there are 3
        help: fetch the configuration again
        smollm3: config.json: no_rope_layer_interval: it is 0, and should be a whole number above 0
        help: fetch the configuration again
        phi3: config.json: rope_scaling.long_factor: long texts have other frequencies than short ones, or there is no attention_factor
        help: take a model whose frequencies do not change with the length
        phi3: config.json: num_attention_heads: 16777216 heads of 64 numbers are no layer of width 32
        help: fetch the configuration again
        mixtral: config.json: num_local_experts: it is not there
        help: fetch the configuration again
        mixtral: config.json: num_experts_per_tok: a token goes through 9 of 4 experts
        help: fetch the configuration again
    "#]].assert_eq(&cases.iter().map(refused).collect::<String>());
}

/// Each name of a product of an expert is one of two libraries', so that none takes the place of another.
#[test]
fn an_expert_of_mixtral_has_the_names_of_its_library() -> Result<()> {
    let expert = "model.layers.1.block_sparse_moe.experts.0";
    let said = refused::refused("float/mixtral", |parameters| {
        let first = parameters[&format!("{expert}.w1.weight")].clone();
        parameters.insert(format!("{expert}.gate_proj.weight"), first);
    })?;
    let expected = format!(": {expert}.gate_proj.weight: the configuration's decoder has no such parameter\n");
    assert!(said.contains(&expected), "{said}");
    Ok(())
}

fn logits(config: &Config, model: &mut Model<Decoder>, prompt: &Array) -> Result<Array> {
    let mut caches = caches(config, 1, mlx_rs::Dtype::Float32)?;
    reserve(&mut caches, prompt.dim(1))?;
    model.run_with(&mut caches, |decoder, caches| decoder.forward(prompt, caches, Positions::All))
}

/// Codes of fused products and of blocks of experts give what their floats give, and routers stay as they are.
#[test]
fn weights_under_other_names_take_formats_as_well() -> Result<()> {
    let of = |name: &str, format: &str, path: &str| {
        Ok::<_, Error>(quantize(load(folder(name))?.1, &Formats::read(format)?)?.get(path)?.to_string())
    };
    assert_eq!(of("float/phi3", "int8", "model.layers.0.self_attn.qkv_proj.weight")?, "Int8(bf16[64,32])");
    let block = "model.layers.1.block_sparse_moe";
    let down = format!("{block}.switch_mlp.down_proj.weight");
    assert_eq!(of("float/mixtral", "nf4:32", &down)?, "Nf4(bf16[4,32,32])");
    assert_eq!(of("float/mixtral", "nf4:32", &format!("{block}.gate.weight"))?, "bf16[4,32]");

    for name in ["float/phi3", "float/mixtral"] {
        let prompt = Golden::read(name)?.prompt;
        for format in ["nf4:32", "int8"] {
            let (config, model) = loaded(name)?;
            let mut codes = quantize(model, &Formats::read(format)?)?;
            let (_, mut floats) = loaded(name)?;
            let float = |(path, value): (String, Value)| {
                let _allow = Policy::Allow.scope();
                Ok((path, value.dense()?.into()))
            };
            floats.assign(codes.values()?.into_iter().map(float).collect::<Result<_>>()?, Missing::Refuse)?;
            let expected = logits(&config, &mut floats, &prompt)?;
            let _deny = Policy::Deny.scope();
            let far = difference(&logits(&config, &mut codes, &prompt)?, &expected)?;
            assert!(far < 1e-4, "{name} in {format}: the logits differ by {far}");
        }
    }
    Ok(())
}
