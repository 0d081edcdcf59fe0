//! The tokenizer of a file, as Hugging Face's `tokenizers` reads it.

use std::collections::HashMap;

use tacit_core::Result;

use super::pre_tokenizer::PreTokenizer;
use super::{Gguf, GgufValue};
use crate::json::Json;

/// The types of tokens, `llama_token_type`.
pub(super) mod kind {
    pub(in crate::gguf) const NORMAL: i64 = 1;
    pub(in crate::gguf) const UNKNOWN: i64 = 2;
    pub(in crate::gguf) const CONTROL: i64 = 3;
    pub(in crate::gguf) const USER_DEFINED: i64 = 4;
    pub(in crate::gguf) const UNUSED: i64 = 5;
    pub(in crate::gguf) const BYTE: i64 = 6;
}

/// Tokens behind which llama.cpp ends a text, whatever the metadata say.
pub(super) const ENDS: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
];

/// The key of the words of the vocabulary.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const MODEL: &str = "tokenizer.ggml.model";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const PRE: &str = "tokenizer.ggml.pre";
pub(super) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
pub(super) const BEGIN: &str = "tokenizer.ggml.bos_token_id";
pub(super) const END: &str = "tokenizer.ggml.eos_token_id";

pub(super) const END_OF_TURN: &str = "tokenizer.ggml.eot_token_id";
pub(super) const END_OF_MESSAGE: &str = "tokenizer.ggml.eom_token_id";
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";

/// Tokens of a Phi-3 behind which llama.cpp keeps spaces.
const SPACED_BEHIND: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

const HELP: &str = "convert the model again, or take the tokenizer of its folder";

/// The space of a vocabulary of `SentencePiece`.
pub(super) const SPACE: &str = "\u{2581}";

/// The words of a file, and what is known of them.
struct Vocabulary {
    tokens: Vec<String>,
    /// None where all are normal.
    types: Option<Vec<i64>>,
}

impl Gguf {
    /// Whether the file has a tokenizer: some models are stored without one.
    #[must_use]
    pub fn has_tokenizer(&self) -> bool {
        self.has(TOKENS)
    }

    /// What Hugging Face's `tokenizer.json` says of the tokenizer in the metadata, for the crate `tokenizers`.
    ///
    /// It gives the tokens that llama.cpp gives. Those kinds are read that the models of
    /// [`configuration`](Self::configuration) have: `llama`, which merges the pair that gives the token of the highest score
    /// and writes characters without a token as bytes, and `gpt2`, which splits a text by the pre-tokenizer of a name and
    /// merges pairs in the order of a list.
    ///
    /// ```no_run
    /// # fn main() -> tacit_core::Result<()> {
    /// use tacit_io::Gguf;
    ///
    /// let file = Gguf::open("gemma-3-270m-q4_k_m.gguf")?;
    /// std::fs::write("tokenizer.json", file.tokenizer()?.line()).expect("writes");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// There is none or one of another kind, the pre-tokenizer is not known, or the metadata contradict each other.
    pub fn tokenizer(&self) -> Result<Json> {
        let Some(model) = self.value(MODEL)? else {
            return Err(self.wrong(MODEL, "there is no tokenizer in the file", "take that of the model's folder"));
        };
        let vocabulary = self.vocabulary()?;
        let kind = match model.text() {
            Some("llama") => self.by_scores(&vocabulary)?,
            Some("gpt2") => self.by_merges(&vocabulary)?,
            _ => return Err(self.wrong(MODEL, format!("it is {model}, and llama and gpt2 are read"), HELP)),
        };
        let around = self.around(&vocabulary, &kind)?;
        Ok(object([
            ("version", text("1.0")),
            ("truncation", Json::Null),
            ("padding", Json::Null),
            ("added_tokens", vocabulary.added(self.strips_behind())),
            ("normalizer", kind.normalizer),
            ("pre_tokenizer", kind.pre_tokenizer),
            ("post_processor", around),
            ("decoder", kind.decoder),
            ("model", kind.model),
        ]))
    }

