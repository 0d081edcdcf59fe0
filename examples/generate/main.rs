//! Generates text with a decoder of the Llama family or a hybrid one, whose weights and caches may be held in few bits.
//!
//! The decoder is plain mlx-rs modules (`crates/models/src/decoder.rs`). Its step is compiled, and runs under `Policy::Deny`, so that a dense
//! weight that is built anywhere would be an error.
//!
//!     cargo run --release --features text --example generate -- --model MODEL --weights nf4:64 --prompt "Once upon a time"

mod chat;
#[cfg(test)]
mod ids;
mod source;
mod step;
mod stored;
mod text;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use mlx_rs::memory;
use tacit::Error;
use tacit::model::generate::{Draft, Finish, GenerateStats, Sampler, Texts, speculate};
use tacit::model::{self, Cache, generate};
use tacit::prelude::*;
use tacit_models::{Config, Decoder, Positions};
use tokenizers::Tokenizer;

use chat::{Conversation, Message, Template};
use source::Source;
use step::step;
use text::Stream;

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Continues a text, or answers in a conversation
#[derive(Parser, Debug)]
struct Options {
    /// A GGUF file, or a folder with config.json, tensors and tokenizer.json, of mlx-lm or of Hugging Face
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// What is continued or answered; - reads it from the standard input
    #[arg(long, allow_hyphen_values = true)]
    prompt: String,
    /// Put the prompt into the model's chat template
    #[arg(long)]
    chat: bool,
    /// What the conversation begins with
    #[arg(long, requires = "chat")]
    system: Option<String>,
    /// The most tokens that are made
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: Sampling,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// A smaller model with the same tokens, which proposes what the model judges
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// How many tokens it proposes at a time
    #[arg(long, value_name = "N", default_value_t = 3)]
    draft_tokens: usize,
    /// Go on from the caches in this file, as mlx-lm writes them, and write them back in the end; a new file is begun where
    /// there is none
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// What the weights of the products become: a format such as nf4:64 or affine:4:64, of which the embedding and the head
    /// have at least 6 bits, or a file of rules
    #[arg(long)]
    weights: Option<String>,
    /// What the caches hold: a format such as affine:8:64, or one for keys and one for values, with a comma
    #[arg(long, value_name = "FORMAT")]
    kv: Option<String>,
    /// The folder of an adapter, of mlx-lm or of PEFT
    #[arg(long, value_name = "FOLDER")]
    lora: Option<PathBuf>,
}

