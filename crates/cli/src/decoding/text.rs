//! Text as tokens, and tokens as text while they come.

use tacit_core::{Error, Result};
use tacit_models::{Config, EndsBy};
use tacit_nn::generate::Detokenizer;
use tokenizers::Tokenizer;

use super::source::{Source, token_of};

/// The tokens that end a text: those of the model and, where no `generation_config.json` says which these are in the end, the
/// tokenizer's own as well, which for a model that was trained on conversations is the one behind an answer.
pub(crate) fn end_tokens(source: &Source, config: &Config, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut tokens = config.end_tokens.clone();
    if config.ends_by == EndsBy::Model {
        let (_, of_tokenizer) = source.config()?;
        let own = token_of(&of_tokenizer, "eos_token");
        let own = own.and_then(|text| tokenizer.token_to_id(text));
        tokens.extend(own.filter(|token| !config.end_tokens.contains(token)));
    }
    Ok(tokens)
}

/// The tokens of a text, which errors call `name`; `special` adds those that begin one, as the tokenizer says.
pub(crate) fn tokens(tokenizer: &Tokenizer, name: &str, text: &str, special: bool) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, special);
    let encoding = encoding.map_err(|error| {
        Error::invalid(format!("the tokenizer cannot read {name}: {error}"), "give text that its vocabulary has")
    })?;
    Ok(encoding.get_ids().to_vec())
}

/// The token that begins a text, if the tokenizer puts one there.
pub(crate) fn begin(tokenizer: &Tokenizer) -> Result<Option<u32>> {
    let first = |special| Ok::<_, Error>(tokens(tokenizer, "a letter", "a", special)?.first().copied());
    let begin = first(true)?;
    Ok(if begin == first(false)? { None } else { begin })
}

/// Text of tokens one at a time, that of the bytes of a character when the last of them has come.
///
/// What a token adds depends on the ones before it, as with spaces between words: so that the last of them are decoded with it and
/// without it.
#[derive(Debug)]
pub(crate) struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    /// The tokens that came out last, and those that are held back.
    tokens: Vec<u32>,
    /// How many of them came out.
    out: usize,
}

impl<'t> Stream<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), out: 0 }
    }

    fn decoded(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|error| {
            Error::invalid(
                format!("the tokenizer cannot decode {tokens:?}: {error}"),
                "use the tokenizer of this model",
            )
        })
    }

    /// What the tokens that are held back add to those before them.
    fn added(&self) -> Result<String> {
        let (before, all) = (self.decoded(&self.tokens[..self.out])?, self.decoded(&self.tokens)?);
        let same = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
        Ok(all[same.map(|(a, _)| a.len_utf8()).sum()..].to_owned())
    }
}

impl Detokenizer for Stream<'_> {
    fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let added = self.added()?;
        // A character whose bytes are not all there.
        if added.is_empty() || added.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.tokens.drain(..self.out);
        self.out = self.tokens.len();
        Ok(added)
    }

    fn finish(&mut self) -> Result<String> {
        let added = self.added()?;
        (self.tokens, self.out) = (Vec::new(), 0);
        Ok(added)
    }
}
