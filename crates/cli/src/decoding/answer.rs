//! The answer of a model, and the time that it took.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use mlx_rs::memory;
use serde::Serialize;
use tacit_core::Result;
use tacit_nn::generate::{Finish, GenerateStats, Piece, Texts};

use super::text::Stream;
use crate::interruption::Answering;
use crate::output::Failure;
use crate::resident;

/// A text with its tokens, and what it took.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Its tokens, with the one that ended it.
    pub(super) tokens: Vec<u32>,
    pub(super) ended: Ended,
    pub(super) prompt_tokens: usize,
    #[serde(flatten)]
    took: Took,
}

/// What a generation took: that of a batch, all its texts together.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Took {
    pub(super) prompt_tokens_per_second: Option<f64>,
    /// Nothing where all came in the first step, as drafted tokens may.
    pub(super) tokens_per_second: Option<f64>,
    /// Tokens that were proposed, and those of them that were accepted.
    drafted: usize,
    accepted: usize,
    weight_bytes: usize,
    peak_bytes: usize,
}

/// A text as far as it is read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    text: String,
    tokens: Vec<u32>,
    finish: Option<Finish>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ended {
    /// The model said so, or the text came at which it was to stop.
    Stop,
    /// It is as long as was asked for.
    Length,
    /// Somebody pressed Ctrl-C.
    Interrupt,
    /// Whoever reads it has closed the other end.
    Closed,
}

impl Answer {
    /// Reads a generation to its end, to Ctrl-C, or until `out`, which is given the text as it comes, says that nobody reads
    /// on.
    pub(super) fn read(
        mut texts: Texts<'_, Stream<'_>>,
        answering: &Answering,
        weight_bytes: usize,
        mut out: impl FnMut(&str) -> Result<bool, Failure>,
    ) -> Result<Self, Failure> {
        let mut reading = Reading::default();
        while !answering.is_interrupted()
            && let Some(piece) = texts.next().transpose()?
        {
            let is_read = out(&piece.text)?;
            reading.push(&piece);
            if !is_read {
                break;
            }
        }
        let ended = if out("\n")? { Ended::left(answering) } else { Ended::Closed };
        let stats = texts.stats();
        Ok(reading.answer(stats.prompt_tokens, ended, Took::from_stats(&stats, weight_bytes)?))
    }

    /// The last token, if the text ended by itself.
    pub(super) fn last_token(&self) -> Option<u32> {
        self.tokens.last().copied().filter(|_| self.ended == Ended::Stop)
    }

    /// The exit code of a program that was asked for this alone.
    pub(crate) fn code(&self) -> ExitCode {
        // As shells have it for Ctrl-C: whoever reads the text does not take it for whole.
        if self.ended == Ended::Interrupt { ExitCode::from(130) } else { ExitCode::SUCCESS }
    }

    /// Says on the standard error what it took.
    pub(crate) fn report(&self) {
        let Took { prompt_tokens_per_second, tokens_per_second, drafted, accepted, .. } = self.took;
        let (count, end) = (self.tokens.len(), self.ended.words());
        let mut said = String::new();
        let _ = writeln!(said, "{} tokens of prompt{}", self.prompt_tokens, at(" at", prompt_tokens_per_second));
        let _ = writeln!(said, "{count} tokens ({end}){}", at(", at", tokens_per_second));
        if drafted > 0 {
            let _ = writeln!(said, "{accepted} of {drafted} drafted tokens accepted");
        }
        said += &self.took.memory();
        // Who closed the standard error does not read it.
        drop(io::stderr().write_all(said.as_bytes()));
    }
}

impl Reading {
    pub(super) fn push(&mut self, piece: &Piece) {
        self.text += &piece.text;
        self.tokens.push(piece.token);
        self.finish = piece.finish;
    }

    /// The answer to a prompt of so many tokens; why it was `left`, where the last piece does not say why it ended.
    pub(super) fn answer(self, prompt_tokens: usize, left: Ended, took: Took) -> Answer {
        let Self { text, tokens, finish } = self;
        let ended = match finish {
            Some(Finish::Stop) => Ended::Stop,
            Some(Finish::Length) => Ended::Length,
            None => left,
        };
        Answer { text, tokens, ended, prompt_tokens, took }
    }
}

impl Ended {
    /// Why no more of a text is read, where its last piece does not say so.
    pub(super) fn left(answering: &Answering) -> Self {
        // Where no token is asked for, there is no piece.
        if answering.is_interrupted() { Self::Interrupt } else { Self::Length }
    }

    /// Why a text has no more tokens.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Stop => "the text ended",
            Self::Length => "the limit of --max-tokens",
            Self::Interrupt => "interrupted",
            Self::Closed => "the output was closed",
        }
    }
}

/// A rate behind these words, where there is one.
pub(super) fn at(words: &str, rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| format!("{words} {rate:.1} a second"))
}

impl Took {
    pub(super) fn from_stats(stats: &GenerateStats, weight_bytes: usize) -> Result<Self> {
        let peak_bytes = resident::peak(weight_bytes, memory::peak_memory()?);
        let &GenerateStats { drafted, accepted, .. } = stats;
        let (prompt_tokens_per_second, tokens_per_second) = (stats.prompt_rate(), stats.rate());
        Ok(Self { prompt_tokens_per_second, tokens_per_second, drafted, accepted, weight_bytes, peak_bytes })
    }

    /// What was in memory, as a line.
    pub(super) fn memory(&self) -> String {
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        let (peak, weights) = (megabytes(self.peak_bytes), megabytes(self.weight_bytes));
        format!("peak memory {peak:.1} MB, weights {weights:.1} MB\n")
    }
}
