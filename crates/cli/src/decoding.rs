//! A decoder with its tokenizer and its caches, as `tacit generate` and `tacit chat` run it.
//!
//! The decoder is plain mlx-rs modules (`crates/models/src/decoder.rs`). Its step is compiled, and runs under `Policy::Deny`, so
//! that a dense weight that is built anywhere would be an error.

mod answer;
mod batch;
#[cfg(test)]
mod ids;
pub(crate) mod source;
mod step;
mod stored;
pub(crate) mod template;
pub(crate) mod text;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use mlx_rs::Array;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Error, Policy, Result};
use tacit_io::{FileState, Metadata};
use tacit_models::{Config, Decoder, Formats};
use tacit_nn::generate::{DraftModel, GenerateOptions, Generation, Lookup, Sampler, Texts, generate, speculate};
use tacit_nn::{Cache, Model};
use tokenizers::Tokenizer;

use answer::Answer;
use batch::Answers;
use source::Source;
use stored::Stored;
use template::{Conversation, Template};
use text::Stream;

use crate::formats;
use crate::interruption::Answering;
use crate::output::{Failure, Output, note, unreadable_input};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("drafts").args(["draft", "lookup"]).multiple(true))]
pub(crate) struct DecodingOptions {
    /// A GGUF file, or a folder with config.json, tensors and tokenizer.json, of mlx-lm or of Hugging Face
    model: PathBuf,
    /// The most tokens that are made
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    /// End before this text; may be given several times. The text is not printed, but a conversation or a prompt cache that
    /// continues contains it
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// A smaller model with the same tokens, which drafts tokens that the model accepts or rejects
    #[arg(long, value_name = "MODEL")]
    draft: Option<PathBuf>,
    /// Draft tokens from the text so far, without a second model: those that followed its last tokens where they stood before
    #[arg(long, conflicts_with = "draft")]
    lookup: bool,
    /// How many tokens are drafted at a time
    #[arg(long, value_name = "N", default_value_t = 3, requires = "drafts")]
    draft_tokens: usize,
    /// How many last tokens must have stood in the text before
    #[arg(long, value_name = "N", default_value_t = 2, requires = "lookup", conflicts_with = "draft")]
    match_tokens: usize,
    /// Go on from the caches in this file, as mlx-lm writes them, and write them back in the end; a new file is begun where
    /// there is none
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    #[command(flatten)]
    weights: Weights,
    /// What the caches hold: a format such as affine:8:64, or one for keys and one for values, with a comma
    #[arg(long, value_name = "FORMAT")]
    kv: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
}

/// What the parameters become when they are read.
#[derive(Args, Debug)]
pub(crate) struct Weights {
    /// What the weights of the products become: a format such as nf4:64 or affine:4:64, of which the embedding and the head
    /// have at least 6 bits, or a file of rules; codes of the file stay as they are, and `tacit quantize` changes them
    #[arg(long = "weights", value_name = "FORMAT")]
    formats: Option<String>,
    /// The folder of an adapter, of mlx-lm or of PEFT
    #[arg(long, value_name = "FOLDER")]
    lora: Option<PathBuf>,
    /// Round activations to 8 bits in products with weights whose format has products of integers: faster, and less exact
    #[arg(long)]
    int8: bool,
}

/// How tokens are drawn.
#[derive(Args, Debug)]
struct Sampling {
    /// The temperature; 0 takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    temp: f32,
    /// Draw from so many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: usize,
    /// Draw from the likeliest tokens that together have this probability; 0 and 1 are all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Draw from tokens whose probability is at least this part of that of the likeliest; 0 is all
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Divide the logits of recent tokens by this where they are positive, and multiply them where they are not; 1 changes nothing
    #[arg(long, value_name = "PENALTY", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// How many of the last tokens are recent
    #[arg(long, value_name = "N", default_value_t = 20)]
    repetition_window: usize,
    /// The seed of the random draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl DecodingOptions {
    /// Fails where one of them serves one prompt alone, and there are several.
    fn check_prompts(&self, count: usize) -> Result<()> {
        let alone = [
            ("--draft", self.draft.is_some()),
            ("--lookup", self.lookup),
            ("--prompt-cache", self.prompt_cache.is_some()),
        ];
        match alone.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if count > 1 => Err(Error::invalid(
                format!("`{option}` serves one prompt, and there are {count}"),
                format!("give one prompt, or leave `{option}` out"),
            )),
            _ => Ok(()),
        }
    }
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

/// What a prompt on the command line says; `-` stands for the standard input.
pub(crate) fn prompt(text: &str) -> Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    io::read_to_string(io::stdin()).map_err(|error| unreadable_input(&error))
}

type Step = Box<dyn FnMut(&Array, &mut Vec<Cache>) -> Result<Array>>;

