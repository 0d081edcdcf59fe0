//! The model of a file, as Hugging Face's configuration describes it.

use tacit_core::{Error, Result};

use super::architecture::{Kind, ROPE_SCALING, SCALED_HEADS, Scale, USUAL};
use super::cursor::Cursor;
use super::names::{ROPE, ROPE_OF_LENGTHS};
use super::tokenizer::{BEGIN, TOKENS};
use super::{Gguf, GgufValue, metadata};
use crate::floats::floats;
use crate::json::Json;
use crate::torch_dtype::torch_dtype;

const EMBEDDING: &str = "token_embd.weight";

const AGAIN: &str = "convert the model again";

impl Gguf {
    /// What Hugging Face's `config.json` says of such a model, as far as the metadata and the tensors tell.
    ///
    /// The architectures are those of [`hugging_face`](Self::hugging_face). Numbers of `f32` have the fewest digits that stand
    /// for them. The divisors of rotary frequencies, `rope_freqs.weight`, become a `rope_scaling` of type `longrope`, whose lists for
    /// long and for short texts are the same.
    ///
    /// ```no_run
    /// # fn main() -> tacit_core::Result<()> {
    /// use tacit_io::Gguf;
    ///
    /// let json = Gguf::open("gemma-3-270m-q4_k_m.gguf")?.configuration()?;
    /// println!("{:?}", json.get("sliding_window"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The architecture is another one; there is no embedding, or it has not as many rows as there are words; or two numbers
    /// contradict each other. A key that a model needs may be missing: that is no error here.
    pub fn configuration(&self) -> Result<Json> {
        self.check_model()?;
        let architecture = self.architecture()?;
        let mut json = Json::Object(Vec::new());
        json.set("architectures", Json::List(vec![Json::Text(architecture.class.to_owned())]));
        json.set("model_type", Json::Text(architecture.model_type.to_owned()));
        json.set("torch_dtype", Json::Text(torch_dtype(self.aval(EMBEDDING)?.dtype).to_owned()));
        for (key, value) in USUAL.iter().chain(architecture.usual).chain(architecture.always) {
            json.set(key, value.clone());
        }
        for &(own, theirs, kind) in architecture.keys.iter().copied().flatten() {
            let is_none = |value: &Json| kind == Kind::CountOrZero && *value == Json::Integer(0);
            if let Some(value) = self.said(own)?.filter(|value| !is_none(value)) {
                json.set(theirs, value);
            }
        }
        if let (None, Some(heads)) = (json.get("num_key_value_heads"), json.get("num_attention_heads").cloned()) {
            json.set("num_key_value_heads", heads);
        }
        self.heads(&mut json)?;
        if let Some(types) = self.layer_types(&json)? {
            json.set("layer_types", types);
        }
        // llama.cpp has no window that the file does not say, where other libraries take one of their own.
        if architecture.window.is_some() && json.get("sliding_window").is_none() {
            json.set("sliding_window_pattern", Json::Integer(1));
        }
        // A Granite 4 of attention alone has the keys of nets that it does not have.
        if let (Some(values), Some(heads)) = (self.said("ssm.inner_size")?, json.get("linear_num_value_heads")) {
            let width = values.integer::<i64>().zip(heads.integer());
            let width =
                width.and_then(|(values, heads)| values.checked_div(heads).filter(|width| width * heads == values));
            let reason = || format!("it is {values}, which is no whole number of ssm.time_step_rank heads");
            let width = width.ok_or_else(|| self.wrong_own("ssm.inner_size", reason()))?;
            json.set("linear_value_head_dim", Json::Integer(width.into()));
        }
        self.positions(&mut json)?;
        if let Some(scale) = architecture.scale {
            set_scale(&mut json, scale);
        }
        json.set("vocab_size", Json::Integer(self.words()?.into()));
        json.set("tie_word_embeddings", Json::Bool(!self.header.tensors.contains_key("output.weight")));
        for (tensor, key) in [("blk.0.attn_output.bias", "attention_bias"), ("blk.0.ffn_up.bias", "mlp_bias")] {
            if self.header.tensors.contains_key(tensor) {
                json.set(key, Json::Bool(true));
            }
        }
        if let Some(begin) = self.value(BEGIN)? {
            json.set("bos_token_id", begin);
        }
        let ends = self.end_tokens()?;
        if !ends.is_empty() {
            json.set("eos_token_id", Json::List(ends.into_iter().map(|end| Json::Integer(end.into())).collect()));
        }
        Ok(json)
    }

