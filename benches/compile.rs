//! What a compiled call costs beside mlx-rs's own compile on the same plain arrays.

use std::fs;
use std::hint::black_box;

use mlx_rs::error::Exception;
use mlx_rs::transforms::compile::compile as mlx_compile;
use mlx_rs::{Array, memory, ops, random, transforms};
use tacit::compile::compile_with;
use tacit::compile::{CompileOptions, Constants};
use tacit::prelude::*;
use tacit::tree;
use tacit_arrays::format::{Format, Nf4};
use tacit_arrays::kernel::{Layout, matmul};
use tacit_figures::{Bench, Unit};
use tacit_kernels::Orientation;

const WIDTH: i32 = 512;
const LAYERS: usize = 50;
const BLOCK: usize = 64;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("compile");
    let weights = weights()?;
    let x = random::normal::<f32>(&[1, WIDTH], None, None, &random::key(0)?)?;
    x.eval()?;
    steady(&bench, &x, &weights)?;
    trace(&bench, &x, &weights)?;
    fast_path(&bench)?;
    gelu(&bench)?;
    alternations(&bench, &x, &weights)?;
    soak(&bench, &x, &weights)
}

fn options() -> CompileOptions {
    CompileOptions { constants: Constants::Deny, ..CompileOptions::default() }
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

const ON_PARTS: &str = "mlx-rs's compile on the codes and scales";

/// A call and the eval of its result.
fn steady(bench: &Bench, x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, weights);
    let mut ours = compile_with(options(), products);
    let parts = parts(x, weights)?;
    let mut theirs = mlx_compile(products_of_parts, false);
    let expected = theirs(&parts)?.swap_remove(0);
    let made = ours.call(&args)?.dense()?;
    assert!(made.as_slice::<f32>() == expected.as_slice::<f32>(), "the products differ");
    let turns = bench.turns().run("ours", || Ok::<_, Error>(ours.call(&args)?.dense()?.eval()?));
    turns.run(ON_PARTS, || Ok(theirs(&parts)?[0].eval()?)).take()?.record("steady", Unit::time("us/call"));
    Ok(())
}

/// The trace and the first call, evaluated.
fn trace(bench: &Bench, x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, weights);
    let parts = parts(x, weights)?;
    let rounds = bench
        .turns()
        .run("ours", || Ok::<_, Error>(compile_with(options(), products).call(&args)?.dense()?.eval()?))
        .run(ON_PARTS, || {
            let mut f = mlx_compile(products_of_parts, false);
            Ok(f(&parts)?[0].eval()?)
        })
        .take()?;
    rounds.record("trace", Unit::time("ms"));
    Ok(())
}

/// A call with no implicit argument, not evaluated: the nanoseconds above those of mlx-rs.
fn fast_path(bench: &Bench) -> Result<()> {
    let (x, y) = (Array::from_f32(1.0), Array::from_f32(2.0));
    let args = (&x, &y);
    let mut ours = compile_with(options(), |(x, y): (Array, Array)| x.add(y));
    let mut theirs = mlx_compile(|(x, y): (&Array, &Array)| x.add(y), false);
    let rounds = bench
        .turns()
        .run("ours", || {
            black_box(ours.call(&args)?);
            Ok::<_, Error>(())
        })
        .run("mlx-rs's compile", || {
            black_box(theirs((&x, &y))?);
            Ok(())
        })
        .take()?;
    rounds.record("fast_path", Unit::above("ns above it"));
    Ok(())
}

/// The plainly written GELU of MLX's compile documentation, at its shape: eager it is five kernels, compiled one. On a CPU MLX's
/// `erf` takes nearly all of either.
fn gelu(bench: &Bench) -> Result<()> {
    if !bench.wants("gelu") {
        return Ok(());
    }
    let gelu = |x: &Array| {
        let whole = ops::erf(x.divide(Array::from_f32(f32::sqrt(2.0)))?)?.add(Array::from_f32(1.0))?;
        x.multiply(whole)?.divide(Array::from_f32(2.0))
    };
    let rows = if bench.is_quick() { 10 } else { 1000 };
    let x = random::uniform::<_, f32>(0.0, 1.0, &[32, rows, 4096], &random::key(0)?)?;
    x.eval()?;
    let mut ours = compile_with(options(), |x: Array| gelu(&x));
    let mut theirs = mlx_compile(gelu, false);
    let (made, expected) = (ours.call(&x)?.dense()?, gelu(&x)?);
    assert!(made.all_close(&expected, 1e-5, 1e-6, None)?, "the results differ");
    let rounds = bench
        .turns()
        .run("ours", || tree::eval(&ours.call(&x)?))
        .run("mlx-rs's compile", || Ok(theirs(&x)?.eval()?))
        .run("eager", || Ok(gelu(&x)?.eval()?))
        .take()?;
    rounds.record("gelu", Unit::time("ms"));
    Ok(())
}

/// Calls that alternate between two structures: as many traces as structures.
fn alternations(bench: &Bench, x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let (x, weights) = values(x, &weights[..2]);
    let (one, two) = ((x.clone(), weights[..1].to_vec()), (x, weights));
    let mut f = compile_with(options(), products);
    let mut same = compile_with(options(), products);
    let mut next = 0;
    let rounds = bench
        .turns()
        .run("alternating", || {
            next += 1;
            black_box(f.call(if next % 2 == 0 { &one } else { &two })?);
            Ok::<_, Error>(())
        })
        .run("staying", || {
            black_box(same.call(&two)?);
            Ok(())
        })
        .take()?;
    rounds.record("alternating", Unit::time("us/call"));
    drop(rounds);
    let structures = 2.0;
    bench.amount("alternations", f.stats().traces as f64, "traces", "one for each structure", structures);
    assert!(f.stats().calls >= 100 && f.stats().traces == 2, "{:?}", f.stats());
    Ok(())
}

/// 100,000 calls: active memory and threads are what they were after 1,000.
fn soak(bench: &Bench, x: &Array, weights: &[Nf4Array]) -> Result<()> {
    let args = values(x, &weights[..1]);
    let mut f = compile_with(options(), products);
    let mut run = |calls: usize| -> Result<(usize, usize)> {
        for _ in 0..calls {
            f.call(&args)?.dense()?.eval()?;
        }
        Ok((memory::active_memory()?, threads()))
    };
    let early = run(1_000)?;
    let late = run(99_000)?;
    let kibibytes = |bytes: usize| bytes as f64 / 1024.0;
    bench.amount("soak/memory", kibibytes(late.0), "KiB", AFTER, kibibytes(early.0));
    bench.amount("soak/threads", late.1 as f64, "threads", AFTER, early.1 as f64);
    Ok(())
}

const AFTER: &str = "after 1,000 calls";

/// The threads of this process, where the system tells.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
