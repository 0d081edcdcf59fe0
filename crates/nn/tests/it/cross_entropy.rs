//! The cross entropy of a product, in chunks of rows, against the same of all logits.

use expect_test::expect;
use mlx_rs::losses::{CrossEntropyBuilder, LossReduction};
use mlx_rs::module::Module;
use mlx_rs::{Array, Dtype, builder::Builder, nn, ops};
use tacit_arrays::format::{Affine, AnyFormat};
use tacit_core::transform::{grad, jvp, value_and_grad, vmap};
use tacit_core::{Counters, Error, Policy, Result, Value, compile, implicit};
use tacit_nn::training::{chunked_cross_entropy, cross_entropy};
use tacit_nn::{LoraConfig, Model, ParameterFilter};

use crate::types::{error, normal, numbers};

const ROWS: i32 = 13;
const WIDTH: i32 = 64;
const CLASSES: i32 = 40;

fn targets() -> Array {
    let classes: Vec<u32> = (0..ROWS as u32).map(|row| row * 17 % CLASSES as u32).collect();
    Array::from_slice(&classes, &[ROWS])
}

fn hidden() -> Array {
    normal(1, &[ROWS, WIDTH])
}

fn head() -> Array {
    normal(2, &[CLASSES, WIDTH]).multiply(Array::from_f32(0.3)).expect("scales")
}

fn product(x: &Array, w: &Array) -> Result<Array> {
    Ok(x.matmul(w.t())?)
}

/// All logits at once, by mlx-rs's own loss.
fn whole(x: &Array, w: &Array) -> Result<Array> {
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::None).build()?;
    Ok(cross_entropy.apply(product(x, w)?.as_dtype(Dtype::Float32)?, targets())?)
}

fn chunked(x: &Array, w: impl Into<Value>, rows: i32) -> Result<Array> {
    chunked_cross_entropy(x, w.into(), &targets(), Some(rows), |x, w| product(&x, &w))
}

/// A mean that weighs rows.
fn mean(losses: &Array) -> Result<Array> {
    let weights: Vec<f32> = (0..ROWS).map(|row| if row % 4 == 0 { 0.0 } else { 1.0 + row as f32 }).collect();
    Ok(losses.multiply(Array::from_slice(&weights, &[ROWS]))?.sum(None)?)
}

#[track_caller]
fn close(found: &Array, expected: &Array, tolerance: f32) {
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()));
    let wide =
        |array: &Array| numbers(&array.as_dtype(Dtype::Float32).and_then(|array| array.contiguous()).expect("copies"));
    let (found, expected) = (wide(found), wide(expected));
    let norm = |all: &mut dyn Iterator<Item = f32>| all.map(|x| x * x).sum::<f32>().sqrt();
    let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    assert!(difference <= tolerance * size, "{difference} of {size}: {found:?} is not {expected:?}");
}

#[test]
fn losses_and_gradients_are_those_of_all_logits() -> Result<()> {
    for (dtype, tolerance) in [(Dtype::Float32, 1e-5), (Dtype::Bfloat16, 2e-2), (Dtype::Float16, 3e-3)] {
        let (x, w) = (hidden().as_dtype(dtype)?, head().as_dtype(dtype)?);
        let value = |losses: Array| Ok::<_, Error>((mean(&losses)?, losses));
        let ((_, losses), (dx, dw)) =
            value_and_grad(|(x, w): (Array, Array)| value(whole(&x, &w)?)).call((x.clone(), w.clone()))?;
        for rows in [1, 5, ROWS, 100] {
            let step = move |(x, w): (Array, Array)| value(chunked(&x, w, rows)?);
            let ((_, found), (found_dx, found_dw)) = value_and_grad(step).call((x.clone(), w.clone()))?;
            close(&found.dense()?, &losses.dense()?, tolerance);
            close(found_dx.array()?, dx.array()?, tolerance);
            close(found_dw.array()?, dw.array()?, tolerance);
        }
    }
    Ok(())
}

