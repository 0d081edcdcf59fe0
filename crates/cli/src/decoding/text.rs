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
        let end = token_of(&of_tokenizer, "eos_token");
        let end = end.and_then(|text| tokenizer.token_to_id(text));
        tokens.extend(end.filter(|token| !config.end_tokens.contains(token)));
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

/// How many tokens may be held back for the rest of a character: the bytes of earlier ones are then known to form none.
const MOST_HELD: usize = 8;

/// The bytes of a character, each of which may be a token.
const BYTES: usize = 4;

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

    /// Whether a token has no text wherever it stands: one that is special, or that the tokenizer does not know.
    fn is_silent(&self, token: u32) -> bool {
        let is_special = |text: String| self.tokenizer.get_added_vocabulary().is_special_token(&text);
        self.tokenizer.id_to_token(token).is_none_or(is_special)
    }

    /// What the first `count` tokens add to those that came out.
    fn added(&self, count: usize) -> Result<String> {
        let (before, after) = (self.decoded(&self.tokens[..self.out])?, self.decoded(&self.tokens[..count])?);
        let same = before.chars().zip(after.chars()).take_while(|(a, b)| a == b);
        Ok(after[same.map(|(a, _)| a.len_utf8()).sum()..].to_owned())
    }
}

impl Detokenizer for Stream<'_> {
    fn push(&mut self, token: u32) -> Result<String> {
        if self.is_silent(token) {
            return Ok(String::new());
        }
        self.tokens.push(token);
        let (mut count, mut added) = (self.tokens.len(), self.added(self.tokens.len())?);
        // A character whose bytes are not all there.
        if added.is_empty() || added.ends_with(char::REPLACEMENT_CHARACTER) {
            if added.is_empty() || count - self.out < MOST_HELD {
                return Ok(String::new());
            }
            // Bytes that so many others follow are no part of one that is to come.
            count -= BYTES;
            if !self.decoded(&self.tokens)?.starts_with(&self.decoded(&self.tokens[..count])?) {
                return Ok(String::new());
            }
            added = self.added(count)?;
        }
        self.tokens.drain(..self.out);
        self.out = count - self.out;
        Ok(added)
    }

    fn finish(&mut self) -> Result<String> {
        let added = self.added(self.tokens.len())?;
        (self.tokens, self.out) = (Vec::new(), 0);
        Ok(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of single bytes: the letter a, and the four of an emoji.
    fn tokenizer() -> Tokenizer {
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 5, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true
            }],
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "model": {
                "type": "BPE",
                "vocab": { "a": 0, "\u{f0}": 1, "\u{141}": 2, "\u{13a}": 3, "\u{122}": 4, "<pad>": 5 },
                "merges": []
            }
        });
        Tokenizer::from_bytes(json.to_string()).expect("a tokenizer")
    }

    #[test]
    fn few_tokens_are_held_whatever_comes_and_the_text_is_that_of_all() -> Result<()> {
        let tokenizer = tokenizer();
        let emoji = [1, 2, 3, 4];
        let broken = [[1; 300].as_slice(), &[2, 3, 4]].concat();
        let silent = [&emoji[..2], [5; 300].as_slice(), &emoji[2..], &[0]].concat();
        for ids in [&emoji[..], &broken, &silent, &[2; 300], &[0, 1, 2, 1, 2, 3, 4, 0]] {
            let (mut stream, mut text) = (Stream::new(&tokenizer), String::new());
            for &id in ids {
                text += &stream.push(id)?;
                assert!(stream.tokens.len() <= 2 * MOST_HELD, "{} are held", stream.tokens.len());
            }
            text += &stream.finish()?;
            assert_eq!(text, tokenizer.decode(ids, true).expect("decodes"));
        }
        Ok(())
    }
}
