//! The metadata of a model whose configuration is Hugging Face's: [`Gguf::configuration`](super::Gguf::configuration) backwards.

use std::f32::consts::PI;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

use super::architecture::{Architecture, Head, Kind, ROPE_SCALING, SCALED_HEADS};
use super::configuration::{set_scale, yarn_gain};
use super::container::Entries;
use super::tokenizer::{BEGIN, END};
use crate::json::Json;

/// A configuration, and the architecture that llama.cpp runs it as.
pub(super) struct Description<'c> {
    pub(super) file: PathBuf,
    pub(super) config: &'c Json,
    pub(super) architecture: &'static Architecture,
}

/// More than a head has: a number is computed of each of them.
const WIDEST: u32 = 1 << 16;

/// What the configuration of every model says that llama.cpp runs, if it says it: where mlx-lm rotates neighbors together, llama.cpp
/// rotates the halves of a head.
const ALWAYS: &[(&str, Json)] = &[("rope_traditional", Json::Bool(false))];

/// The kind of layers that see a window.
pub(super) const LOCAL: &str = "sliding_attention";

pub(super) const ANOTHER: &str = "llama.cpp does not run such a model: write it with `--as mlx-lm` or `--as tacit`";

impl<'c> Description<'c> {
    pub(super) fn new(folder: &Path, config: &'c Json) -> Result<Self> {
        let file = folder.join("config.json");
        let name = config.get("model_type").and_then(Json::text);
        let architecture = name.and_then(Architecture::of_model).ok_or_else(|| {
            let reason = format!("it is {}, and {} are written", name.unwrap_or("not there"), Architecture::models());
            Error::checkpoint(&file, Some("model_type"), reason, ANOTHER)
        })?;
        let this = Self { file, config, architecture };
        this.check()?;
        Ok(this)
    }

    /// All keys but those of the tokenizer, for a vocabulary of so many words; `factors` is what becomes of rotary frequencies.
    pub(super) fn entries(&self, words: i32) -> Result<(Entries, Option<Vec<f32>>)> {
        let mut entries = Entries::default();
        entries.text("general.architecture", self.architecture.name);
        for &(own, theirs, kind) in self.architecture.keys.iter().copied().flatten() {
            match self.said(theirs)? {
                Some(value) => self.set(&mut entries, own, theirs, value, kind)?,
                None if kind == Kind::CountOrZero => entries.count(&self.architecture_key(own), 0),
                None => {}
            }
        }
        entries.count(&self.architecture_key("vocab_size"), words.cast_unsigned());
        if let Some(width) = self.head_dim()? {
            entries.count(&self.architecture_key("attention.value_length"), width);
        }
        if let (Some(width), Some(heads)) =
            (self.count("linear_value_head_dim")?, self.count("linear_num_value_heads")?)
        {
            let both = width.checked_mul(heads).ok_or_else(|| {
                let reason = format!("{heads} heads of {width} numbers are no layer");
                self.damaged("linear_num_value_heads", reason)
            })?;
            entries.count(&self.architecture_key("ssm.inner_size"), both);
        }
        let of_kinds = self.said_object("rope_scaling")?.or(self.said_object("rope_parameters")?);
        // Of each kind of layers, as transformers 5 has it.
        let positions = of_kinds.map(|own| own.get("full_attention").unwrap_or(own));
        let dims = self.rotated(positions)?;
        if let Some(dims) = dims {
            entries.count(&self.architecture_key("rope.dimension_count"), dims);
        }
        let dims = dims.or(self.head_dim()?).unwrap_or_default();
        let factors = positions.map(|own| self.positions(&mut entries, own, dims)).transpose()?.flatten();
        if let Some(own) = of_kinds.and_then(|own| own.get(LOCAL)) {
            self.local(&mut entries, own, positions)?;
        }
        self.window(&mut entries)?;
        for (key, theirs) in [(BEGIN, "bos_token_id"), (END, "eos_token_id")] {
            let tokens = self.tokens(theirs)?;
            // Some layers alone have no words.
            if let Some(token) = tokens.iter().find(|&&token| words > 0 && token >= words.cast_unsigned()) {
                return Err(self.damaged(theirs, format!("it has {token}, and the embedding has {words} rows")));
            }
            if let Some(&token) = tokens.first() {
                entries.count(key, token);
            }
        }
        Ok((entries, factors))
    }

