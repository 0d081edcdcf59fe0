//! Where MLX's own compile gives a wrong value, crashes or is silent, a compiled function does not.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::cell::{Cell, RefCell};

use expect_test::expect;
use mlx_rs::error::Exception;
use mlx_rs::fft::irfft;
use mlx_rs::{Array, Dtype, complex64, ops, random, transforms};
use tacit::compile::{CompileOptions, Compiled, Constants};
use tacit::pass::Passes;
use tacit::transform::{checkpoint, grad, jvp, vjp, vmap};
use tacit::{Error, Result, Value, compile_with, compile_with_state};

use crate::traced::{denied, row};

#[test]
fn an_empty_batch_has_its_gradients_without_shapes() -> Result<()> {
    type Function = fn(Array) -> Result<Array>;
    let functions: [(&str, Function); 5] = [
        ("gradient of squares", |x| Ok(transforms::grad(|x: &Array| x.square()?.sum(None))(&x)?)),
        ("gradient of a mean", |x| Ok(transforms::grad(|x: &Array| x.exp()?.mean(None))(&x)?)),
        ("sum of rows", |x| Ok(x.sum_axis(-1, true)?)),
        ("scaled", |x| Ok(x.multiply(x.sum_axis(0, true)?)?)),
        ("softmax", |x| Ok(ops::softmax_axis(&x, -1, None)?)),
    ];
    for (name, function) in functions {
        let mut f = compile_with(CompileOptions { shapeless: true, constants: Constants::Allow, ..denied() }, function);
        // First an empty one, then others, and an empty one again.
        for rows in [0, 3, 1, 5, 0] {
            let x = random::uniform::<_, f32>(0.0, 1.0, &[rows, 6], &random::key(rows as u64)?)?;
            let result = f.call(&x)?.dense()?;
            let expected = function(x)?;
            assert_eq!(result.shape(), expected.shape(), "{name}, {rows} rows");
            assert!(result.all_close(&expected, None, None, None)?, "{name}, {rows} rows");
        }
    }
    Ok(())
}

#[test]
fn a_captured_number_that_is_still_computed_is_right() -> Result<()> {
    for seed in 0..5 {
        let x = random::normal::<f32>(&[700, 700], None, None, &random::key(seed)?)?;
        let number = x.matmul(&x)?.matmul(&x)?.abs()?.max(None)?;
        transforms::async_eval([&number])?;
        let allowed = CompileOptions { constants: Constants::Allow, ..denied() };
        let mut f = compile_with(allowed, |x: Array| x.multiply(&number)?.negative());
        let result = f.call(row(&[1.0, 2.0]))?.dense()?;
        let expected = row(&[1.0, 2.0]).multiply(&number)?.negative()?;
        assert_eq!(result.as_slice::<f32>(), expected.as_slice::<f32>(), "{number}");
    }
    Ok(())
}

#[test]
fn an_array_that_outlives_its_trace_has_no_data() -> Result<()> {
    let kept = RefCell::new(Vec::new());
    let mut f = compile_with(denied(), |x: Array| {
        let y = x.exp()?;
        kept.borrow_mut().extend([x, y.clone()]);
        Ok::<_, Exception>(y)
    });
    for _ in 0..2 {
        assert_eq!(f.call(row(&[0.0]))?.dense()?.item_exact::<f32>(), 1.0);
    }
    drop(f);
    let kept = kept.into_inner();
    assert_eq!(kept.len(), 2);
    for array in &kept {
        assert!(array.eval().is_err());
        // Nor does another trace take it.
        let mut other = compile_with(denied(), |x: Array| x.add(array));
        assert!(other.call(row(&[0.0])).and_then(|y| Ok(y.dense()?.eval()?)).is_err());
    }
    Ok(())
}

