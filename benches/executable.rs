//! What an executable adds to a call of the compiled function that it holds.

mod figures;

use std::time::Instant;

use figures::Figure;
use mlx_rs::{Array, Dtype, random, transforms};
use tacit::compile;
use tacit::executable::Executable;
use tacit::executable::Mode;
use tacit::prelude::*;

const WIDTH: i32 = 512;
const LAYERS: usize = 8;
const ROUNDS: usize = 401;

/// A token's way through the layers of a small decoder.
fn layers<'a>(x: &Array, weights: impl Iterator<Item = &'a Array>) -> Result<Array> {
    let mut x = x.clone();
    for weight in weights {
        x = x.add(x.matmul(weight.t())?.sin()?)?;
    }
    Ok(x)
}

fn evaluated(outputs: &[Value]) {
    transforms::eval(outputs.iter().filter_map(Value::as_dense)).expect("the results can be evaluated");
}

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> Result<()> {
    random::seed(0)?;
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, 0.05, None);
    let weights = (0..LAYERS).map(|_| Ok(Nf4Array::quantize(&normal(&[WIDTH, WIDTH])?, 64)?.into()));
    let weights = weights.collect::<Result<Vec<Value>>>()?;
    let x = normal(&[1, WIDTH])?;
    for value in &weights {
        transforms::eval(tacit::tree::leaves(value, tacit::tree::Open::Fully)?.iter().filter_map(Value::as_dense))?;
    }
    x.eval()?;

    let names: Vec<String> = (0..LAYERS).map(|layer| format!("weight{layer}")).collect();
    let mut builder = Executable::builder("decoder").mode(Mode::Compiled).output("y");
    for name in &names {
        builder = builder.parameter(name, Aval::new(&[WIDTH, WIDTH], Dtype::Float32));
    }
    let mut executable = builder.input("x", Aval::from(&x)).build(|given| {
        let weights = names.iter().map(|name| given.get(name)).collect::<Result<Vec<&Array>>>()?;
        Ok(vec![layers(given.get("x")?, weights.into_iter())?])
    })?;
    for (name, weight) in names.iter().zip(&weights) {
        executable.set_parameter(name, weight)?;
    }
    let mut compiled = compile(|(weights, x): (Vec<Array>, Array)| Ok::<_, Error>(vec![layers(&x, weights.iter())?]));
    let args = (weights, Value::from(&x));

    let mut outputs = Vec::new();
    let mut direct = || seconds(|| evaluated(&compiled.call(&args).expect("the compiled function runs")));
    let mut positional = || {
        seconds(|| {
            executable.run_positional(&[&x], &mut outputs).expect("the executable runs");
            evaluated(&outputs);
        })
    };
    // Which comes first changes from round to round; the first rounds trace and warm the caches.
    let pairs: Vec<(f64, f64)> = (0..ROUNDS + 20)
        .map(|round| {
            if round % 2 == 0 {
                let first = direct();
                (first, positional())
            } else {
                let first = positional();
                (direct(), first)
            }
        })
        .skip(20)
        .collect();
    let (direct, positional): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let (direct, positional) = (middle(direct), middle(positional));
    Figure {
        bench: "executable",
        case: "positional",
        value: positional * 1e6,
        unit: "us",
        baseline: "calling the compiled function",
        ratio: positional / direct,
    }
    .record();
    Ok(())
}
