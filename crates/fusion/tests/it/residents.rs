//! Inputs that a replay reads where they lie, without a node's input for each.

use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_core::compile::{CompileOptions, compile_with, compile_with_state};
use tacit_core::extra_ops::{checked_indices, dynamic_slice_update};

use crate::same::{assert_close, floats, nodes, normal};

fn evaluated(array: Array) -> Array {
    array.eval().expect("an eval");
    array
}

/// Numbers of one shape that lie in memory in every way that MLX has, evaluated and not.
fn lying() -> Vec<Array> {
    let wide = evaluated(normal(&[8, 12], 7));
    let bytes = evaluated(
        ops::arange::<_, u8>(0, 8 * 6 * 4 + 3, None)
            .expect("bytes")
            .multiply(Array::from_slice(&[0_u8], &[1]))
            .expect("zeros"),
    );
    let off = bytes
        .try_index(3..)
        .expect("a view")
        .view_dtype(Dtype::Float32)
        .expect("floats")
        .reshape(&[8, 6])
        .expect("a shape");
    let ways: Vec<Array> = vec![
        normal(&[8, 6], 1),
        wide.try_index((.., ..6)).expect("a part"),
        wide.try_index((.., (..).stride_by(-2))).expect("a part"),
        normal(&[6, 8], 2).swap_axes(0, 1).expect("a view"),
        ops::broadcast_to(normal(&[1, 6], 3), &[8, 6]).expect("a view"),
        normal(&[9, 6], 4).try_index(1..).expect("a part"),
        off,
    ];
    let copies = ways.iter().map(|array| evaluated(array.add(Array::from_f32(0.0)).expect("a copy")));
    copies.chain(ways.iter().map(|array| evaluated(array.clone()))).chain(ways.iter().map(Array::clone)).collect()
}

#[test]
fn inputs_are_read_however_they_lie() {
    let f = |(x, w): (Array, Array)| -> Result<Array> {
        Ok(x.exp()?.add(&w)?.matmul(w.swap_axes(-1, -2)?)?.multiply(Array::from_f32(0.5))?)
    };
    let mut compiled = compile_with(CompileOptions::default(), f);
    for (i, w) in lying().iter().enumerate() {
        for x in lying().iter().skip(i % 3).step_by(3) {
            let found = compiled.call((x, w)).expect("a call").dense().expect("an array");
            assert_close(&found, &f((x.clone(), w.clone())).expect("it runs"), 1e-5);
        }
    }
    assert_eq!(compiled.stats().traces, 1);
    assert!(nodes(&compiled.stats().rewritten, "plan") >= 2);
}

#[test]
fn results_are_each_their_own_in_any_order() {
    let f = |inputs: Vec<Array>| -> Result<Vec<Array>> {
        let sum = inputs[0].add(&inputs[1])?;
        inputs.iter().map(|x| Ok(x.exp()?.matmul(&sum)?.add(x)?)).collect()
    };
    let inputs: Vec<Array> = (0..75).map(|i| evaluated(normal(&[3, 3], i))).collect();
    let expected = f(inputs.clone()).expect("it runs");
    let mut compiled = compile_with(CompileOptions::default(), f);
    for round in 0..3 {
        let found = compiled.call(&inputs).expect("a call");
        // In an order in which the last ones come first, and some never.
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate().rev().skip(round) {
            if (i + round) % 5 != 0 {
                assert_close(&found.dense().expect("an array"), expected, 1e-5);
            }
        }
    }
    assert!(nodes(&compiled.stats().rewritten, "plan") >= 75);
}

#[test]
fn an_input_that_a_call_read_is_given_away_by_the_next() {
    let mut read = compile_with(CompileOptions::default(), |(cache, x): (Array, Array)| -> Result<Array> {
        Ok(cache.multiply(&x)?.exp()?.matmul(cache.swap_axes(0, 1)?)?.sum(None)?)
    });
    let mut write = compile_with_state(CompileOptions::default(), |cache: &mut Array, x: Array| -> Result<Array> {
        *cache = dynamic_slice_update(&*cache, &x.exp()?, &Array::from_slice(&[1], &[1]), &[0])?;
        Ok(cache.add(Array::from_int(1))?.sum(None)?)
    });
    let mut cache = evaluated(ops::zeros::<f32>(&[5, 3]).expect("zeros"));
    for i in 0..4 {
        let x = evaluated(normal(&[1, 3], i));
        let before = cache.as_slice::<f32>().as_ptr();
        evaluated(read.call((&cache, &x)).expect("a call").dense().expect("an array"));
        let sum = write.call(&mut cache, &x).expect("a step").dense().expect("an array");
        mlx_rs::transforms::eval([&sum, &cache]).expect("an eval");
        if i > 0 {
            assert_eq!(cache.as_slice::<f32>().as_ptr(), before, "no copy was made");
        }
        assert_close(&cache.try_index(1..2).expect("a row"), &x.exp().expect("floats"), 1e-6);
    }
    // A result that is not computed yet reads what the cache was.
    let x = evaluated(normal(&[1, 3], 9));
    let (before, lazy) = (floats(&cache), read.call((&cache, &x)).expect("a call").dense().expect("an array"));
    let sum = write.call(&mut cache, normal(&[1, 3], 10)).expect("a step").dense().expect("an array");
    mlx_rs::transforms::eval([&sum, &cache]).expect("an eval");
    let before = Array::from_slice(&before, &[5, 3]);
    let expected = before.multiply(&x).and_then(|y| y.exp()).and_then(|y| y.matmul(before.swap_axes(0, 1)?));
    assert_close(&lazy, &expected.and_then(|y| y.sum(None)).expect("a sum"), 1e-5);
    assert!([read.stats(), write.stats()].iter().all(|stats| nodes(&stats.rewritten, "plan") >= 2));
}

