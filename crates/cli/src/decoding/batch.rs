//! The answers of a model to several prompts at once.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use tacit_core::Result;
use tacit_nn::generate::Texts;

use super::answer::{Answer, Ended, Reading, Took, at};
use super::text::Stream;
use crate::interruption::Answering;
use crate::output::{Failure, Output};

/// The answers in the order of their prompts, and what they took together.
#[derive(Debug)]
pub(crate) struct Answers {
    answers: Vec<Answer>,
    took: Took,
}

/// An answer as data that says whose it is.
#[derive(Serialize)]
struct Numbered<'a> {
    /// The place of its prompt, from 0.
    index: usize,
    #[serde(flatten)]
    answer: &'a Answer,
}

impl Answers {
    /// Reads a generation that follows these prompts to its end, or to Ctrl-C.
    pub(super) fn read(
        mut texts: Texts<'_, Stream<'_>>,
        prompts: &[Vec<u32>],
        answering: &Answering,
        weight_bytes: usize,
    ) -> Result<Self> {
        let mut readings: Vec<Reading> = prompts.iter().map(|_| Reading::default()).collect();
        while !answering.is_interrupted()
            && let Some(piece) = texts.next().transpose()?
        {
            readings[piece.sequence].push(&piece);
        }
        let (took, ended) = (Took::from_stats(&texts.stats(), weight_bytes)?, Ended::left(answering));
        let pairs = readings.into_iter().zip(prompts);
        let answers = pairs.map(|(reading, prompt)| reading.answer(prompt.len(), ended, took)).collect();
        Ok(Self { answers, took })
    }

    /// Prints the texts, and says on the standard error what they took.
    ///
    /// The line before each text says how many bytes it has, since the text may hold such lines itself.
    pub(crate) fn show(&self, output: &mut Output) -> Result<ExitCode, Failure> {
        let count = self.answers.len();
        for (index, answer) in self.answers.iter().enumerate() {
            output.line(&Numbered { index, answer })?;
            let (number, text) = (index + 1, &answer.text);
            output.piece(&format!("== prompt {number} of {count}: {} bytes ==\n{text}\n", text.len()))?;
        }
        self.report();
        let interrupted = self.answers.iter().find(|answer| answer.ended == Ended::Interrupt);
        Ok(interrupted.map_or(ExitCode::SUCCESS, Answer::code))
    }

    fn report(&self) {
        let Self { answers, took } = self;
        let prompt_tokens: usize = answers.iter().map(|answer| answer.prompt_tokens).sum();
        let tokens: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
        let (count, rate) = (answers.len(), at(" at", took.prompt_tokens_per_second));
        let mut said = String::new();
        let _ = writeln!(said, "{prompt_tokens} tokens of {count} prompts{rate}");
        for (number, answer) in (1..).zip(answers) {
            let _ = writeln!(said, "text {number}: {} tokens ({})", answer.tokens.len(), answer.ended.words());
        }
        let _ = writeln!(said, "{tokens} tokens in all{}", at(", at", took.tokens_per_second));
        said += &took.memory();
        // Who closed the standard error does not read it.
        drop(io::stderr().write_all(said.as_bytes()));
    }
}
