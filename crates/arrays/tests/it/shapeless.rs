//! Functions without shapes of implicit arrays: one trace for every shape, in the numbers of the dense function.

use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_arrays::{Concat, Int8Array, Lora, LowRank, Masked, Nf4Array, Scaled, Sparse24};
use tacit_conformance::assert_close;
use tacit_core::compile::{CompileOptions, Constants, disable_fusion};
use tacit_core::{Error, Policy, Result, Value, compile_with, implicit};

use crate::half_types::full;
use crate::operands::{FORMATS, nf4, normal};

/// Of something that is multiplied or chosen by, and of a weight.
type Function = fn((Array, Array)) -> Result<Array>;

/// Where rows of `x` are multiplied: the axes before those of a row, at three shapes, for each number of axes.
const BATCHES: [[&[i32]; 3]; 3] =
    [[&[2], &[5], &[33]], [&[2, 3], &[5, 4], &[3, 33]], [&[2, 3, 4], &[3, 2, 5], &[2, 2, 2]]];

fn rows(batch: &[i32], depth: i32) -> Array {
    normal(depth as u64, &[batch, &[depth]].concat())
}

/// The same with rows and columns of each matrix swapped.
fn columns(batch: &[i32], depth: i32) -> Array {
    rows(batch, depth).swap_axes(-1, -2).expect("two axes")
}

/// Numbers of rows of a matrix of 40.
fn tokens(shape: &[i32]) -> Array {
    Array::from_iter((0..shape.iter().product()).map(|at: i32| (at * 7 % 40) as u32), shape)
}

fn dense(f: Function, x: &Array, w: &Value) -> Result<Array> {
    let _allow = Policy::Allow.scope();
    f((x.clone(), w.dense()?))
}

/// Calls `f` on each of `xs` and `w`: one trace serves them, and gives what is expected.
#[track_caller]
fn serves(what: &str, w: &Value, f: Function, xs: &[Array], expected: impl Fn(&Array) -> Result<Array>) {
    // Each kernel of MLX's would cost a run of the C++ compiler.
    disable_fusion();
    let options = CompileOptions { shapeless: true, constants: Constants::Deny, ..CompileOptions::default() };
    let mut compiled = compile_with(options, f);
    for x in xs {
        let told = |error: Error| panic!("{what} of {w} and {:?}: {error}", x.shape());
        let made = compiled.call((x, w)).and_then(|made| made.dense()).unwrap_or_else(told);
        assert_close!(made, expected(x).unwrap_or_else(told), 1e-5, "{what} of {w}");
    }
    let stats = compiled.stats();
    assert_eq!((stats.traces, stats.checked), (1, xs.len() as u64 - 1), "{what} of {w}");
}

const TIMES_TRANSPOSE: Function = |(x, w)| Ok(x.matmul(w.t())?);

const ON_THE_LEFT: Function = |(x, w)| Ok(w.matmul(x)?);

/// Products with a weight `[40, 64]`, and what is summed over.
const BY_ROWS: [(&str, Function, i32); 7] = [
    ("x W^T", TIMES_TRANSPOSE, 64),
    ("x W", |(x, w)| Ok(x.matmul(w)?), 40),
    ("x W^T + c", |(x, w)| Ok(ops::addmm(bias(), x, w.t(), None, None)?), 64),
    ("a x W^T + b c", |(x, w)| Ok(ops::addmm(bias(), x, w.t(), 0.5, 2.0)?), 64),
    ("x (s W)^T", |(x, w)| Ok(x.matmul(w.multiply(Array::from_f32(0.5))?.t())?), 64),
    ("x (W / s)^T + d", |(x, w)| Ok(x.matmul(w.divide(Array::from_f32(0.5))?.t())?.add(bias())?), 64),
    ("gradient", |(x, w)| Ok(transforms::grad(|x: &Array| x.matmul(w.t())?.square()?.sum(None))(&x)?), 64),
];

const BY_COLUMNS: [(&str, Function, i32); 2] = [("W x", ON_THE_LEFT, 64), ("W^T x", |(x, w)| Ok(w.t().matmul(x)?), 40)];

fn bias() -> Array {
    Array::from_iter((0..40).map(|at| at as f32 / 8.0), &[40])
}

fn lora() -> Value {
    Lora::new(nf4(&normal(1, &[40, 64]), 64), normal(2, &[2, 64]), normal(3, &[40, 2]), 4.0).expect("fits").into()
}

fn scaled() -> Value {
    Scaled::new(nf4(&normal(1, &[40, 64]), 64), &Array::from_f32(0.5)).expect("fits").into()
}

