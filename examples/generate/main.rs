//! Generates text with a decoder of the Llama family, whose weights and caches may be held in few bits.
//!
//! The decoder is plain mlx-rs modules (`decoder.rs`). Its step is compiled, and runs under `Policy::Deny`, so that a dense
//! weight that is built anywhere would be an error.
//!
//!     cargo run --release --features text --example generate -- --model FOLDER --weights nf4:64 --prompt "Once upon a time"

mod config;
mod decoder;
mod experts;
mod keys;
mod load;
mod rope;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, memory};
use tacit::compile::{Options as Compiling, compile_with_state};
use tacit::nn::KvCache;
use tacit::prelude::*;
use tokenizers::Tokenizer;

use decoder::{Decoder, Positions};

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Continues a text
#[derive(Parser, Debug)]
struct Options {
    /// A folder with config.json, tensors and tokenizer.json, of mlx-lm or of Hugging Face
    #[arg(long, value_name = "FOLDER")]
    model: PathBuf,
    #[arg(long)]
    prompt: String,
    /// The most tokens that are made
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// What the weights of the products become: a format such as nf4:64 or affine:4:64, or a file of rules
    #[arg(long)]
    weights: Option<String>,
    /// The folder of an adapter, of mlx-lm or of PEFT
    #[arg(long, value_name = "FOLDER")]
    lora: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a step changes, or leaves alone.
type State = (Model<Decoder>, Vec<KvCache>);

/// The likeliest token after `tokens: u32[1, n]`, `u32[1, 1]`.
fn step((model, caches): &mut State, tokens: Array) -> Result<Array> {
    model.run_with(caches, |decoder, caches| {
        Ok::<_, Error>(argmax_axis(decoder.forward(&tokens, caches, Positions::Last)?, -1, false)?)
    })
}

fn run(options: &Options) -> Outcome<()> {
    let _deny = Policy::Deny.scope();
    let file = options.model.join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let (config, mut model) = load::load(&options.model)?;
    if let Some(weights) = &options.weights {
        load::quantize(&mut model, weights)?;
    }
    if let Some(folder) = &options.lora {
        load::adapt(&mut model, folder)?;
    }
    let bytes = model.nbytes();
    let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
    let caches = decoder::caches(&config, 1, dtype)?;
    let mut state = (model, caches);
    let mut step =
        compile_with_state(step, Compiling { name: "the decoder's step".to_owned(), ..Compiling::default() });

    let prompt = tokenizer.encode(options.prompt.as_str(), true)?;
    let prompt = Array::from_slice(prompt.get_ids(), &[1, prompt.len() as i32]);
    state.1.iter_mut().try_for_each(|cache| cache.reserve(prompt.dim(1)))?;
    let mut next = step.call(&mut state, &prompt.into())?.dense()?;
    let mut made = Vec::new();
    let start = Instant::now();
    while made.len() < options.max_tokens {
        let token = next.try_item_exact::<u32>()?;
        if config.end_tokens.contains(&token) {
            break;
        }
        made.push(token);
        state.1.iter_mut().try_for_each(|cache| cache.reserve(1))?;
        next = step.call(&mut state, &next.into())?.dense()?;
    }
    let rate = made.len() as f64 / start.elapsed().as_secs_f64();
    println!("{}", tokenizer.decode(&made, true)?);
    let peak = (bytes + memory::peak_memory()?) as f64 / 1e6;
    eprintln!(
        "{} tokens at {rate:.1} a second; at most {peak:.1} MB, of which {:.1} weights",
        made.len(),
        bytes as f64 / 1e6
    );
    Ok(())
}
