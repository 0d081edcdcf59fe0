//! The array types and their handlers against the dense arrays that they stand for.

#![allow(
    clippy::needless_pass_by_value,
    reason = "functions take arrays as interception gives them, and snapshots stand in the call"
)]

// The derives name the facade.
extern crate tacit_core as tacit;

// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;

mod adapters;
mod added;
mod affine_format;
mod as_stored;
mod asked;
mod attention;
mod calibration;
mod cast;
mod compiled;
mod concat;
mod constant;
mod constructors;
mod cuts;
mod declined;
mod diagonal;
mod experts;
mod failed;
mod fallback;
mod fits;
mod formats;
mod gather;
mod gradients;
mod half_types;
mod halves;
mod identity;
mod indices;
mod int8_inputs;
mod int8_training;
mod k_quants;
mod loading;
mod lora;
mod low_rank;
mod masked;
mod merging;
mod messages;
mod mixed;
mod nf4_format;
mod observed;
mod operands;
mod prepared;
mod prepared_scales;
mod products;
mod quotients;
mod refused;
mod repeated;
mod rotated;
mod saved;
mod saved_inputs;
mod scaled;
mod shapeless;
mod shards;
mod sliced;
mod sparse24;
mod stacked;
mod ste;
mod ste_derivatives;
mod ste_trees;
mod stochastic;
mod structured;
mod trained_codes;
mod transposed;
mod updates;
mod views;
mod weighted_search;
