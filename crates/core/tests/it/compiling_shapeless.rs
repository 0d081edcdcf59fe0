//! What one trace serves that was made without shapes, and what is refused by name.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use std::fmt::Write;

use expect_test::expect;
use mlx_rs::{Array, ops, random, transforms};
use tacit::compile::{CompileOptions, Constants};
use tacit::transform::{checkpoint, custom_vjp};
use tacit::tree::Static;
use tacit::{Error, Result, compile_with, compile_with_state};
use tacit_bridge::mlx::Feature;

use crate::traced::denied;
use crate::types::said_of;

fn shapeless() -> CompileOptions {
    CompileOptions { shapeless: true, constants: Constants::Allow, ..denied() }
}

fn normal(seed: u64, shape: &[i32]) -> Result<Array> {
    Ok(random::normal::<f32>(shape, None, None, &random::key(seed)?)?)
}

/// Where a number of rows is served the value is the function's own; where it is not, the error says what stands in the way.
#[test]
fn without_shapes_it_is_right_or_an_error() -> Result<()> {
    type Function = fn(Array) -> Result<Array>;
    let functions: [(&str, Function); 8] = [
        ("split", |x| Ok(x.split_equal(2, 0)?.swap_remove(1))),
        ("scan", |x| Ok(x.cumsum(0, None, None)?)),
        ("sort", |x| Ok(ops::sort_axis(&x, 0)?)),
        ("broadcast", |x| Ok(ops::broadcast_to(x.sum_axis(0, true)?, x.shape())?)),
        ("mean", |x| Ok(x.mean_axis(0, false)?)),
        ("gradient", |x| Ok(transforms::grad(|x: &Array| x.square()?.sum(None))(&x)?)),
        ("checkpoint", |x| checkpoint(|x: Array| x.exp()).call(x)?.dense()),
        ("custom vjp", |x| {
            custom_vjp(|x: Array| x.exp(), |_: Array, y: Array, cotangent: Array| y.multiply(cotangent))
                .call(x)?
                .dense()
        }),
    ];
    let mut told = String::new();
    for (name, function) in functions {
        let mut f = compile_with(shapeless(), function);
        let mut served = 0;
        let mut refused = None;
        for rows in [4, 2, 6, 4] {
            let x = random::uniform::<_, f32>(0.0, 1.0, &[rows, 4], &random::key(rows as u64)?)?;
            let result = f.call(&x).and_then(|y| {
                let y = y.dense()?;
                y.eval()?;
                Ok(y)
            });
            match result {
                Ok(result) => {
                    let expected = function(x)?;
                    assert_eq!(result.shape(), expected.shape(), "{name}, {rows} rows");
                    assert!(result.all_close(&expected, None, None, None)?, "{name}, {rows} rows");
                    served += 1;
                }
                Err(Error::Shapeless { reason, .. }) => refused = Some(reason),
                Err(error) => panic!("{name}, {rows} rows: {error}"),
            }
        }
        let traces = f.stats().traces;
        let why = refused.map_or_else(String::new, |reason| format!("; {reason}"));
        writeln!(told, "{name}: {served} of 4 calls, traces: {traces}{why}").expect("a text takes it");
    }
    // A cumulative sum is served from MLX 0.32.3 on.
    let scan = if Feature::ScanShapes.is_there() {
        "scan: 4 of 4 calls, traces: 1\n"
    } else {
        "scan: 0 of 4 calls, traces: 0; [Primitive::output_shapes] CumSum cannot infer output shapes.\n"
    };
    assert!(told.contains(scan), "{told}");
    let told = told.replace(scan, "");
    expect![[r#"
        split: 0 of 4 calls, traces: 0; [Primitive::output_shapes] Split cannot infer output shapes.
        sort: 4 of 4 calls, traces: 1
        broadcast: 2 of 4 calls, traces: 1; the static parameters of a node differ: broadcast[shape=(4,4)] became broadcast[shape=(6,4)]
        mean: 4 of 4 calls, traces: 1
        gradient: 4 of 4 calls, traces: 1
        checkpoint: 0 of 4 calls, traces: 0; [Primitive::output_shapes] CustomTransforms cannot infer output shapes.
        custom vjp: 0 of 4 calls, traces: 0; [Primitive::output_shapes] CustomTransforms cannot infer output shapes.
    "#]].assert_eq(&told);
    Ok(())
}

/// MLX's compile documentation reshapes by its extents, which is an error for the next shape; `flatten` is the cure that
/// the error names.
#[test]
fn flatten_serves_the_shapes_that_reshape_is_refused() -> Result<()> {
    let documented: [&[i32]; 2] = [&[2, 3, 4], &[5, 5, 3]];
    let mut reshaped = compile_with(shapeless(), |x: Array| x.reshape(&[x.shape()[0] * x.shape()[1], -1]));
    reshaped.call(normal(0, documented[0])?)?;
    let error = reshaped.call(normal(1, documented[1])?).expect_err("another product of extents");
    expect![[r#"
        f was compiled without shapes and cannot be: the static parameters of a node differ: reshape[shape=(6,-1)] became reshape[shape=(25,-1)]
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`"#]]
    .assert_eq(&error.to_string());
    let mut flattened = compile_with(shapeless(), |x: Array| ops::flatten(x, 0, 1));
    for (seed, shape) in documented.into_iter().enumerate() {
        let x = normal(seed as u64, shape)?;
        let result = flattened.call(&x)?.dense()?;
        let rows = shape[0] * shape[1];
        assert_eq!(result.shape(), [rows, shape[2]]);
        assert!(result.eq_exact(&x.reshape(&[rows, -1])?)?);
    }
    assert_eq!((flattened.stats().traces, flattened.stats().checked), (1, 1));
    Ok(())
}

/// One head over all that a cache holds.
fn attend(query: &Array, keys: &Array, values: &Array, mask: Option<&Array>) -> Result<Array> {
    let mut scores = query.matmul(keys.t())?;
    if let Some(mask) = mask {
        scores = scores.add(mask)?;
    }
    Ok(ops::softmax_axis(&scores, -1, None)?.matmul(values)?)
}

type Cache = (Array, Array);

/// A token: a query, a key and a value.
fn token(step: u64) -> Result<(Array, Array, Array)> {
    Ok((normal(3 * step, &[1, 8])?, normal(3 * step + 1, &[1, 8])?, normal(3 * step + 2, &[1, 8])?))
}

/// A decode loop whose cache is concatenated to, compiled without shapes: what the pull request for shapeless compile of
/// MLX wanted. Lengths 0 and 1 broadcast by other rules and have traces of their own; one more serves all that follow. A
/// cache of fixed capacity, written at a position that is an argument, needs one trace from the start.
#[test]
fn a_growing_cache_without_shapes_has_three_traces_and_a_fixed_one_has_one() -> Result<()> {
    let grow = |(keys, values): &mut Cache, (query, key, value): (Array, Array, Array)| {
        *keys = ops::concatenate(&[&*keys, &key], 0)?;
        *values = ops::concatenate(&[&*values, &value], 0)?;
        attend(&query, keys, values, None)
    };
    let mut growing = compile_with_state(CompileOptions { shapeless: true, ..denied() }, grow);
    let mut shaped = compile_with_state(denied(), grow);
    let mut fixed = compile_with_state(
        denied(),
        |(keys, values): &mut Cache, (position, (query, key, value)): (Array, (Array, Array, Array))| {
            *keys = tacit::extra_ops::dynamic_slice_update(&*keys, &key, &position, &[0])?;
            *values = tacit::extra_ops::dynamic_slice_update(&*values, &value, &position, &[0])?;
            let places = Array::from_iter(0..16, &[1, 16]);
            let mask = ops::select(places.le(&position)?, Array::from_f32(0.0), Array::from_f32(f32::NEG_INFINITY))?;
            attend(&query, keys, values, Some(&mask))
        },
    );
    let empty = || Ok::<_, Error>((ops::zeros::<f32>(&[0, 8])?, ops::zeros::<f32>(&[0, 8])?));
    let mut eager = empty()?;
    let mut states = [empty()?, empty()?];
    let mut room = (ops::zeros::<f32>(&[16, 8])?, ops::zeros::<f32>(&[16, 8])?);
    for step in 0..10 {
        let (query, key, value) = token(step)?;
        let expected = grow(&mut eager, (query.clone(), key.clone(), value.clone()))?;
        let args = (&query, &key, &value);
        let [first, second] = &mut states;
        let results = [
            growing.call(first, args)?.dense()?,
            shaped.call(second, args)?.dense()?,
            fixed.call(&mut room, (Array::from_slice(&[step as i32], &[1]), args))?.dense()?,
        ];
        for result in results {
            assert!(result.all_close(&expected, 1e-5, 1e-6, None)?, "step {step}");
        }
        assert_eq!(states[0].0.shape(), [step as i32 + 1, 8]);
    }
    let stats = growing.stats();
    assert_eq!((stats.traces, stats.checked), (3, 7));
    assert_eq!((shaped.stats().traces, fixed.stats().traces), (10, 1));
    Ok(())
}

#[test]
fn a_shape_in_the_structure_of_what_is_returned_is_refused() -> Result<()> {
    let mut f = compile_with(shapeless(), |x: Array| Ok::<_, Error>((x.exp()?, Static(x.shape()[0]))));
    let (_, rows) = f.call(normal(0, &[4, 3])?)?;
    assert_eq!(rows.0, 4);
    // And a second time, once the shape was seen.
    let mut said = String::new();
    for seed in [1, 2] {
        said += &said_of(f.call(normal(seed, &[6, 3])?));
    }
    expect![[r#"
        f was compiled without shapes and cannot be: a shape went into the structure of its results: static value 4 -> 6 at `results.1`
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`
        f was compiled without shapes and cannot be: a shape went into the structure of its results: static value 4 -> 6 at `results.1`
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`
    "#]].assert_eq(&said);
    Ok(())
}

#[test]
fn a_shape_in_the_structure_of_a_state_is_refused() -> Result<()> {
    let mut f = compile_with_state(shapeless(), |(sum, rows): &mut (Array, Static<i32>), x: Array| {
        rows.0 = x.shape()[0];
        *sum = sum.add(x.max(None)?)?;
        x.exp()
    });
    let start = || (Array::from_f32(0.0), Static(0));
    let mut state = start();
    f.call(&mut state, normal(0, &[4, 3])?)?;
    assert_eq!(state.1.0, 4);
    let mut state = start();
    expect![[r#"
        f was compiled without shapes and cannot be: a shape went into the structure of its results: static value 4 -> 6 at `state.1`
        help: let no extent go into the function, as in `flatten` for `reshape`, or compile it with `shapeless: false`
    "#]].assert_eq(&said_of(f.call(&mut state, normal(1, &[6, 3])?)));
    assert_eq!(state.1.0, 0);
    Ok(())
}
