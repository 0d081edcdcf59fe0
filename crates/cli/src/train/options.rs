//! What `tacit train` is asked for.

use std::num::NonZero;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Error, Result};
use tacit_models::{Decoder, Formats, Rows};
use tacit_nn::training::Schedule;
use tacit_nn::{LoraConfig, Method, Model, ParameterFilter};

use crate::formats;
use crate::overwriting::Overwriting;

#[derive(Args)]
#[command(group = ArgGroup::new("how").required(true).args(["lora", "dora", "qat"]))]
pub(crate) struct Options {
    /// A GGUF file, or a folder with config.json, tensors and tokenizer.json, of mlx-lm or of Hugging Face
    pub(super) model: PathBuf,
    /// Train low-rank adapters of this rank beside the weights, which stay as they are
    #[arg(long, value_name = "RANK")]
    lora: Option<NonZero<usize>>,
    /// Train low-rank adapters of this rank, and the magnitudes of the weights' rows
    #[arg(long, value_name = "RANK")]
    dora: Option<NonZero<usize>>,
    /// Train the weights themselves, as this format will store them: they become floats of the dtype of the checkpoint, which takes
    /// several times their bytes. In bf16 a step below a five-hundredth of a weight is lost, so a low rate wants a checkpoint in f32
    #[arg(long, value_name = "FORMAT")]
    qat: Option<String>,
    /// A file of texts, a line of JSON each: {"text": ..}; {"prompt": .., "completion": ..}, of which the completion is learned;
    /// or {"messages": [{"role": .., "content": ..}, ..]}, in the model's chat template, of which the answers are learned
    #[arg(long, value_name = "FILE")]
    pub(super) data: PathBuf,
    /// Another such file, whose loss is measured and which is not learned
    #[arg(long, value_name = "FILE")]
    pub(super) evaluate: Option<PathBuf>,
    /// What is written: the folder of an adapter; of a model that was merged or trained by `--qat`, its folder, or a GGUF file if the
    /// name ends with .gguf
    #[arg(short, long, value_name = "PATH")]
    pub(super) output: PathBuf,
    /// Whose adapter is written, where none is merged
    #[arg(long = "as", value_enum, default_value_t = Library::Peft, conflicts_with_all = ["merge", "qat"])]
    pub(super) library: Library,
    /// Merge the adapters into the weights and store the sum in this format. Each step rounds the sum to the format too, so the merge
    /// loses nothing. `none` merges into floats of the dtype of the checkpoint: in bf16 a change below a five-hundredth of a weight is
    /// lost
    #[arg(long, value_name = "FORMAT", conflicts_with = "qat")]
    merge: Option<String>,
    /// Which weights are trained, by their paths
    #[arg(long, value_name = "PATTERN", default_value = "model.layers.*_proj.weight")]
    layers: String,
    /// The format of the weights of the products before training, or a file of rules, as for `tacit generate`. Codes stay
    #[arg(long, value_name = "FORMAT")]
    weights: Option<String>,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// How many tokens a row has
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) length: usize,
    /// Give each text a row of its own: without it several that fit are put into one, of which each sees those before it
    #[arg(long)]
    pub(super) apart: bool,
    /// Keep what layers compute for the gradient, in place of computing it again: less time, and several times the memory
    #[arg(long)]
    keep_activations: bool,
    /// Hold what the gradient reads of the layers in this format, such as affine:8:64: what goes into each layer, and with
    /// `--keep-activations` all that the layers compute. The loss of a step stays the same, and its gradient is less exact
    #[arg(long, value_name = "FORMAT")]
    saved_activations: Option<String>,
    /// What the order of the data, the adapters and the draws of a format such as int8+stochastic begin with
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Say the loss every so many steps, and after the last
    #[arg(long, value_name = "N", default_value = "10")]
    pub(super) report_every: NonZero<u64>,
    /// Measure the loss of the other file before the first step, every so many steps, and after the last
    #[arg(long, value_name = "N", default_value = "100")]
    pub(super) evaluate_every: NonZero<u64>,
    /// Save the run every so many steps, and after the last: after an interruption the same command goes on there
    #[arg(long, value_name = "N", default_value = "50")]
    pub(super) save_every: NonZero<u64>,
    /// Record losses, rates, norms and memory in this file, as lines of JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Draw the losses into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(super) overwriting: Overwriting,
}

