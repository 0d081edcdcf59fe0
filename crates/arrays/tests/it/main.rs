//! The array types and their handlers against the dense arrays that they stand for.

#![allow(
    clippy::needless_pass_by_value,
    reason = "functions take arrays as interception gives them, and snapshots stand in the call"
)]

mod affine_format;
mod compiled;
mod fallback;
mod gather;
mod gradients;
mod messages;
mod mixed;
mod nf4_format;
mod operands;
mod products;
mod ste;
mod views;