    pub(super) fn check_model(&self) -> Result<()> {
        for (key, value) in self.architecture()?.only {
            if let Some(other) = self.said(key)?.filter(|other| other != value) {
                let reason = format!("it is {other}, and the models of this architecture that are read have {value}");
                return Err(self.wrong(&self.architecture_key(key)?, reason, "take another model"));
            }
        }
        if let Some(factors) = ROPE_OF_LENGTHS.into_iter().find(|&name| self.header.tensors.contains_key(name)) {
            let reason = "long texts have other frequencies than short ones";
            return Err(self.wrong(factors, reason, "take a model whose frequencies do not change with the length"));
        }
        Ok(())
    }

    /// The width of a head, which is that of keys as well as of values.
    fn heads(&self, json: &mut Json) -> Result<()> {
        let integer = |json: &Json, key: &str| json.get(key).and_then(Json::integer::<i64>);
        if json.get("head_dim").is_none()
            && let (Some(width), Some(heads)) = (integer(json, "hidden_size"), integer(json, "num_attention_heads"))
            && let Some(width) = width.checked_div(heads)
        {
            json.set("head_dim", Json::Integer(width.into()));
        }
        if let Some(values) = self.said("attention.value_length")?
            && let Some(keys) = json.get("head_dim").filter(|&keys| *keys != values)
        {
            let reason = format!("it is {values}, and that of keys is {keys}: heads of one width are read");
            return Err(self.wrong_own("attention.value_length", reason));
        }
        Ok(())
    }

    /// Which layers have a window, where the file says more than the architecture does: each of them by itself, or all but the
    /// last of so many.
    fn layer_types(&self, json: &Json) -> Result<Option<Json>> {
        const KEY: &str = "attention.sliding_window_pattern";
        let count = json.get("num_hidden_layers").and_then(Json::integer::<u32>);
        let (Some(pattern), Some(count), Some(_)) = (self.said(KEY)?, count, json.get("sliding_window")) else {
            return Ok(None);
        };
        let slides: Option<Vec<bool>> = match &pattern {
            Json::List(layers) => layers.iter().map(Json::flag).collect(),
            // A file has a tensor of each layer; one that says more is refused when the tensors are looked for.
            _ if count as usize > self.header.tensors.len() => return Ok(None),
            period => period
                .integer::<u32>()
                .map(|period| (0..count).map(|layer| period == 0 || layer % period < period - 1).collect()),
        };
        let slides = slides.ok_or_else(|| {
            self.wrong_own(KEY, format!("it is {pattern}, and should be true or false of each layer, or a number"))
        })?;
        let name = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
        Ok(Some(Json::List(slides.into_iter().map(|slides| Json::Text(name(slides).to_owned())).collect())))
    }

    /// Which part of a head is rotated, and by which frequencies.
    fn positions(&self, json: &mut Json) -> Result<()> {
        let rotated = self.said("rope.dimension_count")?.and_then(|rotated| rotated.number());
        if let (Some(rotated), Some(width)) = (rotated, json.get("head_dim").and_then(Json::number)) {
            json.set("partial_rotary_factor", Json::Float(rotated / width));
        }
        let mut scaling = Json::Object(Vec::new());
        for &(own, theirs, _) in ROPE_SCALING {
            if let Some(value) = self.said(own)? {
                scaling.set(theirs, value);
            }
        }
        // llama.cpp divides positions by a factor of which no kind is said.
        let factor =
            scaling.get("factor").and_then(Json::number).filter(|&factor| factor > 0.0 && (factor - 1.0).abs() > 0.0);
        if scaling.get("rope_type").is_none() && factor.is_some() {
            scaling.set("rope_type", Json::Text("linear".to_owned()));
        }
        let scaled = self.said(SCALED_HEADS)?;
        let other = scaled.as_ref().map(Json::number).filter(|scaled| scaled.is_none_or(|own| (own - 1.0).abs() > 0.0));
        if let Some(other) = other.filter(|_| !self.header.tensors.contains_key(ROPE)) {
            let is_yarn = scaling.get("rope_type").and_then(Json::text) == Some("yarn");
            let Some(other) = other.filter(|_| is_yarn) else {
                let reason = format!("it scales heads without {ROPE} or yarn, and no library has it so");
                return Err(self.wrong_own(SCALED_HEADS, reason));
            };
            let gain = factor.map_or(1.0, yarn_gain) * other;
            scaling.set("attention_factor", short(f64::from(gain as f32)));
        }
        if let Some(stored) = self.header.tensors.get(ROPE) {
            let factors = self.get(ROPE)?;
            let factors = factors.as_dense().filter(|_| stored.shape.len() == 1 && stored.kind.name() == "F32");
            let reason = || format!("it is {} {:?}, and should be a list of F32", stored.kind, stored.shape);
            let factors = floats(factors.ok_or_else(|| self.wrong(ROPE, reason(), AGAIN))?)?;
            let factors = Json::List(factors.iter().map(|&factor| short(factor.into())).collect());
            if factor.is_some() && scaling.get("rope_type").and_then(Json::text) != Some("none") {
                let reason = "it stands beside a scaling of all positions, and no library has both";
                return Err(self.wrong(ROPE, reason, AGAIN));
            }
            scaling = Json::Object(Vec::new());
            scaling.set("rope_type", Json::Text("longrope".to_owned()));
            // Of texts that are as long as the model may read, or shorter, which all are.
            for key in ["long_factor", "short_factor"] {
                scaling.set(key, factors.clone());
            }
            scaling.set("attention_factor", scaled.clone().unwrap_or(Json::Float(1.0)));
            if let Some(length) = json.get("max_position_embeddings") {
                scaling.set("original_max_position_embeddings", length.clone());
            }
        }
        let scales = scaling.get("rope_type").and_then(Json::text).is_some_and(|kind| kind != "none");
        if scales {
            json.set("rope_scaling", scaling);
        }
        Ok(())
    }

