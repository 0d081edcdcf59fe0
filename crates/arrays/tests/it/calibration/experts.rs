//! Stacks of matrices, such as the experts of a mixture: each is coded by its own inputs.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Awq, Calibrate, Gptq, Observation, Observed, ScaledChannels};
use tacit_conformance::assert_close;
use tacit_core::{Error, Policy, Result, Value, implicit};

use super::{error, format, inputs};
use crate::operands::normal;

#[test]
fn each_expert_is_coded_by_its_own_inputs() {
    let (x, w) = ([inputs(1, 128), inputs(3, 128)], normal(7, &[2, 16, 128]));
    let stacked = ops::stack(&x, 0).expect("stacks");
    let observed = Observed::new(&w).expect("a weight");
    implicit((&stacked, &observed), |(x, w)| x.matmul(w.swap_axes(1, 2)?)).expect("multiplies");
    let seen = observed.finish().expect("products");
    // Each has super-blocks of its own.
    for text in ["affine:3:64", "int8", "k:3", "k:4"] {
        let format = format(text);
        let codes = Gptq::default().quantize(&format, &w, &seen).expect("calibrates");
        assert!(format.stores(&codes), "{text}: {codes}");
        let all = codes.dense().expect("dense");
        for (matrix, x) in (0..2).zip(&x) {
            let one = |of: &Array| of.take_axis(Array::from_int(matrix), 0).expect("taken");
            let alone = Gptq::default().quantize(&format, &one(&w), &Observation::from_inputs(x).expect("finite"));
            let alone = error(x, &one(&w), &alone.expect("calibrates"));
            let found = error(x, &one(&w), &one(&all).into());
            assert!((found / alone - 1.0).abs() < 0.01, "{text}: {found} where it has {alone} alone");
        }
        let scaled = Awq::default().quantize(&format, &w, &seen).expect("calibrates");
        assert!(error(&stacked, &w, &scaled) <= error(&stacked, &w, &format.quantize(&w).expect("quantizes")));
    }
}

/// And the others are coded by their inputs, as ever.
#[test]
fn experts_that_met_nothing_are_rounded() {
    let (x, w) = (inputs(1, 128), normal(7, &[2, 16, 128]));
    let observed = Observed::new(&w).expect("a weight");
    let (groups, second) = (x.reshape(&[1, 512, 128]).expect("one group"), Array::from_slice(&[1u32], &[1]));
    implicit((&groups, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &second, None))
        .expect("multiplies");
    let seen = observed.finish().and_then(|seen| seen.rounding_unmet()).expect("products");
    assert_eq!(seen.rows(), [1, 512]);
    for text in ["affine:3:64", "nf4:64"] {
        let format = format(text);
        let one = |of: &Value, matrix: i32| {
            of.dense().and_then(|of| Ok(of.take_axis(Array::from_int(matrix), 0)?)).expect("taken")
        };
        let codes = Gptq::default().quantize(&format, &w, &seen).expect("calibrates");
        let rounded = format.quantize(&w).expect("quantizes");
        assert_close!(one(&codes, 0), one(&rounded, 0), 1e-6);
        let alone = Gptq::default().quantize(
            &format,
            &one(&Value::from(&w), 1),
            &Observation::from_inputs(&x).expect("finite"),
        );
        let (found, alone) = (error(&x, &one(&Value::from(&w), 1), &one(&codes, 1).into()), alone.expect("calibrates"));
        let alone = error(&x, &one(&Value::from(&w), 1), &alone);
        assert!((found / alone - 1.0).abs() < 0.01, "{text}: {found} where it has {alone} alone");
        Awq::default().quantize(&format, &w, &seen).expect("calibrates");
    }
}

/// What AWQ chooses for a whole stack is chosen by the experts that met something.
#[test]
fn experts_that_met_nothing_decide_nothing_of_the_others() {
    let sizes = Array::from_iter((0..128).map(|i| if i % 16 == 0 { 0.2f32 } else { 0.01 }), &[128]);
    let (x, w) = (normal(1, &[512, 128]).multiply(&sizes).expect("small"), normal(7, &[8, 16, 128]));
    let observed = Observed::new(&w).expect("a weight");
    let (groups, last) = (x.reshape(&[1, 512, 128]).expect("one group"), Array::from_slice(&[7u32], &[1]));
    implicit((&groups, &observed), |(x, w)| ops::gather_mm(x, w.swap_axes(1, 2)?, None, &last, None))
        .expect("multiplies");
    let seen = observed.finish().and_then(|seen| seen.rounding_unmet()).expect("products");
    let one = |of: &Array| of.take_axis(Array::from_int(7), 0).expect("taken");
    let format = format("affine:3:64");
    let all = Awq::default().quantize(&format, &w, &seen).and_then(|codes| codes.dense()).expect("calibrates");
    let alone = Awq::default().quantize(&format, &one(&w), &Observation::from_inputs(&x).expect("finite"));
    let alone = error(&x, &one(&w), &alone.expect("calibrates"));
    let found = error(&x, &one(&w), &one(&all).into());
    assert!(found <= 1.05 * alone, "{found} where it has {alone} alone");
}

#[test]
fn experts_with_scaled_inputs_or_results_are_multiplied_as_they_are_stored() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (left, right) = (Array::from_slice(&[0u32, 2, 1, 0], &[4]), Array::from_slice(&[1u32, 0, 2, 1], &[4]));
    for dtype in [Dtype::Float32, Dtype::Bfloat16] {
        let codes = format("nf4:32").quantize(&normal(1, &[3, 16, 64]).as_dtype(dtype)?)?;
        let x = normal(2, &[3, 5, 64]).as_dtype(dtype)?;
        for axis in [-1, -2] {
            let factors = normal(3, &[if axis == -1 { 64 } else { 16 }]).abs()?;
            let w = ScaledChannels::new(codes.clone(), &factors, axis)?;
            let dense = {
                let _allow = Policy::Allow.scope();
                Value::from(w.clone()).dense()?
            };
            let product =
                |x: &Array, w: Array| Ok::<_, Error>(ops::gather_mm(x, w.swap_axes(1, 2)?, &left, &right, None)?);
            let found = implicit(w, |w| product(&x, w))?.dense()?;
            assert_eq!(found.dtype(), dtype);
            // MLX has no such product of half floats.
            let [x, dense] = [&x, &dense].map(|array| array.as_dtype(Dtype::Float32));
            let (found, expected) = (found.as_dtype(Dtype::Float32)?, product(&x?, dense?)?);
            assert_close!(found, expected, if dtype == Dtype::Float32 { 1e-5 } else { 2e-2 });
        }
    }
    Ok(())
}