#[test]
fn an_input_that_came_of_a_failure_fails_and_the_next_one_does_not() {
    let mut step = compile_with(CompileOptions::default(), |(x, w): (Array, Array)| -> Result<Array> {
        Ok(x.multiply(&w)?.exp()?.matmul(&w)?.add(&w)?)
    });
    let (x, sound) = (evaluated(normal(&[2, 2], 0)), evaluated(normal(&[2], 1)));
    let expected = x.multiply(&sound).and_then(|y| y.exp()?.matmul(&sound)?.add(&sound)).expect("a sum");
    for _ in 0..3 {
        let rows = checked_indices(&Array::from_slice(&[7, 0], &[2]), 4).expect("a node");
        let poisoned = rows.as_dtype(Dtype::Float32).expect("floats");
        poisoned.eval().expect_err("7 is not below 4");
        for (w, fine) in [(&sound, true), (&poisoned, false), (&sound, true)] {
            let y = step.call((&x, w)).and_then(|y| y.dense()).and_then(|y| y.eval().map(|()| y).map_err(Into::into));
            assert_eq!(y.is_ok(), fine);
            match y {
                Ok(y) => assert_close(&y, &expected, 1e-6),
                Err(error) => assert!(error.to_string().contains("kernel Indices failed: index 7"), "{error}"),
            }
        }
    }
    assert!(nodes(&step.stats().rewritten, "plan") >= 2);
}

/// One array at two places of a state, as an argument too, and in the hands of somebody who has it, a view of it, or what is not
/// computed of it yet: a step that writes a part of it writes it at one place alone.
#[test]
fn an_array_that_is_elsewhere_too_is_written_in_one_place() {
    type State = (Array, Array);
    let step = |(cache, other): &mut State, (x, again): (Array, Array)| -> Result<Array> {
        let at = Array::from_slice(&[1], &[1]);
        *cache = dynamic_slice_update(&*cache, &x.exp()?, &at, &[0])?;
        Ok(other.add(&again)?.multiply(&*cache)?.sum_axes(&[0], false)?)
    };
    let apart = |array: &Array| Array::from_slice(&floats(array), array.shape());
    for held in 0..16 {
        let mut compiled = compile_with_state(CompileOptions::default(), step);
        let mut state = evaluated(normal(&[5, 3], held));
        let mut other = if held & 1 == 0 { state.clone() } else { evaluated(normal(&[5, 3], 100)) };
        for call in 0..4 {
            let x = evaluated(normal(&[1, 3], call));
            let whole = (held & 2 == 0).then(|| state.clone());
            let view = (held & 4 == 0).then(|| evaluated(state.try_index(1..3).expect("a part")));
            let lazy = (held & 8 == 0).then(|| state.square().expect("floats"));
            let before = (apart(&state), apart(&other));
            let again = if call % 2 == 0 { state.clone() } else { other.clone() };
            let mut expected = before.clone();
            let own = apart(&again);
            let y = step(&mut expected, (x.clone(), own)).expect("it runs");
            let mut both = (state, other);
            let result = compiled.call(&mut both, (&x, &again)).expect("a step");
            drop(again);
            let result = result.dense().expect("an array");
            mlx_rs::transforms::eval([&both.0, &result]).expect("an eval");
            assert_close(&result, &y, 1e-5);
            assert_close(&both.0, &expected.0, 1e-6);
            assert_close(&both.1, &before.1, 0.0);
            for (kept, expected) in [
                (whole, before.0.clone()),
                (view, before.0.try_index(1..3).expect("a part")),
                (lazy, before.0.square().expect("floats")),
            ] {
                if let Some(kept) = kept {
                    assert_close(&kept, &expected, 1e-6);
                }
            }
            state = both.0;
            other = if call == 1 { state.clone() } else { both.1 };
        }
        assert!(nodes(&compiled.stats().rewritten, "plan") >= 2);
    }
}
