//! Products of 8-bit integers in both passes, against the same roundings in plain ops, and against floats.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::format::Int8;
use tacit_arrays::{ActivationGranularity, Int8Array, Int8Training, Nf4Array, Prepared, TrainedCodes, int8_rounded};
use tacit_conformance::assert_close;
use tacit_conformance::oracle::floats;
use tacit_core::compile::{CompileOptions, Constants};
use tacit_core::transform::{checkpoint, grad, jvp, vjp, vmap};
use tacit_core::{Counters, Error, Policy, Result, Value, compile_with, implicit};

use crate::messages::said_of;
use crate::operands::{FLOATS, normal, normal_of};

type Product = fn(&Array, &Array) -> Result<Array>;

const TRANSPOSED: Product = |x, w| Ok(x.matmul(w.t())?);
const PLAIN: Product = |x, w| Ok(x.matmul(w)?);

/// Rows, inner extent and columns: whole vectors, and less.
const SHAPES: [(i32, i32, i32); 6] = [(1, 1, 1), (2, 8, 3), (5, 7, 9), (16, 64, 24), (33, 40, 130), (3, 1100, 16)];

/// The product, and the gradients of `x` and of the weight, where that of the product is `dy`.
fn step(x: &Array, w: &Array, dy: &Array, product: Product, key: Option<&Array>) -> Result<[Array; 3]> {
    let (y, (dx, dw)) = vjp((x, w), dy, |(x, w): (Array, Array)| -> Result<Array> {
        let mut w = Int8Training::new(w)?;
        if let Some(key) = key {
            w = w.stochastic(key)?;
        }
        implicit((x, w), |(x, w)| product(&x, &w))?.dense()
    })?;
    Ok([y.dense()?, dx.array()?.clone(), dw.array()?.clone()])
}

/// Each row as integers, and what one is worth: `[m, 1]`.
fn rows(x: &Array) -> Result<[Array; 2]> {
    let units = x.abs()?.max_axis(-1, true)?.divide(Array::from_f32(127.0))?;
    let divisor = ops::select(units.eq(Array::from_f32(0.0))?, Array::from_f32(1.0), &units)?;
    Ok([int8_rounded(x, ActivationGranularity::Token)?.divide(divisor)?.round(None)?, units])
}

/// The same as [`step`] in plain ops, for matrices of `f32`.
fn decomposed(x: &Array, w: &Array, dy: &Array, transposed: bool) -> Result<[Array; 3]> {
    let ([x_codes, x_units], [w_codes, w_units]) = (rows(x)?, rows(w)?);
    let scales = w_units.t();
    let product =
        |[codes, units]: [Array; 2], matrix: &Array| -> Result<Array> { Ok(codes.matmul(matrix)?.multiply(units)?) };
    let columns = product(rows(&dy.multiply(&x_units)?.t())?, &x_codes)?;
    Ok(if transposed {
        [
            product([x_codes, x_units], &w_codes.t())?.multiply(&scales)?,
            product(rows(&dy.multiply(&scales)?)?, &w_codes)?,
            columns,
        ]
    } else {
        [
            product(rows(&x.multiply(&scales)?)?, &w_codes)?,
            product(rows(dy)?, &w_codes.t())?.multiply(&scales)?,
            columns.t(),
        ]
    })
}

/// `x`, a weight and a gradient of their product.
fn operands(dtype: Dtype, (m, k, n): (i32, i32, i32), transposed: bool) -> [Array; 3] {
    let matrix = if transposed { [n, k] } else { [k, n] };
    [normal_of(dtype, 1, &[m, k]), normal_of(dtype, 2, &matrix), normal_of(dtype, 3, &[m, n])]
}

const BOTH: [(bool, Product); 2] = [(true, TRANSPOSED), (false, PLAIN)];