#[test]
fn products_on_both_sides_build_nothing() {
    let _deny = Policy::Deny.scope();
    for w in [nf4(&normal(1, &[40, 64]), 64), lora(), scaled()] {
        for batches in BATCHES {
            for (what, f, depth) in BY_ROWS {
                serves(what, &w, f, &batches.map(|batch| rows(batch, depth)), |x| dense(f, x, &w));
            }
            for (what, f, depth) in BY_COLUMNS {
                serves(what, &w, f, &batches.map(|batch| columns(batch, depth)), |x| dense(f, x, &w));
            }
        }
    }
}

#[test]
fn every_format_multiplies_a_batch_and_is_an_embedding() {
    let _deny = Policy::Deny.scope();
    let taken: Function = |(at, w)| Ok(w.take_axis(at, 0)?);
    for format in &FORMATS {
        let w = (format.of)(&normal(1, &[40, 64])).expect("quantizes");
        serves("x W^T", &w, TIMES_TRANSPOSE, &BATCHES[1].map(|batch| rows(batch, 64)), |x| {
            dense(TIMES_TRANSPOSE, x, &w)
        });
        serves("rows", &w, taken, &BATCHES[1].map(tokens), |at| dense(taken, at, &w));
    }
    let w = Value::from(Sparse24::prune(&normal(1, &[40, 64])).expect("groups of four"));
    serves("rows", &w, taken, &BATCHES[1].map(tokens), |at| dense(taken, at, &w));
    let w = nf4(&normal(1, &[40, 2, 32]), 32);
    serves("rows of matrices", &w, taken, &BATCHES[1].map(tokens), |at| dense(taken, at, &w));
}

/// They round in each row what they round without a trace.
#[test]
fn activations_of_8_bits_are_rounded() {
    let _deny = Policy::Deny.scope();
    let w = Nf4Array::quantize(&normal(1, &[40, 64]), 64).and_then(Nf4Array::with_int8_activations);
    let w = Value::from(w.expect("quantizes"));
    let plain = |f: Function, x: &Array| implicit((x, &w), f)?.dense();
    for batches in BATCHES {
        let xs = batches.map(|batch| rows(batch, 64));
        serves("x W^T", &w, TIMES_TRANSPOSE, &xs, |x| plain(TIMES_TRANSPOSE, x));
    }
    let xs = BATCHES[1].map(|batch| columns(batch, 64));
    serves("W x", &w, ON_THE_LEFT, &xs, |x| plain(ON_THE_LEFT, x));
}

/// With a sum as large as the product the matrix is repeated in shapes that are written down, of which nothing is left.
#[test]
fn a_sum_for_each_row_is_added() {
    let _deny = Policy::Deny.scope();
    let w = nf4(&normal(1, &[40, 64]), 64);
    let f: Function = |(x, w)| Ok(ops::addmm(x.sum_axis(-1, true)?, &x, w.t(), None, None)?);
    for batches in BATCHES {
        serves("x W^T + C", &w, f, &batches.map(|batch| rows(batch, 64)), |x| dense(f, x, &w));
    }
}

#[test]
fn a_sum_of_half_floats_may_be_large_before() {
    let _deny = Policy::Deny.scope();
    disable_fusion();
    let half = |shape: &[i32], value: f32| full(Dtype::Float16, shape, value);
    let w = Value::from(Int8Array::quantize(&half(&[4, 32], 10.0), 32).expect("quantizes"));
    for (alpha, beta, addend, expected) in
        [(1.0f32, 1.0f32, -20_000.0f32, 60_000.0f32), (0.5, 0.0, f32::INFINITY, 40_000.0)]
    {
        let bias = half(&[4], addend);
        let options = CompileOptions { shapeless: true, ..CompileOptions::default() };
        let sum = move |(c, x, w): (Array, Array, Array)| Ok::<_, Error>(ops::addmm(c, x, w.t(), alpha, beta)?);
        let mut sum = compile_with(options, sum);
        for batch in [2, 5] {
            let x = half(&[batch, 3, 32], 250.0);
            let found = sum.call((&bias, &x, &w)).and_then(|found| found.dense()).expect("runs");
            let found = found.as_dtype(Dtype::Float32).expect("casts");
            found.eval().expect("evaluates");
            assert!(found.as_slice::<f32>().iter().all(|y| y.to_bits() == expected.to_bits()), "{found:?}");
        }
    }
}

