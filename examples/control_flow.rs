//! The book's chapter on branches and loops over values that may be implicit.

// ANCHOR: use
use std::cell::Cell;

use mlx_rs::{Array, ops, random};
use tacit::compile;
use tacit::control::{cond, fori_loop, scan, while_loop};
use tacit::prelude::*;

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 6] = [
    ("chosen", chosen),
    ("selected", selected),
    ("repeated", repeated),
    ("until", until),
    ("scanned", scanned),
    ("refused", refused),
];

// ANCHOR: weight
/// A symmetric matrix in four bits, whose eigenvalues are below 1 but for one of 2.
fn weight() -> Result<Nf4Array> {
    let noise = random::normal::<f32>(&[64, 64], None, 0.01, &random::key(1)?)?;
    let one = Array::from_f32(2.0 / 64.0);
    Nf4Array::quantize(&noise.add(noise.t())?.add(one)?, 64)
}
// ANCHOR_END: weight

// ANCHOR: chosen
/// The predicate is read, and only what it chooses runs.
fn chosen() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let (x, small) = (ops::ones::<f32>(&[1, 64])?, Array::from_bool(true));
    let y = cond(
        &small,
        (&x, weight()?),
        |(x, w)| x.matmul(w),
        |_| Err(mlx_rs::error::Exception::custom("nobody calls this one")),
    )?;
    Ok(y.to_string())
}
// ANCHOR_END: chosen

// ANCHOR: selected
/// A compiled function cannot read its predicate: both branches run, and what they give is selected child by child.
fn selected() -> Result<String> {
    let seen = Cell::default();
    let mut either = compile(|(first, a, b): (Array, Array, Array)| -> Result<Array> {
        let _deny = Policy::Deny.scope();
        let both = (Nf4Array::quantize(&a, 64)?, Nf4Array::quantize(&b, 64)?);
        let w = cond(&first, both, |(a, _)| Ok::<_, Error>(a), |(_, b)| Ok::<_, Error>(b))?;
        seen.set(w.to_string());
        implicit((ops::ones::<f32>(&[1, 64])?, w), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()
    });
    let (ones, zeros) = (ops::ones::<f32>(&[8, 64])?, ops::zeros::<f32>(&[8, 64])?);
    let mut of = |first| -> Result<f32> {
        Ok(either.call((Array::from_bool(first), &ones, &zeros))?.dense()?.item_exact::<f32>())
    };
    let sums = [of(true)?, of(false)?];
    Ok(format!("{} of {sums:?}; traces: {}", seen.take(), either.stats().traces))
}
// ANCHOR_END: selected

// ANCHOR: repeated
/// Ten steps of power iteration. The carry is the vector and the matrix, which stays in four bits from step to step.
fn repeated() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let x = ops::ones::<f32>(&[1, 64])?;
    let (x, w) = fori_loop(0..10, (x, weight()?), |_, (x, w)| -> Result<(Array, Array)> {
        let y = x.matmul(&w)?;
        Ok((y.divide(y.square()?.sum(None)?.sqrt()?)?, w))
    })?;
    let stretched = implicit((&x, &w), |(x, w)| x.matmul(w)?.multiply(&x)?.sum(None))?.dense()?;
    Ok(format!("{w}, largest eigenvalue {:.1}", stretched.item_exact::<f32>()))
}
// ANCHOR_END: repeated

// ANCHOR: until
/// The same until the vector stays where it is; each step is evaluated with its condition.
fn until() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let carry = (ops::ones::<f32>(&[1, 64])?, Array::from_f32(1.0), Array::from_int(0), weight()?);
    let (_, moved, steps, w) = while_loop(
        carry,
        |(_, moved, _, _)| moved.gt(Array::from_f32(1e-3)),
        |(x, _, steps, w)| -> Result<(Array, Array, Array, Array)> {
            let y = x.matmul(&w)?;
            let y = y.divide(y.square()?.sum(None)?.sqrt()?)?;
            let moved = y.subtract(&x)?.abs()?.max(None)?;
            Ok((y, moved, steps.add(Array::from_int(1))?, w))
        },
    )?;
    let moved = moved.dense()?.item_exact::<f32>() < 1e-3;
    Ok(format!("{w} in {} steps; at rest: {moved}", steps.dense()?.item_exact::<i32>()))
}
// ANCHOR_END: until

// ANCHOR: scanned
/// A recurrent layer along the rows of its inputs, its weight part of the carry.
fn scanned() -> Result<String> {
    let _deny = Policy::Deny.scope();
    let inputs = random::normal::<f32>(&[5, 1, 64], None, None, &random::key(2)?)?;
    let state = ops::zeros::<f32>(&[1, 64])?;
    let ((_, w), states) = scan((state, weight()?), &inputs, None, |(state, w), x| -> Result<_> {
        let state = ops::tanh(state.matmul(&w)?.add(x)?)?;
        Ok(((state.clone(), w), state))
    })?;
    Ok(format!("{w}, states {states}"))
}
// ANCHOR_END: scanned

// ANCHOR: refused
/// A loop inside a compiled function whose end depends on its argument.
fn refused() -> Result<String> {
    let mut grown =
        compile(|x: Array| while_loop(x, |x| x.sum(None)?.lt(Array::from_f32(100.0)), |x| x.square())?.dense());
    let error = grown.call(Array::from_f32(2.0)).expect_err("the number of steps is not known");
    Ok(error.to_string())
}
// ANCHOR_END: refused

#[allow(dead_code, reason = "the test of the book calls the sections one by one")]
fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("## {title}\n{}\n", section()?);
    }
    Ok(())
}
