//! What a compiled function captures, down to single numbers, and what only looks like it.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::cell::{Cell, RefCell};

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::{Array, random};
use tacit::compile::CompileOptions;
use tacit::transform::custom_vjp;
use tacit::{Error, Result, compile_with, compile_with_state};
use tracing::subscriber;

use crate::log::Log;
use crate::traced::{denied, row};

/// MLX's compile documentation shows `state = [mx.array(1.0)]` under a function that returns `x + state[0]`: captured it is
/// frozen, and as `inputs=state` it is not.
#[test]
fn the_documented_state_of_one_number_is_frozen_with_a_warning_and_right_as_a_state() -> Result<()> {
    let state = RefCell::new(vec![Array::from_f32(1.0)]);
    let fun = |x: Array| x.add(&state.borrow()[0]);
    let one = Array::from_f32(1.0);
    let log = Log::default();
    let mut frozen = compile_with(CompileOptions { name: "fun".to_owned(), ..CompileOptions::default() }, fun);
    let mut call = || frozen.call(&one)?.dense();
    let before = subscriber::with_default(log.clone(), &mut call)?;
    state.borrow_mut()[0] = Array::from_f32(5.0);
    let after = subscriber::with_default(log.clone(), &mut call)?;
    assert_eq!((before.item_exact::<f32>(), after.item_exact::<f32>()), (2.0, 2.0));
    expect![[r#"
        fun is compiled and holds f32[], an array that is not among its arguments: its present value becomes a constant
        help: pass it as an argument or as part of the state, or allow it with `Constants::Allow`"#]]
    .assert_eq(&log.lines().join("\n"));

    let mut refused = compile_with(denied(), fun);
    assert!(matches!(refused.call(&one), Err(Error::Constants { held, .. }) if held.len() == 1));
    assert_eq!(refused.stats().traces, 0);

    let mut right = compile_with_state(denied(), |state: &mut Vec<Array>, x: Array| x.add(&state[0]));
    let mut state = vec![Array::from_f32(1.0)];
    assert_eq!(right.call(&mut state, &one)?.dense()?.item_exact::<f32>(), 2.0);
    state[0] = Array::from_f32(5.0);
    assert_eq!(right.call(&mut state, &one)?.dense()?.item_exact::<f32>(), 6.0);
    assert_eq!(right.stats().traces, 1);
    Ok(())
}

/// A name of outside in the place of the argument: the array is an argument of the first call, and a constant of all.
#[test]
fn an_argument_that_is_captured_too_is_told() -> Result<()> {
    let (x, y) = (row(&[1.0, 2.0]), row(&[3.0, 4.0]));
    let mut f = compile_with(denied(), |a: Array| a.add(&x));
    assert!(matches!(f.call(&x), Err(Error::Constants { held, .. }) if held.len() == 1));
    assert!(matches!(f.call(&y), Err(Error::Constants { held, .. }) if held.len() == 1));
    Ok(())
}

/// The avals that a function of `[1, 2]` is said to hold, and how often it ran for that.
fn held(f: impl Fn(Array) -> Result<Array, Exception>, shapeless: bool) -> (String, u32) {
    let runs = Cell::new(0);
    let counted = |x: Array| {
        runs.set(runs.get() + 1);
        f(x)
    };
    let mut f = compile_with(CompileOptions { shapeless, ..denied() }, counted);
    let held = match f.call(row(&[1.0, 2.0])) {
        Ok(_) => "nothing".to_owned(),
        Err(Error::Constants { held, .. }) => held.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Err(error) => error.to_string(),
    };
    (held, runs.get())
}

#[test]
fn numbers_that_are_captured_are_told_from_those_that_a_function_writes() -> Result<()> {
    let (a, b) = (Array::from_f32(2.0), Array::from_f32(3.0));
    let lazy = Array::from_f32(4.0).exp()?;
    for shapeless in [false, true] {
        let runs = if shapeless { 2 } else { 1 };
        // Those that it writes cost no second recording, however often they are used.
        let written = |x: Array| {
            let half = Array::from_f32(0.5);
            x.multiply(&half)?.add(&half)?.add(Array::from_slice(&[1f32, 2.0], &[2]))
        };
        assert_eq!(held(written, shapeless), ("nothing".to_owned(), runs));
        for (f, expected) in [
            (&(|x: Array| x.multiply(&a)) as &dyn Fn(Array) -> Result<Array, Exception>, "f32[]"),
            (&|x: Array| x.multiply(&lazy), "f32[]"),
            (&|x: Array| x.multiply(&a)?.add(a.multiply(&b)?), "f32[], f32[]"),
            (&|x: Array| x.multiply(Array::from_f32(0.5))?.add(b.as_dtype(x.dtype())?), "f32[]"),
        ] {
            assert_eq!(held(f, shapeless), (expected.to_owned(), 2));
        }
    }
    Ok(())
}

/// A rule of a derivative stays in the graph with what it captured, so that somebody besides the nodes holds a number that
/// the function wrote: only the second recording tells.
#[test]
fn a_number_that_a_rule_in_the_graph_keeps_is_not_captured() -> Result<()> {
    let runs = Cell::new(0);
    let scaled = |x: Array| {
        runs.set(runs.get() + 1);
        let factor = Array::from_f32(3.0);
        let kept = factor.clone();
        let forward = move |x: Array| x.multiply(&factor);
        custom_vjp(forward, move |_: Array, _: Array, cotangent: Array| cotangent.multiply(&kept)).call(x)?.dense()
    };
    let mut f = compile_with(denied(), scaled);
    assert_eq!(f.call(row(&[1.0, 2.0]))?.dense()?.as_slice::<f32>(), [3.0, 6.0]);
    assert_eq!((runs.get(), f.stats().traces), (2, 1));
    Ok(())
}

#[test]
fn a_second_recording_leaves_the_state_and_the_random_numbers_as_they_are() -> Result<()> {
    let factor = Array::from_f32(2.0);
    let step = |total: &mut Vec<Array>, x: Array| {
        total.push(x.multiply(&factor)?);
        x.add(random::uniform::<_, f32>(0.0, 1.0, x.shape(), None)?)
    };
    let numbers = |f: &mut dyn FnMut(&mut Vec<Array>) -> Result<()>| -> Result<(usize, Vec<f32>)> {
        random::seed(5)?;
        let mut state = Vec::new();
        f(&mut state)?;
        Ok((state.len(), random::uniform::<_, f32>(0.0, 1.0, &[2], None)?.as_slice::<f32>().to_vec()))
    };
    let x = row(&[0.0, 0.0]);
    let named = |name: &str| CompileOptions { name: name.to_owned(), ..CompileOptions::default() };
    let mut warned = compile_with_state(named("warned"), step);
    let mut allowed =
        compile_with_state(CompileOptions { constants: tacit::compile::Constants::Allow, ..named("allowed") }, step);
    let log = Log::default();
    let with_warning =
        subscriber::with_default(log.clone(), || numbers(&mut |state| warned.call(state, &x).map(drop)))?;
    assert_eq!(log.lines().len(), 1);
    assert_eq!(with_warning, numbers(&mut |state| allowed.call(state, &x).map(drop))?);
    assert_eq!(with_warning.0, 1);
    Ok(())
}
