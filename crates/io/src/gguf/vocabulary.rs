//! The tokenizer of a folder as metadata: [`Gguf::tokenizer`](super::Gguf::tokenizer) backwards.

use std::collections::HashMap;
use std::path::Path;

use tacit_core::{Error, Result};

use super::container::Entries;
use super::pre_tokenizer::PreTokenizer;
use super::tokenizer::{
    BEGIN, END, END_OF_MESSAGE, END_OF_TURN, ENDS, MERGES, MODEL, PRE, SCORES, SPACE, TEMPLATE, TOKENS, TYPES, UNKNOWN,
    kind,
};
use crate::json::Json;

pub(crate) struct Tokenizer {
    /// `tokenizer.json`.
    pub(crate) json: Json,
    /// `tokenizer_config.json`.
    pub(crate) config: Json,
    pub(crate) template: Option<String>,
}

const HELP: &str = "llama.cpp has no such tokenizer: write the model with `--as mlx-lm` or `--as tacit`";

/// What a token without a pair that gives it is worth.
const UNSCORED: f32 = -1e6;

impl Tokenizer {
    /// Adds the keys of the tokenizer, for so many rows of the embedding; `ends` are the tokens that end a text.
    pub(super) fn describe(&self, folder: &Path, words: usize, ends: Vec<u32>, entries: &mut Entries) -> Result<()> {
        let wrong =
            |key: &str, reason: String| Error::checkpoint(&folder.join("tokenizer.json"), Some(key), reason, HELP);
        let said = |key: &str| self.json.get(key).filter(|&value| *value != Json::Null);
        let Some(model) = said("model") else { return Err(wrong("model", "it is not there".to_owned())) };
        let type_of = |json: &Json| json.get("type").and_then(Json::text).unwrap_or("BPE").to_owned();
        if type_of(model) != "BPE" {
            return Err(wrong("model.type", format!("it is {}, and BPE is written", type_of(model))));
        }
        let added = if let Some(Json::List(added)) = said(ADDED) { &added[..] } else { &[] };
        let (tokens, by_text) = known(model, added, words, &wrong)?;
        let bytes = model.get("byte_fallback").and_then(Json::flag) == Some(true);
        let mut types: Vec<i64> =
            tokens.iter().map(|token| if token.is_some() { kind::NORMAL } else { kind::UNUSED }).collect();
        for (at, token) in tokens.iter().enumerate() {
            let is_byte = |token: &str| token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
            if bytes && token.is_some_and(is_byte) {
                types[at] = kind::BYTE;
            }
        }
        let unknown = model.get("unk_token").and_then(Json::text).and_then(|token| by_text.get(token));
        for token in added {
            let at = token.get("content").and_then(Json::text).and_then(|text| by_text.get(text));
            if let Some(&at) = at {
                let special = token.get("special").and_then(Json::flag) == Some(true);
                types[at] = if special { kind::CONTROL } else { kind::USER_DEFINED };
            }
        }
        if let Some(&at) = unknown {
            types[at] = kind::UNKNOWN;
        }
        let word = |(at, token): (usize, Option<&str>)| token.map_or_else(|| filler(at, &by_text), str::to_owned);
        let tokens: Vec<String> = tokens.into_iter().enumerate().map(word).collect();
        let merges = merges(model, &by_text, bytes, &wrong)?;
        entries.text(MODEL, if bytes { "llama" } else { "gpt2" });
        let check = |key: &str, takes: &dyn Fn(&Json) -> bool| {
            let other = said(key).into_iter().flat_map(all_steps).find(|step| !takes(step));
            other.map_or(Ok(()), |other| Err(wrong(key, format!("it has {}", other.line()))))
        };
        check("normalizer", &|step| is_known(step, bytes))?;
        if bytes {
            check("pre_tokenizer", &is_of_spaces)?;
            entries.text(PRE, "default");
            let mut scores = vec![UNSCORED; tokens.len()];
            for (rank, (left, right)) in merges.iter().enumerate().rev() {
                if let Some(&at) = by_text.get(&*format!("{left}{right}")) {
                    scores[at] = -(rank as f32);
                }
            }
            entries.reals(SCORES, &scores);
            entries.flag("tokenizer.ggml.add_space_prefix", self.is_spaced());
        } else {
            let whole = model.get("ignore_merges").and_then(Json::flag) == Some(true);
            let patterns = patterns(said("pre_tokenizer"));
            let known =
                patterns.as_ref().and_then(|patterns| PreTokenizer::name_of(patterns, whole)).ok_or_else(|| {
                    let shown = said("pre_tokenizer").map_or_else(|| "not there".to_owned(), Json::line);
                    wrong(
                        "pre_tokenizer",
                        format!("it is {shown}, and llama.cpp's {} are known", PreTokenizer::names()),
                    )
                })?;
            entries.text(PRE, known);
            entries.texts(MERGES, &merges.iter().map(|(left, right)| format!("{left} {right}")).collect::<Vec<_>>());
        }
        entries.texts(TOKENS, &tokens);
        entries.integers(TYPES, &types.iter().map(|&kind| kind as i32).collect::<Vec<_>>());
        for (key, theirs) in [(BEGIN, "bos_token"), (END, "eos_token"), (UNKNOWN, "unk_token"), (PADDING, "pad_token")]
        {
            let token = self.config.get(theirs);
            let token = token.and_then(|token| token.get("content").unwrap_or(token).text());
            if let Some(&at) = token.and_then(|token| by_text.get(token)) {
                entries.remove(key);
                entries.count(key, at as u32);
            }
        }
        let eos = entries.number(END);
        let is_known =
            |end: u32| Some(end) == eos || tokens.get(end as usize).is_some_and(|token| ENDS.contains(&&**token));
        // llama.cpp knows the others by their names.
        for (key, end) in [END_OF_TURN, END_OF_MESSAGE].into_iter().zip(ends.into_iter().filter(|&end| !is_known(end)))
        {
            entries.count(key, end);
        }
        if let Some(&at) = unknown.filter(|_| !entries.has(UNKNOWN)) {
            entries.count(UNKNOWN, at as u32);
        }
        for (name, known, first) in [("bos", BEGIN, true), ("eos", END, false)] {
            let key = format!("add_{name}_token");
            let token = entries.number(known).and_then(|at| tokens.get(at as usize));
            let adds = match said("post_processor") {
                Some(steps) => token.is_some_and(|token| adds(steps, token, first)),
                None => self.config.get(&key).and_then(Json::flag).unwrap_or(false),
            };
            entries.flag(&format!("tokenizer.ggml.{key}"), adds);
        }
        if let Some(template) = &self.template {
            entries.text(TEMPLATE, template);
        }
        Ok(())
    }