    /// What Hugging Face's `tokenizer_config.json` says: the tokens that begin and end a text, the one for what is unknown, and the
    /// template of chats.
    ///
    /// # Errors
    ///
    /// There is no tokenizer, or the vocabulary does not have one of these tokens.
    pub fn tokenizer_config(&self) -> Result<Json> {
        let vocabulary = self.vocabulary()?;
        // The class that takes `tokenizer.json` as it is, and no class of the architecture.
        let class = [("tokenizer_class", text("PreTrainedTokenizerFast"))];
        let mut config = object(class.into_iter().chain([("clean_up_tokenization_spaces", Json::Bool(false))]));
        for (key, theirs) in [(BEGIN, "bos_token"), (END, "eos_token"), (UNKNOWN, "unk_token")] {
            if let Some(token) = self.token(key, &vocabulary)? {
                config.set(theirs, text(&vocabulary.tokens[token]));
            }
        }
        if let Some(template) = self.value(TEMPLATE)? {
            config.set("chat_template", template);
        }
        Ok(config)
    }

    /// The tokens that end a text: those that the metadata name, and those with a name that llama.cpp knows for it, such as
    /// `<|im_end|>`.
    ///
    /// # Errors
    ///
    /// A key of the metadata names no token.
    pub fn end_tokens(&self) -> Result<Vec<u32>> {
        let mut ends = Vec::new();
        if !self.has_tokenizer() {
            if let Some(end) = self.value(END)? {
                let wrong = || self.wrong(END, format!("it is {end}, and should be a token"), HELP);
                ends.push(end.integer().ok_or_else(wrong)?);
            }
            return Ok(ends);
        }
        let vocabulary = self.vocabulary()?;
        for key in [END, END_OF_TURN, END_OF_MESSAGE] {
            ends.extend(self.token(key, &vocabulary)?.map(|token| token as u32));
        }
        let named = (0..).zip(&vocabulary.tokens).filter(|(_, token)| ENDS.contains(&token.as_str()));
        ends.extend(named.map(|(id, _)| id));
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }

