//! The program `tacit`: looks into checkpoints, changes their formats, runs decoders, and says what this machine has.
//!
//! Commands print tables for people, or with `--json` the same as data; `launch`, `completions` and `man` print no table and
//! ignore `--json`. The exit code is 0 where all is well, 1 where a command fails or finds what it was asked to look for, 2 where
//! its arguments are wrong, and 128 and the number of the signal after an interruption. `launch` ends with the code of the first
//! rank that failed.

mod advise;
mod bench;
mod calibration;
mod chat;
mod compare;
mod convert;
mod decoding;
mod doctor;
mod explain;
mod folders;
mod formats;
mod generate;
mod inspect;
mod interruption;
mod launch;
mod new;
mod output;
mod overwriting;
mod perplexity;
mod primitives;
mod quantize;
mod resident;
mod shell;
#[cfg(test)]
mod small_decoder;
mod table;
mod train;
mod types;
mod variables;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
// MLX takes its BLAS from this executable.
use tacit_blas as _;
use tacit_bridge::process::{see_ends_of_children, write_without_ends};
use tacit_core::{Error, Policy};
// Its passes make compiled steps fast.
use tacit_fusion as _;

use output::{Failure, Output};

/// Looks into checkpoints of models, changes the formats of their parameters, runs decoders, and says what this machine has
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
    ///
    /// What is made is kept in a folder beside the output until that is whole. After an interruption the same command goes on
    /// where it was, and the output is the same, byte by byte.
    Quantize(quantize::Options),
    /// Choose formats for the parameters of a checkpoint under a budget of bits
    Advise(advise::Options),
    /// Write a checkpoint in the way of another program
    Convert(convert::Options),
    /// Measure how far two checkpoints are from each other, by parameter and by what layers give
    ///
    /// The error is the norm of the difference over the norm of what is right, the cosine that of both as vectors, and the SQNR
    /// the ratio of the powers in decibels. What layers give is the product of each matrix with the same inputs: no model is
    /// run, so that an error does not go on from layer to layer.
    Compare(compare::Options),
    /// Tell which handlers take the products with the parameters of a checkpoint, and what is materialized
    ///
    /// Each matrix is the weight of a linear layer, a table of embeddings is looked up as well, and stacked matrices are
    /// experts. Where a config.json beside the tensors, or a GGUF file, says a decoder that `tacit-models` builds (Llama,
    /// Mistral, Qwen, Gemma, Phi, Granite and others), a step of the whole model is told as well. Nothing is computed. For
    /// another model, `Model::explain` in a program tells the same.
    Explain(explain::Options),
    /// Measure what products with a weight in each format take on this machine
    ///
    /// The products take short turns with one of a dense weight of f32, so that what slows the machine down slows all of them
    /// down. One that would build the dense weight is refused.
    Bench(bench::Options),
    /// Continue a text with a decoder, in whatever format its weights and caches are
    ///
    /// The text is printed as it comes. Texts of several prompts are made together and printed in the end, in the order of the
    /// prompts, each behind a line such as `== prompt 1 of 3: 57 bytes ==`; with `--json` each is a line, whose `index` counts
    /// from 0. One Ctrl-C ends the text, a second one the program. It runs on the codes of the weights: a dense one is never built.
    Generate(generate::Options),
    /// Talk with a decoder that was trained on conversations
    ///
    /// Each line of the standard input is a message, and the answer is printed as it comes. Ctrl-C ends an answer, and otherwise
    /// the program; so does the end of the input.
    Chat(chat::Options),
    /// Measure how well a decoder predicts a text, in several formats
    ///
    /// The text is cut into windows that follow each other, each of which begins anew; what is left behind the last does not
    /// count. Perplexities can be compared where text, tokens, window and convention are the same. The error is the
    /// standard error of the mean loss times the perplexity.
    Perplexity(perplexity::Options),
    /// Adapt a decoder to texts: by adapters beside its weights as they are stored, or by training these for a format
    ///
    /// The loss of prompts and of what users say does not count. The run is kept in a folder beside the output until that is
    /// whole. After an interruption, of whatever kind, the same command goes on where it was last saved, and the output is the same,
    /// bit by bit.
    Train(train::Options),
    /// Start a program as the ranks of a group, on this machine or on several
    ///
    /// The program joins the group itself. The other commands of `tacit` join none: each rank would do all of the work.
    Launch(launch::Options),
    /// List the array types and the formats that have a text
    Types,
    /// List MLX's primitives and the handlers that take them
    Primitives(primitives::Options),
    /// Make a project of your own, with a quantized layer that runs
    New(new::Options),
    /// Check what Tacit needs on this machine
    Doctor,
    /// Print the completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, of the program or of a command
    Man {
        /// The command
        command: Option<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Whoever started this may have it ignore how ranks, compilers and others end.
    see_ends_of_children();
    // What was begun is then removed, and the file named.
    write_without_ends();
    // Whoever asks for a dense array here asks for it by name.
    let _allow = Policy::Allow.scope();
    match run(arguments) {
        Ok(code) => code,
        Err(failure) => {
            drop(writeln!(io::stderr(), "error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut output = Output::new(arguments.json);
    match arguments.command {
        Command::Launch(options) => return launch::launch(&options),
        Command::Inspect(options) => output.show(&inspect::inspect(&options)?),
        Command::Quantize(options) => output.beside([&options.output]).show(&quantize::quantize(&options)?),
        Command::Advise(options) => {
            let advised = advise::advise(&options)?;
            output.beside(&options.output).show(&advised)?;
            // What took long to find is not lost where its rules cannot be written.
            advised.write(options.output.as_deref()).map_err(Failure::from)
        }
        Command::Convert(options) => output.beside([&options.output]).show(&convert::convert(&options)?),
        Command::Compare(options) => {
            let comparison = compare::compare(&options)?;
            output.beside(&options.svg).show(&comparison)?;
            // What was measured is not lost where it cannot be drawn.
            comparison.draw(options.svg.as_deref())?;
            return Ok(if comparison.is_close() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Explain(options) => {
            let products = explain::explain(&options)?;
            output.beside(options.svg.iter().chain(&options.html)).show(&products)?;
            products.draw(&options)?;
            return Ok(if products.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Bench(options) => output.show(&bench::bench(&options)?),
        Command::Generate(options) => return generate::generate(&options, &mut output),
        Command::Chat(options) => return chat::chat(&options, &mut output),
        Command::Perplexity(options) => perplexity::perplexity(&options, output.beside(&options.svg)),
        Command::Train(options) => train::train(&options, output.beside(options.record.iter().chain(&options.svg))),
        Command::Types => output.show(&types::types()),
        Command::Primitives(options) => output.show(&primitives::primitives(&options)?),
        Command::New(options) => output.show(&new::new(&options)?),
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
        Command::Man { command } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(described(command.as_deref())?).render(&mut page)?;
            output.bytes(&page)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The program, or one of its commands.
fn described(command: Option<&str>) -> Result<clap::Command, Error> {
    let mut program = Arguments::command();
    // So that a command knows its whole name, and the options that all have.
    program.build();
    let Some(name) = command else { return Ok(program) };
    let known: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    let help = format!("name one of {}", known.join(", "));
    program.find_subcommand(name).cloned().ok_or_else(|| Error::invalid(format!("there is no command {name}"), help))
}