/// How steps are made.
#[derive(Args, Clone)]
pub(super) struct Pace {
    /// How many steps are made; without it so many that each row is learned at least as often as `--epochs` says
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<NonZero<u64>>,
    /// How often each row is learned at least: the last step is filled up with rows of a further round
    #[arg(long, value_name = "N", default_value = "1")]
    epochs: NonZero<u64>,
    /// How many rows are learned at a time
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) batch: NonZero<usize>,
    /// From how many batches a step takes its gradient, which is that of one batch of all their rows
    #[arg(long, value_name = "N", default_value = "4")]
    pub(super) accumulate: NonZero<usize>,
    /// The learning rate, after the warm-up
    #[arg(long, value_name = "RATE", default_value_t = 1e-4)]
    rate: f32,
    /// In how many steps the rate rises to that
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// How the rate falls
    #[arg(long, value_enum, default_value_t = Fall::Cosine)]
    schedule: Fall,
    /// The greatest norm of a gradient, which is scaled down to it; inf scales none
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    pub(super) clip: f32,
    /// What part of a weight, times the rate, each step takes from it
    #[arg(long, value_name = "DECAY", default_value_t = 0.0)]
    pub(super) decay: f32,
    /// In how many bits the optimizer holds each of its two moments of a trained number
    #[arg(long, value_enum, value_name = "BITS", default_value_t = MomentBits::ThirtyTwo)]
    pub(super) moments: MomentBits,
    /// Multiply the change of adapters by ALPHA over their rank; unless given, ALPHA is twice the rank
    #[arg(long, value_name = "ALPHA", conflicts_with = "qat")]
    alpha: Option<f32>,
}

/// How moments are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MomentBits {
    #[value(name = "32")]
    ThirtyTwo,
    #[value(name = "8")]
    Eight,
    #[value(name = "4")]
    Four,
}

/// How the rate falls.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fall {
    /// To 0 along half a cosine
    Cosine,
    /// To 0 along a line
    Linear,
    /// Not at all
    Constant,
}

/// Whose adapter is written.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(super) enum Library {
    /// That of Hugging Face's library PEFT
    Peft,
    /// mlx-lm's
    MlxLm,
}

/// What adapters are merged into.
pub(super) enum Merged {
    Floats,
    Format(AnyFormat),
}

impl Merged {
    pub(super) fn format(self) -> Option<AnyFormat> {
        match self {
            Self::Floats => None,
            Self::Format(format) => Some(format),
        }
    }
}

/// The longest row: buffers of this length are allocated before the limit of the model is known.
const LONGEST: usize = 1 << 24;

/// What a run does, step by step.
pub(super) struct Plan {
    pub(super) steps: u64,
    pub(super) schedule: Schedule,
    pub(super) trained: ParameterFilter,
    pub(super) pace: Pace,
    /// Whether what layers compute is kept for the gradient.
    pub(super) keeps: bool,
    pub(super) seed: u64,
    pub(super) report_every: NonZero<u64>,
    pub(super) evaluate_every: NonZero<u64>,
    pub(super) save_every: NonZero<u64>,
}

impl Options {
    /// What the weights become when they are read.
    pub(super) fn weights(&self) -> Result<Option<Formats>> {
        self.weights.as_deref().map(Formats::read).transpose()
    }

