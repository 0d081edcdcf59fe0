//! Models whose parameters are implicit arrays.
//!
//! A [`Model`] is an mlx-rs module with implicit arrays in place of some parameters, which [`Rules`] choose by path. A
//! [`ParameterFilter`] names a part of its leaves, to be trained or saved. [`Model::lora`] adds adapters.
//!
//! [`with_parameters`] runs a module with other values for one call; [`quantized`] and [`straight_through`] make such values.
//! [`Module`] and [`Stateful`] make trees of modules, of optimizers and of random states, and [`QuantizedState`] holds the moments of
//! an optimizer in few bits; [`Apollo`] holds them in a low rank. [`KvCache`] holds the keys and values of a decoder's layer, and
//! [`generate`](mod@generate) generates text. An [`Advisor`] chooses formats under a budget of bits. [`training`] has the parts of
//! a training loop.

// The macros' output names the core as the facade does.
extern crate tacit_core as tacit;

mod adapter_set;
mod advise;
mod apollo;
mod array_leaves;
mod cache;
mod decoder_rules;
mod filter;
pub mod generate;
mod lora;
mod matrices;
mod merge;
mod model;
mod module;
mod moments;
mod moments_before;
mod moved;
mod observations;
mod parameters;
mod path_order;
mod pattern;
mod places;
mod quantized_state;
mod report;
mod rule;
mod rules;
mod saved_moments;
mod stateful;
pub mod training;
mod within;

pub use advise::{Advice, Advised, Advisor};
pub use apollo::Apollo;
pub use cache::{ArraysCache, Cache, KvCache, PaddingSide, Window};
pub use decoder_rules::DecoderRules;
pub use filter::ParameterFilter;
pub use generate::generate;
pub use lora::{LoraConfig, Method};
pub use merge::{MergeReport, MergeRow};
pub use model::Model;
pub use model::halves::hold_halves;
pub use model::int8_activations::RoundedActivations;
pub use model::kinds::LeafKinds;
pub use model::qat::{IntoQatConfig, QatConfig};
pub use model::surgery::Missing;
pub use module::Module;
pub use moments::Moments;
pub use observations::Observations;
pub use parameters::{Parameters, check_parameters, explain_with_parameters, with_parameters};
pub use path_order::path_order;
pub use pattern::Pattern;
pub use quantized_state::QuantizedState;
pub use report::{Outcome, Report, Row};
pub use rule::{quantized, straight_through};
pub use rules::{IntoRules, Rules};
pub use saved_moments::SavedMoments;
pub use stateful::Stateful;
pub use within::undropped;
