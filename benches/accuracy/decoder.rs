//! A small decoder of characters that the bench trains itself.

#[path = "../../examples/characters/mod.rs"]
#[allow(dead_code, reason = "the examples count in bits")]
mod characters;

use std::path::{Path, PathBuf};

use mlx_rs::module::Module;
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, random};
use tacit::io;
use tacit::model::{Missing, Model, ParameterFilter};
use tacit::prelude::*;
use tacit::tree;

pub(crate) use characters::Transformer as Decoder;
use characters::{Corpus, Shape, nats, windows};

/// What formats hold: the projections of attention, both layers of each MLP, and the head.
pub(crate) const QUANTIZED: &str = "{blocks.*,head}.weight";

/// How large and how long.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) dims: i32,
    pub(crate) blocks: usize,
    pub(crate) heads: i32,
    pub(crate) context: usize,
    pub(crate) batch: usize,
    /// Steps in floats, and those after them, which a format may have.
    pub(crate) common: usize,
    pub(crate) more: usize,
    /// Windows of the held-out text.
    pub(crate) held_out: usize,
}

/// The text, and how models are trained on it and judged.
pub(crate) struct Trainer {
    size: Size,
    corpus: Corpus,
    held_out: Vec<u32>,
}

impl Trainer {
    pub(crate) fn new(size: Size) -> Self {
        let (corpus, held_out) = Corpus::read();
        Self { size, corpus, held_out }
    }

    /// A model that was trained in floats, before the last steps and after them, from the cache where it is there.
    pub(crate) fn trained(&self, cache: &Path) -> Result<[Model<Decoder>; 2]> {
        let Size { common, more, .. } = self.size;
        let mut halfway = self.untrained()?;
        let mut whole = halfway.clone();
        let files = [common, common + more].map(|steps| self.file(cache, steps));
        if files.iter().all(|file| file.exists()) {
            for (model, file) in [&mut halfway, &mut whole].into_iter().zip(&files) {
                model.assign(io::load(file)?, Missing::Refuse)?;
            }
            return Ok([halfway, whole]);
        }
        self.train(&mut halfway, 0, common)?;
        whole = halfway.clone();
        self.train(&mut whole, common, more)?;
        std::fs::create_dir_all(cache).map_err(|error| Error::Function(Box::new(error)))?;
        for (model, file) in [&halfway, &whole].into_iter().zip(&files) {
            io::save(file, &model.values()?)?;
        }
        Ok([halfway, whole])
    }

    fn untrained(&self) -> Result<Model<Decoder>> {
        let Size { dims, blocks, heads, context, .. } = self.size;
        random::seed(0)?;
        let decoder = Decoder::new(Shape { dims, blocks, heads, context }, self.corpus.characters.len());
        Model::new(decoder.map_err(|error| Error::invalid(error.to_string(), "choose a size that heads divide"))?)
    }

    fn file(&self, cache: &Path, steps: usize) -> PathBuf {
        let Size { dims, blocks, heads, context, batch, .. } = self.size;
        cache.join(format!("decoder-{dims}-{blocks}-{heads}-{context}-{batch}-{steps}.safetensors"))
    }

    /// Trains for some steps, `from` being the first one's number, which decides its batch.
    pub(crate) fn train(&self, model: &mut Model<Decoder>, from: usize, steps: usize) -> Result<()> {
        let Size { context, batch, .. } = self.size;
        let mut optimizer = Adam::new(1e-3);
        for step in from..from + steps {
            let batch = self.corpus.batch(step, batch, context)?;
            let (loss, gradients) =
                model.value_and_grad(ParameterFilter::default(), batch, |model, (x, y): (Array, Array)| {
                    nats(&model.forward(&x)?, &y)
                })?;
            optimizer.update(&mut *model, &gradients)?;
            tree::eval(&(&*model, &loss))?;
        }
        Ok(())
    }

    /// The perplexity of a character of the held-out text.
    pub(crate) fn perplexity(&self, model: &mut Model<Decoder>) -> Result<f64> {
        let Size { context, held_out, .. } = self.size;
        let apart = (self.held_out.len() - context - 1) / held_out;
        let starts: Vec<usize> = (0..held_out).map(|window| window * apart).collect();
        let mut sum = 0.0;
        // So many at a time that their activations stay small.
        for starts in starts.chunks(16) {
            let (x, y) = windows(&self.held_out, starts.iter().copied(), context);
            let loss = nats(&model.forward(&x)?, &y)?;
            sum += f64::from(loss.item_exact::<f32>()) * starts.len() as f64;
        }
        Ok((sum / held_out as f64).exp())
    }
}