#[test]
fn all_three_products_are_those_of_integers() -> Result<()> {
    let _deny = Policy::Deny.scope();
    for shape in SHAPES {
        for (transposed, product) in BOTH {
            let [x, w, dy] = operands(Dtype::Float32, shape, transposed);
            let (made, counters) = Counters::during(|| step(&x, &w, &dy, product, None));
            for (found, expected) in made?.into_iter().zip(decomposed(&x, &w, &dy, transposed)?) {
                assert_close!(found, expected, 1e-5, "{shape:?}, transposed: {transposed}");
            }
            assert_eq!(counters.materialized, 0);
        }
    }
    Ok(())
}

#[test]
fn half_floats_are_rounded_as_the_floats_that_they_are() -> Result<()> {
    for dtype in FLOATS {
        for (transposed, product) in BOTH {
            let [x, w, dy] = operands(dtype, (6, 64, 24), transposed);
            let made = step(&x, &w, &dy, product, None)?;
            let [x, w, dy] = [x, w, dy].map(|array| array.as_dtype(Dtype::Float32).expect("is wider"));
            for (found, expected) in made.into_iter().zip(decomposed(&x, &w, &dy, transposed)?) {
                assert_eq!(found.dtype(), dtype);
                assert_close!(found, expected.as_dtype(dtype)?, 1e-2, "{dtype:?}, transposed: {transposed}");
            }
        }
    }
    Ok(())
}

/// Each side is off by about a 250th of its largest element, and the sum of many by less of what floats give.
#[test]
fn the_gradients_are_near_those_of_floats() -> Result<()> {
    for (transposed, product) in BOTH {
        let [x, w, dy] = operands(Dtype::Float32, (64, 128, 96), transposed);
        let made = step(&x, &w, &dy, product, None)?;
        let (y, (dx, dw)) = vjp((&x, &w), &dy, |(x, w): (Array, Array)| product(&x, &w))?;
        let exact = [y.dense()?, dx.array()?.clone(), dw.array()?.clone()];
        for (found, exact) in made.iter().zip(&exact) {
            let error = apart(found, exact)?;
            assert!(error > 1e-4 && error < 2e-2, "transposed: {transposed}: {error}");
        }
    }
    Ok(())
}

/// The distance of two arrays over the size of the second.
fn apart(found: &Array, exact: &Array) -> Result<f32> {
    let square = |array: &Array| Ok::<_, Error>(array.square()?.sum(None)?.item_exact::<f32>());
    Ok((square(&found.subtract(exact)?)? / square(exact)?).sqrt())
}

#[test]
fn a_matrix_may_be_on_the_left_and_x_of_any_rank() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (w, x) = (normal(2, &[24, 64]), normal(1, &[2, 3, 64]));
    let right = |x: &Array, product: Product| implicit((x, Int8Training::new(&w)?), |(x, w)| product(&x, &w))?.dense();
    let flat = right(&x.reshape(&[6, 64])?, TRANSPOSED)?;
    assert_close!(right(&x, TRANSPOSED)?, flat.reshape(&[2, 3, 24])?, 0.0);
    let one = x.reshape(&[6, 64])?.take_axis(Array::from_slice(&[4u32], &[]), 0)?;
    assert_close!(right(&one, TRANSPOSED)?, flat.take_axis(Array::from_slice(&[4u32], &[]), 0)?, 0.0);
    let columns = x.reshape(&[6, 64])?.t();
    assert_close!(right(&columns, |x, w| Ok(w.matmul(x)?))?, flat.t(), 0.0);

    let dy = normal(3, &[2, 3, 24]);
    let [_, dx, dw] = step(&x, &w, &dy, TRANSPOSED, None)?;
    let [_, flat_dx, flat_dw] = step(&x.reshape(&[6, 64])?, &w, &dy.reshape(&[6, 24])?, TRANSPOSED, None)?;
    assert_close!(dx.reshape(&[6, 64])?, flat_dx, 0.0);
    assert_close!(dw, flat_dw, 0.0);

    let bias = normal(4, &[24]);
    let sum = implicit((&bias, &x, Int8Training::new(&w)?), |(bias, x, w)| ops::addmm(&bias, &x, w.t(), None, None))?;
    assert_close!(sum.dense()?, right(&x, TRANSPOSED)?.add(&bias)?, 1e-6);
    Ok(())
}