#[test]
fn functions_of_one_type_keep_their_own_traces() -> Result<()> {
    let plus = |number: f32| move |x: Array| x.add(Array::from_f32(number));
    let (mut one, mut two) = (compile_with(denied(), plus(1.0)), compile_with(denied(), plus(2.0)));
    // mlx-rs numbers its functions from 1 in the same table.
    let three = |x: &Array| -> Result<Array, Exception> { x.add(Array::from_f32(3.0)) };
    let mut theirs = transforms::compile::compile(three, None);
    for i in 0..3 {
        let x = Array::from_f32(i as f32);
        assert_eq!(one.call(&x)?.dense()?.item_exact::<f32>(), i as f32 + 1.0);
        assert_eq!(theirs(&x)?.item_exact::<f32>(), i as f32 + 3.0);
        assert_eq!(two.call(&x)?.dense()?.item_exact::<f32>(), i as f32 + 2.0);
    }
    assert_eq!((one.stats().traces, two.stats().traces), (1, 1));
    // A function that is gone leaves nothing to one in its place.
    for i in 0..50 {
        let mut f = compile_with(denied(), plus(i as f32));
        assert_eq!(f.call(Array::from_f32(0.0))?.dense()?.item_exact::<f32>(), i as f32);
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "a function of the kind that is compiled")]
fn drawn(x: Array) -> Result<Array> {
    Ok(x.add(random::normal::<f32>(x.shape(), None, None, None)?)?)
}

/// Numbers that are drawn without a key are others in each call, the same from the same seed, and no constant.
#[test]
fn a_draw_from_the_key_of_the_thread_is_made_in_each_call() -> Result<()> {
    for constants in [Constants::Deny, Constants::Warn, Constants::Allow] {
        let x = row(&[0.0, 0.0]);
        let calls = |f: &mut Compiled<'_, Array, Array>| -> Result<Vec<Vec<f32>>> {
            (0..4).map(|_| Ok(f.call(&x)?.dense()?.as_slice::<f32>().to_vec())).collect()
        };
        let mut f = compile_with(CompileOptions { constants, ..denied() }, drawn);
        // A trace draws as well: from the second call on it is the seed alone that counts.
        calls(&mut f)?;
        random::seed(3)?;
        let first = calls(&mut f)?;
        random::seed(3)?;
        assert_eq!(calls(&mut f)?, first, "{constants:?}");
        assert!((1..4).all(|at| first[at] != first[at - 1]), "{constants:?}: {first:?}");
        let own = || random::RandomState::with_seed(8);
        let lent = random::with_random_state(own()?, || calls(&mut f))?;
        assert_eq!(random::with_random_state(own()?, || calls(&mut f))?, lent);
        assert_ne!(lent, first);
        assert_eq!(f.stats().traces, 1);
        // The key of the thread holds nothing of the trace.
        random::normal::<f32>(&[1, 2], None, None, None)?.eval()?;
    }
    Ok(())
}

/// They are the numbers of the distribution that was asked for.
#[test]
fn draws_of_many_calls_are_normal() -> Result<()> {
    random::seed(11)?;
    let mut f = compile_with(denied(), drawn);
    let x = Array::from_slice(&[0f32; 500], &[500]);
    let mut all = Vec::new();
    for _ in 0..40 {
        all.extend(f.call(&x)?.dense()?.as_slice::<f32>().to_vec());
    }
    let of = |power: i32| all.iter().map(|number| f64::from(*number).powi(power)).sum::<f64>() / all.len() as f64;
    assert!(of(1).abs() < 0.03 && (of(2) - 1.0).abs() < 0.04, "{} {}", of(1), of(2));
    all.sort_by(f32::total_cmp);
    all.dedup();
    assert!(all.len() > 19_900, "no call has the numbers of another: {}", all.len());
    Ok(())
}

#[test]
fn a_function_that_draws_nothing_leaves_the_key_of_the_thread_alone() -> Result<()> {
    let own = random::key(4)?;
    let noise = random::normal::<f32>(&[1, 2], None, None, Some(&own))?;
    let sum = |x: Array| x.add(&noise);
    let mut f = compile_with(CompileOptions { constants: Constants::Allow, ..denied() }, sum);
    let x = row(&[0.0, 0.0]);
    f.call(&x)?;
    let after = |f: &mut Compiled<'_, Array, Array>| -> Result<Vec<f32>> {
        random::seed(3)?;
        assert!(f.call(&x)?.dense()?.all_close(&noise, 1e-5, 1e-5, false)?);
        Ok(random::normal::<f32>(&[1, 2], None, None, None)?.as_slice::<f32>().to_vec())
    };
    let found = after(&mut f)?;
    random::seed(3)?;
    assert_eq!(found, random::normal::<f32>(&[1, 2], None, None, None)?.as_slice::<f32>());
    Ok(())
}

