//! `tacit generate`: a text, continued.

use std::process::ExitCode;

use clap::Args;
use tacit_core::Policy;

use crate::decoding::{Decoding, DecodingOptions, prompt};
use crate::output::{Failure, Output};

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    decoding: DecodingOptions,
    /// What is continued; - reads it from the standard input
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
}

pub(crate) fn generate(options: &Options, output: &mut Output) -> Result<ExitCode, Failure> {
    let _deny = Policy::Deny.scope();
    let (mut decoding, _) = Decoding::open(&options.decoding)?;
    // Only what begins a text begins with the tokens for that.
    let tokens = decoding.tokens(&prompt(&options.prompt)?, !decoding.has_begun())?;
    let answer = decoding.answer(&tokens, |piece| output.piece(piece))?;
    decoding.finish(&answer, None, output)
}
