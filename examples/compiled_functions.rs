//! The book's fourth chapter: structures of arrays, their gradients, and functions compiled over them.

// ANCHOR: use
use mlx_rs::error::Exception;
use mlx_rs::{Array, ops, random};
use tacit::compile::{CompileOptions, Constants};
use tacit::compile::{compile_with, compile_with_state};
use tacit::prelude::*;
use tacit::transform::{checkpoint, jvp, value_and_grad, vmap};
use tacit::tree::{self, Gradient, Open};
use tacit::{Tree, compile};

// ANCHOR_END: use

/// A title, and the function that makes what the chapter shows.
type Section = (&'static str, fn() -> Result<String>);

/// In the chapter's order.
pub(crate) const SECTIONS: [Section; 9] = [
    ("opened", opened),
    ("gradient", gradient),
    ("mapped", mapped),
    ("pushed", pushed),
    ("recomputed", recomputed),
    ("retraces", retraces),
    ("captured", captured),
    ("state", state),
    ("shapes", shapes),
];

// ANCHOR: layer
/// A layer, generic over its leaves: arrays inside a traced function, values outside.
#[derive(Tree, Clone)]
struct Layer<L = Array> {
    weight: L,
    bias: Option<L>,
    #[tree(static)]
    relu: bool,
}

impl Layer {
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let mut y = x.matmul(self.weight.t())?;
        if let Some(bias) = &self.bias {
            y = y.add(bias)?;
        }
        if self.relu { ops::maximum(y, Array::from_f32(0.0)) } else { Ok(y) }
    }
}

/// A layer whose weight is NF4, in blocks of the given size.
fn layer(block_size: usize) -> Result<Layer<Value>> {
    let weight = random::normal::<f32>(&[32, 64], None, None, &random::key(1)?)?;
    let bias = Array::from_slice(&[0.5f32; 32], &[32]);
    Ok(Layer { weight: Nf4Array::quantize(&weight, block_size)?.into(), bias: Some(bias.into()), relu: true })
}

fn ones(rows: i32) -> Result<Value> {
    Ok(ops::ones::<f32>(&[rows, 64])?.into())
}
// ANCHOR_END: layer

// ANCHOR: opened
/// The structure of a layer, with the implicit array as a leaf and opened.
fn opened() -> Result<String> {
    let layer = layer(64)?;
    let (_, closed) = tree::flatten(&layer, Open::Closed)?;
    let (_, open) = tree::flatten(&layer, Open::Fully)?;
    let paths: Vec<String> = open.paths().iter().map(ToString::to_string).collect();
    Ok(format!("{closed}\n{open}\n{}", paths.join(", ")))
}
// ANCHOR_END: opened

// ANCHOR: gradient
/// The loss of a layer and its gradient, which has the layer's own structure.
fn gradient() -> Result<String> {
    let mut step = value_and_grad(|(layer, x): (Layer, Array)| layer.forward(&x)?.square()?.mean(None));
    let (_, (gradient, of_x)) = step.call((layer(64)?, ones(2)?))?;
    let of_bias = gradient.bias.unwrap_or_default();
    Ok(format!("weight: {}\nbias: {of_bias}\nx: {of_x}", gradient.weight))
}
// ANCHOR_END: gradient

// ANCHOR: mapped
/// A layer written for one example, mapped over five; neither leaf of the layer has an axis for them.
fn mapped() -> Result<String> {
    let x = random::normal::<f32>(&[5, 64], None, None, &random::key(2)?)?;
    let _deny = Policy::Deny.scope();
    let mut each = vmap([None, None, Some(0)], 0, |(layer, x): (Layer, Array)| layer.forward(&x));
    let found = each.call((layer(64)?, x.clone()))?.dense()?;
    let together = implicit((layer(64)?, x), |(layer, x): (Layer, Array)| layer.forward(&x))?.dense()?;
    Ok(format!("{}, as all at once: {}", Aval::from(&found), found.all_close(&together, 1e-4, 1e-4, None)?))
}
// ANCHOR_END: mapped

// ANCHOR: pushed
/// What a small change of the input does: the derivative goes forward, with the value.
fn pushed() -> Result<String> {
    let (x, change) = (ops::ones::<f32>(&[1, 64])?, random::normal::<f32>(&[1, 64], None, None, &random::key(3)?)?);
    let plain = Layer { relu: false, bias: None, ..layer(64)? };
    let still = Layer { weight: Gradient::Nothing, bias: None, relu: false };
    let _deny = Policy::Deny.scope();
    let forward = |(layer, x): (Layer, Array)| layer.forward(&x);
    let (_, pushed) = jvp((plain.clone(), x), (still, Gradient::Dense(change.clone())), forward)?;
    // A layer without bias and activation is linear, so it does to the change what it does to an input.
    let expected = implicit((plain, change), forward)?.dense()?;
    Ok(format!("as the layer of the change: {}", pushed.dense()?.all_close(&expected, 1e-4, 1e-4, None)?))
}
// ANCHOR_END: pushed