    /// The tokens of a key: one, several, or none.
    pub(super) fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let Some(said) = self.config.get(key).filter(|&value| *value != Json::Null) else { return Ok(Vec::new()) };
        let tokens = if let Json::List(tokens) = said { &tokens[..] } else { std::slice::from_ref(said) };
        let tokens = tokens.iter().map(Json::integer).collect::<Option<_>>();
        tokens.ok_or_else(|| self.damaged(key, format!("it is {said}, which is no token")))
    }

    pub(super) fn architecture_key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    /// A whole number of the configuration.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.said(key)? else { return Ok(None) };
        value.integer().map(Some).ok_or_else(|| self.wrong(key, format!("it is {value}, and should be a whole number")))
    }

    /// Whether the head is the embedding.
    pub(super) fn is_tied(&self) -> bool {
        let said = self.config.get("tie_word_embeddings").and_then(Json::flag);
        said.unwrap_or(self.architecture.head == Head::Embedding)
    }

    fn head_dim(&self) -> Result<Option<u32>> {
        if let Some(width) = self.count("head_dim")? {
            if width > WIDEST {
                return Err(self.damaged("head_dim", format!("it is {width}, and no head is wider than {WIDEST}")));
            }
            return Ok(Some(width));
        }
        let (width, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        Ok(width.zip(heads).and_then(|(width, heads)| width.checked_div(heads)))
    }

    /// What the configuration says or means; a `null` where llama.cpp has a number of its own is refused.
    fn said(&self, key: &str) -> Result<Option<&Json>> {
        let value = match self.config.get(key) {
            // Newer versions of transformers write this of a Qwen3-MoE.
            None | Some(Json::Null) if key == "num_experts" => self.config.get("num_local_experts"),
            // And transformers reads this of a Mixtral.
            None | Some(Json::Null) if key == "num_local_experts" => self.config.get("num_experts"),
            value => value,
        };
        match (value, self.architecture.implied(key)) {
            (Some(Json::Null), Some(implied)) => {
                Err(self.wrong(key, format!("it is null, and llama.cpp takes {implied}")))
            }
            (Some(Json::Null), None) => Ok(None),
            (Some(value), _) => Ok(Some(value)),
            (None, implied) => Ok(implied),
        }
    }

    fn said_object(&self, key: &str) -> Result<Option<&Json>> {
        let Some(value) = self.said(key)? else { return Ok(None) };
        let is_object = matches!(value, Json::Object(_));
        if is_object {
            Ok(Some(value))
        } else {
            Err(self.wrong(key, format!("it is {value}, and should be an object")))
        }
    }

    fn set(&self, entries: &mut Entries, own: &str, theirs: &str, value: &Json, kind: Kind) -> Result<()> {
        let key = self.architecture_key(own);
        let wrong = || self.wrong(theirs, format!("it is {value}, which {key} cannot be"));
        match (kind, value) {
            (Kind::Count | Kind::CountOrZero, Json::List(values)) => {
                let values: Option<Vec<u32>> = values.iter().map(Json::integer).collect();
                entries.counts(&key, &values.ok_or_else(wrong)?);
            }
            (Kind::Count | Kind::CountOrZero, _) => entries.count(&key, value.integer().ok_or_else(wrong)?),
            (Kind::Real, _) => entries.real(&key, real(value).ok_or_else(wrong)?),
            (Kind::Text, _) => entries.text(&key, value.text().ok_or_else(wrong)?),
        }
        Ok(())
    }

    /// Checks what no key of a file says.
    fn check(&self) -> Result<()> {
        let of = self.architecture;
        for (key, value) in ALWAYS.iter().chain(of.always) {
            if let Some(other) = self.config.get(key).filter(|&other| other != value) {
                return Err(self.wrong(key, format!("it is {other}, and with llama.cpp {value}")));
            }
        }
        let known: &[&str] = if of.gains_plus_one { &["gelu_pytorch_tanh", "gelu_new"] } else { &["silu", "swish"] };
        for key in ["hidden_act", "hidden_activation"] {
            // The `hidden_act` of the first Gemma's files is `gelu`, and no library reads it.
            let is_unread = |name: &str| of.gains_plus_one && key == "hidden_act" && name == "gelu";
            let said = self.config.get(key).and_then(Json::text);
            if let Some(other) = said.filter(|&name| !known.contains(&name) && !is_unread(name)) {
                return Err(self.wrong(key, format!("it is {other}, and with llama.cpp {}", known[0])));
            }
        }
        if of.heads_fill
            && let (Some(own), Some(model), Some(heads)) =
                (self.head_dim()?, self.count("hidden_size")?, self.count("num_attention_heads")?)
            && own.checked_mul(heads) != Some(model)
        {
            let name = of.name;
            let reason = format!("it is {own}, and {heads} heads are {model} wide in llama.cpp's architecture {name}");
            return Err(self.wrong("head_dim", reason));
        }
        // llama.cpp knows them by their numbers.
        let is_rotated = |(layer, rotated): (i32, &Json)| rotated.integer() == Some(i32::from(layer % 4 != 0));
        if let Some(Json::List(rotated)) = self.config.get("no_rope_layers")
            && !(1..).zip(rotated).all(is_rotated)
        {
            return Err(self.wrong("no_rope_layers", "not each fourth alone is without positions".to_owned()));
        }
        let Some(scale) = of.scale else { return Ok(()) };
        let mut theirs = self.config.clone();
        if let Some(width) = self.head_dim()? {
            theirs.set("head_dim", Json::Integer(width.into()));
        }
        set_scale(&mut theirs, scale);
        let key = "query_pre_attn_scalar";
        let number = |value: Option<&Json>| value.and_then(Json::number);
        let (own, theirs) = (number(self.said(key)?), number(theirs.get(key)));
        if own != theirs {
            let shown = |number: Option<f64>| number.map_or("not there".to_owned(), |number| number.to_string());
            return Err(self.wrong(key, format!("it is {}, and with llama.cpp {}", shown(own), shown(theirs))));
        }
        Ok(())
    }

    /// How many numbers of a head are rotated, where a key says it.
    fn rotated(&self, positions: Option<&Json>) -> Result<Option<u32>> {
        const PART: &str = "partial_rotary_factor";
        let part = positions.and_then(|own| own.get(PART)).or(self.said(PART)?);
        let (Some(part), Some(width)) = (part, self.head_dim()?) else { return Ok(None) };
        let dims = part.number().map(|part| (part * f64::from(width)).round());
        let dims = dims.filter(|&dims| dims >= 0.0 && dims <= f64::from(width)).ok_or_else(|| {
            self.damaged(PART, format!("it is {part}, which is no share of the {width} numbers of a head"))
        })?;
        let dims = dims as u32;
        if self.architecture.rotates_all && dims != width {
            let name = self.architecture.name;
            let reason = format!("it is {part}, and llama.cpp rotates all of a head in the architecture {name}");
            return Err(self.wrong(PART, reason));
        }
        Ok(Some(dims))
    }

    /// The keys of positions, or what the frequencies of so many rotated numbers are divided by.
    fn positions(&self, entries: &mut Entries, own: &Json, dims: u32) -> Result<Option<Vec<f32>>> {
        let wrong = |key: &str, reason: String| Err(self.wrong(&format!("rope_scaling.{key}"), reason));
        let kind = own.get("rope_type").or(own.get("type")).and_then(Json::text).unwrap_or("default");
        self.base(entries, "rope.freq_base", own)?;
        match kind {
            "default" | "none" => return Ok(None),
            "llama3" | "longrope" if !self.architecture.divides => {
                let name = self.architecture.name;
                let reason = format!("it is {kind}, and llama.cpp divides no frequencies in the architecture {name}");
                return wrong("rope_type", reason);
            }
            "llama3" => return self.stretched(own, dims).map(Some),
            "longrope" => return self.divided(entries, own, dims).map(Some),
            "linear" | "yarn" if own.get("factor").is_none_or(|factor| *factor == Json::Null) => {
                return wrong("factor", "it is not there".to_owned());
            }
            "linear" | "yarn" => {}
            other => return wrong("rope_type", format!("{other} is not written")),
        }
        entries.text(&self.architecture_key("rope.scaling.type"), kind);
        for (theirs, value) in own.entries() {
            let key = ROPE_SCALING.iter().rev().find(|(_, key, _)| key == theirs);
            match key {
                _ if *value == Json::Null
                    || ["type", "rope_type", "rope_theta", "partial_rotary_factor"].contains(&&**theirs) => {}
                // The configuration of Rnj-1 has them: 1 changes nothing.
                _ if ["attn_factor", "extrapolation_factor"].contains(&&**theirs) && value.number() == Some(1.0) => {}
                _ if theirs == "attention_factor" => {
                    // Transformers has none of a linear scaling. llama.cpp computes that of YaRN, and multiplies it by this.
                    let factor = own.get("factor").and_then(Json::number).filter(|_| kind == "yarn");
                    let Some(gain) = real(value).filter(|&gain| gain > 0.0) else {
                        return wrong(theirs, format!("it is {value}, which is no number above 0"));
                    };
                    let ratio = factor.map_or(1.0, |factor| f64::from(gain) / yarn_gain(factor)) as f32;
                    if (ratio - 1.0).abs() > f32::EPSILON {
                        entries.real(&self.architecture_key(SCALED_HEADS), ratio);
                    }
                }
                Some(&(own, _, kind)) => self.set(entries, own, theirs, value, kind)?,
                None => return wrong(theirs, format!("it is {value}, and llama.cpp has no key for it")),
            }
        }
        Ok(None)
    }

    /// The base of frequencies, where their own section has one.
    fn base(&self, entries: &mut Entries, key: &str, own: &Json) -> Result<()> {
        let Some(theta) = own.get("rope_theta") else { return Ok(()) };
        entries.remove(&self.architecture_key(key));
        self.set(entries, key, "rope_theta", theta, Kind::Real)
    }

    /// The positions of layers with a window, of which llama.cpp knows the base alone.
    fn local(&self, entries: &mut Entries, own: &Json, full: Option<&Json>) -> Result<()> {
        if !self.architecture.keys.iter().any(|keys| keys.iter().any(|(key, ..)| *key == "rope.freq_base_swa")) {
            if full == Some(own) {
                return Ok(());
            }
            let reason = "it differs from full_attention, and llama.cpp has one kind of positions in the architecture";
            return Err(self.wrong(LOCAL, format!("{reason} {}", self.architecture.name)));
        }
        let plain = |(key, value): &(String, Json)| match &**key {
            "rope_theta" => true,
            "rope_type" | "type" => value.text() == Some("default"),
            _ => *value == Json::Null,
        };
        if !matches!(own, Json::Object(_)) || !own.entries().iter().all(plain) {
            return Err(self.wrong(LOCAL, format!("it is {own}, and llama.cpp has plain positions there")));
        }
        self.base(entries, "rope.freq_base_swa", own)
    }

    /// What frequencies are divided by, for texts of all lengths, and what scales queries and keys beside it.
    fn divided(&self, entries: &mut Entries, own: &Json, dims: u32) -> Result<Vec<f32>> {
        let wrong = |key: &str, reason: &str| self.wrong(&format!("rope_scaling.{key}"), reason.to_owned());
        let factors = own.get("long_factor").filter(|&long| Some(long) == own.get("short_factor"));
        let Some(Json::List(factors)) = factors else {
            return Err(wrong("long_factor", "it differs from short_factor"));
        };
        let factors = factors.iter().map(|factor| real(factor).filter(|&factor| factor > 0.0));
        let factors: Vec<f32> =
            factors.collect::<Option<_>>().ok_or_else(|| wrong("long_factor", "it is no list of numbers above 0"))?;
        if factors.len() != dims as usize / 2 {
            let reason = format!("it has {} numbers, and {dims} of a head are rotated in pairs", factors.len());
            return Err(wrong("long_factor", &reason));
        }
        let number = |key: &str| {
            let Some(value) = own.get(key).filter(|&value| *value != Json::Null) else { return Ok(None) };
            let number = value.number().filter(|number| *number as f32 > 0.0 && (*number as f32).is_finite());
            number.map(Some).ok_or_else(|| wrong(key, &format!("it is {value}, which is no number above 0")))
        };
        let scale = if let Some(scale) = number("attention_factor")? {
            scale
        } else {
            // As transformers computes it.
            let most = self.said("max_position_embeddings")?.and_then(Json::number);
            let top = self.said("original_max_position_embeddings")?.and_then(Json::number);
            let original = number("original_max_position_embeddings")?.or(top);
            let factor = number("factor")?.or(most.zip(original).map(|(most, original)| most / original));
            match (factor, original.or(most)) {
                (Some(factor), _) if factor <= 1.0 => 1.0,
                (Some(factor), Some(original)) if original > 1.0 => (1.0 + factor.ln() / original.ln()).sqrt(),
                _ => return Err(wrong("attention_factor", "it is not there, nor what it is computed of")),
            }
        };
        if (scale - 1.0).abs() > 0.0 {
            entries.real(&self.architecture_key(SCALED_HEADS), scale as f32);
        }
        Ok(factors)
    }

    /// Llama 3.1's factors, as llama.cpp's `conversion/llama.py` computes them.
    fn stretched(&self, own: &Json, width: u32) -> Result<Vec<f32>> {
        let number = |key: &str| {
            own.get(key)
                .and_then(real)
                .ok_or_else(|| self.wrong(&format!("rope_scaling.{key}"), "it is not there, or no number".to_owned()))
        };
        let [factor, low, high, original] =
            ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"].map(number);
        let (factor, low, high, original) = (factor?, low?, high?, original?);
        let theta = own.get("rope_theta").or(self.said("rope_theta")?).and_then(Json::number).unwrap_or(1e4);
        let stretched = |at: u32| {
            let wavelength = 2.0 * PI * (theta.powf(f64::from(at) / f64::from(width)) as f32);
            let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            ((1.0 - smooth) / factor + smooth).recip()
        };
        Ok((0..width).step_by(2).map(stretched).collect())
    }

    pub(super) fn damaged(&self, key: &str, reason: String) -> Error {
        Error::checkpoint(&self.file, Some(key), reason, "fetch the configuration again, with the tensors")
    }

    pub(super) fn wrong(&self, key: &str, reason: String) -> Error {
        Error::checkpoint(&self.file, Some(key), reason, ANOTHER)
    }
}

/// A number that `f32` holds.
fn real(value: &Json) -> Option<f32> {
    value.number().map(|number| number as f32).filter(|number| number.is_finite())
}
