//! Derivatives of running products and of running logarithms of sums, of every order, where an element is zero or infinite.

use mlx_rs::ops::LogCumsumExpOptions;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit::Result;
use tacit::transform::{grad, jvp, value_and_grad};
use tacit::tree::Gradient;
use tacit_conformance::oracle::relative_error;

use crate::types::{numbers, vector};

/// A scan along the only axis, in this order, with or without the element itself.
type Scan = fn(&Array, bool, bool) -> Result<Array>;

fn product(x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
    Ok(x.cumprod(0, reverse, inclusive)?)
}

fn log_sum(x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
    Ok(x.logcumsumexp(LogCumsumExpOptions { axis: Some(0), reverse, inclusive })?)
}

/// The same one element after the other, in ops that MLX differentiates rightly.
fn one_by_one(
    x: &Array,
    reverse: bool,
    inclusive: bool,
    none: f32,
    together: impl Fn(&Array, &Array) -> Result<Array>,
) -> Result<Array> {
    let mut elements = x.split_equal(x.shape()[0], 0)?;
    if reverse {
        elements.reverse();
    }
    let mut found = vec![elements.remove(0)];
    for element in &elements {
        found.push(together(&found[found.len() - 1], element)?);
    }
    if !inclusive {
        found.pop();
        found.insert(0, Array::from_slice(&[none], &[1]));
    }
    if reverse {
        found.reverse();
    }
    Ok(ops::concatenate(&found, 0)?)
}

fn plain_product(x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
    one_by_one(x, reverse, inclusive, 1.0, |a, b| Ok(a.multiply(b)?))
}

fn plain_log_sum(x: &Array, reverse: bool, inclusive: bool) -> Result<Array> {
    one_by_one(x, reverse, inclusive, f32::NEG_INFINITY, |a, b| Ok(a.exp()?.add(b.exp()?)?.log()?))
}

/// `a` and a number for each element, which is not the same for two.
fn weighted(a: &Array) -> Result<Array> {
    let weights: Vec<f32> = (0..a.size()).map(|i| (i as f32 * 1.7).cos()).collect();
    Ok(a.multiply(Array::from_slice(&weights, a.shape()))?)
}

fn gradient(x: &Array, f: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    Ok(grad(|x: Array| Ok::<_, tacit::Error>(f(&x)?.sum(None)?)).call(x.clone())?.array()?.clone())
}

fn tangent(x: &Array, f: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    let along: Vec<f32> = (0..x.size()).map(|i| (i as f32 * 0.9 + 0.4).sin()).collect();
    let (_, change) = jvp(x.clone(), Gradient::from(vector(&along)), |x: Array| f(&x))?;
    change.dense()
}

/// Every derivative up to the second order, and one of the third.
fn derivatives(x: &Array, f: impl Fn(&Array) -> Result<Array>) -> Result<Vec<(&'static str, Array)>> {
    // Where it is -inf there is nothing to weigh.
    let f = &|x: &Array| {
        let found = f(x)?;
        let is_finite = found.is_finite()?;
        weighted(&ops::select(&is_finite, &found, Array::from_f32(0.0))?)
    };
    let of_gradient = |x: &Array| weighted(&gradient(x, f)?);
    let of_tangent = |x: &Array| weighted(&tangent(x, f)?);
    Ok(vec![
        ("gradient", gradient(x, f)?),
        ("tangent", tangent(x, f)?),
        ("gradient of the gradient", gradient(x, of_gradient)?),
        ("gradient of the tangent", gradient(x, of_tangent)?),
        ("tangent of the gradient", tangent(x, of_gradient)?),
        ("tangent of the tangent", tangent(x, of_tangent)?),
        ("gradient of both", gradient(x, |x: &Array| tangent(x, of_gradient))?),
    ])
}

fn compare(scan: Scan, plain: Scan, x: &[f32], plain_x: &[f32]) {
    for reverse in [false, true] {
        for inclusive in [true, false] {
            let found = derivatives(&vector(x), |x| scan(x, reverse, inclusive)).expect("runs");
            let expected = derivatives(&vector(plain_x), |x| plain(x, reverse, inclusive)).expect("runs");
            for ((what, found), (_, expected)) in found.iter().zip(&expected) {
                let error = relative_error(found, expected).expect("evaluates");
                assert!(
                    error < 2e-5,
                    "{what}, reverse: {reverse}, inclusive: {inclusive}: {:?} {:?}",
                    numbers(found),
                    numbers(expected)
                );
            }
        }
    }
}

/// MLX divides by the elements: tangents and second derivatives were NaN.
#[test]
fn a_running_product_of_zeros_has_derivatives() {
    compare(product, plain_product, &[2.0, 0.0, 3.0, 0.0, 5.0, -1.5, 0.5], &[2.0, 0.0, 3.0, 0.0, 5.0, -1.5, 0.5]);
    for one in [0.0, -0.0, 3.0] {
        compare(product, plain_product, &[one], &[one]);
    }
}

/// The gradient of a product of elements is made of running ones.
#[test]
fn a_product_of_zeros_has_derivatives() {
    let whole: Scan = |x, _, _| Ok(x.prod(false)?.reshape(&[1])?);
    let plain: Scan = |x, _, _| {
        let all = plain_product(x, false, true)?;
        Ok(all.take_axis(Array::from_slice(&[all.shape()[0] - 1], &[1]), 0)?)
    };
    for x in [[2.0, 0.0, 3.0, 0.5, 5.0], [2.0, 0.0, 3.0, 0.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]] {
        compare(whole, plain, &x, &x);
    }
}

/// MLX takes the logarithms of the cotangents: the gradient of a tangent was NaN.
#[test]
fn a_running_logarithm_of_a_sum_has_derivatives() {
    let x = [0.5, -2.0, 3.0, 1.0, -0.25, 2.0, 0.0];
    compare(log_sum, plain_log_sum, &x, &x);
    // What is infinitely small adds nothing, as what is very small does.
    let none = f32::NEG_INFINITY;
    compare(
        log_sum,
        plain_log_sum,
        &[0.5, none, none, 1.0, none, 2.0, 0.0],
        &[0.5, -200.0, -200.0, 1.0, -200.0, 2.0, 0.0],
    );
}

/// Parts that are doubled leave the range where the product does not.
#[test]
fn what_is_differentiated_keeps_its_value() -> Result<()> {
    let of = |x: &[f32], f: &dyn Fn(Array) -> Result<Array>| -> Result<(f32, Vec<f32>)> {
        let (value, gradient) = value_and_grad(|x: Array| f(x)).call(vector(x))?;
        Ok((numbers(&value.dense()?)[0], numbers(gradient.array()?)))
    };
    let (value, gradient) = of(&[1e30, 1e-30, 1e-30], &|x| Ok(x.cumprod(0, None, None)?.try_index(2)?.log()?))?;
    assert!((value + 69.0776).abs() < 1e-3, "{value}");
    assert!(gradient.iter().zip([1e-30, 1e30, 1e30]).all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{gradient:?}");
    let in_halves =
        |x: Array| Ok(x.as_dtype(Dtype::Float16)?.cumprod(0, None, None)?.max(None)?.as_dtype(Dtype::Float32)?);
    assert!((of(&[0.001, 300.0, 300.0], &in_halves)?.0 - 90.0).abs() < 0.2);
    let (value, gradient) = of(&[0.0, f32::INFINITY, 1.0], &|x| Ok(log_sum(&x, false, true)?.max(None)?))?;
    assert!(value.is_infinite() && gradient.iter().all(|x| !x.is_nan()), "{value} {gradient:?}");
    Ok(())
}
