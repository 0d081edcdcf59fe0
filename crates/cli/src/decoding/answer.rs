//! What a model said, and what that took.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use mlx_rs::memory;
use serde::Serialize;
use tacit_core::{Error, Result};
use tacit_nn::generate::{Finish, GenerateStats, Texts};

use super::text::Stream;
use crate::interruption::Answering;
use crate::output::{Failure, is_closed};

/// A text with its tokens, and what it took.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Its tokens, with the one that ended it.
    tokens: Vec<u32>,
    ended: Ended,
    prompt_tokens: usize,
    prompt_tokens_per_second: f64,
    tokens_per_second: f64,
    /// Tokens that were proposed, and those of them that were accepted.
    drafted: usize,
    accepted: usize,
    weight_bytes: usize,
    peak_bytes: usize,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
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
    /// Reads a generation to its end, to Ctrl-C, or until `out`, which is given the text as it comes, is closed.
    pub(super) fn read(
        mut texts: Texts<'_, Stream<'_>>,
        answering: &Answering,
        weight_bytes: usize,
        mut out: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<Self, Failure> {
        let mut closed = false;
        let mut out = |piece: &str| match out(piece) {
            Err(error) if is_closed(&error) => {
                closed = true;
                Ok(false)
            }
            written => written.map(|()| true),
        };
        let (mut text, mut tokens, mut finish) = (String::new(), Vec::new(), None);
        while !answering.is_interrupted()
            && let Some(piece) = texts.next().transpose()?
        {
            let is_open = out(&piece.text)?;
            text += &piece.text;
            tokens.push(piece.token);
            finish = piece.finish;
            if !is_open {
                break;
            }
        }
        out("\n")?;
        let stats = texts.stats();
        let ended = match finish {
            Some(Finish::Stop) => Ended::Stop,
            None if closed => Ended::Closed,
            None if answering.is_interrupted() => Ended::Interrupt,
            _ => Ended::Length,
        };
        let peak_bytes = match resident_peak() {
            Some(peak) => peak,
            // Parameters that lie in the file are not memory of MLX's.
            None => weight_bytes + memory::peak_memory().map_err(Error::from)?,
        };
        let GenerateStats { prompt_tokens, drafted, accepted, .. } = stats;
        Ok(Self {
            text,
            tokens,
            ended,
            prompt_tokens,
            prompt_tokens_per_second: stats.prompt_rate(),
            tokens_per_second: stats.rate(),
            drafted,
            accepted,
            weight_bytes,
            peak_bytes,
        })
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
        let end = match self.ended {
            Ended::Stop => "its end",
            Ended::Length => "the most that were asked for",
            Ended::Interrupt => "the interruption",
            Ended::Closed => "the close of the output",
        };
        let mut said = String::new();
        let _ =
            writeln!(said, "{} tokens of prompt at {:.1} a second", self.prompt_tokens, self.prompt_tokens_per_second);
        let _ = writeln!(said, "{} tokens, to {end}, at {:.1} a second", self.tokens.len(), self.tokens_per_second);
        if self.drafted > 0 {
            let _ = writeln!(said, "{} of {} drafted tokens accepted", self.accepted, self.drafted);
        }
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        let (peak, weights) = (megabytes(self.peak_bytes), megabytes(self.weight_bytes));
        let _ = writeln!(said, "at most {peak:.1} MB, of which {weights:.1} weights");
        // Who closed the standard error does not read it.
        drop(io::stderr().write_all(said.as_bytes()));
    }
}

/// The most bytes that this process had in memory, pages of files included, where the system tells: Linux does.
fn resident_peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?)
}