    fn vocabulary(&self) -> Result<Vocabulary> {
        let word = |value| if let GgufValue::Text(word) = value { Some(word) } else { None };
        let mut tokens = self.list(TOKENS, "strings", word)?.unwrap_or_default();
        if tokens.is_empty() {
            return Err(self.wrong(TOKENS, "there are no tokens", HELP));
        }
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]");
        }
        let mut known = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(before) = known.insert(token, id) {
                return Err(self.wrong(TOKENS, format!("{token:?} is token {before} and {id}"), HELP));
            }
        }
        let types = self.list(TYPES, "whole numbers", |value| match value {
            GgufValue::Signed(kind) => Some(kind),
            GgufValue::Unsigned(kind) => i64::try_from(kind).ok(),
            _ => None,
        })?;
        if let Some(types) = types.as_ref().filter(|types| types.len() != tokens.len()) {
            let reason = format!("it has {} types, and there are {} tokens", types.len(), tokens.len());
            return Err(self.wrong(TYPES, reason, HELP));
        }
        Ok(Vocabulary { tokens, types })
    }

    fn list<T>(&self, key: &str, what: &str, read: impl Fn(GgufValue) -> Option<T>) -> Result<Option<Vec<T>>> {
        if !self.has(key) {
            return Ok(None);
        }
        let values = if let GgufValue::List(values) = self.metadata(key)? { Some(values) } else { None };
        let values = values.and_then(|values| values.into_iter().map(read).collect());
        values.map(Some).ok_or_else(|| self.wrong(key, format!("it is no list of {what}"), HELP))
    }

    fn token(&self, key: &str, vocabulary: &Vocabulary) -> Result<Option<usize>> {
        let Some(value) = self.value(key)? else { return Ok(None) };
        let token = value.integer::<usize>().filter(|&token| token < vocabulary.tokens.len());
        let reason = || format!("it is {value}, and there are {} tokens", vocabulary.tokens.len());
        token.map(Some).ok_or_else(|| self.wrong(key, reason(), HELP))
    }

    fn flag(&self, key: &str, usual: bool) -> Result<bool> {
        let Some(value) = self.value(key)? else { return Ok(usual) };
        value.flag().ok_or_else(|| self.wrong(key, format!("it is {value}, and should be true or false"), HELP))
    }

    /// A tokenizer of `SentencePiece`'s pairs.
    fn by_scores(&self, vocabulary: &Vocabulary) -> Result<Kind> {
        let score = |value| if let GgufValue::Float(score) = value { Some(score) } else { None };
        let scores = self.list(SCORES, "floats", score)?.unwrap_or_default();
        if scores.len() != vocabulary.tokens.len() {
            let reason = format!("it has {} scores, and there are {} tokens", scores.len(), vocabulary.tokens.len());
            return Err(self.wrong(SCORES, reason, HELP));
        }
        let unknown = self.token(UNKNOWN, vocabulary)?.unwrap_or(0);
        let spaced = self.flag("tokenizer.ggml.add_space_prefix", true)?;
        let replace = |from: &str, to: &str| {
            object([("type", text("Replace")), ("pattern", object([("String", text(from))])), ("content", text(to))])
        };
        let prepend = spaced.then(|| object([("type", text("Prepend")), ("prepend", text(SPACE))]));
        let strip = || {
            let sizes = [("start", Json::Integer(1)), ("stop", Json::Integer(0))];
            object([("type", text("Strip")), ("content", text(" "))].into_iter().chain(sizes))
        };
        let decoders = [replace(SPACE, " "), typed("ByteFallback"), typed("Fuse")];
        Ok(Kind {
            normalizer: sequence("normalizers", prepend.into_iter().chain([replace(" ", SPACE)])),
            pre_tokenizer: Json::Null,
            decoder: sequence("decoders", decoders.into_iter().chain(spaced.then(strip))),
            model: object([
                ("type", text("BPE")),
                ("unk_token", text(&vocabulary.tokens[unknown])),
                ("fuse_unk", Json::Bool(true)),
                ("byte_fallback", Json::Bool(true)),
                ("ignore_merges", Json::Bool(false)),
                ("vocab", vocabulary.ids()),
                ("merges", pairs(vocabulary.merges(&scores))),
            ]),
            begin: Some(1),
            end: Some(2),
            begins: true,
        })
    }

    /// A tokenizer of GPT-2's bytes.
    fn by_merges(&self, vocabulary: &Vocabulary) -> Result<Kind> {
        let name = self.value(PRE)?.unwrap_or_else(|| text("default"));
        let known = name.text().and_then(PreTokenizer::named).ok_or_else(|| {
            let reason = format!("it is {name}, and the pre-tokenizers {} are known", PreTokenizer::names());
            self.wrong(PRE, reason, HELP)
        })?;
        let merge = |value| if let GgufValue::Text(merge) = value { Some(merge) } else { None };
        let merges = self.list(MERGES, "strings", merge)?.ok_or_else(|| self.wrong(MERGES, "it is not there", HELP))?;
        let ids = vocabulary.by_text();
        let halves = merges.iter().map(|merge| {
            // The first half may be a space itself, in files of before they were written as letters.
            let at = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ').map(|(at, _)| at);
            let (left, right) = at.map_or(("", ""), |at| (&merge[..at], &merge[at + 1..]));
            if left.is_empty() || right.is_empty() {
                let reason = format!("{merge:?} is not of two parts, and what has one is merged into itself");
                return Err(self.wrong(MERGES, reason, HELP));
            }
            let joined = format!("{left}{right}");
            let lacking = [left, right, &joined].into_iter().find(|half| !ids.contains_key(half));
            match lacking {
                Some(half) => Err(self.wrong(MERGES, format!("{merge:?} is of {half:?}, which is no token"), HELP)),
                None => Ok((left, right)),
            }
        });
        let split = |pattern: &&str| {
            let pattern = object([("Regex", text(pattern))]);
            let how = [("behavior", text("Isolated")), ("invert", Json::Bool(false))];
            object([("type", text("Split")), ("pattern", pattern)].into_iter().chain(how))
        };
        let bytes = || {
            let flags = ["add_prefix_space", "trim_offsets", "use_regex"].map(|flag| (flag, Json::Bool(false)));
            object([("type", text("ByteLevel"))].into_iter().chain(flags))
        };
        Ok(Kind {
            normalizer: Json::Null,
            pre_tokenizer: sequence("pretokenizers", known.patterns.iter().map(split).chain([bytes()])),
            decoder: bytes(),
            model: object([
                ("type", text("BPE")),
                ("fuse_unk", Json::Bool(false)),
                ("byte_fallback", Json::Bool(false)),
                ("ignore_merges", Json::Bool(known.whole_words)),
                ("vocab", vocabulary.ids()),
                ("merges", pairs(halves.collect::<Result<Vec<_>>>()?)),
            ]),
            begin: None,
            end: None,
            begins: known.begins,
        })
    }

    /// Whether spaces behind tokens are left out: no key says it, and llama.cpp knows a Phi-3 by its name.
    fn strips_behind(&self) -> bool {
        let Ok(GgufValue::Text(name)) = self.metadata("general.name") else { return false };
        let name = name.to_ascii_lowercase();
        ["phi-3", "phi3"].iter().any(|known| name.contains(known))
    }

    /// The tokens that are put before and behind a text.
    fn around(&self, vocabulary: &Vocabulary, kind: &Kind) -> Result<Json> {
        let sides = [(BEGIN, "bos", kind.begin, kind.begins), (END, "eos", kind.end, false)];
        let mut tokens = Vec::new();
        for (key, name, usual, adds) in sides {
            let token = self.token(key, vocabulary)?.or(usual).filter(|&token| token < vocabulary.tokens.len());
            let adds = self.flag(&format!("tokenizer.ggml.add_{name}_token"), adds)?;
            tokens.push(token.filter(|_| adds));
        }
        let word = |token: usize| text(&vocabulary.tokens[token]);
        let special = |token: usize| {
            let ids = [("ids", Json::List(vec![integer(token)])), ("tokens", Json::List(vec![word(token)]))];
            object([("id", word(token))].into_iter().chain(ids))
        };
        let part = |kind: &'static str, id: Json, of: i128| {
            object([(kind, object([("id", id), ("type_id", Json::Integer(of))]))])
        };
        let template = |texts: &[&str]| {
            let texts = texts.iter().zip(0..).map(|(id, of)| part("Sequence", text(id), of));
            let [begin, end] = [tokens[0], tokens[1]].map(|token| token.map(|id| part("SpecialToken", word(id), 0)));
            Json::List(begin.into_iter().chain(texts).chain(end).collect())
        };
        if tokens.iter().all(Option::is_none) {
            return Ok(Json::Null);
        }
        let special_tokens = tokens.iter().flatten().map(|&token| (vocabulary.tokens[token].clone(), special(token)));
        Ok(object([
            ("type", text("TemplateProcessing")),
            ("single", template(&["A"])),
            ("pair", template(&["A", "B"])),
            ("special_tokens", Json::Object(special_tokens.collect())),
        ]))
    }
}

