//! What a compiled call costs beside mlx-rs's own compile on the same plain arrays.

mod figures;

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use figures::Figure;
use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile as mlx_compile;
use mlx_rs::{Array, memory, random, transforms};
use tacit::compile::compile_with;
use tacit::compile::{Constants, Options};
use tacit::prelude::*;
use tacit_arrays::format::{Format, Nf4};
use tacit_arrays::kernel::{Layout, matmul};
use tacit_kernels::Orientation;

const WIDTH: i32 = 512;
const LAYERS: usize = 50;
const BLOCK: usize = 64;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let weights = weights()?;
    let x = random::normal::<f32>(&[1, WIDTH], None, None, &random::key(0)?)?;
    x.eval()?;
    steady(&x, &weights)?;
    trace(&x, &weights)?;
    fast_path()?;
    alternations(&x, &weights)?;
    soak(&x, &weights)
}

fn options() -> Options {
    Options { constants: Constants::Deny, ..Options::default() }
}

fn weights() -> Result<Vec<Nf4Array>> {
    let scale = 1.0 / f32::sqrt(WIDTH as f32);
    let made: Vec<Nf4Array> = (0..LAYERS)
        .map(|layer| {
            let w = random::normal::<f32>(&[WIDTH, WIDTH], None, scale, &random::key(layer as u64)?)?;
            Nf4Array::quantize(&w, BLOCK)
        })
        .collect::<Result<_>>()?;
    for weight in &made {
        transforms::eval([weight.codes(), &weight.scales().expect("scales").dense()?])?;
    }
    Ok(made)
}

fn values(x: &Array, weights: &[Nf4Array]) -> (Value, Vec<Value>) {
    (x.into(), weights.iter().map(|weight| weight.clone().into()).collect())
}

/// Dependent products: plain code, which does not know that the weights are NF4.
fn products((x, weights): (Array, Vec<Array>)) -> Result<Array, Exception> {
    weights.iter().try_fold(x, |x, w| x.matmul(w.t()))
}

/// The same on the codes and scales themselves.
fn products_of_parts(arrays: &[Array]) -> Result<Vec<Array>, Exception> {
    let scheme = Nf4::from(BLOCK).scheme();
    let layout = Layout { scheme, n: WIDTH as usize, k: WIDTH as usize, block: BLOCK };
    let x = arrays[1..].chunks_exact(2).try_fold(arrays[0].clone(), |x, parts| {
        matmul(&x, layout, parts, Orientation::Transposed).map_err(Exception::from)
    })?;
    Ok(vec![x])
}

fn parts(x: &Array, weights: &[Nf4Array]) -> Result<Vec<Array>> {
    let mut parts = vec![x.clone()];
    for weight in weights {
        parts.extend([weight.codes().clone(), weight.scales().expect("scales").dense()?]);
    }
    Ok(parts)
}

/// Seconds a call of each, over rounds of `calls` calls taken in turn: of the pairs, the one with the median ratio.
fn paired(rounds: usize, calls: usize, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
    let time = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        start.elapsed().as_secs_f64() / calls as f64
    };
    let mut pairs: Vec<(f64, f64)> = (0..=rounds)
        .map(|round| {
            if round % 2 == 0 {
                let first = time(&mut ours);
                (first, time(&mut theirs))
            } else {
                let first = time(&mut theirs);
                (time(&mut ours), first)
            }
        })
        .skip(1)
        .collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    pairs[pairs.len() / 2]
}

/// A call and the eval of its result.
fn steady(x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, weights);
    let mut ours = compile_with(products, options());
    let parts = parts(x, weights)?;
    let mut theirs = mlx_compile(products_of_parts, false);
    let expected = theirs(&parts)?.swap_remove(0);
    let made = ours.call(&args)?.dense()?;
    assert!(made.as_slice::<f32>() == expected.as_slice::<f32>(), "the products differ");
    let (ours, theirs) = paired(
        101,
        20,
        || ours.call(&args).and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there"),
        || theirs(&parts).and_then(|y| y[0].eval()).expect("the products are there"),
    );
    let (bench, baseline) = ("compile", "mlx-rs's compile on the codes and scales");
    Figure { bench, case: "steady", value: ours * 1e6, unit: "us/call", baseline, ratio: ours / theirs }.record();
    Ok(())
}