    /// What is read beside the files of the tokenizer: the format of the weights may be a file of rules.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        let files = [&self.model, &self.data].into_iter().chain(&self.evaluate).cloned();
        files.chain(self.weights.iter().map(PathBuf::from)).collect()
    }

    /// What adapters are merged into, if they are.
    pub(super) fn merged(&self) -> Result<Option<Merged>> {
        let read = |text: &str| if text == "none" { Ok(Merged::Floats) } else { text.parse().map(Merged::Format) };
        self.merge.as_deref().map(read).transpose()
    }

    /// Whether the weights are trained, and not adapters.
    pub(super) fn is_aware(&self) -> bool {
        self.qat.is_some()
    }

    /// Checks what needs no file.
    pub(super) fn check(&self) -> Result<()> {
        let Pace { rate, clip, decay, alpha, .. } = &self.pace;
        let positive = [("--rate", Some(rate)), ("--alpha", alpha.as_ref())];
        for (name, value) in positive {
            if let Some(value) = value.filter(|value| !(value.is_finite() && **value > 0.0)) {
                return Err(Error::invalid(format!("`{name}` is {value}"), "give a number above 0"));
            }
        }
        if clip.is_nan() || *clip <= 0.0 {
            return Err(Error::invalid(format!("`--clip` is {clip}"), "give a number above 0, or inf"));
        }
        if !decay.is_finite() || *decay < 0.0 {
            return Err(Error::invalid(format!("`--decay` is {decay}"), "give 0 or a number above it"));
        }
        let (batch, accumulate) = (self.pace.batch.get(), self.pace.accumulate.get());
        if batch.checked_mul(accumulate).is_none_or(|rows| u32::try_from(rows).is_err()) {
            let message = format!("a step of {batch} rows {accumulate} times has more rows than can be counted");
            return Err(Error::invalid(message, "give fewer by `--batch` or `--accumulate`"));
        }
        if self.length < 2 {
            let message = format!("no token follows another one in rows of {}", self.length);
            return Err(Error::invalid(message, "give rows of at least two tokens"));
        }
        if self.length > LONGEST {
            let message = format!("rows of {} tokens are longer than any model reads", self.length);
            return Err(Error::invalid(message, "give a shorter `--length`"));
        }
        self.merged()?;
        self.qat.iter().chain(&self.saved_activations).try_for_each(|format| format.parse::<AnyFormat>().map(drop))
    }

    /// The model with what is trained, and with the format in which its gradients read activations.
    pub(super) fn prepared(&self, model: Model<Decoder>) -> Result<Model<Decoder>> {
        let mut model = match &self.qat {
            Some(format) => formats::prepared(model, &self.layers, format, self.seed)?,
            None => self.adapted(model)?,
        };
        if let Some(format) = &self.saved_activations {
            model.saved_activations("model.layers.*", format)?;
        }
        Ok(model)
    }

    fn adapted(&self, model: Model<Decoder>) -> Result<Model<Decoder>> {
        let (method, rank) = match (self.lora, self.dora) {
            (Some(rank), _) => (Method::Lora, rank.get()),
            (_, rank) => (Method::Dora, rank.map_or(1, NonZero::get)),
        };
        let alpha = self.pace.alpha.unwrap_or(2.0 * rank as f32);
        let stored = self.merged()?.and_then(Merged::format);
        let config = LoraConfig { rank, alpha, method, stored, seed: self.seed, ..LoraConfig::default() };
        model.lora(self.layers.as_str(), config)
    }

    pub(super) fn plan(&self, rows: &Rows) -> Plan {
        let pace = self.pace.clone();
        let of_step = (pace.batch.get() as u64).saturating_mul(pace.accumulate.get() as u64);
        let of_epochs = (rows.len() as u64).saturating_mul(pace.epochs.get()).div_ceil(of_step);
        let steps = pace.steps.map_or(of_epochs, NonZero::get);
        let schedule = match pace.schedule {
            Fall::Cosine => Schedule::cosine(pace.rate, steps),
            Fall::Linear => Schedule::linear(pace.rate, steps),
            Fall::Constant => Schedule::constant(pace.rate),
        };
        Plan {
            steps,
            schedule: schedule.with_warmup(pace.warmup),
            trained: if self.is_aware() { ParameterFilter::Masters } else { ParameterFilter::Lora },
            pace,
            keeps: self.keep_activations,
            seed: self.seed,
            report_every: self.report_every,
            evaluate_every: self.evaluate_every,
            save_every: self.save_every,
        }
    }

    /// What decides about the numbers of a run: one that was begun otherwise is another run.
    pub(super) fn described(&self, steps: u64) -> Vec<(&'static str, String)> {
        let Self { lora, dora, qat, merge, layers, weights, pace, length, apart, seed, .. } = self;
        let Self { keep_activations, saved_activations, .. } = self;
        let Pace { batch, accumulate, rate, warmup, schedule, clip, decay, moments, alpha, .. } = pace;
        let values: [(_, Option<&dyn ToString>); 19] = [
            ("--lora", lora.as_ref().map(|rank| rank as _)),
            ("--dora", dora.as_ref().map(|rank| rank as _)),
            ("--qat", qat.as_ref().map(|format| format as _)),
            ("--merge", merge.as_ref().map(|format| format as _)),
            ("--layers", Some(layers)),
            ("--weights", weights.as_ref().map(|format| format as _)),
            ("the number of steps", Some(&steps)),
            ("--batch", Some(batch)),
            ("--accumulate", Some(accumulate)),
            ("--rate", Some(rate)),
            ("--warmup", Some(warmup)),
            ("--clip", Some(clip)),
            ("--decay", Some(decay)),
            ("--alpha", alpha.as_ref().map(|alpha| alpha as _)),
            ("--length", Some(length)),
            ("--apart", Some(apart)),
            ("--keep-activations", Some(keep_activations)),
            ("--saved-activations", saved_activations.as_ref().map(|format| format as _)),
            ("--seed", Some(seed)),
        ];
        let text = |value: Option<&dyn ToString>| value.map_or("not given".to_owned(), ToString::to_string);
        let named = [("--schedule", schedule.to_possible_value()), ("--moments", moments.to_possible_value())];
        let named =
            named.map(|(name, value)| (name, value.map_or_else(String::new, |value| value.get_name().to_owned())));
        values.map(|(name, value)| (name, text(value))).into_iter().chain(named).collect()
    }
}
