//! The oracle: compiled with passes, compiled without them, and run as it is.

use mlx_rs::{Array, Dtype};
use tacit_core::compile::{CompileOptions, Constants, compile_with};
use tacit_core::pass::{Passes, Rewritten};
use tacit_core::{Result, Value};
use tacit_fusion as _;

/// What a function of arrays gives.
pub(crate) type Function<'f> = &'f dyn Fn(&[Array]) -> Result<Vec<Array>>;

fn options(passes: Passes) -> CompileOptions {
    CompileOptions { passes, constants: Constants::Allow, ..CompileOptions::default() }
}

/// The results of a function compiled with these passes, and what these did.
pub(crate) fn compiled(f: Function<'_>, inputs: &[Array], passes: Passes) -> Result<(Vec<Array>, Vec<Rewritten>)> {
    tacit_core::compile::disable_fusion();
    let mut compiled = compile_with(options(passes), |inputs: Vec<Array>| f(&inputs));
    let values: Vec<Value> = inputs.iter().map(Value::from).collect();
    let mut results = Vec::new();
    // The second call replays.
    for _ in 0..2 {
        results = compiled.call(&values)?.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
        for result in &results {
            result.eval()?;
        }
    }
    Ok((results, compiled.stats().rewritten.clone()))
}

/// The nodes that a pass replaced.
pub(crate) fn nodes(rewritten: &[Rewritten], pass: &str) -> usize {
    rewritten.iter().find(|done| done.pass == pass).map_or(0, |done| done.nodes)
}

/// The array in a float type, evaluated.
pub(crate) fn of(dtype: Dtype, array: &Array) -> Array {
    let array = array.as_dtype(dtype).expect("a float type");
    array.eval().expect("an eval");
    array
}

/// A number of the same type.
pub(crate) fn number(x: &Array, number: f32) -> Array {
    of(x.dtype(), &Array::from_f32(number))
}

/// One of the same type.
pub(crate) fn one(x: &Array) -> Array {
    number(x, 1.0)
}

pub(crate) fn floats(array: &Array) -> Vec<f32> {
    // MLX gives no slice of nothing.
    if array.size() == 0 {
        return Vec::new();
    }
    let array = array.as_dtype(Dtype::Float32).expect("a float type");
    // Whatever its strides.
    let array = array.flatten(None, None).expect("flat").multiply(Array::from_f32(1.0)).expect("a copy");
    array.eval().expect("an eval");
    array.as_slice::<f32>().to_vec()
}

/// Values are equal up to `relative` of the greatest one.
#[track_caller]
pub(crate) fn assert_close(found: &Array, expected: &Array, relative: f32) {
    assert_near(found, expected, relative, 0.0);
}

/// Values are equal up to `relative` of the greatest one, and `rounding`.
#[allow(clippy::float_cmp, reason = "infinities are equal")]
#[track_caller]
fn assert_near(found: &Array, expected: &Array, relative: f32, rounding: f32) {
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()));
    let (found, expected) = (floats(found), floats(expected));
    let scale = expected.iter().filter(|value| value.is_finite()).fold(0_f32, |most, value| most.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let same = found == expected || found.is_nan() && expected.is_nan();
        let granted = relative * scale.max(1e-6) + rounding;
        assert!(same || (found - expected).abs() <= granted, "{found} at {i}, not {expected}");
    }
}

/// Checks a function with all passes against itself without any, and run as it is; gives what the passes did.
#[track_caller]
pub(crate) fn check(f: Function<'_>, inputs: &[Array], relative: f32) -> Vec<Rewritten> {
    check_near(f, inputs, relative, 0.0)
}

/// As [`check`], where differences of numbers near 1 may be nothing but their `rounding`.
#[track_caller]
pub(crate) fn check_near(f: Function<'_>, inputs: &[Array], relative: f32, rounding: f32) -> Vec<Rewritten> {
    let eager = f(inputs).expect("the function runs");
    let (plain, none) = compiled(f, inputs, Passes::Off).expect("it compiles without passes");
    let (rewritten, done) = compiled(f, inputs, Passes::All).expect("it compiles with passes");
    assert!(none.is_empty());
    assert_eq!((rewritten.len(), plain.len()), (eager.len(), eager.len()));
    for ((rewritten, plain), eager) in rewritten.iter().zip(&plain).zip(&eager) {
        assert_near(rewritten, eager, relative, rounding);
        assert_near(rewritten, plain, relative, rounding);
    }
    done
}

/// Normal numbers.
pub(crate) fn normal(shape: &[i32], seed: u64) -> Array {
    let key = mlx_rs::random::key(seed).expect("a key");
    let array = mlx_rs::random::normal::<f32>(shape, None, None, &key).expect("numbers");
    array.eval().expect("an eval");
    array
}
