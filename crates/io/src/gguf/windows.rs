//! The windows of a model whose configuration is Hugging Face's, as a file says them.

use tacit_core::{Error, Result};

use super::container::Entries;
use super::description::{Description, LOCAL};
use crate::json::Json;

/// The window of a Mistral whose configuration does not say it.
const OF_MISTRAL: u32 = 4096;

impl Description<'_> {
    /// Which layers have a window, where these are not those that llama.cpp takes.
    pub(super) fn window(&self, entries: &mut Entries) -> Result<()> {
        const KEY: &str = "layer_types";
        let layers = self.count("num_hidden_layers")?.unwrap_or_default();
        let types: Option<Vec<&str>> = match self.config.get(KEY) {
            Some(Json::List(types)) => types.iter().map(Json::text).collect(),
            _ => None,
        };
        let slides = |period: u32, layer: u32| period == 0 || layer % period < period - 1;
        let is_period = |types: &[&str], name: &str, period: u32| {
            types.len() == layers as usize
                && (0..layers).zip(types).all(|(layer, own)| (*own == name) == slides(period, layer))
        };
        let Some(usual) = self.architecture.window else {
            let flag = self.config.get("use_sliding_window").and_then(Json::flag) == Some(true);
            let model = self.config.get("model_type").and_then(Json::text);
            let mistral = matches!(model, Some("mistral" | "mixtral"));
            let listed = types.as_ref().is_some_and(|types| types.contains(&LOCAL));
            let length = self.count("max_position_embeddings")?;
            let is_shorter = |window: u32| length.is_none_or(|length| window < length);
            let name = self.architecture.name;
            if model == Some("mistral") && self.config.get("sliding_window").is_none() && is_shorter(OF_MISTRAL) {
                let reason = format!(
                    "it is not there, which means {OF_MISTRAL}, and llama.cpp has no windows in the architecture {name}"
                );
                let help = "write `\"sliding_window\": null` into config.json if the model has none";
                return Err(Error::checkpoint(&self.file, Some("sliding_window"), reason, help));
            }
            let window = self.config.get("sliding_window").and_then(Json::integer::<u32>);
            if let Some(window) = window.filter(|&window| (flag || mistral || listed) && is_shorter(window)) {
                let reason = format!("it is {window}, and llama.cpp has no windows in the architecture {name}");
                return Err(self.wrong("sliding_window", reason));
            }
            let interval = self.count("full_attention_interval")?.unwrap_or(4);
            if let Some(types) = types.filter(|types| types.contains(&"linear_attention"))
                && !is_period(&types, "linear_attention", interval)
            {
                return Err(self.wrong(
                    KEY,
                    format!("full_attention is not in the last of every {interval} layers, and there alone"),
                ));
            }
            return Ok(());
        };
        let said =
            ["sliding_window_pattern", "_sliding_window_pattern"].into_iter().find_map(|key| self.config.get(key));
        let period = match (types, said) {
            (Some(types), _) => {
                // The first layer that sees everything ends the first period.
                let first = types.iter().position(|own| *own != LOCAL).map_or(0, |layer| layer as u32 + 1);
                let period = [usual, first].into_iter().find(|&period| is_period(&types, LOCAL, period));
                period.ok_or_else(|| {
                    self.wrong(
                        KEY,
                        "full_attention is not in the last of every so many layers, and there alone".to_owned(),
                    )
                })?
            }
            (None, Some(said)) => {
                let wrong =
                    || self.damaged("sliding_window_pattern", format!("it is {said}, and should be a whole number"));
                said.integer().ok_or_else(wrong)?
            }
            (None, None) => usual,
        };
        let is_usual = |(key, _): &(&str, Json)| *key == "sliding_window";
        if period == 1 && !self.architecture.usual.iter().any(is_usual) {
            // A file without a window has none in any version of llama.cpp.
            entries.remove(&self.architecture_key("attention.sliding_window"));
        } else if period != usual {
            entries.count(&self.architecture_key("attention.sliding_window_pattern"), period);
        }
        Ok(())
    }
}