#[test]
fn a_trace_that_draws_and_fails_leaves_the_key_of_the_thread() -> Result<()> {
    let x = row(&[0.0, 0.0]);
    for panics in [false, true] {
        let runs = Cell::new(0);
        let mut f = compile_with(denied(), |x: Array| {
            let result = drawn(x)?;
            runs.set(runs.get() + 1);
            // The first trace only finds that it draws; the second one has a key.
            if runs.get() == 2 {
                assert!(!panics, "in the trace");
                return Err(Error::invalid("not this", "another"));
            }
            Ok(result)
        });
        let error = f.call(&x).expect_err("it fails").to_string();
        assert!(error.contains(if panics { "in the trace" } else { "not this" }), "{error}");
        assert_eq!(runs.get(), 2);
        random::normal::<f32>(&[1, 2], None, None, None)?.eval()?;
        let [a, b] = [f.call(&x)?.dense()?, f.call(&x)?.dense()?];
        assert_ne!(a.as_slice::<f32>(), b.as_slice::<f32>());
        random::normal::<f32>(&[1, 2], None, None, None)?.eval()?;
    }
    Ok(())
}

/// Whatever goes on around the first call, which does not change what is drawn.
#[test]
fn a_function_that_is_first_called_in_a_transform_draws_in_each_call() -> Result<()> {
    for constants in [Constants::Deny, Constants::Allow] {
        let f = RefCell::new(compile_with(CompileOptions { constants, ..denied() }, drawn));
        let x = row(&[0.0, 0.0]);
        let noise = || -> Result<Vec<f32>> {
            let product = |y: Array| -> Result<Array> { Ok(y.multiply(f.borrow_mut().call(&x)?.dense()?)?.sum(None)?) };
            Ok(transforms::grad(|y: &Array| Ok(product(y.clone()).expect("draws")))(&x)?.as_slice::<f32>().to_vec())
        };
        let drawn = [noise()?, noise()?, f.borrow_mut().call(&x)?.dense()?.as_slice::<f32>().to_vec()];
        assert!((1..3).all(|at| drawn[at] != drawn[at - 1]), "{constants:?}: {drawn:?}");
        assert_eq!(f.borrow().stats().traces, 1, "{constants:?}");
        random::normal::<f32>(&[1, 2], None, None, None)?.eval()?;
    }
    Ok(())
}

