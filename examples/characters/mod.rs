//! A transformer of characters, of mlx-rs's own layers, and the book of Genesis for it to read.

mod block;

use std::error::Error;

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::nn::{self, MultiHeadAttention};
use mlx_rs::{Array, ops, random};

use block::Block;

pub(crate) type Outcome<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) const TEXT: &str = include_str!("../data/genesis.txt");

/// How large a transformer is, and how far it looks back.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) dims: i32,
    pub(crate) blocks: usize,
    pub(crate) heads: i32,
    pub(crate) context: usize,
}

/// Characters to the logits of each one that follows.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Transformer {
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

impl Transformer {
    pub(crate) fn new(shape: Shape, characters: usize) -> Outcome<Self> {
        Ok(Self {
            tokens: nn::Embedding::new(characters as i32, shape.dims)?,
            places: nn::Embedding::new(shape.context as i32, shape.dims)?,
            blocks: (0..shape.blocks).map(|_| Block::new(shape.dims, shape.heads)).collect::<tacit::Result<_>>()?,
            norm: nn::RmsNorm::new(shape.dims)?,
            head: nn::Linear::new(shape.dims, characters as i32)?,
        })
    }
}

/// The characters `[batch, places]` to the logits of each one that follows.
impl Module<&Array> for Transformer {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, characters: &Array) -> Result<Array, Exception> {
        let places = ops::arange::<_, u32>(0, characters.dim(1), 1)?;
        let mask = MultiHeadAttention::create_additive_causal_mask::<f32>(characters.dim(1))?;
        let mut x = self.tokens.forward(characters)?.add(self.places.forward(&places)?)?;
        for block in &mut self.blocks {
            x = block.forward(&x, &mask, nn::gelu)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    fn training_mode(&mut self, _: bool) {}
}

/// The part of the text that is trained on, as the numbers of its characters.
pub(crate) struct Corpus {
    pub(crate) characters: Vec<u8>,
    pub(crate) train: Vec<u32>,
}

impl Corpus {
    /// The text, and what of it is held out.
    pub(crate) fn read() -> (Self, Vec<u32>) {
        let mut characters: Vec<u8> = TEXT.bytes().collect();
        characters.sort_unstable();
        characters.dedup();
        let mut corpus = Self { characters, train: Vec::new() };
        corpus.train = corpus.numbers(TEXT);
        let held_out = corpus.train.split_off(corpus.train.len() / 10 * 9);
        (corpus, held_out)
    }

    /// A text as the numbers of its characters.
    pub(crate) fn numbers(&self, text: &str) -> Vec<u32> {
        let number = |byte: u8| self.characters.iter().position(|&known| known == byte).unwrap_or_default() as u32;
        text.bytes().map(number).collect()
    }

    /// Some windows of what is trained on, drawn by the number of a step, and the characters that follow each of theirs.
    pub(crate) fn batch(&self, step: usize, count: usize, context: usize) -> Result<(Array, Array), Exception> {
        let key = random::key(step as u64)?;
        let last = (self.train.len() - context - 1) as i32;
        let starts = random::randint::<_, i32>(0, last, &[count as i32], Some(&key))?;
        let starts = starts.as_slice::<i32>().iter().map(|&start| start as usize);
        Ok(windows(&self.train, starts, context))
    }
}

/// Windows of a text that begin at these places, and the characters that follow each of theirs.
pub(crate) fn windows(text: &[u32], starts: impl Iterator<Item = usize>, context: usize) -> (Array, Array) {
    let starts: Vec<usize> = starts.collect();
    let cut = |by: usize| -> Array {
        let cut: Vec<u32> = starts.iter().flat_map(|&start| &text[start + by..start + by + context]).copied().collect();
        Array::from_slice(&cut, &[starts.len() as i32, context as i32])
    };
    (cut(0), cut(1))
}

/// So many windows of a text, spread evenly over it.
#[allow(dead_code, reason = "not every program has a held-out text")]
pub(crate) fn spread(text: &[u32], count: usize, context: usize) -> (Array, Array) {
    let apart = (text.len() - context - 1) / count;
    windows(text, (0..count).map(|window| window * apart), context)
}

/// Nats for each character.
pub(crate) fn nats(logits: &Array, next: &Array) -> Result<Array, Exception> {
    let logits = logits.reshape(&[-1, logits.dim(-1)])?;
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::Mean).build()?;
    cross_entropy.apply(logits, next.reshape(&[-1])?)
}

/// Bits for each character.
pub(crate) fn bits(logits: &Array, next: &Array) -> Result<Array, Exception> {
    nats(logits, next)?.divide(Array::from_f32(std::f32::consts::LN_2))
}