/// How tokens are drawn
#[derive(clap::Args, Debug)]
struct Sampling {
    /// The temperature; 0 takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    temp: f32,
    /// Draw from so many of the likeliest tokens; 0 is all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Draw from the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Draw from tokens that are at least so likely as this part of the likeliest
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Divide the logits of recent tokens by this; 1 is none
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// How many of the last tokens are recent
    #[arg(long, value_name = "TOKENS", default_value_t = 20)]
    repetition_window: usize,
    /// What draws begin with
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Sampling {
    fn sampler(&self) -> Sampler {
        Sampler {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            repetition_window: self.repetition_window,
            ..Sampler::default()
        }
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // Who closed this one will not read it.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether who reads the text has read enough.
fn is_closed(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(options: &Options) -> Outcome<()> {
    let _deny = Policy::Deny.scope();
    let sampler = options.sampling.sampler();
    sampler.check()?;
    let source = Source::of(&options.model)?;
    let tokenizer = source.tokenizer()?;
    let (config, mut model) = tacit_models::load(&options.model)?;
    if let Some(weights) = &options.weights {
        model = tacit_models::quantize(model, weights)?;
        tell_finer(&model, weights)?;
    }
    // MLX has no fast product of half floats on a CPU.
    model.hold_halves()?;
    if let Some(folder) = &options.lora {
        tacit_models::adapt(&mut model, folder)?;
    }
    let mut bytes = model.nbytes();
    let (caches, conversation) = stored::opened(caches(&config, &model)?, options.prompt_cache.as_deref())?;
    let mut caches = formatted(caches, options.kv.as_deref())?;
    let begun = !caches.first().is_none_or(Cache::is_empty);
    let Prompt { tokens: prompt, conversation } = prompt(options, &source, &tokenizer, begun, conversation)?;
    let ends = text::end_tokens(&source, &config.end_tokens, &tokenizer)?;
    let asked = generate::GenerateOptions {
        sampler,
        seed: options.sampling.seed,
        max_tokens: options.max_tokens,
        stop: ends.iter().map(|&token| vec![token]).collect(),
        prefill: config.prefill().unwrap_or(generate::GenerateOptions::default().prefill),
        ..generate::GenerateOptions::default()
    };

    let mut drafted;
    let tokens = if let Some(folder) = &options.draft {
        if options.prompt_cache.is_some() {
            let help = "leave out `--draft` or `--prompt-cache`";
            return Err(Error::invalid("a draft has not seen what a prompt cache holds", help).into());
        }
        same_tokens(&tokenizer, folder)?;
        let (config, smaller) = tacit_models::load(folder)?;
        bytes += smaller.nbytes();
        drafted = formatted(self::caches(&config, &smaller)?, options.kv.as_deref())?;
        let draft = Draft { step: step(smaller, Positions::Last), state: &mut drafted, tokens: options.draft_tokens };
        speculate(step(model, Positions::All), &mut caches, draft, &prompt, &asked)?
    } else {
        generate(step(model, Positions::Last), &mut caches, &[prompt], &asked)?
    };
    let mut texts = Texts::new(tokens, vec![Stream::new(&tokenizer)], &options.stop)?;
    let written = write(&mut texts)?;
    let stats = texts.stats();
    drop(texts);
    if let Some(file) = &options.prompt_cache {
        let conversation = conversation.map(|mut conversation| {
            conversation.messages.push(Message::new("assistant", written.text.clone()));
            let end = written.last.filter(|token| written.finish == Some(Finish::Stop) && ends.contains(token));
            Conversation { end: end.and_then(|token| tokenizer.id_to_token(token)), ..conversation }
        });
        stored::write(file, &caches, conversation.as_ref())?;
    }
    report(&stats, written.finish, bytes)?;
    Ok(())
}

/// Says which weights are in another format than was asked for.
fn tell_finer(model: &Model<Decoder>, weights: &str) -> Outcome<()> {
    if Path::new(weights).extension().is_some() {
        return Ok(());
    }
    // As it is printed: a text may say it otherwise.
    let asked = weights.parse::<AnyFormat>()?.to_string();
    for (path, row) in model.report().rows {
        if let model::Outcome::Quantized { format, .. } = row.outcome
            && format != asked
        {
            let why = "of fewer than 6 bits it costs most of the quality; a file of rules decides otherwise";
            writeln!(io::stderr(), "{path} is in {format}: {why}")?;
        }
    }
    Ok(())
}

/// Empty caches for this model.
fn caches(config: &Config, model: &Model<Decoder>) -> Result<Vec<Cache>> {
    tacit_models::caches(config, 1, model.get("model.embed_tokens.weight")?.aval()?.dtype)
}

/// The caches in these formats, if there are some; half floats of a file are held as those of new caches are.
fn formatted(caches: Vec<Cache>, formats: Option<&str>) -> Result<Vec<Cache>> {
    let Some(formats) = formats else { return caches.into_iter().map(Cache::hold_halves).collect() };
    let (keys, values) = formats.split_once(',').unwrap_or((formats, formats));
    // What a file holds is of another format, perhaps.
    let _allow = Policy::Allow.scope();
    let (keys, values): (AnyFormat, AnyFormat) = (keys.parse()?, values.parse()?);
    caches.into_iter().map(|cache| cache.stored(Some(keys.clone()), Some(values.clone()))).collect()
}

/// Fails if a draft has another tokenizer than the model: its tokens would be other texts, of which none is ever accepted.
fn same_tokens(tokenizer: &Tokenizer, draft: &Path) -> Result<()> {
    let draft = Source::of(draft)?;
    if !draft.has_tokenizer() {
        return Ok(());
    }
    let (own, other) = (tokenizer.get_vocab_size(true), draft.tokenizer()?.get_vocab_size(true));
    if own == other {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the tokenizer of the draft knows {other} tokens, and that of the model {own}"),
        "take a draft with the tokens of the model",
    ))
}

/// What the model is given, and what was said then, in a conversation.
struct Prompt {
    tokens: Vec<u32>,
    conversation: Option<Conversation>,
}

/// The tokens of the prompt. Only what begins a text begins with the tokens for that, and of a conversation only what is new
/// stands in it.
fn prompt(
    options: &Options,
    source: &Source,
    tokenizer: &Tokenizer,
    begun: bool,
    before: Option<Conversation>,
) -> Outcome<Prompt> {
    let mut text = options.prompt.clone();
    if text == "-" {
        text.clear();
        io::stdin().read_to_string(&mut text)?;
    }
    if options.chat {
        let template = Template::open(source)?;
        let said = Message::new("user", text.clone());
        if begun && options.system.is_some() {
            let help = "leave `--system` out, or begin with another file";
            return Err(Error::invalid("the conversation in the prompt cache has begun already", help).into());
        }
        let (text, conversation) = match before {
            Some(mut before) if begun => {
                let text = template.go_on(&before, &text)?;
                before.messages.push(said);
                (text, Some(before))
            }
            // Another program has begun it, and does not say with what.
            _ if begun => (template.complete(&text)?, None),
            _ => {
                let system = options.system.as_deref().map(|system| Message::new("system", system));
                let messages: Vec<Message> = system.into_iter().chain([said]).collect();
                (template.render(&messages)?, Some(Conversation { messages, end: None }))
            }
        };
        return Ok(Prompt { tokens: text::tokens(tokenizer, &text, false)?, conversation });
    }
    Ok(Prompt { tokens: text::tokens(tokenizer, &text, !begun)?, conversation: None })
}

/// What was made.
#[derive(Default)]
struct Written {
    text: String,
    /// The last token, and why it is that.
    last: Option<u32>,
    finish: Option<Finish>,
}

/// Writes the text as it comes, and says how it ended.
fn write(texts: &mut Texts<'_, Stream<'_>>) -> Outcome<Written> {
    let mut out = io::stdout().lock();
    let mut written = Written::default();
    for piece in texts {
        let piece = piece?;
        out.write_all(piece.text.as_bytes())?;
        out.flush()?;
        written.text += &piece.text;
        (written.last, written.finish) = (Some(piece.token), piece.finish);
    }
    writeln!(out)?;
    Ok(written)
}

fn report(stats: &GenerateStats, finish: Option<Finish>, bytes: usize) -> Outcome<()> {
    let mut err = io::stderr().lock();
    let GenerateStats { prompt_tokens, tokens, drafted, accepted, .. } = *stats;
    let end = if finish == Some(Finish::Stop) { "its end" } else { "the most that were asked for" };
    writeln!(err, "{prompt_tokens} tokens of prompt at {:.1} a second", stats.prompt_rate())?;
    writeln!(err, "{tokens} tokens, to {end}, at {:.1} a second", stats.rate())?;
    if drafted > 0 {
        writeln!(err, "{accepted} of {drafted} drafted tokens accepted")?;
    }
    let peak = match resident_peak() {
        Some(peak) => peak,
        // Parameters that lie in the file are not memory of MLX's.
        None => bytes + memory::peak_memory()?,
    };
    writeln!(err, "at most {:.1} MB, of which {:.1} weights", peak as f64 / 1e6, bytes as f64 / 1e6)?;
    Ok(())
}

/// The most bytes that this process had in memory, pages of files included, where the system tells: Linux does.
fn resident_peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?)
}
