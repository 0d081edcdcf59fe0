//! A decoder reads a text while the inputs of its weights are observed.

use std::fs;
use std::iter;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mlx_rs::{Array, memory};
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Awq, Calibrate, Corrected, Gptq};
use tacit_core::{Error, Policy, Result, Value};
use tacit_io::{Distance, Progress, progress_bar};
use tacit_models::{Config, Decoder, Positions};
use tacit_nn::{Model, Observations, Pattern};

use crate::decoding;
use crate::decoding::source::{Source, files_of_text};
use crate::decoding::text;

/// The text that a decoder reads while its weights are observed.
#[derive(Args)]
pub(crate) struct TextOptions {
    /// A file of text that the decoder reads first: what its weights are multiplied with tells which errors count. The input is
    /// then a GGUF file, or a folder with config.json, tensors and tokenizer.json. A table of which only rows are looked up, such as
    /// an embedding, is not observed
    #[arg(long, value_name = "FILE")]
    pub(crate) calibrate: Option<PathBuf>,
    /// The most windows of 512 tokens that are read
    #[arg(long, value_name = "N", default_value = "32", requires = "calibrate")]
    windows: NonZero<usize>,
}

#[derive(Args)]
pub(crate) struct CalibrationOptions {
    #[command(flatten)]
    pub(crate) text: TextOptions,
    /// How codes are chosen by what was observed
    #[arg(long, value_enum, default_value_t = Method::Gptq, requires = "calibrate")]
    method: Method,
    /// Add to the codes of each matrix a low-rank correction of this rank, as an adapter. It takes as many floats as the weight has
    /// inputs and outputs, times the rank. Stacks of experts get none
    #[arg(long, value_name = "RANK", requires = "calibrate")]
    correct: Option<NonZero<usize>>,
    /// The megabytes that the sums of inputs may take at a time, by default a quarter of MLX's memory limit. A weight of K inputs takes
    /// 4 K^2 bytes. Where all weights take more, the decoder reads the text several times, and what is written is the same
    #[arg(long, value_name = "MB", requires = "calibrate")]
    calibration_memory: Option<NonZero<usize>>,
}

/// How codes are chosen by what was seen.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// The rounding error of each input is made up for by those after it, and scales are fitted to the codes
    Gptq,
    /// What is multiplied with large inputs is scaled up before it is rounded, and the inputs are divided by as much
    Awq,
}

/// Tokens of a window.
const WINDOW: usize = 512;

/// A decoder before a text.
pub(crate) struct Reader {
    model: Model<Decoder>,
    text: Text,
}

/// What a decoder reads.
struct Text {
    config: Config,
    /// The tokens of each window.
    windows: Vec<Vec<u32>>,
}

/// How codes are chosen by what a decoder sees of its weights.
pub(crate) struct Calibration {
    method: Box<dyn Calibrate>,
    /// The rank of the factors that stand beside the codes.
    correct: Option<i32>,
    /// Which values of an interrupted run are the same.
    pub(crate) recipe: String,
    /// The bytes of sums that are held at a time.
    pub(crate) sums: usize,
}

impl TextOptions {
    /// The files that are read for it beside the tensors of a model: the text, and what says which tokens it has.
    pub(crate) fn inputs(&self, model: &Path) -> Vec<PathBuf> {
        let text = self.calibrate.iter().cloned();
        text.flat_map(|text| iter::once(text).chain(files_of_text(&Source::find(model)))).collect()
    }

    /// The tokens that a model has of each window of the text; nothing if there is no text.
    pub(crate) fn tokens(&self, model: &Path) -> Result<Option<Vec<Vec<u32>>>> {
        let Some(file) = &self.calibrate else { return Ok(None) };
        let text = fs::read_to_string(file).map_err(Error::file("read", file))?;
        let tokenizer = Source::find(model)?.tokenizer()?;
        let name = file.display().to_string();
        let tokens = text::tokens(&tokenizer, &name, &text, true)?;
        // What the tokenizer puts before a text is not of it.
        if tokens.len() <= text::tokens(&tokenizer, &name, "", true)?.len() {
            return Err(Error::invalid(
                format!("the text in {name} has no tokens"),
                "give a text such as the model will read",
            ));
        }
        Ok(Some(tokens.chunks(WINDOW).take(self.windows.get()).map(<[u32]>::to_vec).collect()))
    }
}

impl Reader {
    /// The decoder at a path before these windows of tokens.
    pub(crate) fn open(model: &Path, windows: Vec<Vec<u32>>) -> Result<Self> {
        let (config, model) = decoding::read(model, None, None)?;
        Ok(Self { model, text: Text { config, windows } })
    }

    /// The mean squares of what all weights meet, by the decoder's names. The decoder goes then, before anything is made of them.
    pub(crate) fn squares(self) -> Result<Observations> {
        let _deny = Policy::Deny.scope();
        let Self { mut model, text } = self;
        model.observe_squares("*", |model| text.run(model))
    }