// ANCHOR: recomputed
/// A layer whose inside is computed again for the gradient, in place of being kept.
fn recomputed() -> Result<String> {
    let forward = |(layer, x): (Layer, Array)| layer.forward(&x)?.square();
    let (inner, outer) = (layer(64)?, layer(64)?);
    let mut kept = value_and_grad(move |x: Array| implicit((outer.clone(), x), forward)?.dense()?.mean(None));
    let mut inside = checkpoint(forward);
    let mut recomputed = value_and_grad(move |x: Array| inside.call((inner.clone(), x))?.dense()?.mean(None));
    let _deny = Policy::Deny.scope();
    let ((_, a), (_, b)) = (kept.call(ones(2)?)?, recomputed.call(ones(2)?)?);
    Ok(format!("the same gradient: {}", a.array()?.all_close(b.array()?, 1e-5, 1e-5, None)?))
}
// ANCHOR_END: recomputed

// ANCHOR: retraces
/// One compiled function, called with several structures.
fn retraces() -> Result<String> {
    let mut forward = compile(|(layer, x): (Layer, Array)| layer.forward(&x));
    let plain = Layer { relu: false, ..layer(64)? };
    for _ in 0..100 {
        forward.call((layer(64)?, ones(1)?))?;
        forward.call((layer(32)?, ones(1)?))?;
        forward.call((layer(32)?, ones(8)?))?;
        forward.call((plain.clone(), ones(8)?))?;
    }
    let stats = forward.stats();
    let reasons: Vec<&str> = stats.retraces().collect();
    Ok(format!("calls: {}, traces: {}\n{}", stats.calls, stats.traces, reasons.join("\n")))
}
// ANCHOR_END: retraces

// ANCHOR: captured
/// A function that holds an array instead of taking it.
fn captured() -> Result<String> {
    let scale = Array::from_slice(&[1f32, 2.0, 3.0], &[3]);
    let options = CompileOptions { name: "scaled".into(), constants: Constants::Deny, ..CompileOptions::default() };
    let mut scaled = compile_with(options, |x: Array| x.multiply(&scale));
    let error = scaled.call(Array::from_f32(1.0)).expect_err("the scale is captured");
    Ok(error.to_string())
}
// ANCHOR_END: captured

// ANCHOR: state
/// A running mean, compiled with its sum and count as state.
fn state() -> Result<String> {
    let mut mean = compile_with_state(CompileOptions::default(), |(sum, count): &mut (Array, Array), x: Array| {
        *sum = sum.add(&x)?;
        *count = count.add(Array::from_f32(1.0))?;
        sum.divide(count)
    });
    let mut state = (Array::from_f32(0.0), Array::from_f32(0.0));
    let mut means = Vec::new();
    for x in [1.0, 3.0, 8.0] {
        means.push(mean.call(&mut state, Array::from_f32(x))?.dense()?.item_exact::<f32>().to_string());
    }
    Ok(format!("means: {}\ntraces: {}", means.join(", "), mean.stats().traces))
}
// ANCHOR_END: state

// ANCHOR: shapes
/// One trace for every number of rows, also of what a packed weight multiplies, and a function that cannot have that.
fn shapes() -> Result<String> {
    let shapeless = || CompileOptions { name: "mean".into(), shapeless: true, ..CompileOptions::default() };
    let mut mean = compile_with(shapeless(), |x: Array| x.mean_axis(0, false));
    for rows in 2..100 {
        mean.call(&ones(rows)?)?;
    }
    let weight = Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?;
    let mut product = compile_with(shapeless(), |(x, w): (Array, Array)| x.matmul(w.t()));
    for (batch, tokens) in [(2, 3), (5, 7)] {
        product.call((ops::ones::<f32>(&[batch, tokens, 64])?, &weight))?;
    }
    let mut wrong =
        compile_with(shapeless(), |x: Array| x.sum_axis(0, false)?.divide(Array::from_f32(x.shape()[0] as f32)));
    wrong.call(&ones(2)?)?;
    let error = wrong.call(&ones(3)?).expect_err("the number of rows went into the graph");
    let told = [mean.stats(), product.stats()].map(|stats| format!("calls: {}, traces: {}", stats.calls, stats.traces));
    Ok(format!("{}\n{error}", told.join("\n")))
}
// ANCHOR_END: shapes

pub(crate) fn main() -> Result<()> {
    for (title, section) in SECTIONS {
        println!("== {title}\n{}\n", section()?);
    }
    Ok(())
}
