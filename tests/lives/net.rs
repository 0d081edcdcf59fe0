//! A small model with most of what a model has: an embedding, layers with biases, a norm, a head.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters as _};
use mlx_rs::{Array, nn, random};
use tacit::Result;

/// Tokens that it knows.
const WORDS: i32 = 32;
const WIDTH: i32 = 64;

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
pub(crate) struct Net {
    #[param]
    embedding: nn::Embedding,
    #[param]
    up: nn::Linear,
    #[param]
    down: nn::Linear,
    #[param]
    norm: nn::RmsNorm,
    #[param]
    head: nn::Linear,
}

impl Net {
    /// Of numbers that are the same each time.
    pub(crate) fn new() -> Result<Self> {
        let linear = |inputs, outputs, bias| nn::LinearBuilder::new(inputs, outputs).bias(bias).build();
        let mut net = Self {
            embedding: nn::Embedding::new(WORDS, WIDTH)?,
            up: linear(WIDTH, 2 * WIDTH, true)?,
            down: linear(2 * WIDTH, WIDTH, true)?,
            norm: nn::RmsNorm::new(WIDTH)?,
            head: linear(WIDTH, WORDS, false)?,
        };
        let mut slots: Vec<_> = net.parameters_mut().flatten().into_iter().collect();
        slots.sort_by(|a, b| a.0.cmp(&b.0));
        for (seed, (_, slot)) in slots.into_iter().enumerate() {
            let unit = 1.0 / (slot.dim(-1) as f32).sqrt();
            *slot = random::normal::<f32>(slot.shape(), None, Some(unit), &random::key(seed as u64)?)?;
            slot.eval()?;
        }
        Ok(net)
    }
}

impl Module<&Array> for Net {
    type Output = Array;
    type Error = Exception;

    fn forward(&mut self, tokens: &Array) -> Result<Array, Exception> {
        let x = self.embedding.forward(tokens)?;
        let grown = nn::gelu(self.up.forward(&x)?)?;
        let x = self.down.forward(&grown)?.add(x)?;
        let x = self.norm.forward(&x)?;
        self.head.forward(&x)
    }

    fn training_mode(&mut self, _: bool) {}
}

pub(crate) fn tokens() -> Array {
    Array::from_slice(&[3u32, 1, 4, 1, 5, 9, 2, 6], &[2, 4])
}