/// MLX repeats a matrix for a batch.
#[test]
fn a_batch_has_the_products_where_the_matrix_is_repeated() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (w, x, residual) = (normal(2, &[24, 64]), normal(1, &[2, 64, 5]), normal(3, &[2, 5, 24]));
    let tokens = x.swap_axes(1, 2)?;
    let [expected, dx, dw] = step(&tokens, &w, &residual, TRANSPOSED, None)?;
    let [y, left_dx, left_dw] = step(&x, &w, &residual.swap_axes(1, 2)?, |x, w| Ok(w.matmul(x)?), None)?;
    assert_close!(y.swap_axes(1, 2)?, expected, 0.0);
    assert_close!(left_dx.swap_axes(1, 2)?, dx, 0.0);
    assert_close!(left_dw, dw, 0.0);
    let sum = |c: &Array, x: &Array, w: &Array| Ok::<_, Error>(ops::addmm(c, x, w.t(), None, None)?);
    let made = implicit((&residual, &tokens, Int8Training::new(&w)?), |(c, x, w)| sum(&c, &x, &w))?.dense()?;
    assert_close!(made, expected.add(&residual)?, 1e-6);
    Ok(())
}

/// Plain code may repeat it first, for fewer entries than there are.
#[test]
fn a_repeated_matrix_is_repeated_for_a_larger_batch() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (w, x) = (normal(2, &[24, 64]), normal(1, &[3, 2, 5, 64]));
    let expected = implicit((&x, Int8Training::new(&w)?), |(x, w)| x.matmul(w.t()))?.dense()?;
    for batch in [1, 2] {
        let made = implicit((&x, Int8Training::new(&w)?), |(x, w)| -> Result<Array> {
            let repeated = ops::broadcast_to(&w, &[batch, 24, 64])?;
            Ok(x.matmul(repeated.swap_axes(-1, -2)?)?)
        })?;
        assert_close!(made.dense()?, expected, 0.0, "{batch}");
    }
    Ok(())
}

#[test]
fn rows_of_the_weight_are_those_of_its_codes() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (w, at) = (normal(2, &[24, 64]), Array::from_slice(&[3u32, 1], &[2]));
    let taken = |w: Value| implicit((w, &at), |(w, at)| w.take_axis(&at, 0))?.dense();
    let expected = taken(Int8Array::quantize(&w, Int8::default())?.into())?;
    assert_close!(taken(Int8Training::new(&w)?.into())?, expected, 0.0);
    Ok(())
}

