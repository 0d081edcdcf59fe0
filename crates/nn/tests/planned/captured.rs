//! Compiled functions that hold what others have made and nobody has computed yet.

use mlx_rs::{Array, random};
use tacit_core::compile::{CompileOptions, Constants, compile_with};
use tacit_core::{Error, Result};

use crate::turns;

fn square(side: i32, seed: u64) -> Result<Array> {
    let x = random::normal::<f32>(&[side, side], None, None, &random::key(seed)?)?;
    let x = x.divide(Array::from_f32(side as f32))?;
    x.eval()?;
    Ok(x)
}

fn first(x: &Array) -> Result<Array> {
    Ok(x.exp()?.matmul(x)?.add(x)?)
}

/// One op, and several.
fn second(z: &Array, y: &Array, alone: bool) -> Result<Array> {
    let sum = z.add(y)?;
    if alone { Ok(sum) } else { Ok(sum.matmul(z)?.add(z)?) }
}

/// Small results, and such as a replay does not keep.
#[test]
fn what_was_captured_is_there_at_each_call_and_afterwards() -> Result<()> {
    let _turn = turns::of_memory();
    for constants in [Constants::Allow, Constants::Warn] {
        for side in [4, 600] {
            for alone in [true, false] {
                let options = || CompileOptions { constants, ..CompileOptions::default() };
                let (x, z) = (square(side, 1)?, square(side, 2)?);
                let mut make = compile_with(options(), |x: Array| first(&x));
                let y = make.call(&x)?.dense()?;
                let held = y.clone();
                let mut take = compile_with(options(), move |z: Array| second(&z, &held, alone));
                let expected = second(&z, &first(&x)?, alone)?;
                for call in 0..4 {
                    let found = take.call(&z)?.dense()?;
                    let apart = found.subtract(&expected)?.abs()?.max(None)?.item_exact::<f32>();
                    assert!(apart < 1e-5, "{constants:?} {side} {alone} call {call}: {apart}");
                }
                let apart = y.subtract(first(&x)?)?.abs()?.max(None)?.item_exact::<f32>();
                assert!(apart < 1e-5, "{constants:?} {side} {alone}: {apart}");
            }
        }
    }
    Ok::<_, Error>(())
}

/// What is left of a plan that has run for another of its results, also for a function without shapes.
#[test]
fn one_result_of_a_plan_may_be_captured_when_another_was_read() -> Result<()> {
    for (shapeless, read) in [(false, true), (true, true), (true, false)] {
        let (x, z) = (square(4, 1)?, square(4, 2)?);
        let mut make = compile_with(CompileOptions::default(), |x: Array| {
            let y = first(&x)?;
            Ok::<_, Error>((y.clone(), y.matmul(&x)?.exp()?))
        });
        let (y, w) = make.call(&x)?;
        let (y, w) = (y.dense()?, w.dense()?);
        if read {
            w.eval()?;
        }
        let held = y.clone();
        let options = CompileOptions { constants: Constants::Allow, shapeless, ..CompileOptions::default() };
        let mut take = compile_with(options, move |z: Array| second(&z, &held, true));
        let expected = second(&z, &first(&x)?, true)?;
        for call in 0..3 {
            let apart = take.call(&z)?.dense()?.subtract(&expected)?.abs()?.max(None)?.item_exact::<f32>();
            assert!(apart < 1e-5, "{shapeless} {read} call {call}: {apart}");
        }
        let apart = y.subtract(first(&x)?)?.abs()?.max(None)?.item_exact::<f32>();
        assert!(apart < 1e-5, "{shapeless} {read}: {apart}");
    }
    Ok(())
}

/// Arrays that are there when a plan is made are no operands of its node.
#[test]
fn what_one_function_made_of_two_arrays_is_captured_as_two() -> Result<()> {
    let (x, w, z) = (square(4, 1)?, square(4, 2)?, square(4, 3)?);
    let of = |x: &Array| Ok::<_, Error>(x.exp()?.multiply(x)?.matmul(x)?);
    let mut make = compile_with(CompileOptions::default(), move |x: Array| of(&x));
    let (y, v) = (make.call(&x)?.dense()?, make.call(&w)?.dense()?);
    let options = CompileOptions { constants: Constants::Allow, ..CompileOptions::default() };
    let mut take = compile_with(options, move |z: Array| Ok::<_, Error>(z.add(&y)?.subtract(&v)?));
    let expected = z.add(of(&x)?)?.subtract(of(&w)?)?;
    for call in 0..2 {
        let apart = take.call(&z)?.dense()?.subtract(&expected)?.abs()?.max(None)?.item_exact::<f32>();
        assert!(apart < 1e-5, "call {call}: {apart}");
    }
    Ok(())
}

#[test]
fn what_a_function_gives_to_another_compiled_one_is_told_as_captured() -> Result<()> {
    let (x, w) = (square(4, 1)?, square(4, 2)?);
    let mut make = compile_with(CompileOptions::default(), |w: Array| w.exp()?.multiply(&w)?.matmul(&w));
    let options = CompileOptions { constants: Constants::Deny, ..CompileOptions::default() };
    let mut take = compile_with(options, |x: Array| Ok::<_, Error>(x.add(make.call(&w)?.dense()?)?));
    assert!(matches!(take.call(&x), Err(Error::Constants { .. })));
    Ok(())
}

/// Rows of a megabyte, as the logits of a large vocabulary are, with a few that are likely and many that hardly are.
#[test]
fn the_logarithm_of_a_long_sum_of_exponentials_counts_its_small_terms() -> Result<()> {
    let _turn = turns::of_memory();
    let mut of = compile_with(CompileOptions::default(), |x: Array| x.logsumexp_axis(-1, false));
    let x = random::normal::<f32>(&[2, 262_144], None, None, &random::key(3)?)?.multiply(Array::from_f32(2.0))?;
    x.eval()?;
    let found = of.call(&x)?.dense()?;
    for (row, found) in x.as_slice::<f32>().chunks(262_144).zip(found.try_as_slice::<f32>()?) {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - most).exp()).sum();
        let expected = f64::from(most) + sum.ln();
        assert!((f64::from(*found) - expected).abs() < 2e-6 * expected, "{found} {expected}");
    }
    assert!(!of.stats().nodes.contains_key("LogSumExp"), "{:?}", of.stats().nodes);
    Ok(())
}
