//! Scales that are trained: their gradients, and that training them does what it should.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, stop_gradient, transforms};
use tacit_arrays::format::{Nvfp4, Parts, Quantizer};
use tacit_arrays::{Nvfp4Array, Prepared};
use tacit_conformance::oracle::{floats, relative_error};
use tacit_core::{Policy, Result, Value, implicit};

use crate::operands::normal;
use crate::prepared::{TEXTS, dense, format, has_fixed_scales};

/// A prepared weight of these children.
fn of(text: &str, children: &[Array]) -> Result<Value> {
    let made = Prepared::new(&children[0], format(text))?.with_trained_scales()?;
    let made = Value::from(made);
    let Value::Implicit(array) = &made else { panic!("it is one") };
    let mut own: Vec<Value> = array.children().into_iter().map(|(_, child)| child).collect();
    own.iter_mut().zip(children).for_each(|(own, child)| *own = child.into());
    Ok(array.with_children(own)?.into())
}

/// The master, and scales and biases that leave some elements beyond the range of the codes.
fn children(text: &str, seed: u64) -> Vec<Array> {
    let master = normal(seed, &[6, 64]);
    let made = Prepared::new(&master, format(text)).and_then(Prepared::with_trained_scales).expect("has scales");
    let smaller = made.scales().expect("are trained").multiply(Array::from_f32(0.77)).expect("scales");
    let moved = made.biases().map(|biases| biases.multiply(Array::from_f32(0.83)).expect("scales"));
    [Some(master), Some(smaller), moved].into_iter().flatten().collect()
}

/// `s * (clip(u) + stop_gradient(q - clip(u))) + b` with `u = (x - b) / s`, in plain ops: what LSQ and LSQ+ differentiate, for
/// the format of `text` whose elements are `q * unit * s + b`.
fn plain(text: &str, unit: f32, range: (f32, f32), children: &[Array]) -> Result<Array, Exception> {
    let (x, shape) = (&children[0], children[0].shape());
    let number = Array::from_f32;
    let transposed = text.ends_with("columns");
    let rows = if transposed { x.t() } else { x.clone() };
    let blocks = children[1].size() as i32;
    let in_blocks = |x: &Array| x.reshape(&[blocks, -1]);
    let mut s = children[1].reshape(&[-1, 1])?;
    if text.starts_with("mx") {
        let power = s.log2()?.round(None)?;
        let rounded = ops::power(number(2.0), power)?;
        s = s.add(stop_gradient(rounded.subtract(&s)?)?)?;
    }
    let s = s.multiply(number(unit))?;
    let b = children.get(2).map_or_else(|| Ok(number(0.0)), |b| b.reshape(&[-1, 1]))?;
    let value = dense(of(text, &children.iter().map(stop_gradient).collect::<Result<Vec<_>, _>>()?)?);
    let value = if transposed { value.t() } else { value };
    let q = stop_gradient(in_blocks(&value)?.subtract(&b)?.divide(&s)?)?;
    let u = in_blocks(&rows)?.subtract(&b)?.divide(&s)?;
    let clipped = ops::clip(u, (number(range.0), number(range.1)))?;
    let made = s.multiply(clipped.add(stop_gradient(q.subtract(&clipped)?)?)?)?.add(b)?;
    if transposed { Ok(made.reshape(&[shape[1], shape[0]])?.t()) } else { made.reshape(shape) }
}

/// A loss that tells the elements apart.
fn loss(w: Value) -> Result<Array> {
    let y = implicit((normal(31, &[5, 64]), w), |(x, w)| x.matmul(w.t()))?.dense()?;
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    Ok(y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)?)
}

const CASES: [(&str, f32, (f32, f32)); 8] = [
    ("nf4:32", 1.0, (-1.0, 1.0)),
    ("affine:2:32", 1.0, (0.0, 3.0)),
    ("affine:4:64", 1.0, (0.0, 15.0)),
    ("int8", 1.0 / 127.0, (-127.0, 127.0)),
    ("int8:columns", 1.0 / 127.0, (-127.0, 127.0)),
    ("ternary:32", 1.0, (-1.0, 1.0)),
    ("binary:16", 1.0, (-1.0, 1.0)),
    ("mxfp4", 1.0, (-6.0, 6.0)),
];

