//! `tacit generate`: texts, continued.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use tacit_core::{Error, Policy, Result};

use crate::decoding::{Decoding, DecodingOptions, prompt};
use crate::output::{Failure, Output};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["prompt", "prompts"]))]
pub(crate) struct Options {
    #[command(flatten)]
    decoding: DecodingOptions,
    /// What is continued; - reads it from the standard input. May be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Vec<String>,
    /// A file of prompts, one a line; empty lines are skipped
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
}

pub(crate) fn generate(options: &Options, output: &mut Output) -> Result<ExitCode, Failure> {
    let _deny = Policy::Deny.scope();
    let texts = options.texts()?;
    let (mut decoding, _) = Decoding::open(&options.decoding, texts.len())?;
    // Only what begins a text begins with the tokens for that.
    let special = !decoding.has_begun();
    let prompts = texts.iter().map(|text| decoding.tokens(text, special)).collect::<Result<Vec<_>>>()?;
    if let [tokens] = &prompts[..] {
        let answer = decoding.answer(tokens, |piece| output.piece(piece))?;
        return decoding.finish(&answer, None, output);
    }
    decoding.answers(&prompts)?.show(output)
}

impl Options {
    /// What the prompts say.
    fn texts(&self) -> Result<Vec<String>> {
        if let Some(file) = &self.prompts {
            return lines(file);
        }
        if self.prompt.iter().filter(|text| *text == "-").count() > 1 {
            let help = "give `--prompt -` once, or a file of prompts with `--prompts`";
            return Err(Error::invalid("the standard input is asked for as several prompts", help));
        }
        self.prompt.iter().map(|text| prompt(text)).collect()
    }
}

/// The lines of a file, but for those with nothing in them.
fn lines(file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(Error::checkpoint(file, None, "there is no prompt in it", "write one prompt a line"));
    }
    Ok(lines)
}
