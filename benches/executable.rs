//! What an executable adds to a call of the compiled function that it holds, and where the time of a step goes.

use std::time::{Duration, Instant};

use mlx_rs::{Array, Dtype, random};
use tacit::compile::{Phases, compile};
use tacit::executable::Executable;
use tacit::executable::Mode;
use tacit::prelude::*;
use tacit::tree;
use tacit_figures::{Bench, Unit};

const WIDTH: i32 = 512;
const LAYERS: usize = 8;

/// A token's way through the layers of a small decoder.
fn layers<'a>(x: &Array, weights: impl Iterator<Item = &'a Array>) -> Result<Array> {
    let mut x = x.clone();
    for weight in weights {
        x = x.add(x.matmul(weight.t())?.sin()?)?;
    }
    Ok(x)
}

fn main() -> Result<()> {
    let bench = tacit_figures::bench!("executable");
    random::seed(0)?;
    let normal = |shape: &[i32]| random::normal::<f32>(shape, None, 0.05, None);
    let weights = (0..LAYERS).map(|_| Ok(Nf4Array::quantize(&normal(&[WIDTH, WIDTH])?, 64)?.into()));
    let weights = weights.collect::<Result<Vec<Value>>>()?;
    let x = normal(&[1, WIDTH])?;
    tree::eval(&(&weights, &x))?;

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
    let rounds = bench
        .turns()
        .run("an executable", || {
            executable.run_positional(&[&x], &mut outputs)?;
            tree::eval(&outputs)
        })
        .run("calling the compiled function", || tree::eval(&compiled.call(&args)?))
        .take()?;
    rounds.record("positional", Unit::time("us"));
    drop(rounds);
    phases(&bench, "executable", || {
        outputs.clear();
        executable.run_positional(&[&x], &mut outputs)?;
        tree::eval(&outputs)
    })?;
    phases(&bench, "compiled", || tree::eval(&compiled.call(&args)?))
}

/// Where the time of a step goes, beside the whole of it.
fn phases(bench: &Bench, what: &str, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    if !bench.wants("phases") {
        return Ok(());
    }
    let steps = 200;
    let start = Instant::now();
    let (made, spent) = Phases::during(|| (0..steps).try_for_each(|_| step()));
    made?;
    let each = |time: Duration| 1e6 * time.as_secs_f64() / f64::from(steps);
    let whole = each(start.elapsed());
    for (phase, time) in [
        ("build", spent.build),
        ("trace", spent.trace),
        ("encode", spent.encode),
        ("wait", spent.wait),
        ("compute", spent.compute()),
    ] {
        bench.amount(&format!("phases/{what}/{phase}"), each(time), "us", "the whole step", whole);
    }
    Ok(())
}