/// What tokenizers of a kind have in common, and differ in.
struct Kind {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    /// The token that begins a text where the file names none, and the one that ends it.
    begin: Option<usize>,
    end: Option<usize>,
    /// Whether a text begins with it.
    begins: bool,
}

impl Vocabulary {
    fn kind(&self, id: usize) -> i64 {
        self.types.as_ref().map_or(1, |types| types[id])
    }

    fn by_text(&self) -> HashMap<&str, usize> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect()
    }

    fn ids(&self) -> Json {
        Json::Object(self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), integer(id))).collect())
    }

    /// The tokens that are looked for in a text before it is split, with the spaces behind them where these are left out.
    fn added(&self, strips: bool) -> Json {
        let added = self.tokens.iter().enumerate().filter_map(|(id, token)| {
            let special = match self.kind(id) {
                kind::UNKNOWN | kind::CONTROL => true,
                kind::USER_DEFINED => false,
                _ => return None,
            };
            let strips = strips && !SPACED_BEHIND.contains(&token.as_str());
            let flags = [("single_word", false), ("lstrip", false), ("rstrip", strips), ("normalized", false)];
            let fields = [("id", integer(id)), ("content", text(token)), ("special", Json::Bool(special))];
            Some(object(fields.into_iter().chain(flags.map(|(flag, value)| (flag, Json::Bool(value))))))
        });
        Json::List(added.collect())
    }

    /// The pairs that give a token, those of the highest scores first.
    fn merges(&self, scores: &[f64]) -> Vec<(&str, &str)> {
        let ids = self.by_text();
        let mut merges = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if matches!(self.kind(id), kind::UNKNOWN | kind::CONTROL | kind::USER_DEFINED | kind::BYTE) {
                continue;
            }
            let halves = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
            let known = halves.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right));
            merges.extend(known.map(|pair| (scores[id], pair)));
        }
        merges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        merges.into_iter().map(|(_, pair)| pair).collect()
    }
}

fn text(text: &str) -> Json {
    Json::Text(text.to_owned())
}

fn integer(number: usize) -> Json {
    Json::Integer(number as i128)
}

fn object<'k>(entries: impl IntoIterator<Item = (&'k str, Json)>) -> Json {
    Json::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn typed(name: &str) -> Json {
    object([("type", text(name))])
}

fn sequence(key: &str, steps: impl IntoIterator<Item = Json>) -> Json {
    object([("type", text("Sequence")), (key, Json::List(steps.into_iter().collect()))])
}

fn pairs<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> Json {
    Json::List(pairs.into_iter().map(|(left, right)| Json::List(vec![text(left), text(right)])).collect())
}
