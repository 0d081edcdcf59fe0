//! The errors of the formats on normal numbers, against those that bitsandbytes states for its own.

use mlx_rs::Array;
use tacit_arrays::{Fp4Array, Nf4Array};
use tacit_conformance::oracle::floats;
use tacit_core::{Policy, Result, Value};

use crate::normal;

/// The mean of `errors`, and the standard deviation of such a mean.
fn mean(errors: impl Iterator<Item = f64> + Clone, n: f64) -> (f64, f64) {
    let mean = errors.clone().sum::<f64>() / n;
    let variance = errors.map(|error| (error - mean).powi(2)).sum::<f64>() / n;
    (mean, (variance / n).sqrt())
}

/// Compares the mean absolute and relative errors of `f32[1024,1024]` with the stated ones, to seven standard deviations.
#[track_caller]
fn errs_by(quantize: impl Fn(&Array) -> Result<Value>, absolute: f64, relative: Option<f64>) {
    let _allow = Policy::Allow.scope();
    let x = normal(5, &[1024, 1024]);
    let made = quantize(&x).and_then(|value| value.dense()).expect("quantizes");
    let (x, made) = (floats(&x).expect("floats"), floats(&made).expect("floats"));
    let errors = x.iter().zip(&made).map(|(x, made)| f64::from((x - made).abs()));
    let n = x.len() as f64;
    let (found, deviation) = mean(errors.clone(), n);
    assert!((found - absolute).abs() < 7.0 * deviation, "the error is {found:.6}, not {absolute:.6}");
    let Some(relative) = relative else { return };
    let (found, deviation) = mean(errors.zip(&x).map(|(error, x)| error / (f64::from(x.abs()) + 1e-8)), n);
    assert!((found - relative).abs() < 7.0 * deviation, "the relative error is {found:.6}, not {relative:.6}");
}

#[test]
fn nf4_errs_as_bitsandbytes_does_at_every_block_size() {
    for (block, absolute, relative) in [
        (32, 0.067_746, None),
        (64, 0.072_798, Some(0.203_339)),
        (128, 0.076_831, None),
        (256, 0.080_337, None),
        (512, 0.083_547, None),
        (1024, 0.086_610, None),
        (2048, 0.089_592, None),
        (4096, 0.092_547, None),
    ] {
        errs_by(|x| Ok(Nf4Array::quantize(x, block)?.into()), absolute, relative);
    }
}

#[test]
fn fp4_errs_as_bitsandbytes_does() {
    errs_by(|x| Ok(Fp4Array::quantize(x, 64)?.into()), 0.096_543, Some(0.260_125));
}
