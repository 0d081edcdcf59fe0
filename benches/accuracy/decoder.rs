//! A small decoder of characters that the bench trains itself.

use std::path::{Path, PathBuf};

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropy, CrossEntropyBuilder, LossReduction};
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::nn::{self, MultiHeadAttention};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, ops, random, transforms};
use tacit::io;
use tacit::nn::{Missing, Model, Trainable};
use tacit::prelude::*;

const TEXT: &str = include_str!("../../examples/data/genesis.txt");

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

#[derive(Clone, Debug, ModuleParameters)]
struct Block {
    #[param]
    attention_norm: nn::RmsNorm,
    #[param]
    attention: MultiHeadAttention,
    #[param]
    mlp_norm: nn::RmsNorm,
    #[param]
    up: nn::Linear,
    #[param]
    down: nn::Linear,
}

impl Block {
    fn new(size: Size) -> Result<Self> {
        Ok(Self {
            attention_norm: nn::RmsNorm::new(size.dims)?,
            attention: MultiHeadAttention::new(size.dims, size.heads)
                .map_err(|error| Error::Function(Box::new(error)))?,
            mlp_norm: nn::RmsNorm::new(size.dims)?,
            up: nn::Linear::new(size.dims, 4 * size.dims)?,
            down: nn::Linear::new(4 * size.dims, size.dims)?,
        })
    }

    fn forward(&mut self, x: &Array, mask: &Array) -> Result<Array, Exception> {
        let normed = self.attention_norm.forward(x)?;
        let x = x.add(self.attention.forward((&normed, &normed, &normed, mask))?)?;
        let hidden = nn::gelu(self.up.forward(&self.mlp_norm.forward(&x)?)?)?;
        x.add(self.down.forward(&hidden)?)
    }
}

/// Characters `[batch, places]` to the logits of those that follow.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Decoder {
    #[param]
    tokens: nn::Embedding,
    #[param]
    places: nn::Embedding,
    #[param]
    blocks: Vec<Block>,
    #[param]
    norm: nn::RmsNorm,
    #[param]
    head: nn::Linear,
}

impl Module<&Array> for Decoder {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, characters: &Array) -> Result<Array, Exception> {
        let places = ops::arange::<_, u32>(0, characters.dim(1), 1)?;
        let mask = MultiHeadAttention::create_additive_causal_mask::<f32>(characters.dim(1))?;
        let mut x = self.tokens.forward(characters)?.add(self.places.forward(&places)?)?;
        for block in &mut self.blocks {
            x = block.forward(&x, &mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    fn training_mode(&mut self, _: bool) {}
}

/// The text, and how models are trained on it and judged.
pub(crate) struct Trainer {
    size: Size,
    characters: usize,
    train: Vec<u32>,
    held_out: Vec<u32>,
    cross_entropy: CrossEntropy<'static>,
}

impl Trainer {
    pub(crate) fn new(size: Size) -> Result<Self> {
        let mut characters: Vec<u8> = TEXT.bytes().collect();
        characters.sort_unstable();
        characters.dedup();
        let number = |byte: u8| characters.binary_search(&byte).unwrap_or_default() as u32;
        let mut train: Vec<u32> = TEXT.bytes().map(number).collect();
        let held_out = train.split_off(train.len() / 10 * 9);
        let cross_entropy =
            CrossEntropyBuilder::new().reduction(LossReduction::Mean).build().map_err(Exception::from)?;
        Ok(Self { size, characters: characters.len(), train, held_out, cross_entropy })
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
        let size = self.size;
        random::seed(0)?;
        Model::new(Decoder {
            tokens: nn::Embedding::new(self.characters as i32, size.dims)?,
            places: nn::Embedding::new(size.context as i32, size.dims)?,
            blocks: (0..size.blocks).map(|_| Block::new(size)).collect::<Result<_>>()?,
            norm: nn::RmsNorm::new(size.dims)?,
            head: nn::Linear::new(size.dims, self.characters as i32)?,
        })
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
            let last = (self.train.len() - context - 1) as i32;
            let starts = random::randint::<_, i32>(0, last, &[batch as i32], &random::key(step as u64)?)?;
            let starts: Vec<usize> = starts.as_slice::<i32>().iter().map(|&start| start as usize).collect();
            let batch = self.windows(&self.train, &starts);
            let (loss, gradients) = model.value_and_grad(Trainable::default(), |model, (x, y): (Array, Array)| {
                self.loss(&model.forward(&x)?, &y)
            })(batch)?;
            optimizer.update(&mut *model, &gradients)?;
            transforms::eval(model.parameters().flatten().into_values().chain([&loss]))?;
        }
        Ok(())
    }

    /// The perplexity of a character of the held-out text.
    pub(crate) fn perplexity(&self, model: &mut Model<Decoder>) -> Result<f64> {
        let Size { context, held_out, .. } = self.size;
        let apart = (self.held_out.len() - context - 1) / held_out;
        let starts: Vec<usize> = (0..held_out).map(|window| window * apart).collect();
        let mut nats = 0.0;
        // So many at a time that their activations stay small.
        for starts in starts.chunks(16) {
            let (x, y) = self.windows(&self.held_out, starts);
            let loss = self.loss(&model.forward(&x)?, &y)?;
            nats += f64::from(loss.item_exact::<f32>()) * starts.len() as f64;
        }
        Ok((nats / held_out as f64).exp())
    }

    /// Nats for each character.
    fn loss(&self, logits: &Array, y: &Array) -> Result<Array, Exception> {
        self.cross_entropy.apply(logits.reshape(&[-1, logits.dim(-1)])?, y.reshape(&[-1])?)
    }

    /// Windows of a text that begin at these places, and the characters that follow each of theirs.
    fn windows(&self, text: &[u32], starts: &[usize]) -> (Array, Array) {
        let context = self.size.context;
        let cut = |by: usize| -> Array {
            let cut: Vec<u32> =
                starts.iter().flat_map(|&start| &text[start + by..start + by + context]).copied().collect();
            Array::from_slice(&cut, &[starts.len() as i32, context as i32])
        };
        (cut(0), cut(1))
    }
}