    /// Whether a space is put before a text.
    fn is_spaced(&self) -> bool {
        let steps = ["normalizer", "pre_tokenizer"].map(|key| self.json.get(key));
        steps.into_iter().flatten().flat_map(all_steps).any(|step| match step.get("type").and_then(Json::text) {
            Some("Prepend") => step.get("prepend").and_then(Json::text) == Some(SPACE),
            Some("Metaspace") => step.get("prepend_scheme").and_then(Json::text) != Some("never"),
            _ => false,
        })
    }
}

/// Whether this token is put before a text, or behind it.
fn adds(steps: &Json, token: &str, first: bool) -> bool {
    all_steps(steps).into_iter().any(|step| {
        let Some(Json::List(parts)) = step.get("single") else { return false };
        let part = if first { parts.first() } else { parts.last() };
        part.and_then(|part| part.get("SpecialToken")?.get("id")?.text()) == Some(token)
    })
}

/// Whether llama.cpp does what a step does to a text: it marks spaces where it has bytes for what is no token. The normal form
/// is left to whoever writes the text, in its own files as well.
fn is_known(step: &Json, bytes: bool) -> bool {
    let text = |key: &str| step.get(key).and_then(Json::text);
    match text("type") {
        Some("NFC") => !bytes,
        Some("Prepend") => bytes && text("prepend") == Some(SPACE),
        Some("Replace") => bytes && is_space(step) && text("content") == Some(SPACE),
        _ => false,
    }
}

/// Whether a step splits at spaces alone, which are marked, so that no pair is lost.
fn is_of_spaces(step: &Json) -> bool {
    match step.get("type").and_then(Json::text) {
        Some("Metaspace") => true,
        Some("Split") => is_space(step),
        _ => false,
    }
}

fn is_space(step: &Json) -> bool {
    step.get("pattern").and_then(|pattern| pattern.get("String")?.text()) == Some(" ")
}

/// An error about a key of `tokenizer.json`.
type Wrong<'w> = &'w dyn Fn(&str, String) -> Error;

/// The token of each row of the embedding, and the row of each token.
type Known<'j> = (Vec<Option<&'j str>>, HashMap<&'j str, usize>);

