//! What is in memory while a decoder is loaded in a format: this is the only test of its program, as MLX counts the bytes of a whole
//! one.

use std::fs;
use std::path::Path;

use mlx_rs::{Dtype, memory, ops};
use tacit_io::hugging_face;
use tacit_models::{Formats, load, load_with, quantize};
use tacit_nn::Parameters;

const LAYERS: usize = 4;
const EXPERTS: usize = 8;
const HIDDEN: i32 = 512;
const INNER: i32 = 2048;
/// Bytes of all experts, in half floats.
const ALL: usize = LAYERS * EXPERTS * 3 * (HIDDEN * INNER) as usize * 2;

const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 2048, "moe_intermediate_size": 2048, "head_dim": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
    "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 512, "tie_word_embeddings": true, "torch_dtype": "float16"
}"#;

/// A decoder as Hugging Face stores it: each expert by itself.
fn decoder(folder: &Path) {
    let mut parameters = Parameters::new();
    let mut add = |path: String, shape: &[i32]| {
        let zeros = ops::zeros_dtype(shape, Dtype::Float16).expect("zeros");
        parameters.insert(format!("model.{path}.weight"), zeros.into());
    };
    add("embed_tokens".to_owned(), &[64, HIDDEN]);
    add("norm".to_owned(), &[HIDDEN]);
    for layer in 0..LAYERS {
        let own = |name: &str| format!("layers.{layer}.{name}");
        for name in ["input_layernorm", "post_attention_layernorm"] {
            add(own(name), &[HIDDEN]);
        }
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(own(&format!("self_attn.{name}")), &[HIDDEN, HIDDEN]);
        }
        for name in ["q_norm", "k_norm"] {
            add(own(&format!("self_attn.{name}")), &[128]);
        }
        add(own("mlp.gate"), &[EXPERTS as i32, HIDDEN]);
        for expert in 0..EXPERTS {
            for (name, shape) in
                [("gate_proj", [INNER, HIDDEN]), ("up_proj", [INNER, HIDDEN]), ("down_proj", [HIDDEN, INNER])]
            {
                add(own(&format!("mlp.experts.{expert}.{name}")), &shape);
            }
        }
    }
    fs::create_dir_all(folder).expect("makes a folder");
    hugging_face::write(folder.join("model.safetensors"), parameters).expect("writes");
    fs::write(folder.join("config.json"), CONFIG).expect("writes");
}

/// The bytes that MLX holds at most while `f` runs, above those before; those of a file that is mapped are not among them.
fn peak(f: impl FnOnce()) -> usize {
    memory::clear_cache().expect("clears");
    memory::reset_peak_memory().expect("resets");
    let before = memory::active_memory().expect("counts");
    f();
    memory::peak_memory().expect("counts").saturating_sub(before)
}

#[test]
fn experts_become_codes_layer_by_layer() {
    let folder = std::env::temp_dir().join(format!("tacit-load-memory-{}", std::process::id()));
    decoder(&folder);
    let format = Formats::read("nf4:64").expect("a format");
    let codes = peak(|| drop(load_with(&folder, |model| quantize(model, &format)).expect("loads")));
    let floats = peak(|| drop(load(&folder).expect("loads")));
    fs::remove_dir_all(&folder).expect("removes it");
    println!("{codes} bytes as codes, and {floats} as floats, of experts of {ALL}");
    assert!(codes < ALL * 7 / 8, "{codes} bytes, of experts of {ALL}");
    assert!(floats >= ALL, "{floats} bytes, of experts of {ALL}");
}