    /// What the weights that a pattern names meet, in passes over the text whose sums take at most so many bytes, each with the paths
    /// of its weights. The decoder goes after the last pass, before anything is made of it.
    pub(crate) fn passes(
        self,
        pattern: Pattern,
        bytes: usize,
    ) -> Result<impl Iterator<Item = Result<(Vec<String>, Observations)>>> {
        let mut groups = self.model.observation_groups(pattern, bytes)?.into_iter();
        let mut reader = Some(self);
        Ok(iter::from_fn(move || {
            let paths = groups.next()?;
            let observations = reader.as_mut()?.products(&paths);
            if groups.as_slice().is_empty() {
                reader = None;
            }
            Some(observations.map(|observations| (paths, observations)))
        }))
    }

    /// What the weights of these paths meet.
    fn products(&mut self, paths: &[String]) -> Result<Observations> {
        let _deny = Policy::Deny.scope();
        let Self { model, text } = self;
        model.observe(Pattern::any(paths), |model| text.run(model))
    }
}

impl Text {
    /// Runs the decoder over the text.
    fn run(&self, model: &mut Model<Decoder>) -> Result<()> {
        let dtype = model.get("model.embed_tokens.weight")?.aval()?.dtype;
        let (mut bar, total) = (progress_bar(), self.windows.len());
        for (done, window) in self.windows.iter().enumerate() {
            let mut caches = tacit_models::caches(&self.config, 1, dtype)?;
            caches.iter_mut().try_for_each(|cache| cache.reserve(window.len() as i32))?;
            let tokens = Array::from_slice(window, &[1, window.len() as i32]);
            model.run_with(&mut caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::All))?;
            bar(Progress { done: done + 1, total });
        }
        Ok(())
    }
}

impl CalibrationOptions {
    /// The windows of tokens that the decoder at a path reads, and the calibration by what it sees; nothing if there is no text.
    pub(crate) fn open(&self, model: &Path) -> Result<Option<(Vec<Vec<u32>>, Calibration)>> {
        let Some(windows) = self.text.tokens(model)? else { return Ok(None) };
        let (name, method): (_, Box<dyn Calibrate>) = match self.method {
            Method::Gptq => ("gptq, its scales fitted twice,", Box::new(Gptq::default().with_refits(2)?)),
            Method::Awq => ("awq", Box::new(Awq::default())),
        };
        let corrected = self.correct.map_or_else(String::new, |rank| format!(" corrected by rank {rank}"));
        let recipe = format!("{name}{corrected} on {} windows at most", self.text.windows);
        let correct = self.correct.map(|rank| i32::try_from(rank.get()).unwrap_or(i32::MAX));
        let sums = match self.calibration_memory {
            Some(megabytes) => megabytes.get().saturating_mul(1_000_000),
            None => memory::memory_limit()? / 4,
        };
        Ok(Some((windows, Calibration { method, correct, recipe, sums })))
    }
}

impl Calibration {
    /// The value in a format, and the error that this adds; nothing where the decoder multiplied nothing with it. An expert that no
    /// token chose is rounded.
    pub(crate) fn quantized(
        &self,
        observations: &Observations,
        path: &str,
        value: &Value,
        format: &AnyFormat,
    ) -> Result<Option<(Value, f32)>> {
        if !observations.met(path) {
            return Ok(None);
        }
        let weight = value.dense()?;
        let observations = &observations.get(path)?.rounding_unmet()?;
        let result = match (self.correct, weight.shape()) {
            (Some(rank), &[n, k]) => Corrected::new(&*self.method, rank.min(n).min(k))
                .and_then(|way| way.quantize(format, &weight, observations)),
            _ => self.method.quantize(format, &weight, observations),
        };
        let result = result.map_err(|error| error.of_parameter(path))?;
        let error = Distance::of_values(value, &result)?.error as f32;
        Ok(Some((result, error)))
    }
}

/// What of a parameter the decoder multiplied nothing with, in words, if there is anything: all of it, or some experts.
pub(crate) fn unmet(seen: &Observations, path: &str) -> Option<String> {
    if !seen.met(path) {
        return Some(path.to_owned());
    }
    let rows = seen.get(path).ok()?.rows();
    let unmet = rows.iter().enumerate().filter(|(_, rows)| **rows == 0);
    let experts: Vec<String> = unmet.map(|(expert, _)| expert.to_string()).collect();
    match &experts[..] {
        [] => None,
        [one] => Some(format!("expert {one} of {path}")),
        several => Some(format!("experts {} of {path}", several.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_decoder::config;

    #[test]
    fn the_sums_of_a_pass_stay_within_their_bytes() -> Result<()> {
        let config = config(32)?;
        let passes = |bytes: usize| -> Result<Vec<usize>> {
            let text = Text { config: config.clone(), windows: vec![vec![1, 2, 3], vec![4]] };
            let reader = Reader { model: Model::new(Decoder::new(&config)?)?, text };
            let passes = reader.passes("model.layers.*.{q,k}_proj.weight".parse()?, bytes)?;
            let weights = passes.map(|pass| {
                let (paths, seen) = pass?;
                assert!(seen.paths().eq(paths.iter().map(String::as_str)));
                for path in &paths {
                    assert_eq!(seen.get(path)?.rows(), [4]);
                }
                Ok::<_, Error>(paths.len())
            });
            weights.collect()
        };
        // One of 32 inputs takes 4096 bytes.
        assert_eq!((passes(4 * 4096)?, passes(3 * 4096)?, passes(1)?), (vec![4], vec![3, 1], vec![1; 4]));
        Ok(())
    }
}