#[test]
fn zeros_give_zeros_and_a_nan_stays_in_its_row() -> Result<()> {
    let ([x, w, dy], zero) = (operands(Dtype::Float32, (4, 16, 8), true), Array::from_f32(0.0));
    let one_row = |array: &Array, row: i32, value: f32| -> Result<Array> {
        let here = ops::arange::<_, i32>(0, array.dim(0), None)?.eq(Array::from_int(row))?.expand_dims(-1)?;
        Ok(ops::select(here, Array::from_f32(value), array)?)
    };
    let nans = |array: &Array| -> Result<Vec<bool>> {
        let rows = floats(array)?;
        let has_nan = |row: &[f32]| row.iter().any(|x| x.is_nan());
        Ok(rows.chunks(array.dim(-1) as usize).map(has_nan).collect())
    };
    for bad in [f32::NAN, f32::INFINITY] {
        let [y, dx, dw] = step(&one_row(&x, 2, bad)?, &w, &dy, TRANSPOSED, None)?;
        assert_eq!((nans(&y)?, nans(&dx)?), (vec![false, false, true, false], vec![false; 4]));
        assert_eq!(nans(&dw)?, [true; 8]);
        let [_, dx, dw] = step(&x, &w, &one_row(&dy, 1, bad)?, TRANSPOSED, None)?;
        assert_eq!((nans(&dx)?, nans(&dw)?), (vec![false, true, false, false], vec![true; 8]));
    }
    // A row of the weight that is zero learns.
    let [y, dx, dw] = step(&x, &one_row(&w, 0, 0.0)?, &dy, TRANSPOSED, None)?;
    assert_eq!(floats(&y.t().take_axis(Array::from_slice(&[0u32], &[]), 0)?)?, [0.0; 4]);
    assert!(nans(&dx)?.iter().chain(&nans(&dw)?).all(|nan| !nan));
    assert!(dw.take_axis(Array::from_slice(&[0u32], &[]), 0)?.abs()?.max(None)?.item_exact::<f32>() > 0.1);
    let [y, dx, dw] = step(&x.multiply(&zero)?, &w, &dy.multiply(&zero)?, TRANSPOSED, None)?;
    for made in [y, dx, dw] {
        assert!(made.eq_exact(&ops::zeros_like(&made)?)?);
    }
    Ok(())
}

#[test]
fn no_rows_give_zeros() -> Result<()> {
    let key = random::key(1)?;
    for (transposed, product) in BOTH {
        let [x, w, dy] = operands(Dtype::Float32, (0, 16, 8), transposed);
        for key in [None, Some(&key)] {
            let [y, dx, dw] = step(&x, &w, &dy, product, key)?;
            assert_eq!([y.shape(), dx.shape()], [dy.shape(), x.shape()]);
            assert_eq!(floats(&dw)?, [0.0; 16 * 8]);
        }
    }
    Ok(())
}

#[test]
fn transforms_give_the_same() -> Result<()> {
    let _allow = Policy::Allow.scope();
    for (transposed, product) in BOTH {
        let [x, w, dy] = operands(Dtype::Float32, (12, 16, 8), transposed);
        let own = move |(x, w, dy): (Array, Array, Array)| -> Result<(Array, Array, Array)> {
            let [y, dx, dw] = step(&x, &w, &dy, product, None)?;
            Ok((y, dx, dw))
        };
        let expected = step(&x, &w, &dy, product, None)?;

        let options = CompileOptions { constants: Constants::Deny, ..CompileOptions::default() };
        let (y, dx, dw) = compile_with(options, own).call((&x, &w, &dy))?;
        for (found, expected) in [y, dx, dw].into_iter().zip(&expected) {
            assert_close!(found, *expected, 1e-6, "compiled, transposed: {transposed}");
        }

        let (y, (dx, dw)) = vjp((&x, &w), &dy, |(x, w): (Array, Array)| {
            let product =
                move |(x, w): (Array, Array)| implicit((x, Int8Training::new(w)?), |(x, w)| product(&x, &w))?.dense();
            checkpoint(product).call((x, w))?.dense()
        })?;
        for (found, expected) in [y.dense()?, dx.array()?.clone(), dw.array()?.clone()].into_iter().zip(&expected) {
            assert_close!(found, *expected, 1e-6, "checkpointed, transposed: {transposed}");
        }

        let examples = |array: &Array| array.reshape(&[3, 4, array.dim(-1)]);
        let (x, dy) = (examples(&x)?, examples(&dy)?);
        let mut mapped = vmap([Some(0), None, Some(0)], 0, own);
        let (y, dx, dw) = mapped.call((&x, &w, &dy))?;
        let made = [y.dense()?, dx.dense()?, dw.dense()?];
        for example in 0..3 {
            let at = Array::from_slice(&[example], &[]);
            let expected = step(&x.take_axis(&at, 0)?, &w, &dy.take_axis(&at, 0)?, product, None)?;
            for (found, expected) in made.iter().zip(expected) {
                assert_close!(found.take_axis(&at, 0)?, expected, 1e-5, "example {example}, {transposed}");
            }
        }
    }
    Ok(())
}