#[test]
fn tangents_maps_and_compiled_functions_are_those_of_all_logits() -> Result<()> {
    let (x, w) = (hidden(), head());
    let (dx, dw) = (normal(3, x.shape()), normal(4, w.shape()));
    let pushed = |f: fn(&Array, &Array) -> Result<Array>| -> Result<Array> {
        let (_, tangent) = jvp((&x, &w), (&dx, &dw), |(x, w): (Array, Array)| f(&x, &w))?;
        tangent.dense()
    };
    close(&pushed(|x, w| chunked(x, w, 4))?, &pushed(whole)?, 1e-5);

    let all = ops::stack(&[x.clone(), x.cos()?], 0)?;
    let mapped = |f: fn(&Array, &Array) -> Result<Array>| -> Result<Array> {
        let gradient = move |(x, w): (Array, Array)| {
            let mut gradient = grad(move |w: Array| mean(&f(&x, &w)?));
            Ok::<_, Error>(gradient.call(w)?.array()?.clone())
        };
        vmap([Some(0), None], 0, gradient).call((all.clone(), w.clone()))?.dense()
    };
    // What is mapped must not be captured: the rows that are go along as an argument.
    let of_both = |(x, w): (Array, Array)| {
        let mut gradient = grad(|(x, w): (Array, Array)| mean(&chunked(&x, w, 4)?));
        Ok::<_, Error>(gradient.call((x, w))?.1.array()?.clone())
    };
    let found = vmap([Some(0), None], 0, of_both).call((all.clone(), w.clone()))?.dense()?;
    close(&found, &mapped(whole)?, 1e-5);

    let compiled = |f: fn(&Array, &Array) -> Result<Array>| -> Result<Array> {
        let mut gradient = grad(move |(x, w): (Array, Array)| mean(&f(&x, &w)?));
        let mut step = compile(move |args: (Array, Array)| Ok::<_, Error>(gradient.call(args)?.1.array()?.clone()));
        step.call((x.clone(), w.clone()))?;
        step.call((x.clone(), w.clone()))?.dense()
    };
    close(&compiled(|x, w| chunked(x, w, 4))?, &compiled(whole)?, 1e-5);
    Ok(())
}

#[test]
fn a_packed_head_is_never_built() -> Result<()> {
    for text in ["affine:4:64", "nf4:64", "int8:64", "bf16"] {
        let packed = text.parse::<AnyFormat>()?.quantize(&head())?;
        let dense = packed.dense()?;
        let expected = grad(|x: Array| mean(&whole(&x, &dense)?)).call(hidden())?;
        let _deny = Policy::Deny.scope();
        let head = packed.clone();
        let (found, counters) = Counters::during(|| grad(move |x: Array| mean(&chunked(&x, &head, 4)?)).call(hidden()));
        close(found?.array()?, expected.array()?, 2e-3);
        assert_eq!(counters.materialized_bytes, 0, "{text}");
    }
    Ok(())
}

#[test]
fn adapters_of_the_head_are_trained_under_deny() -> Result<()> {
    let model = Model::new(nn::LinearBuilder::new(WIDTH, CLASSES).bias(false).build()?)?;
    let model = model.quantize("weight", Affine { bits: 8, group: 64 })?;
    let config = LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() };
    let mut model = model.lora("weight", config)?;
    // Factors of zeros would have no gradient to compare.
    let drawn = |(path, leaf): (String, &Array)| (path, normal(7, leaf.shape()));
    let leaves: Vec<_> = model.leaves(&ParameterFilter::Lora).into_iter().map(drawn).collect();
    model.set_leaves(leaves)?;
    let _deny = Policy::Deny.scope();
    let (_, whole) = model.value_and_grad(ParameterFilter::Lora, &hidden(), |model, x| {
        let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::None).build()?;
        mean(&cross_entropy.apply(model.forward(x)?, targets())?)
    })?;
    let (_, found) = model
        .value_and_grad(ParameterFilter::Lora, &hidden(), |model, x| mean(&chunked(x, model.get("weight")?, 5)?))?;
    assert_eq!(found.len(), 2);
    for (path, gradient) in &whole {
        close(&found[path], gradient, 1e-4);
    }
    Ok(())
}