type Function<'f> = dyn Fn(&[Array]) -> Result<Vec<Array>, Exception> + 'f;

#[test]
fn gradients_of_master_scales_and_biases_are_those_of_lsq() {
    for (text, unit, range) in CASES {
        let children = children(text, 11);
        let argnums: Vec<i32> = (0..children.len() as i32).collect();
        let own = move |children: &[Array]| {
            let _deny = Policy::Deny.scope();
            Ok::<_, Exception>(vec![loss(of(text, children)?)?])
        };
        let reference =
            move |children: &[Array]| Ok::<_, Exception>(vec![loss(plain(text, unit, range, children)?.into())?]);
        let gradients = |f: &Function<'_>| {
            let (value, gradients) =
                transforms::value_and_grad_with_argnums(f, argnums.as_slice())(&children).expect("runs");
            [value, gradients].concat()
        };
        for (at, (found, expected)) in gradients(&own).iter().zip(&gradients(&reference)).enumerate() {
            let error = relative_error(found, expected).expect("floats");
            assert!(error < 1e-4, "{text}, {at}: {error}");
            assert!(floats(found).expect("floats").iter().any(|&g| g != 0.0), "{text}, {at} is no clipped zero");
        }
    }
}

#[test]
fn the_reference_is_differentiated_right() {
    // The plain function against differences of it, with the codes held where they are.
    let (text, unit, range) = CASES[1];
    let children = children(text, 12);
    let f = |children: &[Array]| Ok::<_, Exception>(vec![loss(plain(text, unit, range, children)?.into())?]);
    let (_, gradients) = transforms::value_and_grad_with_argnums(f, &[1][..])(&children).expect("runs");
    let gradient = floats(&gradients[0]).expect("floats");
    let codes = dense(of(text, &children).expect("fits"));
    for at in [0, 5, 11] {
        let side = |step: f32| {
            let mut scales = floats(&children[1]).expect("floats");
            let block = |x: &Array| x.reshape(&[scales.len() as i32, -1]).expect("whole blocks");
            let (x, q, b) = (block(&children[0]), block(&codes), children[2].reshape(&[-1, 1]).expect("a column"));
            let s = children[1].reshape(&[-1, 1]).expect("a column");
            // What rounding and clipping changed, in units of the scale, stays as it was.
            let u = x.subtract(&b).and_then(|x| x.divide(&s)).expect("divides");
            let clip = |u: &Array| ops::clip(u, (range.0, range.1)).expect("clips");
            let rest = q.subtract(&b).and_then(|q| q.divide(&s)).and_then(|q| q.subtract(clip(&u))).expect("subtracts");
            scales[at] += step;
            let s = Array::from_slice(&scales, &[scales.len() as i32, 1]);
            let u = x.subtract(&b).and_then(|x| x.divide(&s)).expect("divides");
            let w = s.multiply(clip(&u).add(rest).expect("adds")).and_then(|w| w.add(b)).expect("adds");
            loss(w.reshape(children[0].shape()).expect("fits").into()).expect("runs").item_exact::<f32>()
        };
        let difference = (side(1e-3) - side(-1e-3)) / 2e-3;
        assert!(
            (difference - gradient[at]).abs() < 2e-2 * gradient[at].abs().max(1.0),
            "{difference} {}",
            gradient[at]
        );
    }
}

#[test]
fn tangents_are_the_transpose_of_gradients() {
    for text in ["nf4:32", "affine:2:32", "nvfp4:global"] {
        let children = children(text, 13);
        let y = |children: &[Array]| {
            let _allow = Policy::Allow.scope();
            Ok::<_, Exception>(vec![loss(of(text, children)?)?])
        };
        let argnums: Vec<i32> = (0..children.len() as i32).collect();
        let (_, gradients) = transforms::value_and_grad_with_argnums(y, argnums.as_slice())(&children).expect("runs");
        let tangents: Vec<Array> = (0..).zip(&children).map(|(seed, child)| normal(20 + seed, child.shape())).collect();
        let (_, along) = transforms::fallible_jvp(y, &children, &tangents).expect("runs");
        let expected: f32 = gradients
            .iter()
            .zip(&tangents)
            .map(|(g, t)| g.multiply(t).and_then(|product| product.sum(None)).expect("sums").item_exact::<f32>())
            .sum();
        let found = along[0].item_exact::<f32>();
        assert!((found - expected).abs() < 1e-3 * expected.abs().max(1.0), "{text}: {found} {expected}");
    }
}