/// Reads the tokens for so many rows.
fn known<'j>(model: &'j Json, added: &'j [Json], words: usize, wrong: Wrong<'_>) -> Result<Known<'j>> {
    let vocab = model.get("vocab").map(Json::entries).unwrap_or_default();
    let ids = vocab.iter().map(|(token, id)| (&**token, id));
    let of_added = added.iter().map(|token| {
        let known = token.get("content").and_then(Json::text).zip(token.get("id"));
        known.ok_or_else(|| wrong(ADDED, format!("{token} has no content, or no id")))
    });
    let mut tokens: Vec<Option<&str>> = vec![None; words];
    let mut by_text = HashMap::new();
    for (order, token) in ids.map(Ok).chain(of_added).enumerate() {
        let (token, id) = token?;
        let at = id.integer::<usize>().filter(|&id| id < words);
        let at = at.ok_or_else(|| {
            wrong("model.vocab", format!("{token:?} is token {id}, and the embedding has {words} rows"))
        })?;
        // An added token may give another name to one of the model.
        let other = tokens[at].replace(token).filter(|&other| other != token && order < vocab.len());
        if let Some(other) = other {
            return Err(wrong("model.vocab", format!("token {at} is {other:?} and {token:?}")));
        }
        if let Some(other) = by_text.insert(token, at).filter(|&other| other != at) {
            return Err(wrong("model.vocab", format!("{token:?} is token {other} and {at}")));
        }
    }
    Ok((tokens, by_text))
}

/// What llama.cpp calls a row of the embedding that no token has; longer, where a token is called so.
fn filler(at: usize, by_text: &HashMap<&str, usize>) -> String {
    let mut name = format!("[PAD{at}]");
    while by_text.contains_key(&*name) {
        name.insert(name.len() - 1, '_');
    }
    name
}

const ADDED: &str = "added_tokens";
const PADDING: &str = "tokenizer.ggml.padding_token_id";

/// The steps of a sequence, or what is one step itself.
fn all_steps(json: &Json) -> Vec<&Json> {
    let steps = ["normalizers", "pretokenizers", "processors"].into_iter().find_map(|key| json.get(key));
    if let Some(Json::List(steps)) = steps { steps.iter().flat_map(all_steps).collect() } else { vec![json] }
}

/// The pairs that are merged, of tokens into a token.
fn merges<'j>(
    model: &'j Json,
    by_text: &HashMap<&str, usize>,
    bytes: bool,
    wrong: Wrong<'_>,
) -> Result<Vec<(&'j str, &'j str)>> {
    let merges = pairs(model).ok_or_else(|| wrong("model.merges", "it is no list of pairs".to_owned()))?;
    for (left, right) in &merges {
        let joined = format!("{left}{right}");
        if let Some(other) = [left, right, &*joined].into_iter().find(|part| !by_text.contains_key(part)) {
            let reason = format!("it has {left:?} and {right:?}, and {other:?} is no token");
            return Err(wrong("model.merges", reason));
        }
        // Of the space between the two in a file.
        if left.is_empty() || right.is_empty() || (!bytes && joined.contains(' ')) {
            return Err(wrong("model.merges", format!("{left:?} and {right:?} are no pair of letters")));
        }
    }
    Ok(merges)
}

/// Pairs, which older files have as one text.
fn pairs(model: &Json) -> Option<Vec<(&str, &str)>> {
    let Some(Json::List(merges)) = model.get("merges") else { return None };
    merges
        .iter()
        .map(|merge| match merge {
            Json::List(pair) => match &pair[..] {
                [Json::Text(left), Json::Text(right)] => Some((&**left, &**right)),
                _ => None,
            },
            Json::Text(pair) => pair.split_once(' '),
            _ => None,
        })
        .collect()
}

/// The expressions by which a text is split before bytes become letters.
fn patterns(json: Option<&Json>) -> Option<Vec<String>> {
    let mut patterns = Vec::new();
    for step in all_steps(json?) {
        let flag = |key: &str, usual: bool| step.get(key).and_then(Json::flag).unwrap_or(usual);
        match step.get("type").and_then(Json::text)? {
            "Split" => {
                let pattern = step.get("pattern")?.get("Regex")?.text()?;
                match (step.get("behavior").and_then(Json::text)?, flag("invert", false)) {
                    ("Isolated", false) => {}
                    // What it leaves out is nothing.
                    ("Removed", true) if pattern.ends_with(r"\s+") && pattern.contains(r"[^\s\p{L}\p{N}]") => {}
                    _ => return None,
                }
                patterns.push(pattern.to_owned());
            }
            "Digits" if flag("individual_digits", false) => patterns.push(r"\p{N}".to_owned()),
            "ByteLevel" if flag("add_prefix_space", true) => return None,
            "ByteLevel" if flag("use_regex", true) => patterns.push(super::pre_tokenizer::GPT2.to_owned()),
            "ByteLevel" => {}
            _ => return None,
        }
    }
    Some(patterns)
}
