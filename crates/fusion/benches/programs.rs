//! Programs over rows beside the loops that MLX compiles, in turn: least and median milliseconds, and the first calls.

use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{Array, nn, ops, random, transforms};
use tacit_blas as _;
use tacit_core::compile::{CompileOptions, Constants, compile_with};
use tacit_core::pass::Passes;
use tacit_core::{Result, Value};
use tacit_fusion as _;

const ROUNDS: usize = 41;
/// Seconds of one case, at most.
const PATIENCE: f64 = 1.0;

type Function<'f> = &'f dyn Fn(&[Array]) -> Result<Vec<Array>>;

fn normal(shape: &[i32], seed: u64) -> Result<Array> {
    let array = random::normal::<f32>(shape, None, None, &random::key(seed)?)?;
    array.eval()?;
    Ok(array)
}

fn case(name: &str, f: Function<'_>, inputs: &[Array]) -> Result<()> {
    let options = |passes| CompileOptions { passes, constants: Constants::Allow, ..CompileOptions::default() };
    let values: Vec<Value> = inputs.iter().map(Value::from).collect();
    let mut compiled =
        [Passes::Off, Passes::All].map(|passes| compile_with(options(passes), |inputs: Vec<Array>| f(&inputs)));
    let mut first = [0.0; 2];
    let mut times = [Vec::new(), Vec::new()];
    let begin = Instant::now();
    for round in 0..=ROUNDS {
        for (i, compiled) in compiled.iter_mut().enumerate() {
            let start = Instant::now();
            let results = compiled.call(&values)?.iter().map(Value::dense).collect::<Result<Vec<_>>>()?;
            transforms::eval(&results)?;
            let taken = start.elapsed().as_secs_f64() * 1e3;
            if round == 0 {
                first[i] = taken;
            } else {
                times[i].push(taken);
            }
        }
        if round > 4 && begin.elapsed().as_secs_f64() > PATIENCE {
            break;
        }
    }
    let [theirs, ours] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[0], times[times.len() / 2])
    });
    let done: Vec<String> =
        compiled[1].stats().rewritten.iter().map(|done| format!("{} {}", done.nodes, done.pass)).collect();
    println!(
        "{name:20} mlx {:7.3} {:7.3}   passes {:7.3} {:7.3}   ratio {:5.2}   first {:6.1} {:6.1}   {}",
        theirs.0,
        theirs.1,
        ours.0,
        ours.1,
        ours.1 / theirs.1,
        first[0],
        first[1],
        done.join(", ")
    );
    Ok(())
}

fn main() -> Result<()> {
    let rate = || Array::from_f32(0.1);
    let sgd = |inputs: &[Array]| -> Result<Vec<Array>> { Ok(vec![inputs[0].subtract(inputs[1].multiply(rate())?)?]) };
    for shape in [[512, 784], [4096, 4096]] {
        case(&format!("sgd {}x{}", shape[0], shape[1]), &sgd, &[normal(&shape, 0)?, normal(&shape, 1)?])?;
    }
    let adam = |inputs: &[Array]| -> Result<Vec<Array>> {
        let [w, g, m, v] = inputs else { unreachable!() };
        let part = |a: &Array, b: f32| a.multiply(Array::from_f32(b));
        let m = part(m, 0.9)?.add(part(g, 0.1)?)?;
        let v = part(v, 0.999)?.add(part(&g.square()?, 0.001)?)?;
        let step = part(&m, 0.01)?.divide(v.sqrt()?.add(Array::from_f32(1e-8))?)?;
        Ok(vec![w.subtract(step)?, m, v])
    };
    let shape = [512, 784];
    case(
        "adam 512x784",
        &adam,
        &[normal(&shape, 0)?, normal(&shape, 1)?, normal(&shape, 2)?, normal(&shape, 3)?.abs()?],
    )?;
    let rms = |inputs: &[Array]| -> Result<Vec<Array>> {
        Ok(vec![mlx_rs::fast::rms_norm(&inputs[0], Some(&inputs[1]), 1e-5)?])
    };
    case("rms norm 512x1024", &rms, &[normal(&[512, 1024], 0)?, normal(&[1024], 1)?])?;
    let softmax = |inputs: &[Array]| -> Result<Vec<Array>> { Ok(vec![ops::softmax_axis(&inputs[0], -1, true)?]) };
    case("softmax 512x512", &softmax, &[normal(&[512, 512], 0)?])?;
    let gelu = |inputs: &[Array]| -> Result<Vec<Array>> { Ok(vec![nn::gelu(&inputs[0])?]) };
    case("gelu 512x2048", &gelu, &[normal(&[512, 2048], 0)?])?;
    let swiglu = |inputs: &[Array]| -> Result<Vec<Array>> { Ok(vec![nn::silu(&inputs[0])?.multiply(&inputs[1])?]) };
    case("swiglu 512x2048", &swiglu, &[normal(&[512, 2048], 0)?, normal(&[512, 2048], 1)?])?;
    training()
}

/// A step of the perceptron of the peers' figures: 784-512-512-10, a batch of 128, plain SGD.
fn training() -> Result<()> {
    let sizes = [784, 512, 512, 10];
    let mut inputs = vec![normal(&[128, 784], 0)?, normal(&[128, 10], 1)?];
    for (i, pair) in sizes.windows(2).enumerate() {
        let weight = normal(&[pair[1], pair[0]], i as u64)?.multiply(Array::from_f32(0.05))?;
        weight.eval()?;
        inputs.extend([weight, normal(&[pair[1]], i as u64)?]);
    }
    let loss = |inputs: &[Array]| -> std::result::Result<Vec<Array>, Exception> {
        let mut x = inputs[0].clone();
        for (i, layer) in inputs[2..].chunks_exact(2).enumerate() {
            if i > 0 {
                x = nn::relu(&x)?;
            }
            x = ops::addmm(&layer[1], &x, layer[0].t(), 1.0, 1.0)?;
        }
        let labels = ops::indexing::argmax_axis(&inputs[1], 1, true)?;
        let picked = ops::indexing::take_along_axis(&x, labels, -1)?;
        Ok(vec![ops::logsumexp_axis(&x, -1, true)?.subtract(picked)?.mean(None)?])
    };
    let step = |inputs: &[Array]| -> Result<Vec<Array>> {
        let trained: Vec<i32> = (2..inputs.len() as i32).collect();
        let (mut results, gradients) = transforms::value_and_grad_with_argnums(loss, &trained[..])(inputs)?;
        for (weight, gradient) in inputs[2..].iter().zip(gradients) {
            results.push(weight.subtract(gradient.multiply(Array::from_f32(0.05))?)?);
        }
        Ok(results)
    };
    case("step 784-512-512-10", &step, &inputs)
}