    /// The words of the vocabulary, each of which has a row of the embedding.
    fn words(&self) -> Result<i32> {
        let words = self.stored(EMBEDDING)?.shape.first().copied().unwrap_or_default();
        if let Some(&(kind, at)) = self.header.metadata.get(TOKENS)
            && let Some(tokens) = metadata::length(&mut Cursor::new(self.bytes(), at), kind)
            && tokens != words as usize
        {
            let reason = format!("it has {tokens} tokens, and {EMBEDDING} has {words} rows");
            return Err(self.wrong(TOKENS, reason, AGAIN));
        }
        Ok(words)
    }

    /// The value of a key of the architecture, if it is there.
    fn said(&self, key: &str) -> Result<Option<Json>> {
        self.value(&self.architecture_key(key)?)
    }

    pub(super) fn value(&self, key: &str) -> Result<Option<Json>> {
        Ok(if self.has(key) { Some(json(self.metadata(key)?)) } else { None })
    }

    /// A value as messages show it.
    pub(super) fn shown(&self, key: &str) -> Result<String> {
        Ok(json(self.metadata(key)?).to_string())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.header.metadata.contains_key(key)
    }

    pub(super) fn architecture_key(&self, key: &str) -> Result<String> {
        Ok(format!("{}.{key}", self.architecture()?.name))
    }

    fn wrong_own(&self, key: &str, reason: String) -> Error {
        self.architecture_key(key).map_or_else(|error| error, |key| self.wrong(&key, reason, AGAIN))
    }
}

/// What `YaRN` multiplies queries and keys by for a factor of positions, where nothing says it.
pub(super) fn yarn_gain(factor: f64) -> f64 {
    if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
}

/// What scores are divided by the root of, where llama.cpp knows it by the number of layers.
pub(super) fn set_scale(json: &mut Json, scale: Scale) {
    let integer = |key: &str| json.get(key).and_then(Json::integer::<i64>);
    let [layers, hidden, heads, width] =
        ["num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim"].map(integer);
    let wide = layers.is_some_and(|layers| layers == scale.wide as i64);
    let width = if wide { hidden.zip(heads).and_then(|(hidden, heads)| hidden.checked_div(heads)) } else { width };
    if let Some(width) = width {
        json.set("query_pre_attn_scalar", Json::Integer(width.into()));
    }
}

/// A value as JSON has it; a list of numbers that are all the same, which some converters write for the layers, is one of them.
fn json(value: GgufValue) -> Json {
    match value {
        GgufValue::Unsigned(number) => Json::Integer(number.into()),
        GgufValue::Signed(number) => Json::Integer(number.into()),
        GgufValue::Float(number) => short(number),
        GgufValue::Bool(flag) => Json::Bool(flag),
        GgufValue::Text(text) => Json::Text(text),
        GgufValue::List(values) => {
            let mut values: Vec<Json> = values.into_iter().map(json).collect();
            let same = values.windows(2).all(|pair| pair[0] == pair[1]);
            match values.first() {
                Some(Json::Integer(_)) if same => values.swap_remove(0),
                _ => Json::List(values),
            }
        }
    }
}

/// A number with the fewest digits that stand for it, if it is one of `f32`.
fn short(number: f64) -> Json {
    let narrow = number as f32;
    let digits = if f64::from(narrow).to_bits() == number.to_bits() { narrow.to_string().parse().ok() } else { None };
    Json::Float(digits.unwrap_or(number))
}