#[test]
fn tangents_go_through_the_roundings() -> Result<()> {
    let rounded = |array: &Array| int8_rounded(array, ActivationGranularity::Token);
    for (transposed, product) in BOTH {
        let [x, w, _] = operands(Dtype::Float32, (5, 16, 8), transposed);
        let (tx, tw) = (normal(5, x.shape()), normal(6, w.shape()));
        let (_, change) = jvp((&x, &w), (&tx, &tw), |(x, w): (Array, Array)| {
            implicit((x, Int8Training::new(w)?), |(x, w)| product(&x, &w))?.dense()
        })?;
        let expected = product(&tx, &rounded(&w)?)?.add(product(&rounded(&x)?, &tw)?)?;
        assert_close!(change.dense()?, expected, 1e-5, "transposed: {transposed}");
    }
    Ok(())
}

#[test]
fn the_gradient_of_a_gradient_is_an_error() -> Result<()> {
    // Of the sum of the squares of a gradient by the other operand, and of a loss that is not linear.
    type Loss = fn(&Array, &Array, &Array) -> Result<Array>;
    let losses: [Loss; 3] = [
        |x, w, dy| Ok(step(x, w, dy, TRANSPOSED, None)?[1].square()?.sum(None)?),
        |w, x, dy| Ok(step(x, w, dy, TRANSPOSED, None)?[2].square()?.sum(None)?),
        |x, w, _| {
            let y = implicit((x, Int8Training::new(w)?), |(x, w)| x.matmul(w.t()))?.dense()?;
            Ok(step(x, w, &y, TRANSPOSED, None)?[1].sum(None)?)
        },
    ];
    let [x, w, dy] = operands(Dtype::Float32, (4, 16, 8), true);
    let mut said = String::new();
    for (loss, by_x) in losses.into_iter().zip([false, true, false]) {
        let (fixed, free) = if by_x { (w.clone(), &x) } else { (x.clone(), &w) };
        let dy = dy.clone();
        said += &said_of(grad(move |free: Array| loss(&fixed, &free, &dy)).call(free.clone()));
    }
    expect![[r#"
        the gradients of products in 8 bits have no derivatives themselves
        help: take derivatives of gradients with the weights in floats
        the gradients of products in 8 bits have no derivatives themselves
        help: take derivatives of gradients with the weights in floats
        the gradients of products in 8 bits have no derivatives themselves
        help: take derivatives of gradients with the weights in floats
    "#]]
    .assert_eq(&said);
    Ok(())
}

/// The mean of many draws is nearer to what nothing rounds than a draw is; one key gives one result.
#[test]
fn gradients_that_are_rounded_at_random_are_right_in_the_mean() -> Result<()> {
    for (transposed, product) in BOTH {
        let [x, w, dy] = operands(Dtype::Float32, (24, 32, 16), transposed);
        let drawn = |seed| step(&x, &w, &dy, product, Some(&random::key(seed)?));
        let rounded = |array: &Array| int8_rounded(array, ActivationGranularity::Token);
        let (_, (dx, dw)) = vjp((&rounded(&x)?, &rounded(&w)?), &dy, |(x, w): (Array, Array)| product(&x, &w))?;
        let exact = [dx.array()?.clone(), dw.array()?.clone()];
        let [y, first @ ..] = drawn(0)?;
        let [again_y, again @ ..] = drawn(0)?;
        let [other_y, other @ ..] = drawn(1)?;
        let nearest = step(&x, &w, &dy, product, None)?;
        for forward in [&again_y, &other_y, &nearest[0]] {
            assert_close!(y, *forward, 0.0);
        }
        for at in 0..2 {
            assert_eq!(floats(&first[at])?, floats(&again[at])?);
            assert!(apart(&first[at], &other[at])? > 1e-4);
            let mut sum = ops::zeros_like(&exact[at])?;
            for seed in 0..100 {
                let [_, gradients @ ..] = drawn(seed)?;
                sum = sum.add(&gradients[at])?;
            }
            let mean = apart(&sum.divide(Array::from_f32(100.0))?, &exact[at])?;
            let one = apart(&first[at], &exact[at])?;
            assert!(mean < 0.3 * one, "transposed: {transposed}: {mean} of {one}");
        }
    }
    Ok(())
}

/// Another gradient is rounded by other numbers with the same key, so that a run needs no other key in each step.
#[test]
fn each_step_draws_numbers_of_its_own() -> Result<()> {
    let [x, w, dy] = operands(Dtype::Float32, (24, 32, 16), true);
    let key = random::key(7)?;
    let errors = |dy: &Array| -> Result<Array> {
        let [_, dx, _] = step(&x, &w, dy, TRANSPOSED, Some(&key))?;
        let exact = dy.matmul(int8_rounded(&w, ActivationGranularity::Token)?)?;
        Ok(dx.subtract(&exact)?)
    };
    let (first, second) = (errors(&dy)?, errors(&dy.multiply(Array::from_f32(1.001))?)?);
    let correlation = first.multiply(&second)?.sum(None)?.item_exact::<f32>()
        / (first.square()?.sum(None)?.item_exact::<f32>() * second.square()?.sum(None)?.item_exact::<f32>()).sqrt();
    assert!(correlation.abs() < 0.3, "{correlation}");
    Ok(())
}

#[test]
fn every_form_of_the_codes_has_the_products() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (x, w) = (normal(1, &[6, 64]), normal(2, &[24, 64]));
    let product = |w: Value| implicit((&x, w), |(x, w)| x.matmul(w.t()))?.dense();
    let expected = product(Int8Training::new(&w)?.into())?;
    let codes = Int8Array::quantize(&w, Int8::default())?;
    // The forward pass is that of codes whose products round activations.
    assert_close!(expected, product(codes.clone().with_int8_activations()?.into())?, 0.0);
    let drawn = TrainedCodes::from_value(&codes.clone().into(), "int8+stochastic", &random::key(1)?)?;
    for form in [Value::from(Prepared::new(&w, Int8::default())?), codes.into(), drawn.into()] {
        assert_close!(product(Int8Training::new(form)?.into())?, expected, 0.0);
    }
    let off = Prepared::new(&w, Int8::default())?.switched(false);
    assert_close!(product(Int8Training::new(off)?.into())?, x.matmul(w.t())?, 0.0);
    Ok(())
}

#[test]
fn a_wider_type_keeps_the_products() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (x, w) = (normal(1, &[6, 64]), normal_of(Dtype::Bfloat16, 2, &[24, 64]));
    let y = implicit((&x, Int8Training::new(&w)?), |(x, w)| x.matmul(w.t()))?.dense()?;
    let wide = Int8Training::new(w.as_dtype(Dtype::Float32)?)?;
    assert_close!(y, implicit((&x, wide), |(x, w)| x.matmul(w.t()))?, 0.0);
    Ok(())
}

#[test]
fn what_has_no_such_products_is_refused() -> Result<()> {
    let w = normal(2, &[24, 64]);
    let stack = normal(2, &[3, 8, 16]);
    let blocks = Int8Array::quantize(&w, 32)?;
    let table = Nf4Array::quantize(&w, 64)?;
    for refused in [Value::from(&stack), blocks.into(), table.into()] {
        let error = Int8Training::new(refused).expect_err("has no such products").to_string();
        assert!(error.contains("has no products of 8-bit integers\nhelp: "), "{error}");
    }
    let error = Int8Training::new(&w)?.stochastic(&w).expect_err("is no key").to_string();
    assert!(error.contains("and a key is u32[2]"), "{error}");
    Ok(())
}
