//! What the tests of compiled functions take.

use mlx_rs::{Array, ops};
use tacit_core::compile::{CompileOptions, Constants};

pub(crate) fn row(values: &[f32]) -> Array {
    Array::from_slice(values, &[1, values.len() as i32])
}

pub(crate) fn ones(shape: &[i32]) -> Array {
    ops::ones::<f32>(shape).expect("ones")
}

/// `CompileOptions` of a function `f` that may hold no arrays.
pub(crate) fn denied() -> CompileOptions {
    CompileOptions { name: "f".to_owned(), constants: Constants::Deny, ..CompileOptions::default() }
}