#[test]
fn training_the_scales_alone_lessens_the_error_of_quantization() {
    // What is to be approximated is the master itself, whose own scales do not minimize the squared error.
    for text in ["affine:2:32", "nf4:32", "ternary:32", "mxfp4"] {
        let mut children = children(text, 14);
        let target = children[0].clone();
        if text == "mxfp4" {
            // Powers of two are the best already; two powers below, training finds them again.
            children[1] = children[1].multiply(Array::from_f32(0.25)).expect("scales");
        }
        let error = |children: &[Array]| -> Result<Vec<Array>, Exception> {
            let _allow = Policy::Allow.scope();
            let w = implicit(of(text, children)?, |w| w.add(Array::from_f32(0.0)))?.dense()?;
            Ok(vec![w.subtract(&target)?.square()?.sum(None)?])
        };
        let argnums: Vec<i32> = (1..children.len() as i32).collect();
        let mut losses = Vec::new();
        for _ in 0..30 {
            let (value, gradients) =
                transforms::value_and_grad_with_argnums(error, argnums.as_slice())(&children).expect("runs");
            losses.push(value[0].item_exact::<f32>());
            for (child, gradient) in children[1..].iter_mut().zip(&gradients) {
                *child = child.subtract(gradient.multiply(Array::from_f32(4e-3)).expect("scales")).expect("subtracts");
                child.eval().expect("evaluates");
            }
        }
        let least = losses.iter().copied().fold(f32::MAX, f32::min);
        assert!(least < 0.9 * losses[0], "{text}: {losses:?}");
    }
}

#[test]
fn scales_of_half_types_and_of_every_format_have_gradients() {
    for text in TEXTS.iter().filter(|text| !has_fixed_scales(text)) {
        let master = normal(15, &[64, 128]).as_dtype(Dtype::Bfloat16).expect("bf16");
        let made = Prepared::new(&master, format(text)).and_then(Prepared::with_trained_scales).expect("has scales");
        let scales = made.scales().expect("are trained").clone();
        let y = |children: &[Array]| {
            let _deny = Policy::Deny.scope();
            let x = normal(16, &[2, 128]).as_dtype(Dtype::Bfloat16)?;
            let mut all = vec![children[0].clone(), children[1].clone()];
            all.extend(made.biases().cloned());
            let y = implicit((x, of(text, &all)?), |(x, w)| x.matmul(w.t())?.square()?.sum(None))?;
            Ok::<_, Exception>(vec![y.dense()?])
        };
        let (_, gradients) =
            transforms::value_and_grad_with_argnums(y, &[0, 1][..])(&[master.clone(), scales.clone()]).expect("runs");
        for (gradient, of) in gradients.iter().zip([&master, &scales]) {
            assert_eq!((gradient.shape(), gradient.dtype()), (of.shape(), of.dtype()), "{text}");
            assert!(floats(gradient).expect("floats").iter().any(|&g| g != 0.0), "{text}");
        }
    }
}

/// Of an array that has a factor of all its scales, although its format makes none.
#[test]
fn the_factor_of_all_scales_is_that_of_the_array() -> Result<()> {
    let made = Nvfp4Array::quantize(&normal(41, &[8, 64]), Nvfp4 { global: true })?;
    let global = made.global_scale().cloned().expect("there is one");
    let scales = made.scales().expect("there are some").dense()?;
    let parts = Parts { global_scale: Some(global), ..Parts::new(made.codes().clone(), scales) };
    let format = Nvfp4 { global: false };
    let array = Nvfp4Array::from_parts(parts, format, Value::from(made.clone()).aval()?)?;
    let _allow = Policy::Allow.scope();
    let scales = format.trained_scales().expect("are trained");
    let value = Value::from(array);
    let again = scales.quantize_by(&value.dense()?, &scales.scales_of(&value).expect("has scales"))?.0;
    assert!(floats(&value.dense()?)?.iter().any(|&x| x != 0.0));
    assert_eq!(floats(&again.dense()?)?, floats(&value.dense()?)?);
    Ok(())
}