#[test]
fn targets_have_a_place_for_each_row() -> Result<()> {
    let x = hidden().reshape(&[1, ROWS, WIDTH])?;
    let rows = targets().reshape(&[1, ROWS])?;
    // Without a size of chunks, and with a head of more than a product.
    let capped = |x: Array, (w, bias): (Array, Array)| -> Result<Array> {
        Ok(ops::tanh(x.matmul(w.t())?.add(bias)?.divide(Array::from_f32(5.0))?)?.multiply(Array::from_f32(5.0))?)
    };
    let bias = normal(5, &[CLASSES]);
    let losses = chunked_cross_entropy(&x, (&head(), &bias), &rows, None, capped)?;
    assert_eq!(losses.shape(), [1, ROWS]);
    let logits = capped(hidden(), (head(), bias))?;
    let cross_entropy = CrossEntropyBuilder::new().reduction(LossReduction::None).build()?;
    close(&losses.reshape(&[ROWS])?, &cross_entropy.apply(logits, targets())?, 1e-5);
    Ok(())
}

/// As of a rank whose tokens do not count.
#[test]
fn of_no_rows_there_are_no_losses() -> Result<()> {
    for shape in [&[0][..], &[2, 0]] {
        let (x, targets) = (normal(1, &[shape, &[WIDTH]].concat()), ops::zeros::<u32>(shape)?);
        for rows in [None, Some(4)] {
            let losses = |x: Array, w: Array| chunked_cross_entropy(x, w, &targets, rows, |x, w| product(&x, &w));
            let found = losses(x.clone(), head())?;
            assert_eq!((found.shape(), found.dtype()), (shape, Dtype::Float32));
            let sum = |(x, w): (Array, Array)| Ok::<_, Error>(losses(x, w)?.sum(None)?);
            let (dx, dw) = grad(sum).call((x.clone(), head()))?;
            assert_eq!(dx.array()?.shape(), x.shape());
            assert_eq!(dw.array()?.shape(), [CLASSES, WIDTH]);
            assert_eq!(dw.array()?.abs()?.max(None)?.item_exact::<f32>().to_bits(), 0);
        }
    }
    Ok(())
}

/// Other ranks wait for this one where the head is gathered for a product.
#[test]
fn losses_of_no_rows_need_their_logits() -> Result<()> {
    let (x, targets) = (normal(1, &[0, WIDTH]), ops::zeros::<u32>(&[0])?);
    let head = "affine:4:64".parse::<AnyFormat>()?.quantize(&head())?;
    let losses = |head: Array| cross_entropy(&product(&x, &head)?, &targets);
    let (found, counters) = Counters::during(|| implicit(&head, losses));
    assert_eq!(found?.aval()?.shape, [0]);
    assert_eq!((counters.handled, counters.materialized), (2, 0));
    Ok(())
}

#[test]
fn what_is_wrong_is_said() {
    let said = |outcome: Result<Array>| error(outcome).to_string();
    let given = |targets: &Array| chunked_cross_entropy(hidden(), head(), targets, Some(4), |x, w| product(&x, &w));
    expect![[r#"
        targets u32[1,13] are given to rows f32[13,64]
        help: give an integer for each row: the shape of `x` without its last axis"#]]
    .assert_eq(&said(given(&targets().reshape(&[1, ROWS]).expect("as many"))));
    expect![[r#"
        the head makes f32[] of 4 rows
        help: return a row of float logits for each row, `[rows, classes]`"#]]
    .assert_eq(&said(chunked_cross_entropy(hidden(), head(), &targets(), Some(4), |x, _| x.sum(None))));
    let outside = given(&targets().add(Array::from_slice(&[20u32], &[1])).expect("adds")).expect("is lazy");
    let outside = tacit_core::tree::eval(&Value::from(outside));
    let message = outside.expect_err("class 40 of 40").to_string();
    assert!(message.contains("target") && message.contains("leave out losses that do not count"), "{message}");
    expect![[r#"
        targets f32[13] are given to rows f32[13,64]
        help: give an integer for each row: the shape of `x` without its last axis"#]]
    .assert_eq(&said(given(&targets().as_dtype(Dtype::Float32).expect("casts"))));
}