/// Without shapes a trace is checked on each new one, and what is drawn stays a constant, which is said.
#[test]
fn a_draw_of_a_function_without_shapes_is_reported() {
    let noisy = |x: Array| x.add(random::normal::<f32>(&[2], None, None, None)?);
    let mut f = compile_with(CompileOptions { shapeless: true, ..denied() }, noisy);
    let error = f.call(row(&[0.0, 0.0])).expect_err("it holds what it drew");
    expect![[r#"
        f is compiled and holds u32[2,2] computed from u32[2], an array that is not among its arguments: its present value becomes a constant
        help: pass it as an argument or as part of the state, or allow it with `Constants::Allow`; if the function draws random numbers, draw them by `mlx_rs::random::with_random_state` from a key that is an argument"#]].assert_eq(&error.to_string());
}

#[test]
fn an_argument_that_is_captured_as_well_is_right() -> Result<()> {
    for x in [row(&[1.0, 2.0]), Array::from_f32(3.0)] {
        let mut f = compile_with(CompileOptions { constants: Constants::Allow, ..denied() }, |y: Array| x.add(y));
        let twice = x.add(&x)?;
        assert!(f.call(&x)?.dense()?.all_close(&twice, None, None, None)?);
        let other = ops::ones::<f32>(x.shape())?;
        for (given, expected) in [(&other, x.add(&other)?), (&x, twice)] {
            assert!(f.call(&given)?.dense()?.all_close(&expected, None, None, None)?);
        }
        assert_eq!(f.stats().traces, 1);
    }
    Ok(())
}

#[test]
fn a_state_may_become_an_array_that_is_captured() -> Result<()> {
    let first = row(&[1.0, 2.0]);
    let options = CompileOptions { constants: Constants::Allow, ..denied() };
    let mut reset = compile_with_state(options, |state: &mut Array, x: Array| {
        let sum = state.add(x)?;
        *state = first.clone();
        Ok::<_, Error>(sum)
    });
    let mut state = row(&[5.0, 5.0]);
    for expected in [[6.0, 7.0], [2.0, 4.0], [2.0, 4.0]] {
        let sum = reset.call(&mut state, &first)?.dense()?;
        assert_eq!(sum.as_slice::<f32>(), expected);
        reset.clear();
    }
    Ok(())
}

#[test]
fn a_captured_lazy_array_may_be_the_result_of_several_traces() -> Result<()> {
    for passes in [Passes::Off, Passes::All] {
        let held = [
            random::normal::<f32>(&[4, 2], None, None, &random::key(1)?)?,
            ops::select(Array::from_bool(true), row(&[1.0, 2.0]), row(&[1.0, 2.0]))?,
            ops::broadcast_to(row(&[3.0]).exp()?, &[3, 2])?,
            Array::from_f32(2.0).exp()?,
        ];
        for lazy in &held {
            let options = CompileOptions { constants: Constants::Allow, passes: passes.clone(), ..denied() };
            let mut f = compile_with(options, |x: Array| Ok::<_, Error>((lazy.clone(), x.exp()?)));
            let x = row(&[1.0, 2.0]);
            let longer = Array::from_slice(&[1f32, 2.0, 3.0], &[1, 3]);
            for (given, evaluated) in [(&x, false), (&longer, false), (&x, true), (&longer, true)] {
                if evaluated {
                    lazy.eval()?;
                }
                let result = f.call(&given)?.0.dense()?;
                assert!(result.all_close(lazy, None, None, None)?);
            }
        }
    }
    Ok(())
}

#[test]
fn a_state_that_grows_or_moves_is_another_trace() -> Result<()> {
    let mut grow = compile_with_state(denied(), |cache: &mut Array, x: Array| {
        *cache = ops::concatenate(&[&*cache, &x], 0)?;
        cache.sum(None)
    });
    for _ in 0..2 {
        let mut cache = row(&[1.0]);
        for rows in 2..=4 {
            let sum = grow.call(&mut cache, row(&[1.0]))?.dense()?;
            assert_eq!((sum.item_exact::<f32>(), cache.shape()), (rows as f32, &[rows, 1][..]));
        }
    }
    assert_eq!(grow.stats().traces, 3);
    assert!(grow.stats().retraces().all(|reason| reason.starts_with("shape of")));

    let sum = |list: &[Array]| list.iter().try_fold(Array::from_f32(0.0), |sum, x| sum.add(x));
    let mut weighted = compile_with_state(denied(), |(ones, tens): &mut (Vec<Array>, Vec<Array>), (): ()| {
        sum(ones)?.add(sum(tens)?.multiply(Array::from_f32(10.0))?)
    });
    for _ in 0..2 {
        for (first, second, expected) in [(1, 1, 11.0), (2, 0, 2.0), (0, 2, 20.0)] {
            let mut state = (vec![Array::from_f32(1.0); first], vec![Array::from_f32(1.0); second]);
            assert_eq!(weighted.call(&mut state, ())?.dense()?.item_exact::<f32>(), expected);
        }
    }
    assert_eq!(weighted.stats().traces, 3);
    Ok(())
}

#[test]
fn fused_graphs_give_the_numbers_of_the_eager_ones() -> Result<()> {
    let x = row(&[1.0, 2.0, 3.0]);
    // MLX once failed to fuse more than a hundred ops.
    let long = |x: Array| (0..200).try_fold(x.clone(), |y, _| y.add(&x)?.negative());
    let result = compile_with(denied(), long).call(&x)?.dense()?;
    assert_eq!(result.as_slice::<f32>(), long(x.clone())?.as_slice::<f32>());
    // Ops of one primitive that differ in a parameter are not one.
    let logs = |x: Array| Ok::<_, Exception>((x.log()?, x.log2()?, x.log10()?));
    let (e, two, ten) = compile_with(denied(), logs).call(&x)?;
    let expected = logs(x.clone())?;
    for (result, expected) in [(e, expected.0), (two, expected.1), (ten, expected.2)] {
        assert!(result.dense()?.all_close(&expected, None, None, None)?);
    }
    // MLX once wrote seven digits of a captured number into the source of a fused kernel, and read all of an argument.
    let number = Array::from_f32(1.000_000_1);
    let scaled = |(x, by): (Array, Array)| x.multiply(by)?.negative();
    let expected = scaled((x.clone(), number.clone()))?;
    let result = compile_with(denied(), scaled).call((&x, &number))?.dense()?;
    assert_eq!(result.as_slice::<f32>(), expected.as_slice::<f32>());
    let captured = |x: Array| x.multiply(&number)?.negative();
    let allowed = CompileOptions { constants: Constants::Allow, ..denied() };
    let result = compile_with(allowed, captured).call(&x)?.dense()?;
    assert_eq!(result.as_slice::<f32>(), expected.as_slice::<f32>());
    let large = row(&[12_345_678.0, 12_345_679.0]);
    let from = |x: Array| x.subtract(Array::from_f32(12_345_678.0))?.negative();
    for shapeless in [false, true] {
        let options = CompileOptions { shapeless, ..denied() };
        let result = compile_with(options, from).call(&large)?.dense()?;
        assert_eq!(result.as_slice::<f32>(), from(large.clone())?.as_slice::<f32>(), "shapeless: {shapeless}");
    }
    // MLX writes seven digits of each part of a complex one.
    let number = Array::from_complex(complex64::new(12_345_678.0, 12_345_679.0));
    let from = |x: Array| x.subtract(&number)?.negative();
    let (large, allowed) =
        (large.as_dtype(Dtype::Complex64)?, CompileOptions { constants: Constants::Allow, ..denied() });
    let result = compile_with(allowed, from).call(&large)?.dense()?;
    assert_eq!(result.as_slice::<complex64>(), from(large)?.as_slice::<complex64>());
    Ok(())
}

/// `sum(x t)` of a compiled function that takes `x = [1, 2]` and captures `t`.
fn captured(t: &Array) -> Result<Array> {
    let mut f = compile_with(denied(), |x: Array| x.multiply(t)?.sum(None));
    let result = f.call(row(&[1.0, 2.0]))?.dense()?;
    assert_eq!((f.stats().traces, f.stats().inlined), (0, 1));
    Ok(result)
}

#[test]
fn the_derivative_of_a_captured_tracer_is_right() -> Result<()> {
    let t = || Value::from(row(&[3.0, 4.0]));
    let one = || Value::from(Array::from_f32(1.0));
    assert_eq!(grad(|t: Array| captured(&t)).call(t())?.array()?.as_slice::<f32>(), [1.0, 2.0]);
    let scalar = |t: Array| captured(&t);
    assert_eq!(grad(scalar).call(one())?.array()?.item_exact::<f32>(), 3.0);
    let (value, gradient) = vjp(t(), one(), |t: Array| captured(&t))?;
    assert_eq!((value.dense()?.item_exact::<f32>(), gradient.array()?.as_slice::<f32>()), (11.0, &[1.0, 2.0][..]));
    let (value, change) = jvp(t(), row(&[1.0, 10.0]), |t: Array| captured(&t))?;
    assert_eq!((value.dense()?.item_exact::<f32>(), change.dense()?.item_exact::<f32>()), (11.0, 21.0));
    let rows = Array::from_slice(&[3f32, 4.0, 5.0, 6.0], &[2, 2]);
    let mapped = vmap(0, 0, |t: Array| captured(&t)).call(rows)?.dense()?;
    assert_eq!(mapped.as_slice::<f32>(), [11.0, 17.0]);
    let mut again = checkpoint(|t: Array| captured(&t));
    let gradient = grad(move |t: Array| again.call(t)?.dense()).call(t())?;
    assert_eq!(gradient.array()?.as_slice::<f32>(), [1.0, 2.0]);
    // What is computed from a tracer before the call, with another function's state, and without shapes.
    let gradient = grad(|t: Array| {
        let twice = t.add(&t)?;
        let mut f = compile_with_state(CompileOptions { shapeless: true, ..denied() }, |sum: &mut Array, x: Array| {
            *sum = sum.add(x.multiply(&twice)?.sum(None)?)?;
            sum.square()
        });
        let mut sum = Array::from_f32(0.0);
        f.call(&mut sum, row(&[1.0, 2.0]))?;
        Ok::<_, Error>(sum)
    })
    .call(t())?;
    assert_eq!(gradient.array()?.as_slice::<f32>(), [2.0, 4.0]);
    Ok(())
}

#[test]
fn a_captured_lazy_array_is_reported_as_itself() -> Result<()> {
    let w = random::normal::<f32>(&[2, 256], None, None, &random::key(1)?)?;
    let mut f = compile_with(denied(), |x: Array| x.matmul(&w));
    let error = f.call(row(&[1.0, 2.0])).expect_err("w is captured");
    expect![[r#"
        f is compiled and holds f32[2,256] computed from u32[2], an array that is not among its arguments: its present value becomes a constant
        help: pass it as an argument or as part of the state, or allow it with `Constants::Allow`; if the function draws random numbers, draw them by `mlx_rs::random::with_random_state` from a key that is an argument"#]]
    .assert_eq(&error.to_string());
    w.eval()?;
    let error = f.call(row(&[1.0, 2.0])).expect_err("w is captured");
    assert!(matches!(error, Error::Constants { held, .. } if held.len() == 1 && held[0].sources.is_empty()));
    Ok(())
}

/// Inverse real transforms to 6 and to 7 numbers take the same 4: MLX's primitive does not say the length, so that MLX's compile takes
/// two of one array for one.
#[test]
fn transforms_of_one_array_to_two_lengths_stay_two() -> Result<()> {
    let energies = |x: Array| -> Result<Array> {
        let x = x.as_dtype(Dtype::Complex64)?;
        let (even, odd) = (irfft(&x, 6, -1)?, irfft(&x, 7, -1)?);
        Ok(even.square()?.sum(None)?.add(odd.square()?.sum(None)?)?)
    };
    let x = Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4]);
    // By Parseval: (1 + 2 (4 + 9) + 16) / 6 + (1 + 2 (4 + 9 + 16)) / 7.
    let expected = 43.0 / 6.0 + 59.0 / 7.0;
    let eager = energies(x.clone())?.item_exact::<f32>();
    assert!((eager - expected).abs() < 1e-4, "{eager}");
    let mut compiled = compile_with(CompileOptions::default(), energies);
    let found = compiled.call(&x)?.dense()?.item_exact::<f32>();
    assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    Ok(())
}

/// As above, of two dtypes: MLX compares neither the shapes nor the dtypes of the nodes that it merges.
#[test]
fn floats_of_eight_bits_read_as_two_dtypes_stay_two() -> Result<()> {
    let both = |x: Array| -> Result<Array> {
        let half = mlx_rs::ops::from_fp8(&x, Dtype::Float16)?;
        let single = mlx_rs::ops::from_fp8(&x, Dtype::Float32)?;
        Ok(single.square()?.add(half.square()?.as_dtype(Dtype::Float32)?)?)
    };
    // 1, 2, 0.5 and 1.5 in e4m3.
    let x = Array::from_slice(&[0x38u8, 0x40, 0x30, 0x3c], &[4]);
    let eager = both(x.clone())?;
    assert_eq!(eager.as_slice::<f32>(), [2.0, 8.0, 0.5, 4.5]);
    let mut compiled = compile_with(CompileOptions::default(), both);
    assert_eq!(compiled.call(&x)?.dense()?.as_slice::<f32>(), [2.0, 8.0, 0.5, 4.5]);
    Ok(())
}