#[test]
fn elements_are_added_and_multiplied_where_they_are_stored() {
    let _deny = Policy::Deny.scope();
    let xs = BATCHES[1].map(|batch| rows(batch, 64));
    let sum: Function = |(x, w)| Ok(x.matmul(w.add(Array::from_f32(0.5))?.t())?);
    let w = nf4(&normal(1, &[40, 64]), 64);
    serves("x (W + s)^T", &w, sum, &xs, |x| dense(sum, x, &w));
    let product: Function = |(x, w)| Ok(x.matmul(bias().expand_dims(1)?.multiply(w)?.t())?);
    let w = Value::from(LowRank::new(normal(2, &[40, 2]), normal(3, &[2, 64])).expect("a product"));
    serves("x (diag(d) W)^T", &w, product, &xs, |x| dense(product, x, &w));
}

/// A stack, for each of its matrices and for batches of them.
#[test]
fn stacks_are_multiplied_for_any_batch() {
    let _deny = Policy::Deny.scope();
    let w = nf4(&normal(1, &[4, 40, 64]), 64);
    let batches: [[&[i32]; 3]; 2] = [[&[4, 2], &[4, 5], &[4, 33]], [&[2, 4, 3], &[5, 4, 2], &[3, 4, 7]]];
    let transposed: Function = |(x, w)| Ok(x.matmul(w.swap_axes(-1, -2)?)?);
    let plain: Function = |(x, w)| Ok(x.matmul(w)?);
    for batches in batches {
        serves("x W^T", &w, transposed, &batches.map(|batch| rows(batch, 64)), |x| dense(transposed, x, &w));
        serves("x W", &w, plain, &batches.map(|batch| rows(batch, 40)), |x| dense(plain, x, &w));
        serves("W x", &w, ON_THE_LEFT, &batches.map(|batch| columns(batch, 64)), |x| dense(ON_THE_LEFT, x, &w));
    }
}

#[test]
fn attention_to_stored_tokens_has_one_trace() {
    let _deny = Policy::Deny.scope();
    let w = nf4(&normal(1, &[2, 2, 5, 64]), 64);
    let f: Function = |(q, kv)| {
        let scores = q.matmul(kv.swap_axes(-1, -2)?)?.multiply(Array::from_f32(0.125))?;
        Ok(ops::softmax_axis(scores, -1, None)?.matmul(kv)?)
    };
    let batches: [&[i32]; 3] = [&[2, 2, 3], &[2, 2, 7], &[2, 2, 5]];
    serves("attention", &w, f, &batches.map(|batch| rows(batch, 64)), |q| dense(f, q, &w));
}

/// Tokens behind stored ones may be as many as they are, and parts are repeated as often as the other side of a sum says.
#[test]
fn parts_of_any_extent_have_one_trace() {
    let _allow = Policy::Allow.scope();
    let w = nf4(&normal(1, &[2, 5, 64]), 64);
    let scores: Function = |(x, w)| {
        let joined = ops::concatenate(&[&w, &x], 1)?.expand_dims(1)?;
        Ok(x.expand_dims(1)?.matmul(joined.swap_axes(-1, -2)?)?)
    };
    serves("scores", &w, scores, &[3, 4, 33].map(|tokens| rows(&[2, tokens], 64)), |x| dense(scores, x, &w));
    let halves = [2, 3].map(|seed| nf4(&normal(seed, &[20, 64]), 64)).to_vec();
    let w = Value::from(Concat::new(halves, 0).expect("fits"));
    let sum: Function = |(x, w)| Ok(x.add(w)?);
    serves("x + W", &w, sum, &[2, 5, 3].map(|batch| rows(&[batch, 40], 64)), |x| dense(sum, x, &w));
}

/// What must be built for a product is built, for every shape as for one.
#[test]
fn what_is_built_serves_every_shape_too() {
    let _allow = Policy::Allow.scope();
    let xs = BATCHES[1].map(|batch| rows(batch, 64));
    let mask = normal(2, &[40, 64]).gt(Array::from_f32(0.0)).expect("a mask");
    let halves = [2, 3].map(|seed| nf4(&normal(seed, &[40, 32]), 32)).to_vec();
    let built: [Value; 3] = [
        Masked::new(nf4(&normal(1, &[40, 64]), 64), mask).expect("fits").into(),
        Sparse24::prune(&normal(1, &[40, 64])).expect("groups of four").into(),
        // Of which the product cuts `x`, for which MLX has no rule without shapes.
        Concat::new(halves, 1).expect("fits").into(),
    ];
    for w in built {
        serves("x W^T", &w, TIMES_TRANSPOSE, &xs, |x| dense(TIMES_TRANSPOSE, x, &w));
    }
}
