//! Random programs over the op surface, with array types among their inputs, and programs in which all array types meet.

/// The lines of `kinds.rs` alone: their suite is another program.
macro_rules! with_lines {
    ($($lines:tt)+) => {
        tacit_conformance::subjects! { $($lines)+ }
    };
}

#[path = "../conformance/kinds.rs"]
mod kinds;
#[path = "../conformance/structured.rs"]
mod structured;

use mlx_rs::{Array, ops};
use tacit_arrays::format::{Affine, Nf4};
use tacit_arrays::{AffineArray, Int8Array, Lora, Mxfp8Array, Nf4Array, ScaleRule, Scaled, Sliced, Transposed};
// Dense products are those of a program with the facade: MLX takes its BLAS from this executable.
use tacit_blas as _;
use tacit_conformance::{Subject, programs};
use tacit_core::{Error, Result, Value};
// Compiled graphs are rewritten as they are there.
use tacit_fusion as _;

#[test]
fn run_alike_in_every_way() {
    tacit_core::compile::disable_fusion();
    programs::programs(&subjects()).expect_clean();
}

/// Programs that failed once.
#[test]
fn what_was_found_stays_right() {
    tacit_core::compile::disable_fusion();
    let subjects = subjects();
    for listing in include_str!("found.txt").split("\n\n") {
        let program = listing.parse().unwrap_or_else(|what| panic!("{what} in\n{listing}"));
        programs::program(&program, &subjects).unwrap_or_else(|what| panic!("{what} in\n{listing}"));
    }
}

#[test]
fn what_meets_is_as_dense() {
    tacit_core::compile::disable_fusion();
    programs::meetings(&kinds::subjects()).expect_clean();
}

/// Programs in which two things meet that were wrong together once, or nearly.
#[test]
fn what_met_stays_as_dense() {
    tacit_core::compile::disable_fusion();
    let subjects = kinds::subjects();
    for listing in include_str!("met.txt").split("\n\n") {
        let program = listing.parse().unwrap_or_else(|what| panic!("{what} in\n{listing}"));
        programs::meeting(&program, &subjects).unwrap_or_else(|what| panic!("{what} in\n{listing}"));
    }
}

fn subjects() -> Vec<Subject> {
    vec![
        Subject::new("nf4", |x: &Array| Nf4Array::quantize(x, Nf4 { block: 32, double: false })),
        Subject::new("affine_4", |x: &Array| AffineArray::quantize(x, Affine { bits: 4, group: 32 })),
        Subject::new("mxfp8", |x: &Array| Mxfp8Array::quantize(x, ScaleRule::Ceil)),
        Subject::new("lora", lora),
        Subject::new("sliced", sliced),
        Subject::new("transposed", |x: &Array| Transposed::new(int8(&x.swap_axes(-1, -2)?)?, &[1, 0])),
        Subject::new("scaled", |x: &Array| {
            Scaled::new(Mxfp8Array::quantize(x, ScaleRule::Ceil)?, &Array::from_f32(0.5).as_dtype(x.dtype())?)
        }),
    ]
}

fn int8(x: &Array) -> Result<Value> {
    Ok(Int8Array::quantize(x, 32)?.into())
}

fn lora(x: &Array) -> Result<Lora> {
    let &[n, k] = x.shape() else { return Err(Error::decline("only matrices")) };
    let factor = |shape: &[i32]| -> Result<Array> {
        let size: i32 = shape.iter().product();
        let numbers: Vec<f32> = (0..size).map(|i| (i as f32 * 0.7).sin()).collect();
        Ok(Array::from_slice(&numbers, shape).as_dtype(x.dtype())?)
    };
    Lora::new(Nf4Array::quantize(x, 32)?, factor(&[2, k])?, factor(&[n, 2])?, 2.0)
}

fn sliced(x: &Array) -> Result<Value> {
    let &[n, k] = x.shape() else { return Err(Error::decline("only matrices")) };
    let wide = ops::concatenate(&[x, x], 0)?;
    Ok(Sliced::new(int8(&wide)?, &[1, 0], &[n + 1, k])?.into())
}