/// A model that is ready, and what its caches hold.
pub(crate) struct Decoding<'o> {
    options: &'o DecodingOptions,
    source: Source,
    tokenizer: Tokenizer,
    /// The tokens that end a text.
    ends: Vec<u32>,
    asked: GenerateOptions,
    step: Step,
    caches: Vec<Cache>,
    /// What their file says of them.
    metadata: Metadata,
    /// The file as it was read or written last.
    file: Option<FileState>,
    draft: Option<Drafts>,
    /// The bytes of all weights.
    bytes: usize,
}

enum Drafts {
    /// A smaller model, with its caches.
    Model(Step, Vec<Cache>),
    /// The text so far.
    Text(Lookup),
}

impl<'o> Decoding<'o> {
    /// Reads what the options name, with caches for so many prompts, and the conversation of the prompt cache, if there is one
    /// that says it.
    pub(crate) fn open(options: &'o DecodingOptions, prompts: usize) -> Result<(Self, Option<Conversation>)> {
        options.check_prompts(prompts)?;
        let sampler = options.sampling.sampler();
        sampler.check()?;
        let source = Source::find(&options.model)?;
        let tokenizer = source.tokenizer()?;
        if options.draft.is_some() && options.prompt_cache.is_some() {
            let help = "leave out `--draft` or `--prompt-cache`";
            return Err(Error::invalid("a draft has not seen what a prompt cache holds", help));
        }
        let (config, model) = options.weights.read(&options.model)?;
        let mut bytes = model.nbytes();
        let caches = caches(&config, &model, prompts)?;
        // Before it is read: what comes after that is another program's.
        let file = stored::state(options.prompt_cache.as_deref())?;
        let Stored { caches, conversation, metadata } = match &options.prompt_cache {
            Some(file) => Stored::open(file, caches, &options.model, options.weights.lora.as_deref())?,
            None => Stored { caches, ..Stored::default() },
        };
        let caches = formatted(caches, options.kv.as_deref())?;
        let draft = match &options.draft {
            Some(draft) => {
                same_tokens(&tokenizer, draft)?;
                let (config, smaller) = read(draft, None, None)?;
                bytes += smaller.nbytes();
                let caches = formatted(self::caches(&config, &smaller, 1)?, options.kv.as_deref())?;
                Some(Drafts::Model(Box::new(step::step(smaller, 1)), caches))
            }
            None if options.lookup => Some(Drafts::Text(lookup(options, &tokenizer, conversation.as_ref())?)),
            None => None,
        };
        let ends = text::end_tokens(&source, &config, &tokenizer)?;
        let asked = GenerateOptions {
            sampler,
            seed: options.sampling.seed,
            max_tokens: options.max_tokens,
            stop: ends.iter().map(|&token| vec![token]).collect(),
            prefill: config.prefill().unwrap_or(GenerateOptions::default().prefill),
            // The caches hide it: any token of the vocabulary will do.
            padding: Some(0),
            ..GenerateOptions::default()
        };
        // Those that were drafted are judged, with the one before.
        let judged = if draft.is_some() { options.draft_tokens.saturating_add(1) } else { 1 };
        let step: Step = Box::new(step::step(model, judged));
        Ok((Self { options, source, tokenizer, ends, asked, step, caches, metadata, file, draft, bytes }, conversation))
    }

    /// The template of conversations that the model was trained on.
    pub(crate) fn template(&self) -> Result<Template> {
        Template::open(&self.source, "use `tacit generate`, which continues texts")
    }

    /// Whether the caches hold tokens.
    pub(crate) fn has_begun(&self) -> bool {
        !self.caches.first().is_none_or(Cache::is_empty)
    }

    /// The tokens of a text; `special` adds those that begin one, as the tokenizer says.
    pub(crate) fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        text::tokens(&self.tokenizer, "the prompt", text, special)
    }

    /// What the model says after these tokens, which follow those in the caches. `out` is given the text as it comes, and says
    /// whether anybody reads on.
    pub(crate) fn answer(
        &mut self,
        tokens: &[u32],
        out: impl FnMut(&str) -> Result<bool, Failure>,
    ) -> Result<Answer, Failure> {
        let answering = Answering::begin();
        let Self { options, tokenizer, asked, step, caches, draft, .. } = self;
        // An answer that goes on from others has draws of its own, whichever program gave those.
        let cached = caches.iter_mut().find_map(Cache::as_kv).map_or(0, |cache| cache.len());
        asked.seed = options.sampling.seed.wrapping_add(cached.unsigned_abs().into());
        let generation: Generation<'_> = match draft {
            Some(Drafts::Model(of_draft, state)) => {
                let draft = DraftModel::new(of_draft, state, options.draft_tokens);
                speculate(step, caches, draft, tokens, asked)?
            }
            Some(Drafts::Text(lookup)) => speculate(step, caches, lookup, tokens, asked)?,
            None => generate(step, caches, &[tokens], asked)?,
        };
        let texts = Texts::new(generation, vec![Stream::new(tokenizer)], &options.stop)?;
        Answer::read(texts, &answering, self.bytes, out)
    }

    /// What the model says after each of several prompts, which it is given together.
    pub(crate) fn answers(&mut self, prompts: &[Vec<u32>]) -> Result<Answers> {
        let answering = Answering::begin();
        let tokenizer = &self.tokenizer;
        let generation = generate(&mut self.step, &mut self.caches, prompts, &self.asked)?;
        let streams = prompts.iter().map(|_| Stream::new(tokenizer)).collect();
        let texts = Texts::new(generation, streams, &self.options.stop)?;
        Answers::read(texts, prompts, &answering, self.bytes)
    }

    /// The token behind which the model ended this answer, if it did: the caches hold it.
    pub(crate) fn end(&self, answer: &Answer) -> Option<String> {
        answer
            .last_token()
            .filter(|token| self.ends.contains(token))
            .and_then(|token| self.tokenizer.id_to_token(token))
    }

    /// Says what an answer took, and writes the caches into their file, if there is one, with the conversation that they hold.
    pub(crate) fn finish(
        &mut self,
        answer: &Answer,
        conversation: Option<&Conversation>,
        output: &mut Output,
    ) -> Result<ExitCode, Failure> {
        // What was made is not lost where the caches cannot be written.
        output.line(answer)?;
        answer.report();
        if let Some(file) = &self.options.prompt_cache {
            stored::check(file, self.file.as_ref())?;
            stored::write(file, &self.caches, self.metadata.clone(), conversation)?;
            self.file = stored::state(Some(file))?;
        }
        Ok(answer.code())
    }
}

