//! Decoders of the Llama family and hybrid ones, as folders of mlx-lm and Hugging Face and GGUF files have them.
//!
//! [`Decoder`] is plain mlx-rs modules: it knows of caches and of no array type, and its parameters have the paths that the
//! files give them. [`load`] reads a folder or a GGUF file into a [`Model`](tacit_nn::Model) of it, whose weights are of any format that a
//! checkpoint has; [`quantize`] gives them another one, and [`adapt`] puts an adapter over them;
//! [`token_losses`] is what trains them, on [`Rows`] of tokens, and [`perplexity()`] measures them. The architectures are those
//! of `model_type` llama, mistral, mixtral, qwen2, qwen3, `qwen3_moe`, gemma, gemma2, `gemma3_text`, phi3, olmo2, granite and
//! smollm3, and the hybrid `qwen3_next`. Most layers of the latter have a convolution and a gated delta rule in place of attention.
//! Such a layer goes through a prompt token by token in the graph, so that a long prompt should come in pieces of some dozens.
//!
//! ```no_run
//! # fn main() -> tacit_core::Result<()> {
//! use mlx_rs::{Array, Dtype};
//! use tacit_models::{Positions, caches, load};
//!
//! let (config, mut model) = load("Qwen3-0.6B-4bit")?;
//! let mut caches = caches(&config, 1, Dtype::Float32)?;
//! caches.iter_mut().try_for_each(|cache| cache.reserve(3))?;
//! let tokens = Array::from_slice(&[1u32, 2, 3], &[1, 3]);
//! let logits = model.run_with(&mut caches, |decoder, caches| decoder.forward(&tokens, caches, Positions::Last))?;
//! # Ok(())
//! # }
//! ```

mod activation;
mod attention;
mod config;
mod decoder;
mod delta_net;
mod experts;
mod family;
mod feed_forward;
mod formats;
mod halves;
mod keys;
mod layers;
mod linear;
mod load;
mod losses;
mod norm;
mod numbers;
mod perplexity;
mod rope;
mod rows;
mod vocabulary;

pub use activation::Activation;
pub use config::{Bias, Config, EndsBy, Norm};
pub use decoder::{Decoder, Positions, caches};
pub use family::{HeadNorms, NormPlacement};
pub use formats::Formats;
pub use halves::hold_halves;
pub use layers::{DeltaNetConfig, ExpertsConfig, FeedForwardConfig, Kind, LayerConfig, Mixer};
pub use load::{adapt, load, load_with, quantize};
pub use losses::{checkpointed_token_losses, token_losses};
pub use perplexity::{Convention, Perplexity, Windows, perplexity};
pub use rope::Rope;
pub use rows::{Batch, Rows, Sample};
