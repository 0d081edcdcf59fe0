//! Tokens that a model makes one after the other: sampling, the loop, drafts, and text.
//!
//! A model is here a *step*: a function that takes tokens, `u32[batch, n]`, and a state, such as the caches of its layers, and
//! gives logits, `[batch, n, vocabulary]` or those of the last token alone, `[batch, vocabulary]`. [`generate`] runs it on
//! prompts and then on its own tokens, [`speculate`] also lets a [`Draft`] propose them, and [`Texts`] makes text of
//! them. A [`Sampler`] is plain ops, and may as well stand in a compiled step of one's own.

mod behind;
mod draft;
mod draft_model;
mod generation;
mod lookup;
mod options;
mod plain;
mod sampler;
mod segments;
mod sequences;
mod speculative;
mod stats;
mod steps;
mod texts;
mod trim;
mod verdict;

pub use draft::{Draft, Drawing, Proposal};
pub use draft_model::DraftModel;
pub use generation::{Finish, Generation, Token};
pub use lookup::Lookup;
pub use options::GenerateOptions;
pub use plain::generate;
pub use sampler::{Sampled, Sampler, SamplerState};
pub use sequences::Sequences;
pub use speculative::speculate;
pub use stats::GenerateStats;
pub use texts::{Detokenizer, Piece, Texts};
pub use trim::{Mark, Trim};
