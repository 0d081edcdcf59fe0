//! The program `tacit`: looks into checkpoints, changes their formats, and says what this machine has.
//!
//! Every command prints a table for people, or with `--json` the same as data. The exit code is 0 where all is well, 1
//! where a command fails or finds what it was asked to look for, and 2 where its arguments are wrong.

mod advise;
mod compare;
mod convert;
mod doctor;
mod inspect;
mod output;
mod primitives;
mod quantize;
mod table;
mod types;
mod variables;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
// MLX takes its BLAS from this executable.
use tacit_blas as _;
use tacit_core::Policy;

use output::{Failure, Output};

/// Looks into checkpoints of models, changes the formats of their parameters, and says what this machine has
#[derive(Parser)]
#[command(name = "tacit", version)]
struct Arguments {
    /// Print JSON in place of a table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the parameters of a checkpoint with their formats and sizes
    Inspect(inspect::Options),
    /// Give parameters of a checkpoint formats of few bits, and tell what that costs
    Quantize(quantize::Options),
    /// Choose formats for the parameters of a checkpoint under a budget of bits
    Advise(advise::Options),
    /// Write a checkpoint in the way of another program
    Convert(convert::Options),
    /// Measure how far the parameters of two checkpoints are from each other
    Compare(compare::Options),
    /// List the array types and the formats that have a text
    Types,
    /// List MLX's primitives and the handlers that take them
    Primitives(primitives::Options),
    /// Check what Tacit needs on this machine
    Doctor,
    /// Print what a shell completes the arguments with
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Whoever asks for a dense array here asks for it by name.
    let _allow = Policy::Allow.scope();
    match run(arguments) {
        Ok(code) => code,
        // Whoever reads has read enough.
        Err(Failure::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut output = Output::new(arguments.json);
    match arguments.command {
        Command::Inspect(options) => output.show(&inspect::inspect(&options)?),
        Command::Quantize(options) => output.show(&quantize::quantize(&options)?),
        Command::Advise(options) => output.show(&advise::advise(&options)?),
        Command::Convert(options) => output.show(&convert::convert(&options)?),
        Command::Compare(options) => {
            let comparison = compare::compare(&options)?;
            output.show(&comparison)?;
            return Ok(if comparison.is_close() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Types => output.show(&types::types()),
        Command::Primitives(options) => output.show(&primitives::primitives(&options)?),
        Command::Doctor => {
            let findings = doctor::examine();
            output.show(&findings)?;
            return Ok(if findings.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "tacit", &mut script);
            output.bytes(&script)
        }
        Command::Man => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Arguments::command()).render(&mut page)?;
            output.bytes(&page)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}