/// The trace and the first call, evaluated.
fn trace(x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, weights);
    let parts = parts(x, weights)?;
    let (ours, theirs) = paired(
        31,
        1,
        || {
            let mut f = compile_with(products, options());
            f.call(&args).and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there");
        },
        || {
            let mut f = mlx_compile(products_of_parts, false);
            f(&parts).and_then(|y| y[0].eval()).expect("the products are there");
        },
    );
    let (bench, baseline) = ("compile", "mlx-rs's compile on the codes and scales");
    Figure { bench, case: "trace", value: ours * 1e3, unit: "ms", baseline, ratio: ours / theirs }.record();
    Ok(())
}

/// A call with no implicit argument, not evaluated: the nanoseconds above those of mlx-rs.
fn fast_path() -> Result<()> {
    let (x, y) = (Array::from_f32(1.0), Array::from_f32(2.0));
    let args: (Value, Value) = ((&x).into(), (&y).into());
    let mut ours = compile_with(|(x, y): (Array, Array)| x.add(y), options());
    let mut theirs = mlx_compile(|(x, y): (&Array, &Array)| x.add(y), false);
    let (ours, theirs) = paired(
        201,
        1_000,
        || drop(black_box(ours.call(&args).expect("a sum"))),
        || drop(black_box(theirs((&x, &y)).expect("a sum"))),
    );
    let (bench, baseline) = ("compile", "mlx-rs's compile");
    let value = (ours - theirs) * 1e9;
    Figure { bench, case: "fast_path", value, unit: "ns above it", baseline, ratio: ours / theirs }.record();
    Ok(())
}

/// Calls that alternate between two structures: as many traces as structures.
fn alternations(x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let (x, weights) = values(x, &weights[..2]);
    let (one, two) = ((x.clone(), weights[..1].to_vec()), (x, weights));
    let mut f = compile_with(products, options());
    let mut same = compile_with(products, options());
    let mut next = 0;
    let (alternating, staying) = paired(
        11,
        1_000,
        || {
            next += 1;
            drop(black_box(f.call(if next % 2 == 0 { &one } else { &two }).expect("the products are there")));
        },
        || drop(black_box(same.call(&two).expect("the products are there"))),
    );
    assert!(f.stats().calls >= 10_000);
    let (bench, baseline) = ("compile", "calls that stay with one structure");
    let value = f.stats().traces as f64;
    Figure { bench, case: "alternations", value, unit: "traces", baseline, ratio: alternating / staying }.record();
    assert_eq!(f.stats().traces, 2);
    Ok(())
}

/// 100,000 calls: active memory and threads are what they were after 1,000.
fn soak(x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, &weights[..1]);
    let mut f = compile_with(products, options());
    let mut run = |calls: usize| -> Result<(usize, usize)> {
        for _ in 0..calls {
            f.call(&args)?.dense()?.eval()?;
        }
        Ok((memory::active_memory()?, threads()))
    };
    let early = run(1_000)?;
    let late = run(99_000)?;
    let (bench, baseline) = ("compile", "after 1,000 calls");
    let ratio = late.0 as f64 / early.0 as f64;
    Figure { bench, case: "soak/memory", value: late.0 as f64 / 1024.0, unit: "KiB", baseline, ratio }.record();
    let ratio = late.1 as f64 / early.1 as f64;
    Figure { bench, case: "soak/threads", value: late.1 as f64, unit: "threads", baseline, ratio }.record();
    Ok(())
}

/// The threads of this process, where the system tells.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
