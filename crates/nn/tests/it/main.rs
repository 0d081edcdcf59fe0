//! Unmodified mlx-rs modules with implicit parameters.

#![allow(clippy::needless_pass_by_value, reason = "snapshots stand in the call")]

// The macros' output names the core as the facade does.
extern crate tacit_core as tacit;

// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;

mod adapters;
mod apollo;
mod assigned;
mod cache;
mod cache_batches;
mod cache_layers;
mod cache_lives;
mod cache_tokens;
mod compiled_models;
mod compiling;
mod cross_entropy;
mod distillation;
mod eight_bit_steps;
mod failing_ends;
mod failing_steps;
mod for_gpus;
mod frozen;
mod generate;
mod given_back;
mod halves;
mod int8_activations;
mod int8_training;
#[path = "../../../core/tests/it/log.rs"]
mod log;
mod lookup;
mod messages;
mod model;
mod modules;
mod observe;
mod parameters;
mod predicates;
mod qat;
mod quantized_state;
mod replaced;
mod reported;
mod rollback;
mod rounded_adapters;
mod sampler;
mod saved;
mod speculative;
mod stochastic_state;
mod texts;
mod tied_rules;
mod ties;
mod toys;
#[path = "../../../core/tests/it/traced.rs"]
mod traced;
mod trained_codes;
mod training;
mod training_parts;
mod trees;
mod types;
mod update;
