//! Tokens as text, while they come.

use tacit_core::{Error, Result};

use super::segments::Segments;
use super::{Finish, GenerateStats, Generation};

/// What makes text of the tokens of one sequence, one at a time.
pub trait Detokenizer {
    /// The text that `token` completes; empty where it ends within a character.
    ///
    /// # Errors
    ///
    /// The vocabulary has no such token.
    fn push(&mut self, token: u32) -> Result<String>;

    /// What was held back of the last tokens, as none follows.
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push).
    fn finish(&mut self) -> Result<String>;
}

/// The text of a [`Generation`], piece by piece, up to the first of some stops.
///
/// A stop may begin and end within tokens; what may be the beginning of one is held back until it is known not to be. Neither a
/// stop nor a single token that the generation stops after is part of the text.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Result;
/// use tacit_nn::generate::{Detokenizer, GenerateOptions, Texts};
///
/// struct Letters;
///
/// impl Detokenizer for Letters {
///     fn push(&mut self, token: u32) -> Result<String> {
///         Ok(["a", "b", "c"][token as usize].to_owned())
///     }
///
///     fn finish(&mut self) -> Result<String> {
///         Ok(String::new())
///     }
/// }
///
/// let table = Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]);
/// let step = |tokens: &Array, _: &mut ()| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
/// let mut state = ();
/// let tokens = tacit_nn::generate(step, &mut state, &[[0]], &GenerateOptions::default())?;
/// let mut text = String::new();
/// for piece in Texts::new(tokens, vec![Letters], &["ab"])? {
///     text += &piece?.text;
/// }
/// assert_eq!(text, "bc");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Texts<'a, D> {
    tokens: Generation<'a>,
    sequences: Vec<(D, Segments)>,
    stops: Vec<String>,
    single: Vec<u32>,
}

/// A piece of a sequence's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which prompt it follows.
    pub sequence: usize,
    /// The token that completed it.
    pub token: u32,
    /// What follows the pieces before; it may be empty.
    pub text: String,
    /// Why it is the last of its sequence, if it is.
    pub finish: Option<Finish>,
}

impl<'a, D: Detokenizer> Texts<'a, D> {
    /// The text of `tokens`, with a detokenizer for each sequence, up to the first of `stops`.
    ///
    /// # Errors
    ///
    /// There is not one detokenizer for each sequence, or a stop is empty.
    pub fn new(tokens: Generation<'a>, detokenizers: Vec<D>, stops: &[impl AsRef<str>]) -> Result<Self> {
        if detokenizers.len() != tokens.sequences() {
            return Err(Error::invalid(
                format!("{} detokenizers read {} sequences", detokenizers.len(), tokens.sequences()),
                "give one a sequence",
            ));
        }
        let stops: Vec<String> = stops.iter().map(|stop| stop.as_ref().to_owned()).collect();
        if stops.iter().any(String::is_empty) {
            return Err(Error::invalid("a text to stop at is empty", "leave it out, or give some text"));
        }
        let sequences = detokenizers.into_iter().map(|detokenizer| (detokenizer, Segments::default())).collect();
        let single = tokens.single_stops();
        Ok(Self { tokens, sequences, stops, single })
    }

    /// What it took so far.
    #[must_use]
    pub fn stats(&self) -> GenerateStats {
        self.tokens.stats()
    }
}

impl<D: Detokenizer> Iterator for Texts<'_, D> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let token = match self.tokens.next()? {
            Ok(token) => token,
            Err(error) => return Some(Err(error)),
        };
        let (detokenizer, segments) = &mut self.sequences[token.sequence];
        let mut finish = token.finish;
        let mut read = || -> Result<String> {
            let ends = finish == Some(Finish::Stop) && self.single.contains(&token.id);
            let mut text = if ends { String::new() } else { detokenizer.push(token.id)? };
            if finish.is_some() {
                text += &detokenizer.finish()?;
            }
            let mut piece = segments.push(&text, &self.stops);
            if segments.stopped {
                finish = Some(Finish::Stop);
            } else if finish.is_some() {
                piece += &segments.flush();
            }
            Ok(piece)
        };
        let text = read();
        if text.is_err() || finish.is_some() {
            self.tokens.stop(token.sequence);
        }
        Some(text.map(|text| Piece { sequence: token.sequence, token: token.id, text, finish }))
    }
}
