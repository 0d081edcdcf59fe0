//! The configuration of a small decoder, which tests make without a file.

use std::path::Path;

use tacit_core::Result;
use tacit_io::json::Json;
use tacit_models::Config;

/// Two layers whose weights have 32 inputs each, but for `down_proj`, which has `intermediate_size`.
pub(crate) fn config(intermediate_size: i32) -> Result<Config> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": intermediate_size,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    });
    Config::from_json(&Json::parse(&config.to_string()).expect("an object"), Path::new("config.json"))
}
