//! Models whose parameters are implicit arrays.
//!
//! A [`Model`] is any mlx-rs module with implicit arrays in place of some parameters: by [`Rules`], by path. A part of it,
//! [`ParameterFilter`] some leaves, is trained or saved; [`Model::lora`] adds the leaves of adapters. [`with_parameters`] runs an unmodified module with other values for the length
//! of a call, [`quantized`] and [`straight_through`] make such values. [`Module`] and [`Stateful`] make trees of modules, and
//! of optimizers and random states. [`KvCache`] keeps what a decoder has seen, and [`generate`](mod@generate) lets it go on. An [`Advisor`] chooses formats under a budget of bits.
//! [`training`] has the parts of a loop that are no model.

// The macros' output names the core as the facade does.
extern crate tacit_core as tacit;

mod adapter_set;
mod advise;
mod cache;
mod filter;
pub mod generate;
mod inputs;
mod lora;
mod merge;
mod model;
mod module;
mod parameters;
mod pattern;
mod places;
mod report;
mod rule;
mod rules;
mod stateful;
pub mod training;
mod within;

pub use advise::{Advice, Advised, Advisor};
pub use cache::{ArraysCache, Cache, KvCache, PaddingSide, Window};
pub use filter::ParameterFilter;
pub use generate::generate;
pub use inputs::Inputs;
pub use lora::{LoraConfig, Method};
pub use merge::{MergeReport, MergeRow};
pub use model::Model;
pub use model::halves::hold_halves;
pub use model::kinds::LeafKinds;
pub use model::qat::QatConfig;
pub use model::surgery::Missing;
pub use module::Module;
pub use parameters::{Parameters, check_parameters, explain_with_parameters, with_parameters};
pub use pattern::Pattern;
pub use report::{Outcome, Report, Row};
pub use rule::{quantized, straight_through};
pub use rules::Rules;
pub use stateful::Stateful;
pub use within::undropped;