impl Weights {
    /// The decoder at a path, with these weights.
    pub(crate) fn read(&self, path: &Path) -> Result<(Config, Model<Decoder>)> {
        let formats = self.formats.as_deref().map(Formats::read).transpose()?;
        let (config, mut model) = read(path, formats.as_ref(), self.lora.as_deref())?;
        if self.int8 {
            round_activations(&mut model)?;
        }
        Ok((config, model))
    }
}

/// Lets products with the weights round activations to 8 bits, and says with how many, and with which not.
pub(crate) fn round_activations(model: &mut Model<Decoder>) -> Result<()> {
    note(&model.int8_activations("*")?);
    Ok(())
}

/// The decoder at a path in these formats, with an adapter over it.
pub(crate) fn read(path: &Path, formats: Option<&Formats>, adapter: Option<&Path>) -> Result<(Config, Model<Decoder>)> {
    let (config, mut model) = match formats {
        Some(asked) => tacit_models::load_with(path, |model| formats::quantized(path, model, asked))?,
        None => tacit_models::load(path)?,
    };
    // MLX has no fast product of half floats on a CPU.
    tacit_models::hold_halves(&mut model)?;
    if let Some(folder) = adapter {
        tacit_models::adapt(&mut model, folder)?;
    }
    Ok((config, model))
}

/// Empty caches of so many sequences for this model.
fn caches(config: &Config, model: &Model<Decoder>, sequences: usize) -> Result<Vec<Cache>> {
    tacit_models::caches(config, sequences as i32, model.get("model.embed_tokens.weight")?.aval()?.dtype)
}

/// What drafts from the text so far, of which a conversation in the prompt cache is the beginning.
fn lookup(options: &DecodingOptions, tokenizer: &Tokenizer, before: Option<&Conversation>) -> Result<Lookup> {
    let lookup = Lookup::new(options.draft_tokens).matching(options.match_tokens);
    before.into_iter().flat_map(|before| &before.messages).try_fold(lookup, |lookup, message| {
        Ok(lookup.after(&text::tokens(tokenizer, "the prompt cache", &message.content, false)?))
    })
}

/// The caches in these formats, if there are some; half floats of a file are held as those of new caches are.
fn formatted(caches: Vec<Cache>, formats: Option<&str>) -> Result<Vec<Cache>> {
    let Some(formats) = formats else { return caches.into_iter().map(Cache::hold_halves).collect() };
    // What a file holds is of another format, perhaps.
    let _allow = Policy::Allow.scope();
    let (keys, values) = keys_and_values(formats)?;
    caches.into_iter().map(|cache| cache.stored(Some(keys.clone()), Some(values.clone()))).collect()
}

/// The formats of keys and of values. A format such as `codebook:32:-1,0,1` has commas of its own.
fn keys_and_values(text: &str) -> Result<(AnyFormat, AnyFormat)> {
    let both = |keys: &str, values: &str| Ok((keys.parse::<AnyFormat>()?, values.parse::<AnyFormat>()?));
    let parts = |(comma, _)| both(&text[..comma], &text[comma + 1..]);
    let mut splits = text.match_indices(',').map(parts);
    match both(text, text) {
        Err(alone) => {
            let Some(first) = splits.next() else { return Err(alone) };
            first.or_else(|error| splits.find_map(Result::ok).ok_or(error))
        }
        found => found,
    }
}

/// Fails if a draft has another tokenizer than the model: its tokens would be other texts, of which none is ever accepted.
fn same_tokens(tokenizer: &Tokenizer, draft: &Path) -> Result<()> {
    let draft = Source::find(draft)?;
    if !draft.has_tokenizer()? {
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
